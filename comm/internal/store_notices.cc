#include "weft/comm/internal/store_notices.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/comm/internal/exception_text.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;

std::string key_of(int rank) { return absl::StrCat("weft/same_host/", rank); }

}  // namespace

absl::Status StoreNotices::post(int rank, const std::string& text) {
  const Milliseconds timeout = store_->getTimeout();
  const bool limited = timeout > c10d::Store::kNoTimeout && timeout < kLongestStoreTimeout;
  return guarded(rank, Clock::now() + (limited ? timeout : kLongestStoreTimeout),
                 [store = store_, rank, bytes = std::vector<uint8_t>(text.begin(), text.end())] {
                   store->set(key_of(rank), bytes);
                 });
}

absl::StatusOr<std::string> StoreNotices::read(int rank, TimePoint deadline) {
  for (;;) {
    const TimePoint now = Clock::now();
    const auto left = std::chrono::floor<Milliseconds>(deadline - now);
    if (deadline <= now) return absl::DeadlineExceededError("no time left");
    const Milliseconds slice = std::clamp(left, Milliseconds(1), slice_);
    const absl::Status waited = guarded(
        rank, now + slice, [store = store_, rank, slice] { store->wait({key_of(rank)}, slice); });
    if (waited.ok()) break;
    if (absl::IsDeadlineExceeded(waited)) return waited;
    // An error before the slice is over is not a timeout. A later one is a timeout of the slice, or
    // an error that the next slice meets again.
    const TimePoint then = Clock::now();
    if (then < now + slice || then >= deadline) return waited;
  }
  const auto bytes = std::make_shared<std::vector<uint8_t>>();  // shared with a call that may hang
  WEFT_RETURN_IF_ERROR(
      guarded(rank, std::min(deadline, Clock::now() + slice_),
              [store = store_, rank, bytes] { *bytes = store->get(key_of(rank)); }));
  return std::string(bytes->begin(), bytes->end());
}

absl::Status StoreNotices::guarded(int about, TimePoint deadline, std::function<void()> call) {
  const TimePoint begin = Clock::now();
  try {
    if (caller_.run(std::move(call), deadline)) return absl::OkStatus();
    const auto took = std::chrono::floor<Milliseconds>(Clock::now() - begin);
    return absl::DeadlineExceededError(absl::StrCat(name_of(store_), " did not answer within ",
                                                    took.count(),
                                                    " ms, asked about the notice of rank ", about));
  } catch (const std::exception& failed) {
    return absl::UnavailableError(absl::StrCat("rendezvous store: ", text_of(failed)));
  }
}

}  // namespace weft::comm_internal
