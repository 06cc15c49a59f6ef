// Decides which thread of a worker reads what its peers have written.
//
// Usually it is the serving thread, which also runs the transport's tasks. A caller that waits for
// a reply may read too, while the serving thread sleeps. Then a peer's signal wakes the caller
// itself, and no second wake-up is needed. One thread reads at a time.
//
// A caller takes only its own reply. All else that it finds becomes a task of the serving thread
// before any other thread can visit a peer, so each connection's frames keep their order. Then the
// caller stops reading. So it runs no code of others, and it holds no lock while its own reply is
// handled.
//
// The serving thread looks every kLookAnyway. So if a caller that reads gets no processor, peers
// get their answers all the same, unless it is just visiting a peer.
//
// Thread safety: all methods may be called from any thread, but work() and rest() only from the
// serving thread.
// Lifetime: connections share it and may outlive the transport. After close() it calls neither of
// its functions from a caller's thread.
// Blocking: rest(), read_reply(), close().
// Protocol: docs/data_plane.md, "Who reads"; the model is tests/models/wake_bits.pml.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/async/future.h"
#include "weft/async/spinner.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/connection/read_policy.h"
#include "weft/rpc/same_host/connection/wake_page.h"
#include "weft/rpc/transport/frame.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class Reading final : public async_internal::CompletionListener {
 public:
  using Task = Connection::Task;

  // The reply for which a caller waits, and what the caller has found.
  struct Awaited {
    WorkerId peer;  // it will reply, perhaps on another connection if both ends have dialled
    uint64_t call;
    std::optional<Frame> reply = {};
    ConnectionPtr connection = {};       // that of the reply
    std::vector<Task> for_serving = {};  // all else that it found
  };
  // Each looks at the peer that has this slot. One call at a time, of all together.
  struct Visits {
    std::function<void(size_t slot)> serve;                   // on the serving thread
    std::function<void(size_t slot, Awaited& awaited)> take;  // on a caller's; runs no other code
    // On a caller's thread too: whether the slot is one of this peer.
    std::function<bool(size_t slot, WorkerId peer)> is_of;
  };

  static constexpr std::chrono::milliseconds kLookAnyway{100};

  // `spin`: how long a reader spins before it sleeps; 0: never.
  Reading(std::shared_ptr<WakePage> page, Nanoseconds spin, Visits visits);

  // Runs `task` on the serving thread. Tasks run in this order, and no peer is visited meanwhile.
  void post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- The serving thread

  // Runs the tasks and visits the peers that have signalled. False: there were none.
  bool work() ABSL_LOCKS_EXCLUDED(mutex_, visiting_);
  // Spins and sleeps until there may be something to do.
  void rest() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- A caller that waits

  // Reads until the reply of `peer` to `call` has come, and passes it to `accept`
  // (Connection::read_reply). Returns false without the reply if `result` was completed otherwise;
  // if another caller reads, or this thread must not; or if something came that only the serving
  // thread may handle.
  bool read_reply(WorkerId peer, uint64_t call, async_internal::FutureCore& result,
                  Connection::AcceptReply accept) noexcept ABSL_LOCKS_EXCLUDED(mutex_, visiting_);

  // Returns when no thread is inside read_reply(). From now on none reads there.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);

  // How many waits of the serving thread began with spinning.
  uint64_t spins() const { return spinner_.spins(); }
  // How many callers have read their replies themselves.
  uint64_t direct_replies() const { return direct_replies_.load(std::memory_order_relaxed); }
  // How many sleeps of the serving thread ended only by their time limit although a peer had
  // signalled, and would have lasted on. It is 0 unless a peer dies, or is stopped, inside
  // signal().
  uint64_t lost_signals() const { return lost_signals_.load(std::memory_order_relaxed); }

 private:
  enum class Caller : uint8_t {
    kNone,
    kReads,
    kMustStop,  // it is still inside, but leaves the coming signals to the serving thread
  };

  WakeBits& bits() const { return page_->bits(); }
  bool has_tasks() const { return has_tasks_.load(std::memory_order_seq_cst); }
  bool caller_reads() const { return caller_.load(std::memory_order_seq_cst) == Caller::kReads; }
  void run_tasks() ABSL_LOCKS_EXCLUDED(mutex_);
  // For the serving thread.
  void lock_visiting() ABSL_EXCLUSIVE_LOCK_FUNCTION(visiting_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool begin_reading(async_internal::FutureCore& result) ABSL_LOCKS_EXCLUDED(mutex_);
  // A caller's wait, from begin_reading() to end_reading().
  struct Wait {
    const WorkerId peer;
    const uint64_t call;
    async_internal::FutureCore& result;
    const Connection::AcceptReply accept;
    bool accepted = false;
    bool alone = true;  // it has left nothing to the serving thread
  };
  // Looks once at the peers that have signalled. Returns whether any peer had.
  bool look(Wait& wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(visiting_);
  // Takes what a caller has found for the serving thread.
  void hand_over(std::vector<Task> tasks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(visiting_);
  // `alone`: the caller has left nothing to the serving thread.
  void end_reading(bool alone) ABSL_LOCKS_EXCLUDED(mutex_);
  // Leaves the coming signals to `other`, which may sleep already. True: the caller must wake it,
  // after it has unlocked.
  bool arm_for(WakeBits::Group other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The result for which a caller reads here is complete.
  void completed() override;

  const std::shared_ptr<WakePage> page_;
  const Visits visits_;
  Spinner spinner_;         // of the serving thread
  Spinner caller_spinner_;  // of the caller that reads

  Mutex visiting_;  // held by the thread that visits peers or runs tasks; locked before mutex_
  Mutex mutex_;
  CondVar caller_left_;
  ReadPolicy policy_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tasks_{false};         // set under mutex_
  std::atomic<bool> serving_waits_{false};     // the serving thread wants visiting_
  std::atomic<Caller> caller_{Caller::kNone};  // set under mutex_
  std::atomic<uint64_t> direct_replies_{0};
  std::atomic<uint64_t> lost_signals_{0};
};

}  // namespace weft::rpc_internal
