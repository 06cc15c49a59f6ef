#include "weft/rpc/membership/internal/lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {
namespace {

// The heartbeats of one peer whose answers would still be used.
constexpr size_t kMostUnanswered = 1024;

}  // namespace

std::optional<TimePoint> Lease::look(const PeerLook& look, TimePoint now,
                                     const PassedTime& passed) {
  timer_lag_ = look.lag;
  if (now >= shared_until_) {
    if (std::exchange(active_, false)) return kNever;
  } else if (!active_) {
    active_ = true;
    silence_ = unheard_ = wait_ = Nanoseconds(0);
    heard_ = look.heard;
    watched_ = 0;
    unanswered_.clear();
    late_.reset();
    valid_until_ = WEFT_BREAK(valid_before_any_answer) ? now + limits_.valid_for : now;
    // Calls do not wait for the first answer.
    return now + limits_.valid_for;
  } else if (look.heard > heard_ && !WEFT_BREAK(frames_not_heard)) {
    heard_ = look.heard;
    unheard_ = std::min<Nanoseconds>(now - look.heard, passed.awake);
    silence_ = std::min<Nanoseconds>(unheard_, passed.counted);
    if (WEFT_BREAK(whole_tick_heard)) unheard_ = silence_ = Nanoseconds(0);
    wait_ = Nanoseconds(0);
    watched_ = 0;
    if (late_) late_ = faded(*late_);
  } else {
    if (is_watched()) ++watched_;
    unheard_ += passed.awake;
    wait_ += look.waited;
    // Until two looks have told of the peer's waits, none can explain its silence. So a late look
    // counts as one that was in time.
    const bool told = watched_ > 1 || WEFT_BREAK(late_looks_count_in_full);
    const Nanoseconds most = told ? passed.counted : limits_.heartbeat_interval;
    silence_ += without(std::min(passed.counted, most), wait_);
  }
  return std::nullopt;
}

void Lease::sent(uint64_t number, TimePoint now, Nanoseconds awake) {
  unanswered_.push_back({number, now, awake});
  // An answer to an older heartbeat would tell nothing any more.
  while (unanswered_.size() > kMostUnanswered ||
         unanswered_.front().sent + kMostLimit * limits_.suspect_after <= now) {
    unanswered_.pop_front();
  }
}

std::optional<TimePoint> Lease::answered(uint64_t number, Nanoseconds awake) {
  while (!unanswered_.empty() && unanswered_.front().number < number) unanswered_.pop_front();
  if (unanswered_.empty() || unanswered_.front().number != number) return std::nullopt;
  const SentHeartbeat heartbeat = unanswered_.front();
  unanswered_.pop_front();
  // The awake time leaves out the time for which this worker was stopped. That time is not the
  // peer's lateness.
  const Nanoseconds taken = awake - heartbeat.awake;
  late_ = std::max<Nanoseconds>(taken - limits_.heartbeat_interval, late_.value_or(Nanoseconds(0)));
  valid_until_ = heartbeat.sent + limits_.valid_for;
  if (WEFT_BREAK(valid_for_longer_than_suspect_after)) valid_until_ += limits_.suspect_after;
  if (!active_) return std::nullopt;
  return valid_until_;
}

Nanoseconds Lease::lag() const {
  return bounded(bounded(timer_lag_, limits_) + late_.value_or(Nanoseconds(0)), limits_);
}

Nanoseconds Lease::silence_limit(Nanoseconds worst_lag) const {
  // A peer that has answered no heartbeat is assumed to be as late as the others.
  return bounded(limits_.suspect_after + 2 * (late_ ? lag() : worst_lag), limits_);
}

std::string Lease::describe(Nanoseconds worst_lag, Nanoseconds more) const {
  const auto text = [](Nanoseconds time) {
    return absl::FormatDuration(
        absl::FromChrono(std::chrono::duration_cast<std::chrono::milliseconds>(time)));
  };
  const std::string silence = absl::StrCat("was not heard of for ", text(unheard_));
  if (unheard_ >= kMostLimit * limits_.suspect_after) return silence;  // whatever explains it
  return absl::StrCat(silence, " (", text(silence_),
                      " of it without waits for a processor; the limit is ",
                      text(silence_limit(worst_lag) + more), ")");
}

bool Lease::is_silent(Nanoseconds worst_lag, Nanoseconds more) const {
  if (unheard_ >= kMostLimit * limits_.suspect_after) return true;
  // The first look at a peer's waits has nothing to compare with, so two looks are needed.
  return watched_ > 1 && silence_ >= silence_limit(worst_lag) + more;
}

}  // namespace weft::rpc_internal
