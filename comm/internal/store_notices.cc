#include "weft/comm/internal/store_notices.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::internal {
namespace {

using Clock = std::chrono::steady_clock;

std::string key_of(int rank) { return absl::StrCat("weft/same_host/", rank); }

}  // namespace

absl::Status StoreNotices::post(int rank, const std::string& text) {
  return guarded(
      [&] { store_->set(key_of(rank), std::vector<uint8_t>(text.begin(), text.end())); });
}

absl::StatusOr<std::string> StoreNotices::read(int rank, TimePoint deadline) {
  for (;;) {
    const TimePoint now = Clock::now();
    const auto left = std::chrono::floor<Milliseconds>(deadline - now);
    if (deadline <= now) return absl::DeadlineExceededError("no time left");
    const Milliseconds slice = std::clamp(left, Milliseconds(1), slice_);
    const absl::Status waited = guarded([&] { store_->wait({key_of(rank)}, slice); });
    if (waited.ok()) break;
    // An error before the slice is over is no lack of time; one after it is, or comes again.
    const TimePoint then = Clock::now();
    if (then < now + slice || then >= deadline) return waited;
  }
  std::string text;
  WEFT_RETURN_IF_ERROR(guarded([&] {
    const std::vector<uint8_t> bytes = store_->get(key_of(rank));
    text.assign(bytes.begin(), bytes.end());
  }));
  return text;
}

absl::Status StoreNotices::guarded(const std::function<void()>& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& failed) {
    return absl::UnavailableError(absl::StrCat("rendezvous store: ", failed.what()));
  }
}

}  // namespace weft::internal
