// Runs the collectives of the ranks of one host, one after the other, through shared memory.
//
// Thread safety: all methods may be called from any thread. Operations run in the order of the
// calls of start(), which must be the same on all ranks.
// Lifetime: work may outlive the group. Work that is not done when the group is destroyed fails
// then, with Cancelled if nothing else has failed.
// Blocking: wait(), until its deadline; drain(); the destructor. A thread that waits also does the
// work. If nobody waits, a thread of the group does it, after Options::patience.
// Errors: after the first one every operation fails with it.
//   ResourceExhausted: the system refuses a thread that the group needs, or there is no memory.
//   InvalidArgument: ranks called different operations; every rank's error says which.
//   Unavailable: a rank has died, or has given up (with its reason).
//   DeadlineExceeded: names the ranks that were late.
//   Cancelled: abort(), leave(), or the group was destroyed.
//   Internal: a rank has written damaged data.
// Protocol: docs/same_host_collectives.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/comm/same_host/callback_threads.h"
#include "weft/comm/same_host/channels.h"
#include "weft/comm/same_host/collective_core.h"
#include "weft/comm/same_host/collective_work.h"
#include "weft/comm/same_host/lookout.h"
#include "weft/comm/same_host/mesh.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

class CollectiveGroup {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Nanoseconds = std::chrono::nanoseconds;

  struct Options {
    Nanoseconds spin = std::chrono::microseconds(100);  // time to look before a sleep; 0: none
    ArenaDirectory* arenas = nullptr;                   // must outlive the group; null: no arenas
    // The longest sleep. After each sleep a rank checks the ranks that it waits for.
    Nanoseconds tick = std::chrono::milliseconds(20);
    // After this time the group's own thread runs collectives that nobody waits for. It runs
    // messages after kPatience at the latest. Zero: kPatience if there are more processors than
    // ranks, otherwise kLongPatience. The reason for the latter: the group's own thread would only
    // take the processor from a thread that computes.
    Nanoseconds patience{0};
  };

  using Work = CollectiveWork;

  CollectiveGroup(std::shared_ptr<Mesh> mesh, Options options);
  ~CollectiveGroup();
  CollectiveGroup(const CollectiveGroup&) = delete;
  CollectiveGroup& operator=(const CollectiveGroup&) = delete;

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }

  // Starts an operation. The caller and the group share the work.
  std::shared_ptr<Work> start(Operation operation, TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Start a message between this rank and another one. A receive may name Channels::kAnyone.
  // Messages run beside the collectives, in no order with them.
  std::shared_ptr<Work> send(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Work> receive(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `then` when the work is done, on a thread of the group that only runs such calls. `then`
  // may start work and wait for it, and may wait for other such calls. At most
  // CallbackThreads::kMostThreads of them run at a time, or fewer if the system refuses threads. If
  // the system gives no thread at all, the group fails and `then` is called on this thread.
  void when_done(const std::shared_ptr<Work>& work, std::function<void()> then)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what can run now, without waiting for other ranks.
  void poll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the work is done, and returns its status. If `deadline` comes first, returns
  // DeadlineExceeded, and the work goes on.
  absl::Status wait(const std::shared_ptr<Work>& work, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until nothing is under way, the group has failed, or nothing has moved for `still`.
  void drain(Nanoseconds still) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails the group here, and with this reason at the ranks that wait for this one. Does nothing
  // after an earlier failure.
  void abort(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, because this rank no longer needs the group. If another rank has died, its death is
  // the reason that the other ranks get.
  void leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the caller is a thread of the group. Such a thread cannot destroy the group.
  bool on_own_thread() const;
  // OK as long as operations can succeed.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts what this rank has done so far.
  struct Counts : CollectiveCore::Counts {
    uint64_t looked = 0;   // times that it began to spin for what it waits for
    uint64_t slept = 0;    // times that it went to sleep
    uint64_t ticked = 0;   // sleeps without a wake-up until their tick or deadline
    uint64_t checked = 0;  // times that it checked for dead, failed or late ranks
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Finished = WorkList;

  static constexpr Nanoseconds kPatience = std::chrono::milliseconds(1);
  static constexpr Nanoseconds kLongPatience = std::chrono::milliseconds(50);
  static constexpr int kMostIdle = 10;  // idle rounds before the group's own thread sleeps

  void lead(const Work* work, TimePoint deadline, bool looks = true) ABSL_LOCKS_EXCLUDED(mutex_);
  void run_in_background() ABSL_LOCKS_EXCLUDED(mutex_);
  void wait_until_needed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wake_background() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // These do what can be done now, and return false if nothing could.
  bool advance_all() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool advance_channels() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Work> transfer(bool send, Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool nothing_under_way() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t steps() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void finish(std::shared_ptr<Work> work, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void finish_messages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void fail(absl::Status reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks for ranks that are dead, have given up or are late, and then fails the group.
  void look_around() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void look_at_operations() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void look_at_messages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // What follows when work is done, outside of the lock.
  void tell(Finished& finished) ABSL_LOCKS_EXCLUDED(mutex_);
  void call_soon(std::function<void()> call) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<Mesh> mesh_;  // shared with the arenas
  const Options options_;
  const Nanoseconds patience_;

  mutable Mutex mutex_;
  CondVar moved_on_;  // tells followers_ that work is done, or that no thread leads
  CondVar background_needed_;
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in lead()
  int followers_ ABSL_GUARDED_BY(mutex_) = 0;     // threads that wait for moved_on_
  bool ticking_ ABSL_GUARDED_BY(mutex_) = false;  // the group's own thread looks at intervals
  // The number of works under way with a when_done() call. For them the group's own thread does not
  // wait for `patience`.
  size_t urgent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool giving_way_ ABSL_GUARDED_BY(mutex_) = false;  // it waits until no other thread leads
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool caller_refused_ ABSL_GUARDED_BY(mutex_) = false;  // background_ lets callbacks_ try again

  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // then nothing is under way any more
  std::deque<std::shared_ptr<Work>> queue_ ABSL_GUARDED_BY(mutex_);  // core_ works on the first one
  CollectiveCore core_ ABSL_GUARDED_BY(mutex_);
  Channels channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t channel_steps_ ABSL_GUARDED_BY(mutex_) = 0;  // grows when a message moves
  Finished finished_ ABSL_GUARDED_BY(mutex_);           // done; for tell()
  Counts counts_ ABSL_GUARDED_BY(mutex_);               // without those of core_

  Lookout lookout_;  // used only by the thread that leads
  CallbackThreads callbacks_;
  std::thread background_;
};

}  // namespace weft::comm_internal
