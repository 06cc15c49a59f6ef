#include "weft/worker/stop_request.h"

#include <atomic>
#include <errno.h>
#include <memory>
#include <mutex>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/thread.h"
#include "weft/sockets/file_descriptor.h"
#include "weft/worker/signal_stack.h"

namespace weft {
namespace {

// The handler may only use what is safe in a signal handler: lock-free atomics and write.
std::atomic<bool> asked{false};
std::atomic<int> wakeup{-1};     // an eventfd, once stop_request() was called
std::atomic<pid_t> watching{0};  // the process that reads it; a forked child has no such thread
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void wake() {
  const uint64_t one = 1;
  if (watching.load() != getpid()) return;
  (void)!write(wakeup.load(), &one, sizeof(one));
}

void on_sigterm(int) {
  const int kept = errno;
  asked = true;
  wake();
  errno = kept;
}

// Never destroyed, because its thread may outlive main.
Promise<void>* watch() {
  FileDescriptor fd(eventfd(0, EFD_CLOEXEC));
  if (!fd.valid()) {
    throw RpcError(absl::ResourceExhaustedError(absl::StrCat("stop_request: ", strerror(errno))));
  }
  auto promise = std::make_unique<Promise<void>>(nullptr);
  start_needed_thread("a stop request", [promise = promise.get(), fd = fd.get()] {
    uint64_t count = 0;
    while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
    promise->set_value();
  }).detach();
  wakeup = fd.release();
  watching = getpid();
  // The handler may have looked for the descriptor before it was there.
  if (asked) wake();
  return promise.release();
}

}  // namespace

void expect_stop_requests() {
  use_signal_stack();
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_handler = on_sigterm;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, nullptr);
  });
}

bool stop_requested() {
  expect_stop_requests();
  return asked;
}

Future<void> stop_request() {
  expect_stop_requests();
  static Promise<void>* const promise = watch();
  return promise->future();
}

}  // namespace weft
