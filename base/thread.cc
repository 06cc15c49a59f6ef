#include "weft/base/thread.h"

#include <atomic>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

std::atomic<int> threads_left{kNoLimit};  // of a ThreadLimit
std::atomic<int> threads_refused{0};
std::atomic<bool> refused_by_system{false};

bool may_start() {
  int left = threads_left.load();
  while (left != kNoLimit) {
    if (left == 0) {
      threads_refused.fetch_add(1);
      return false;
    }
    if (threads_left.compare_exchange_weak(left, left - 1)) return true;
  }
  return true;
}

absl::Status refusal(absl::string_view purpose, absl::string_view why) {
  refused_by_system.store(true);
  return absl::ResourceExhaustedError(
      absl::StrCat("no thread can be started for ", purpose, ": ", why));
}

}  // namespace

absl::StatusOr<std::thread> start_thread(absl::string_view purpose,
                                         absl::AnyInvocable<void()> run) {
  if (!may_start()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started for ", purpose, ": a test allows no more"));
  }
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& refused) {
    return refusal(purpose, refused.code().message());
  } catch (const std::bad_alloc&) {
    return refusal(purpose, "no memory is left");
  }
}

std::thread start_needed_thread(absl::string_view purpose, absl::AnyInvocable<void()> run) {
  absl::StatusOr<std::thread> thread = start_thread(purpose, std::move(run));
  if (!thread.ok()) throw RpcError(thread.status());
  return *std::move(thread);
}

bool threads_were_refused() { return refused_by_system.load(); }

ThreadLimit::ThreadLimit(int more) {
  threads_refused.store(0);
  threads_left.store(more);
}
ThreadLimit::~ThreadLimit() { threads_left.store(kNoLimit); }
int ThreadLimit::refused() const { return threads_refused.load(); }

}  // namespace weft
