#include "weft/worker/store/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/async/serial_thread.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/sockets/tcp_port.h"
#include "weft/worker/store/hosted_stores.h"

namespace weft {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);  // fits every clock's type
constexpr absl::Duration kFirstPoll = absl::Milliseconds(1);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(20);

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

absl::Status translate(const std::string& store, std::exception_ptr exception) {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const c10d::TimeoutError& error) {
    return absl::DeadlineExceededError(absl::StrCat(store, ": ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::UnavailableError(absl::StrCat(store, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(store, ": ", error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(store, ": an exception of unknown type"));
  }
}

// One thread makes all calls on one c10d store. A caller gives up at its timeout, while the thread
// may still hang inside c10d. The thread then keeps itself and the store alive. Until it is back,
// further calls are refused at once. So no calls pile up, and none begins after its caller was told
// that it failed.
class StoreCalls {
 public:
  explicit StoreCalls(const std::string& description)
      : shared_(std::make_shared<Shared>(description)),
        thread_(SerialThread::StartLater{}, SerialThread::AtEnd::kRun, description) {}
  // Destroys the store on the thread, after the queued tasks. Waits for that unless the thread
  // hangs.
  ~StoreCalls() {
    thread_.run([shared = shared_] { shared->store.reset(); });
    if (hanging()) thread_.detach();
  }

  const std::string& description() const { return shared_->description; }

  absl::Status start() { return thread_.start(); }

  // Runs `function` on the thread. Its exceptions become statuses.
  template <class Function, class Result = std::invoke_result_t<Function, StorePointer&>>
  absl::StatusOr<Result> call(absl::Duration timeout, Function function) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<Result>>>();
    std::future<absl::StatusOr<Result>> answer = promise->get_future();
    const auto given_up = std::make_shared<std::atomic<bool>>(false);
    auto task = [shared = shared_, promise, given_up, function = std::move(function)]() mutable {
      if (!given_up->load()) {
        try {
          promise->set_value(function(shared->store));
        } catch (...) {
          promise->set_value(translate(shared->description, std::current_exception()));
        }
      }
      MutexLock lock(shared->mutex);
      shared->hanging = false;
    };
    {
      MutexLock lock(shared_->mutex);  // no call is queued behind one that was given up
      if (shared_->hanging) {
        return absl::DeadlineExceededError(
            absl::StrCat(description(), ": still owes the answer to an earlier question"));
      }
      thread_.run(std::move(task));
    }
    if (answer.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready) {
      return answer.get();
    }
    MutexLock lock(shared_->mutex);
    // If it is not ready, the thread can clear `hanging` for this task only after this block.
    if (answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return answer.get();
    given_up->store(true);
    shared_->hanging = true;
    return absl::DeadlineExceededError(
        absl::StrCat(description(), ": no answer within ", absl::FormatDuration(timeout)));
  }

 private:
  // Shared with the tasks, which may outlive this object.
  struct Shared {
    explicit Shared(std::string description_in) : description(std::move(description_in)) {}
    const std::string description;
    StorePointer store;  // only the thread uses it
    Mutex mutex;
    bool hanging ABSL_GUARDED_BY(mutex) = false;  // in a call that its caller has given up
  };

  bool hanging() const {
    MutexLock lock(shared_->mutex);
    return shared_->hanging;
  }

  const std::shared_ptr<Shared> shared_;
  SerialThread thread_;
};

class C10dStore final : public RendezvousStore {
 public:
  C10dStore(const std::string& description, absl::Duration timeout)
      : timeout_(std::min(timeout, kLongestTimeout)), calls_(description) {}

  absl::Status open(const std::string& host, const c10d::TCPStoreOptions& options,
                    absl::Duration timeout) {
    WEFT_RETURN_IF_ERROR(calls_.start());
    return calls_
        .call(timeout,
              [host, options](StorePointer& store) {
                store = c10::make_intrusive<c10d::TCPStore>(host, options);
                return true;
              })
        .status();
  }

  absl::Status set(const std::string& key, const std::string& value) override {
    return calls_
        .call(timeout_,
              [key, value](StorePointer& store) {
                store->set(key, to_bytes(value));
                return true;
              })
        .status();
  }

  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(wait({key}, timeout));
    WEFT_ASSIGN_OR_RETURN(std::optional<std::string> value, try_get(key));
    if (value) return *std::move(value);
    return absl::UnavailableError(absl::StrCat(description(), ": '", key, "' vanished"));
  }

  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    return calls_.call(timeout_, [key](StorePointer& store) -> std::optional<std::string> {
      if (!store->check({key})) return std::nullopt;
      return to_text(store->get(key));
    });
  }

  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    // TCPStore's server parses the old value. If that is no number, it ends its process.
    WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> held, try_get(key));
    int64_t number = 0;
    if (held && !absl::SimpleAtoi(*held, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(description(), ": '", key, "' holds no number"));
    }
    return calls_.call(timeout_,
                       [key, amount](StorePointer& store) { return store->add(key, amount); });
  }

  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    WEFT_ASSIGN_OR_RETURN(
        std::string held, calls_.call(timeout_, [key, expected, desired](StorePointer& store) {
          return to_text(store->compareSet(key, to_bytes(expected), to_bytes(desired)));
        }));
    // If the key is absent, TCPStore answers `expected`. If the key had held `expected`, the answer
    // would be `desired`.
    if (held == expected && expected != desired) return std::string();
    return held;
  }

  // Polls, because c10d's own wait occupies the store's only connection and logs its timeouts. It
  // would also keep a hosting process from its own store.
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    const auto start = std::chrono::steady_clock::now();
    absl::Duration pause = kFirstPoll;
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const bool there, calls_.call(timeout_, [keys](StorePointer& store) {
        return store->check(keys);
      }));
      if (there) return absl::OkStatus();
      const absl::Duration left =
          timeout - absl::FromChrono(std::chrono::steady_clock::now() - start);
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat(description(), ": no '", keys.front(), "'",
                         keys.size() > 1 ? absl::StrCat(" or another of ", keys.size()) : "",
                         " within ", absl::FormatDuration(timeout)));
      }
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(std::min(pause, left)));
      pause = std::min(2 * pause, kLongestPoll);
    }
  }

  std::string description() const override { return calls_.description(); }

 private:
  const absl::Duration timeout_;
  StoreCalls calls_;
};

absl::StatusOr<std::unique_ptr<RendezvousStore>> open_store(const std::string& host, uint16_t port,
                                                            absl::Duration open_timeout,
                                                            absl::Duration call_timeout,
                                                            std::optional<int> listening_fd) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = listening_fd.has_value();
  options.waitWorkers = false;
  options.timeout = absl::ToChronoMilliseconds(std::min(call_timeout, kLongestTimeout));
  if (listening_fd) options.masterListenFd = *listening_fd;
  auto store = std::make_unique<C10dStore>(absl::StrCat("rendezvous store at ", host, ":", port),
                                           call_timeout);
  WEFT_RETURN_IF_ERROR(store->open(host, options, std::min(open_timeout, kLongestTimeout)));
  return store;
}

}  // namespace

absl::StatusOr<HostedStore> host_rendezvous_store(const RendezvousOptions& options) {
  WEFT_ASSIGN_OR_RETURN(ListeningPort listening, listen_on(options.host, options.port));
  HostedStore result;
  result.port = listening.port;
  // The store closes the socket, also if it fails to start.
  WEFT_ASSIGN_OR_RETURN(result.store, open_store(options.host, listening.port, options.timeout,
                                                 options.timeout, listening.socket.release()));
  return result;
}

absl::StatusOr<std::unique_ptr<RendezvousStore>> connect_rendezvous_store(
    const RendezvousOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status reachable = wait_until_reachable(options.host, options.port, options.timeout);
  if (!reachable.ok()) return prepend("rendezvous store: ", reachable);
  const absl::Duration passed = absl::FromChrono(std::chrono::steady_clock::now() - start);
  const absl::Duration left = std::max(options.timeout - passed, absl::Milliseconds(100));
  return open_store(options.host, options.port, left, options.timeout, std::nullopt);
}

absl::StatusOr<std::unique_ptr<RendezvousStore>> open_rendezvous_store(
    const LaunchEnvironment& environment, absl::Duration timeout) {
  RendezvousOptions options;
  options.host = environment.master_addr;
  options.port = environment.master_port;
  options.timeout = timeout;
  if (!environment.hosts_store()) return connect_rendezvous_store(options);
  return worker_internal::share_hosted_store(
      options.host, options.port, [&options]() -> absl::StatusOr<std::unique_ptr<RendezvousStore>> {
        WEFT_ASSIGN_OR_RETURN(HostedStore hosted, host_rendezvous_store(options));
        return std::move(hosted.store);
      });
}

}  // namespace weft
