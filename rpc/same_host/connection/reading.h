// Decides which thread of a worker reads what its peers have written.
//
// Usually it is the serving thread, which also runs the transport's tasks. A caller that waits for
// a reply may read too, while the serving thread sleeps. Then a peer's signal wakes the caller
// itself, and no second wake-up is needed. One thread reads at a time.
//
// The serving thread still looks every kLookAnyway. So if the caller gets no processor, or is
// stopped, peers get their answers all the same.
//
// Thread safety: all methods may be called from any thread, but work() and rest() only from the
// serving thread.
// Lifetime: connections share it and may outlive the transport. After close() it visits nobody.
// Blocking: rest(), read_until_done(), close().
// Protocol: docs/data_plane.md, "Who reads"; the model is tests/models/wake_bits.pml.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "weft/async/future.h"
#include "weft/async/spinner.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/connection/wake_page.h"

namespace weft::rpc_internal {

class Reading final : public async_internal::CompletionListener {
 public:
  using Task = absl::AnyInvocable<void()>;
  using Group = WakeBits::Group;
  // Looks at the peer that has this slot. `reader` says which thread calls. One call at a time.
  using Visit = std::function<void(size_t slot, Group reader)>;

  static constexpr std::chrono::milliseconds kLookAnyway{400};

  // `spin`: how long a reader spins before it sleeps; 0: never.
  Reading(std::shared_ptr<WakePage> page, Nanoseconds spin, Visit visit);

  // Runs `task` on the serving thread. Tasks run in this order, and no peer is visited meanwhile.
  // If a visit on a caller's thread posts it, the caller stops reading.
  void post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- The serving thread

  // Runs the tasks and visits the peers that have signalled. False: there were none.
  bool work() ABSL_LOCKS_EXCLUDED(mutex_, visiting_);
  // Spins and sleeps until there may be something to do.
  void rest() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- A caller that waits

  // Reads until `result` is complete. It returns early, or at once, if another caller reads, or if
  // something came that only the serving thread may handle.
  void read_until_done(async_internal::FutureCore& result) noexcept
      ABSL_LOCKS_EXCLUDED(mutex_, visiting_);

  // Returns when no thread is inside read_until_done(). From now on none reads there.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);

  // How many waits of the serving thread began with spinning.
  uint64_t spins() const { return spinner_.spins(); }
  // How many callers have read until their results were complete.
  uint64_t direct_replies() const { return direct_replies_.load(std::memory_order_relaxed); }

 private:
  // A caller that has to stop early makes later callers skip: 1 wait, then 3, 7, and so on up to
  // this many. So does one before which the serving thread had something to read: that thread spins
  // for it if no caller reads. Each other caller halves the number.
  static constexpr int kMostSkipped = 64;
  // A caller that has taken this many signals without its own reply stops reading. The serving
  // thread is better at many replies: it wakes their threads once for each batch.
  static constexpr int kMostOfOthers = 8;
  static constexpr std::chrono::milliseconds kRetryLock{1};

  WakeBits& bits() const { return page_->bits(); }
  bool has_tasks() const { return has_tasks_.load(std::memory_order_seq_cst); }
  bool caller_reads() const { return caller_reads_.load() && !callers_met_.load(); }
  void run_tasks() ABSL_LOCKS_EXCLUDED(mutex_);
  // For the serving thread.
  void lock_visiting() ABSL_EXCLUSIVE_LOCK_FUNCTION(visiting_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool begin_reading(async_internal::FutureCore& result) ABSL_LOCKS_EXCLUDED(mutex_);
  void end_reading(bool direct) ABSL_LOCKS_EXCLUDED(mutex_);
  // Leaves the coming signals to `other`, which may sleep already. True: the caller must wake it,
  // after it has unlocked.
  bool arm_for(Group other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The result for which a caller reads here is complete.
  void completed() override;

  const std::shared_ptr<WakePage> page_;
  const Visit visit_;
  Spinner spinner_;         // of the serving thread
  Spinner caller_spinner_;  // of the caller that reads

  Mutex visiting_;  // held by the thread that visits peers or runs tasks; locked before mutex_
  Mutex mutex_;
  CondVar caller_left_;
  int skip_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the next waits that do not read
  int skipped_last_ ABSL_GUARDED_BY(mutex_) = 0;
  bool served_ ABSL_GUARDED_BY(mutex_) =
      false;  // the serving thread has visited since a caller read
  bool after_skip_ ABSL_GUARDED_BY(mutex_) = false;  // a wait was skipped, so it had to
  bool disturbed_ ABSL_GUARDED_BY(mutex_) = false;   // it had visited when the present caller began
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> caller_reads_{false};  // a caller is in read_until_done(); set under mutex_
  std::atomic<bool> callers_met_{false};   // another one came, so it stops; set under mutex_
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> direct_replies_{0};
};

}  // namespace weft::rpc_internal
