#include "weft/base/thread.h"

#include <atomic>
#include <limits>
#include <new>
#include <pthread.h>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/base/rpc_error.h"

namespace weft {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

std::atomic<int> threads_left{kNoLimit};  // that the current ThreadLimit still allows
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

constexpr size_t kMostName = 15;  // bytes; Linux allows no longer name of a thread

std::string name_for(absl::string_view purpose) {
  if (!absl::ConsumePrefix(&purpose, "the ")) absl::ConsumePrefix(&purpose, "a ");
  const std::string name = absl::StrCat("weft ", purpose);
  return std::string(absl::StripTrailingAsciiWhitespace(name.substr(0, kMostName)));
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
    return std::thread([name = name_for(purpose), run = std::move(run)]() mutable {
      pthread_setname_np(pthread_self(), name.c_str());
      run();
    });
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
