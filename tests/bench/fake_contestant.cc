// A contestant's program for the tests of ProcessPair: its name says how it misbehaves.
//
//   "good"      does everything; "leaks" never releases an object; "dies" is gone in its first
//   block "refuses"   does not listen; "toils" has a server that faults pages all the time
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <thread>

#include "weft/bench/contestants/child.h"
#include "weft/bench/pair.h"
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
  // Gone at the second look, as with releases that are still on their way.
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
    // A client that is slow remembers few latencies: its own page faults stay few.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (name_ == "toils" && std::chrono::steady_clock::now() < end) {
    }
    return absl::OkStatus();
  }
  absl::Status rref_life() override { return absl::OkStatus(); }

 private:
  const std::string name_;
};

int run(int argc, char** argv) {
  // contestant --name NAME --role ROLE
  if (argc < 6) return EXIT_FAILURE;
  const std::string name = argv[3];
  Channel driver(kDriverSocket);
  if (std::string(argv[5]) == "server") {
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
