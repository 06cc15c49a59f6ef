// Decides what a reducer does next, and lets its threads do it in the order of the decisions.
//
// ReducerCore decides under a lock. A decision with work takes a ticket under the same lock. The
// thread then waits for its turn and works without a lock, because hooks and waits may take long.
//
// Thread safety: all methods may be called from any thread. set_buckets, begin, cancel and
// start_over make sense only when no pass runs.
// Blocking: turn() waits until all earlier turns are over. The other methods do not block.
// Errors: those of ReducerCore.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/ddp/reducer/bucket_assignment.h"
#include "weft/ddp/reducer/reducer_core.h"
#include "weft/ddp/reducer/turns.h"

namespace weft::ddp_internal {

class ReductionOrder {
 public:
  using Clock = std::chrono::steady_clock;

  // The work that an arrival allows.
  struct Step {
    ReducerCore::Actions actions;
    std::vector<bool> used;         // parallel to actions.write
    std::vector<int32_t> used_map;  // by parameter; empty unless the ranks share it now
    bool queue_end = false;         // the caller queues at_end for the end of this pass
    uint64_t ticket = 0;

    // If true, the caller must take its turn().
    bool has_work() const { return !actions.write.empty(); }
  };
  struct Used {
    std::vector<bool> here;  // by parameter: this rank used it
    bool shared = false;     // the ranks tell each other in this pass
  };

  ReductionOrder(std::vector<std::string> names, ReducerCore::Options options);

  // Around a pass; see the methods of ReducerCore.
  void set_buckets(Buckets buckets) ABSL_LOCKS_EXCLUDED(mutex_);
  bool needs_unused() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status begin(std::vector<size_t> unused) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gradients only accumulate until the next begin(). A pass that began must not have run.
  absl::Status cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // The pass is over. Returns when its first gradient arrived.
  Clock::time_point finished() ABSL_LOCKS_EXCLUDED(mutex_);
  void reset() ABSL_LOCKS_EXCLUDED(mutex_);
  void start_over(Buckets buckets) ABSL_LOCKS_EXCLUDED(mutex_);
  void shadowed() ABSL_LOCKS_EXCLUDED(mutex_);
  bool others_share_used() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The order in which the buckets are to be built. Only one call returns it, all others an empty
  // list.
  std::vector<size_t> take_order_to_build() ABSL_LOCKS_EXCLUDED(mutex_);

  // In a pass.
  absl::StatusOr<Step> arrived(size_t parameter, bool used) ABSL_LOCKS_EXCLUDED(mutex_);
  // True once in a pass that is reduced at its end: the caller queues at_end.
  bool claim_end() ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller must take its turn(), whether the step has work or not.
  Step at_end() ABSL_LOCKS_EXCLUDED(mutex_);
  Turns::Turn turn(const Step& step) { return Turns::Turn(turns_, step.ticket); }
  // A turn for work that no step decided.
  Turns::Turn turn() { return Turns::Turn(turns_, turns_.take_ticket()); }

  // An engine brought a gradient that this reducer cannot see. False: no pass is to be reduced.
  bool elsewhere() ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels the pass and returns true if elsewhere() saw all of its gradients, and no pass was ever
  // reduced.
  bool cancel_unseen() ABSL_LOCKS_EXCLUDED(mutex_);

  Used used() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool in_pass() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<size_t> order_before() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> missing() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t passes() const ABSL_LOCKS_EXCLUDED(mutex_);  // that are finished

 private:
  Step step_of(ReducerCore::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool claim_end_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t parameters_;
  mutable Mutex mutex_;
  Turns turns_;  // has a lock of its own; tickets are taken under mutex_, in the order of decisions
  ReducerCore core_ ABSL_GUARDED_BY(mutex_);
  bool end_claimed_ ABSL_GUARDED_BY(mutex_) = false;
  bool seen_elsewhere_ ABSL_GUARDED_BY(mutex_) = false;  // since begin()
  Clock::time_point first_arrival_ ABSL_GUARDED_BY(mutex_);
  uint64_t passes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::ddp_internal
