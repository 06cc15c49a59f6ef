// Runs random collectives as one rank of a group until another rank dies; for kill_test.
//
//   kill_rank DIRECTORY RANK SIZE SEED TIMEOUT_MS
//
// Ranks find each other through files in DIRECTORY. The program prints "ready" once all ranks are
// connected. Then it runs operations that follow from SEED, and checks their results.
//
// When an operation fails, the program prints "failed MILLISECONDS: ERROR"; the number is how long
// that operation took. It destroys its group and compares what the process still holds with what it
// held before. It prints "left NOTHING", or what is left, and exits with 0. If a result is wrong,
// it exits with 3.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/comm/same_host/arenas.h"
#include "weft/comm/same_host/collective_group.h"
#include "weft/comm/same_host/mesh.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A file is written under another name and then renamed, so that readers see whole files only.
class FileNotices : public Noticeboard {
 public:
  explicit FileNotices(std::string directory) : directory_(std::move(directory)) {}
  absl::Status post(int rank, const std::string& text) override {
    const std::string path = path_of(rank), beside = absl::StrCat(path, ".new");
    std::ofstream(beside) << text;
    if (std::rename(beside.c_str(), path.c_str()) != 0) return absl::InternalError("rename");
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> read(int rank, TimePoint deadline) override {
    while (Clock::now() < deadline) {
      std::ifstream file(path_of(rank));
      if (file) return std::string(std::istreambuf_iterator<char>(file), {});
      std::this_thread::sleep_for(milliseconds(1));  // a new file wakes nobody
    }
    return absl::DeadlineExceededError("nothing was posted");
  }

 private:
  std::string path_of(int rank) const { return absl::StrCat(directory_, "/rank", rank); }
  const std::string directory_;
};

void add_floats(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const std::byte* source : sources) sum += reinterpret_cast<const float*>(source)[i];
    for (std::byte* target : targets) reinterpret_cast<float*>(target)[i] = sum;
  }
}

// One rank and the operations that it runs.
class Rank {
 public:
  Rank(std::shared_ptr<Mesh> mesh, milliseconds timeout)
      : arenas_(mesh), group_(mesh, options_of(arenas_)), timeout_(timeout) {}

  CollectiveGroup& group() { return group_; }

  // Runs one operation. All ranks draw the same kind and size.
  absl::Status run(uint64_t kind, size_t count, bool resident) {
    switch (kind) {
      case 0:
        return wait(named("barrier"));
      case 1:
        return broadcast(count);
      case 2:
        return exchange(count);
      default:
        return all_reduce(count, resident);
    }
  }

 private:
  using TimePoint = Clock::time_point;

  static CollectiveGroup::Options options_of(Arenas& arenas) {
    CollectiveGroup::Options options;
    options.arenas = &arenas;
    return options;
  }
  static Operation named(const char* label) {
    Operation operation;
    operation.label = label;
    return operation;
  }
  TimePoint deadline() const { return Clock::now() + timeout_; }
  absl::Status wait(Operation operation) {
    const auto work = group_.start(std::move(operation), deadline());
    return group_.wait(work, deadline() + milliseconds(60'000));
  }
  static void expect(bool right, const char* what) {
    if (right) return;
    std::printf("wrong %s\n", what);
    std::_Exit(3);
  }

  absl::Status all_reduce(size_t count, bool resident) {
    std::vector<float> own;
    Arenas::Block block;
    float* data = nullptr;
    if (resident) {
      WEFT_ASSIGN_OR_RETURN(block, arenas_.allocate(count * sizeof(float), deadline()));
      data = reinterpret_cast<float*>(block.data);
    } else {
      own.resize(count);
      data = own.data();
    }
    std::fill_n(data, count, static_cast<float>(group_.rank() + 1));
    Operation operation = named("all_reduce");
    operation.parts = {{reinterpret_cast<std::byte*>(data), count * sizeof(float)}};
    operation.resident = arenas_.find(operation.parts[0].data, operation.parts[0].size);
    operation.sum = Operation::Sum::kEverywhere;
    operation.kernel = add_floats;
    operation.element_bytes = sizeof(float);
    WEFT_RETURN_IF_ERROR(wait(std::move(operation)));
    const int size = group_.size();
    for (size_t i = 0; i < count; ++i) {
      expect(data[i] == static_cast<float>(size * (size + 1) / 2), "sum");
    }
    return absl::OkStatus();
  }

  absl::Status broadcast(size_t count) {
    const int root = static_cast<int>(count) % group_.size();
    std::vector<std::byte> data(count, std::byte(group_.rank()));
    Operation operation = named("broadcast");
    operation.root = root;
    if (group_.rank() == root) {
      operation.parts = {{data.data(), count}};
    } else {
      operation.pulls = {{root, 0, count, data.data()}};
    }
    WEFT_RETURN_IF_ERROR(wait(std::move(operation)));
    for (const std::byte one : data) expect(one == std::byte(root), "broadcast");
    return absl::OkStatus();
  }

  // Each rank sends to the next one.
  absl::Status exchange(size_t count) {
    const int size = group_.size(), rank = group_.rank();
    if (size == 1) return absl::OkStatus();
    std::vector<std::byte> out(count, std::byte(rank)), in(count);
    Channels::Message message;
    message.data = out.data();
    message.size = count;
    message.peer = (rank + 1) % size;
    const auto send = group_.send(message, deadline());
    message.data = in.data();
    message.peer = (rank + size - 1) % size;
    const auto receive = group_.receive(message, deadline());
    const absl::Status sent = group_.wait(send, TimePoint::max());
    WEFT_RETURN_IF_ERROR(group_.wait(receive, TimePoint::max()));
    for (const std::byte one : in) expect(one == std::byte((rank + size - 1) % size), "message");
    return sent;
  }

  Arenas arenas_;
  CollectiveGroup group_;  // destroyed before arenas_
  const milliseconds timeout_;
};

int entries_in(const char* path) {
  int count = 0;
  DIR* const directory = opendir(path);
  if (directory == nullptr) return -1;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Counts of what this process holds.
struct Belongings {
  int descriptors = entries_in("/proc/self/fd");
  int threads = entries_in("/proc/self/task");
  int shared = shared_mappings();

  static int shared_mappings() {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("weft-") != std::string::npos) ++count;
    }
    return count;
  }
};

int run(const std::string& directory, int rank, int size, uint64_t seed, milliseconds timeout) {
  std::thread([] {}).join();  // the first thread makes ThreadSanitizer start one of its own
  const Belongings before;
  std::string error;
  Clock::duration took{};
  {
    FileNotices notices(directory);
    auto mesh = Mesh::form(rank, size, notices, Clock::now() + std::chrono::seconds(60));
    if (!mesh.ok()) {
      std::printf("not connected: %s\n", std::string(mesh.status().message()).c_str());
      return 2;
    }
    Rank me(*std::move(mesh), timeout);
    std::printf("ready\n");
    std::fflush(stdout);
    std::mt19937_64 random(seed);
    absl::Status status;
    while (status.ok()) {
      const uint64_t kind = random() % 6, draw = random();
      const size_t most = draw % 3 == 0 ? 1'500'000 : 3'000;  // large: pieces, arenas; small: slots
      const size_t count = 1 + random() % most;
      const auto begin = Clock::now();
      status = me.run(kind, count, draw % 2 == 0);
      took = Clock::now() - begin;
    }
    error = std::string(status.message());
  }
  std::printf("failed %lld: %s\n",
              static_cast<long long>(std::chrono::duration_cast<milliseconds>(took).count()),
              error.c_str());
  Belongings after;
  // The kernel still shows a thread for a moment after it was joined. `before` may count one too.
  const auto patience = Clock::now() + std::chrono::seconds(5);
  while (after.threads > before.threads && Clock::now() < patience) {
    std::this_thread::yield();
    after = Belongings();
  }
  if (after.descriptors == before.descriptors && after.threads <= before.threads &&
      after.shared == before.shared) {
    std::printf("left NOTHING\n");
  } else {
    std::printf("left %d descriptors (%d before), %d threads (%d), %d mappings (%d)\n",
                after.descriptors, before.descriptors, after.threads, before.threads, after.shared,
                before.shared);
  }
  return 0;
}

}  // namespace
}  // namespace weft::comm_internal

int main(int count, char** words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the kernel kills this process when kill_test dies
  if (count != 6) {
    std::fprintf(stderr, "usage: kill_rank DIRECTORY RANK SIZE SEED TIMEOUT_MS\n");
    return 1;
  }
  return weft::comm_internal::run(words[1], std::atoi(words[2]), std::atoi(words[3]),
                                  std::strtoull(words[4], nullptr, 10),
                                  std::chrono::milliseconds(std::atoll(words[5])));
}
