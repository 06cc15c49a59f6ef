#include "weft/store/job/tcp_store_notice.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "weft/async/serial_thread.h"
#include "weft/base/status.h"
#include "weft/sockets/tcp_port.h"

namespace weft {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kLongestTimeout = absl::Hours(24);
constexpr std::chrono::milliseconds kPoll(20);

// Runs on the store, on a thread that may be left behind.
using Use = std::function<absl::StatusOr<std::string>(c10d::TCPStore& store)>;

absl::StatusOr<std::string> open_and_use(const std::string& host,
                                         const c10d::TCPStoreOptions& options, const Use& use) {
  try {
    c10d::TCPStore store(host, options);
    return use(store);
  } catch (const c10::Error& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
}

absl::StatusOr<std::string> on_store(const TcpStoreNotice& notice, SteadyClock::time_point deadline,
                                     Use use) {
  const std::string store = absl::StrCat("launcher's store at ", notice.host, ":", notice.port);
  const auto left = [deadline] {
    return std::max(absl::FromChrono(deadline - SteadyClock::now()), absl::Milliseconds(1));
  };
  const absl::Status reachable = wait_until_reachable(notice.host, notice.port, left());
  if (!reachable.ok()) return prepend(absl::StrCat(store, ": "), reachable);
  c10d::TCPStoreOptions options;
  options.port = notice.port;
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = absl::ToChronoMilliseconds(left() + absl::Milliseconds(1));
  const auto promise = std::make_shared<std::promise<absl::StatusOr<std::string>>>();
  std::future<absl::StatusOr<std::string>> answer = promise->get_future();
  SerialThread thread(SerialThread::StartLater{}, SerialThread::AtEnd::kRun,
                      "the launcher's store");
  WEFT_RETURN_IF_ERROR(thread.start());
  thread.run([promise, host = notice.host, options, use = std::move(use)] {
    promise->set_value(open_and_use(host, options, use));
  });
  if (answer.wait_until(deadline) != std::future_status::ready) {
    thread.detach();
    return absl::DeadlineExceededError(absl::StrCat(store, ": no answer in time"));
  }
  absl::StatusOr<std::string> result = answer.get();
  if (!result.ok()) return prepend(absl::StrCat(store, ": "), result.status());
  return result;
}

SteadyClock::time_point deadline_of(absl::Duration timeout) {
  return SteadyClock::now() + absl::ToChronoNanoseconds(std::min(timeout, kLongestTimeout));
}

}  // namespace

absl::Status post_notice(const TcpStoreNotice& notice, const std::string& text,
                         absl::Duration timeout) {
  return on_store(notice, deadline_of(timeout),
                  [key = notice.key, text](c10d::TCPStore& store) -> absl::StatusOr<std::string> {
                    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
                    // Not `set` alone, which is not answered.
                    const std::vector<uint8_t> held = store.get(key);
                    return std::string(held.begin(), held.end());
                  })
      .status();
}

absl::StatusOr<std::string> read_notice(const TcpStoreNotice& notice, absl::Duration timeout) {
  const SteadyClock::time_point deadline = deadline_of(timeout);
  return on_store(
      notice, deadline,
      [key = notice.key, deadline](c10d::TCPStore& store) -> absl::StatusOr<std::string> {
        // Not c10d's own wait, which logs its timeouts.
        while (!store.check({key})) {
          if (SteadyClock::now() >= deadline) {
            return absl::DeadlineExceededError(absl::StrCat("no '", key, "': has rank 0 started?"));
          }
          std::this_thread::sleep_for(kPoll);
        }
        const std::vector<uint8_t> held = store.get(key);
        return std::string(held.begin(), held.end());
      });
}

}  // namespace weft
