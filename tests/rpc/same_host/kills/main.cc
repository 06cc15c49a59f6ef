// weft_shm_kill_test [--kills N] [--seed S]
//
// Kills workers of this host at random moments, while they exchange tensors with one that survives.
// Afterwards no call may hang, no byte may be wrong, each failed call must name the peer, and the
// survivor must have as many descriptors, mappings and blocks as before, and no more memory.
//
// weft_shm_kill_test --victim INDEX ADDRESS SEED   is one worker that is killed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <malloc.h>
#include <random>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/tests/rpc/same_host/kills/traffic.h"
#include "weft/tests/rpc/same_host/process_state.h"
#include "weft/tests/support/eventually.h"

extern char** environ;

namespace weft::testing {
namespace {

constexpr WorkerId kSurvivor{0, 1};
constexpr int kCorrupt = 3;  // exit code of a victim

WorkerId victim_id(uint32_t index) { return {index, 1}; }
std::string victim_name(uint32_t index) { return absl::StrCat("victim", index); }

int victim(uint32_t index, const std::string& address, uint64_t seed) {
  KillTestWorker worker(victim_id(index), victim_name(index), seed, [](const std::string& what) {
    std::cerr << what << std::endl;
    std::_Exit(kCorrupt);
  });
  const WorkerInfo survivor{kSurvivor, "survivor", address};
  if (!worker.start({survivor}).ok()) return 1;
  worker.begin_traffic(survivor);
  while (true) ::pause();
}

pid_t spawn(const std::string& program, uint32_t index, const std::string& address, uint64_t seed) {
  const std::vector<std::string> words = {program, "--victim", std::to_string(index), address,
                                          std::to_string(seed)};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t process = -1;
  const int error =
      ::posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), environ);
  return error == 0 ? process : -1;
}

struct State {
  size_t descriptors = 0;
  size_t mappings = 0;
  size_t allocated = 0;  // bytes
};

State state_of_process() {
  return {open_descriptors(), shared_mappings(), static_cast<size_t>(::mallinfo2().uordblks)};
}

class KillTest {
 public:
  KillTest(std::string program, uint64_t seed)
      : program_(std::move(program)),
        seed_(seed),
        survivor_(kSurvivor, "survivor", seed, [this](const std::string& what) {
          std::cerr << what << std::endl;
          faults_.fetch_add(1);
        }) {}

  int run(uint32_t kills) {
    if (const absl::Status started = survivor_.start({}); !started.ok()) {
      std::cerr << started << std::endl;
      return 1;
    }
    // Threads, pools and malloc's arenas grow at first.
    const uint32_t first = std::min(kills, 20u);
    kill_all(1, first);
    const State before = settled(1000);
    kill_all(first + 1, kills);
    const State after = settled(before.descriptors);
    const BlockArena::Statistics arena = survivor_.arena();
    std::cout << kills << " kills, " << replies_.load() << " replies, " << killed_in_traffic_.load()
              << " kills in traffic, " << arena.returned << " blocks came back; descriptors "
              << before.descriptors << " -> " << after.descriptors << ", mappings "
              << before.mappings << " -> " << after.mappings << ", allocated "
              << before.allocated / 1024 << " -> " << after.allocated / 1024 << " KiB" << std::endl;
    expect(after.descriptors <= before.descriptors, "descriptors are left");
    expect(after.mappings <= before.mappings, "mappings are left");
    expect(arena.blocks.lent_blocks == 0 && arena.blocks.held_blocks == 0, "blocks are left");
    expect(arena.violations == 0, "a peer broke the protocol");
    expect(survivor_.agent().retained_frames == 0, "frames for dead peers are left");
    // The agent remembers the last 1,024 peers that are gone, with some KiB each.
    expect(after.allocated <= before.allocated + 8192 * std::min(kills, 1024u) + (1u << 20),
           "memory is left");
    return faults_.load() == 0 ? 0 : 1;
  }

 private:
  void expect(bool true_here, const std::string& otherwise) {
    if (true_here) return;
    std::cerr << otherwise << std::endl;
    faults_.fetch_add(1);
  }

  // Kills the victims `first` to `last`, two at a time.
  void kill_all(uint32_t first, uint32_t last) {
    std::atomic<uint32_t> next{first};
    const auto work = [&] {
      for (uint32_t index = next++; index <= last && faults_.load() == 0; index = next++) {
        kill_one(index);
      }
    };
    std::thread other(work);
    work();
    other.join();
  }

  void kill_one(uint32_t index) {
    std::mt19937_64 random(seed_ * 1000003 + index);
    const WorkerInfo peer{victim_id(index), victim_name(index), ""};
    const pid_t process = spawn(program_, index, survivor_.info().address, random());
    if (process < 0) return expect(false, "no process can be started");
    const bool early = random() % 8 == 0;  // also while it joins
    bool met = false;
    if (!early) {
      met = eventually([&] { return survivor_.knows(peer.id); });
      expect(met, absl::StrCat(peer.name, " does not join"));
      survivor_.begin_traffic(peer);
      expect(eventually([&] { return survivor_.replies(peer.id) > 0; }),
             absl::StrCat(peer.name, " does not reply"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    expect(::kill(process, SIGKILL) == 0, "the victim is gone");
    int status = 0;
    ::waitpid(process, &status, 0);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
           absl::StrCat(peer.name, " ended by itself"));
    expect(eventually([&] { return survivor_.open_calls(peer.id) == 0; }),
           absl::StrCat(survivor_.open_calls(peer.id), " calls to ", peer.name, " hang"));
    replies_.fetch_add(survivor_.replies(peer.id));
    killed_in_traffic_.fetch_add(met ? 1 : 0);
  }

  // When the survivor has let go of all that belonged to victims, or after 20 s.
  State settled(size_t most_descriptors) {
    (void)eventually([&] {
      const BlockArena::Statistics arena = survivor_.arena();
      return arena.blocks.lent_blocks == 0 && arena.blocks.held_blocks == 0 &&
             arena.blocks.segments == 0 && shared_mappings() == 1 &&
             open_descriptors() <= most_descriptors;
    });
    return state_of_process();
  }

  const std::string program_;
  const uint64_t seed_;
  std::atomic<uint64_t> faults_{0}, replies_{0}, killed_in_traffic_{0};
  KillTestWorker survivor_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 5 && arguments[1] == "--victim") {
    return victim(static_cast<uint32_t>(std::stoul(arguments[2])), arguments[3],
                  std::stoull(arguments[4]));
  }
  uint32_t kills = 20;
  uint64_t seed = std::random_device()();
  for (size_t i = 1; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--kills") kills = static_cast<uint32_t>(std::stoul(arguments[i + 1]));
    if (arguments[i] == "--seed") seed = std::stoull(arguments[i + 1]);
  }
  std::cout << "--seed " << seed << std::endl;
  return KillTest("/proc/self/exe", seed).run(kills);
}

}  // namespace
}  // namespace weft::testing

int main(int count, char** arguments) { return weft::testing::run({arguments, arguments + count}); }
