#include "weft/rpc/membership/internal/suspicion.h"

#include <utility>

namespace weft::rpc_internal {

void Suspicion::ask(uint64_t question, std::string reason, bool declares_dead) {
  question_ = question;
  reason_ = std::move(reason);
  declares_dead_ = declares_dead;
}

bool Suspicion::report(const absl::Status& reason, TimePoint now) {
  if (!reported_.ok()) return false;
  reported_ = reason;
  reported_at_ = now;
  report_age_ = Nanoseconds(0);
  return true;
}

void Suspicion::withdraw_report() {
  if (undecided_ == reported_) {
    undecided_ = absl::OkStatus();
    if (!declares_dead_) question_ = 0;
  }
  reported_ = absl::OkStatus();
}

}  // namespace weft::rpc_internal
