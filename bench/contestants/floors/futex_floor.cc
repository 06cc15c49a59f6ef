#include <chrono>
#include <optional>
#include <thread>

#include "weft/base/status.h"
#include "weft/bench/contestants/floors/floors.h"
#include "weft/bench/contestants/floors/stamps.h"
#include "weft/shm/sealed_memory.h"
#include "weft/shm/wait_word.h"
#include "weft/sockets/local_socket.h"

namespace weft::bench {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);  // to meet, and for one answer

LocalSocket::TimePoint patient_deadline() { return std::chrono::steady_clock::now() + kPatience; }

// Lies in zeroed shared memory and is never constructed. The numbers count calls and answers. The
// side that is to write next is the only one that touches the data.
struct CallCell {
  WaitWord calls;
  WaitWord answers;
  Summands summands;
  Sum sum;
};

CallCell& cell_in(const SealedMemory& memory) {
  return *reinterpret_cast<CallCell*>(memory.data());
}

class FutexServer final : public Server {
 public:
  ~FutexServer() override { stop(); }

  absl::StatusOr<std::string> listen() override {
    WEFT_ASSIGN_OR_RETURN(memory_, SealedMemory::create("weft_bench_futex", sizeof(CallCell)));
    WEFT_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::create());
    listener_.emplace(std::move(listener));
    return listener_->name();
  }

  absl::Status serve() override {
    WEFT_ASSIGN_OR_RETURN(LocalSocket client, listener_->accept(patient_deadline()));
    const int descriptor = memory_.descriptor();
    WEFT_RETURN_IF_ERROR(client.send("memory", {&descriptor, 1}, patient_deadline()));
    thread_ = std::thread([this] { answer_calls(); });
    return absl::OkStatus();
  }

  void close() override { stop(); }

 private:
  void answer_calls() {
    CallCell& cell = cell_in(memory_);
    for (uint32_t answered = 0;;) {
      while (cell.calls.load() == answered) cell.calls.sleep(answered, WaitWord::TimePoint::max());
      if (closing_.load()) return;
      cell.sum = sum_of(cell.summands);
      cell.answers.move_to(++answered);
    }
  }

  void stop() {
    if (!thread_.joinable()) return;
    closing_.store(true);
    cell_in(memory_).calls.advance();
    thread_.join();
  }

  SealedMemory memory_;
  std::optional<LocalListener> listener_;
  std::atomic<bool> closing_ = false;
  std::thread thread_;
};

class FutexClient final : public Client {
 public:
  absl::Status connect(const std::string& address) override {
    WEFT_ASSIGN_OR_RETURN(LocalSocket server, LocalSocket::connect(address, patient_deadline()));
    WEFT_ASSIGN_OR_RETURN(LocalSocket::Message message, server.receive(patient_deadline()));
    if (message.descriptors.size() != 1) return absl::DataLossError("no memory came");
    const size_t size = rounded_to_pages(sizeof(CallCell));
    WEFT_ASSIGN_OR_RETURN(memory_, SealedMemory::adopt(std::move(message.descriptors[0]), size));
    return absl::OkStatus();
  }

  absl::Status add() override {
    CallCell& cell = cell_in(memory_);
    cell.summands = Summands();
    cell.sum = Sum();
    cell.calls.move_to(++called_);
    while (cell.answers.load() != called_) {
      if (!cell.answers.sleep(called_ - 1, patient_deadline())) {
        return absl::DeadlineExceededError("no answer through the futex");
      }
    }
    return check_sum(cell.sum);
  }

 private:
  static size_t rounded_to_pages(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

  SealedMemory memory_;
  uint32_t called_ = 0;
};

}  // namespace

Contestant futex_floor() {
  return {.name = "futex",
          .make_server = [] { return std::make_unique<FutexServer>(); },
          .make_client = [] { return std::make_unique<FutexClient>(); }};
}

}  // namespace weft::bench
