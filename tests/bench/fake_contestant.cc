// A contestant's program for the tests of ProcessPair, RankGroup and Crowd. Its name says how it
// misbehaves:
//
//   "good" does everything.
//   "leaks" never releases an object.
//   "dies" exits in its first block.
//   "refuses" does not listen.
//   "toils" has a server that faults pages all the time.
//   "meets" are ranks that do everything.
//   "last dies" are ranks. The last one exits in the first block while the others wait for it.
//   "leads" are a leader and members. It is fastest with two members.
//   "follower dies" is the same, but the last member exits when it must join.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "weft/bench/contestants/child.h"
#include "weft/bench/processes/pair.h"
#include "weft/tests/bench/fake_client.h"

namespace weft::bench {
namespace {

constexpr size_t kToilBytes = 1 << 20;
constexpr size_t kPageBytes = 4096;

void fault_pages_for_ever() {
  for (;;) {
    void* memory =
        mmap(nullptr, kToilBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    for (size_t i = 0; i < kToilBytes; i += kPageBytes) static_cast<volatile char*>(memory)[i] = 1;
    munmap(memory, kToilBytes);
  }
}

class MisbehavingServer final : public Server {
 public:
  explicit MisbehavingServer(std::string name) : name_(std::move(name)) {}
  absl::StatusOr<std::string> listen() override {
    if (name_ == "refuses") return absl::ResourceExhaustedError("no port left");
    return "the address";
  }
  absl::Status serve() override {
    if (name_ == "toils") std::thread(fault_pages_for_ever).detach();
    return absl::OkStatus();
  }
  // 0 at the second look, like releases that are still in flight.
  int64_t live_objects() override { return name_ == "leaks" ? 1 : looks_++ == 0; }

 private:
  const std::string name_;
  int looks_ = 0;
};

class MisbehavingClient final : public Client {
 public:
  explicit MisbehavingClient(std::string name) : name_(std::move(name)) {}
  absl::Status connect(const std::string& address) override {
    return address == "the address" ? absl::OkStatus() : absl::NotFoundError(address);
  }
  absl::Status add() override {
    if (name_ == "dies") raise(SIGKILL);
    // A slow client records few latencies, so its own page faults stay few.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (name_ == "toils" && std::chrono::steady_clock::now() < end) {
    }
    return absl::OkStatus();
  }
  absl::Status rref_life() override { return absl::OkStatus(); }

 private:
  const std::string name_;
};

// Ranks that really wait for each other, at a barrier in shared memory.
class MeetingRank final : public Rank {
 public:
  MeetingRank(std::string name, int rank, int ranks)
      : name_(std::move(name)), rank_(rank), ranks_(ranks) {}

  absl::StatusOr<std::string> listen() override {
    if (name_ == "refuses") return absl::ResourceExhaustedError("no port left");
    const std::string address = "/weft_bench_fake_" + std::to_string(getpid());
    map(address, O_CREAT | O_EXCL);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier_, &shared, static_cast<unsigned>(ranks_));
    return address;
  }
  absl::Status join(const std::string& address) override {
    if (rank_ != 0) map(address, 0);
    wait_for_all();
    if (rank_ == 0) shm_unlink(address.c_str());
    return absl::OkStatus();
  }
  absl::Status prepare(const Row& row) override {
    if (row.work != Work::kAllReduce) return absl::UnimplementedError("sums only");
    wait_for_all();
    return absl::OkStatus();
  }
  absl::Status all_reduce() override {
    if (name_ == "last dies" && rank_ == ranks_ - 1) raise(SIGKILL);
    wait_for_all();
    return absl::OkStatus();
  }
  absl::Status meet() override { return absl::OkStatus(); }
  absl::Status local_step() override { return absl::OkStatus(); }
  absl::Status ddp_step() override { return absl::OkStatus(); }

 private:
  void map(const std::string& address, int flags) {
    const int file = shm_open(address.c_str(), O_RDWR | flags, S_IRUSR | S_IWUSR);
    if (file < 0 || ftruncate(file, kPageBytes) != 0) std::abort();
    void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) std::abort();
    ::close(file);
    barrier_ = static_cast<pthread_barrier_t*>(memory);
  }
  void wait_for_all() { pthread_barrier_wait(barrier_); }

  const std::string name_;
  const int rank_;
  const int ranks_;
  pthread_barrier_t* barrier_ = nullptr;
};

class CountingLeader final : public Leader {
 public:
  absl::StatusOr<std::string> listen() override { return "the door"; }
  absl::Status join(const std::string& address, int) override {
    return address == "the door" ? absl::OkStatus() : absl::NotFoundError(address);
  }
  absl::StatusOr<BlockResult> run(const Row& row, int64_t amount, double seconds) override {
    if (row.work == Work::kBatched16) return absl::UnimplementedError("no such row");
    return BlockResult{.calls = amount == 2 ? 100 : 10,
                       .seconds = seconds,
                       .all_calls = 100,
                       .usage = {},
                       .mean_batch = static_cast<double>(amount)};
  }
};

class CountedMember final : public Member {
 public:
  explicit CountedMember(std::string name) : name_(std::move(name)) {}
  absl::Status join(const std::string& address, int member, int members) override {
    if (name_ == "follower dies" && member == members - 1) raise(SIGKILL);
    return address == "the door" ? absl::OkStatus() : absl::NotFoundError(address);
  }

 private:
  const std::string name_;
};

int run(int argc, char** argv) {
  // contestant --name NAME --role ROLE, and for a rank also --rank R --ranks N
  if (argc < 6) return EXIT_FAILURE;
  const std::string name = argv[3];
  Channel driver(kDriverSocket);
  if (std::string(argv[5]) == "rank") {
    if (argc < 10) return EXIT_FAILURE;
    SystemClock clock;
    MeetingRank rank(name, std::stoi(argv[7]), std::stoi(argv[9]));
    run_rank(driver, rank, ddp_rows(), clock);
  } else if (std::string(argv[5]) == "leader") {
    CountingLeader leader;
    run_leader(driver, leader, rl_rows());
  } else if (std::string(argv[5]) == "member") {
    CountedMember member(name);
    run_member(driver, member);
  } else if (std::string(argv[5]) == "server") {
    MisbehavingServer server(name);
    run_server(driver, server);
  } else {
    SystemClock clock;
    MisbehavingClient client(name);
    run_client(driver, client, clock);
  }
  std::_Exit(EXIT_SUCCESS);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(argc, argv); }
