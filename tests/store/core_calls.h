// A store without a server, for tests in which no call waits. It counts its calls.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "weft/base/mutex.h"
#include "weft/store/store_calls.h"
#include "weft/store/store_core.h"

namespace weft::testing {

class CoreCalls final : public StoreCalls {
 public:
  absl::StatusOr<wire::StoreReply> call(wire::StoreCall call, TimePoint) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ++count;
    const StoreCore::Ticket ticket = next_ticket_++;
    for (auto& [answered, reply] : core_->call(ticket, author, call)) {
      if (answered == ticket) return std::move(reply);
    }
    (void)core_->ended(ticket);
    return absl::DeadlineExceededError("the time is over");
  }
  std::string description() const override { return "store of a test"; }
  // The store is empty again.
  void reset() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    core_.emplace(1);
  }

  std::string author;  // proven, of the calls that follow; "": none
  int count = 0;       // of calls

 private:
  Mutex mutex_;
  std::optional<StoreCore> core_ ABSL_GUARDED_BY(mutex_){1};
  StoreCore::Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace weft::testing
