// Keeps what one worker suspects of one peer: a question to the list of death records, and a
// suspect report to the other members.
//
// At most one question and one report are open.
//
// Thread safety: none; MembershipCore owns it. It is pure: the caller passes the time.
// Protocol: docs/membership.md, "Leases" and "Death records".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "weft/base/clock.h"

namespace weft::rpc_internal {

class Suspicion {
 public:
  // Opens the question with this number (not 0). `declares_dead`: it may append a death record.
  void ask(uint64_t question, std::string reason, bool declares_dead);
  bool is_asked() const { return question_ != 0; }
  bool is_asked(uint64_t question) const { return question_ == question; }
  // Returns the reason of the newest question.
  const std::string& reason() const { return reason_; }
  // If the list decides nothing, a joiner fails with this. OK: it does not fail.
  void set_undecided(const absl::Status& error) { undecided_ = error; }
  const absl::Status& undecided() const { return undecided_; }

  // Opens a report for this reason (not OK). False: one is open already.
  bool report(const absl::Status& reason, TimePoint now);
  // The reason of the open report. OK: no report is open.
  const absl::Status& reported() const { return reported_; }
  bool is_heard_since_report(TimePoint heard) const { return heard > reported_at_; }
  // Returns how long the report has been open, after this further time.
  Nanoseconds age_report(Nanoseconds passed) { return report_age_ += passed; }
  // Closes the report. A question that only reads, and that the report caused, is closed too.
  void withdraw_report();

 private:
  uint64_t question_ = 0;  // 0: none is open
  bool declares_dead_ = false;
  std::string reason_;
  absl::Status undecided_;
  absl::Status reported_;
  TimePoint reported_at_;
  Nanoseconds report_age_{0};  // without this worker's own waits
};

}  // namespace weft::rpc_internal
