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

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/async/spin_policy.h"
#include "weft/base/mutex.h"
#include "weft/comm/same_host/channels.h"
#include "weft/comm/same_host/mesh.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

// Finds memory of ranks that lies outside their control blocks.
class ArenaDirectory {
 public:
  virtual ~ArenaDirectory() = default;
  // The address of [offset, offset + size) of an arena of that rank. InvalidArgument: there is no
  // such memory.
  virtual absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset,
                                            uint64_t size) = 0;
};

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

  // An operation or a message that was started.
  class Work {
   public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    // Both are valid when done() has returned true.
    const absl::Status& status() const { return status_; }
    int peer() const { return peer_; }  // the rank that sent or got a message

   private:
    friend class CollectiveGroup;
    Operation operation_;
    TimePoint deadline_;
    std::vector<std::function<void()>> then_;  // guarded by the group's lock
    std::shared_ptr<const void> memory_;       // keeps the data of a message
    int peer_ = Channels::kAnyone;
    absl::Status status_;
    std::atomic<bool> done_{false};
  };

  CollectiveGroup(std::shared_ptr<Mesh> mesh, Options options);
  ~CollectiveGroup();
  CollectiveGroup(const CollectiveGroup&) = delete;
  CollectiveGroup& operator=(const CollectiveGroup&) = delete;

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }

  // Starts an operation. The caller and the group share the work.
  std::shared_ptr<Work> start(Operation operation, TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Start a message between this rank and another one. A receive may name Lanes::kAnyone. Messages
  // run beside the collectives, in no order with them.
  std::shared_ptr<Work> send(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Work> receive(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `then` when the work is done, on a thread of the group that only runs such calls. `then`
  // may start work and wait for it, and may wait for other such calls. At most kMostCallers of them
  // run at a time, or fewer if the system refuses threads. If the system gives no thread at all,
  // the group fails and `then` is called on this thread.
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
  bool on_own_thread() const ABSL_LOCKS_EXCLUDED(mutex_);
  // OK as long as operations can succeed.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts what this rank has done so far.
  struct Counts {
    uint64_t in_slots = 0;  // operations, by where the data lay
    uint64_t in_arenas = 0;
    uint64_t in_pieces = 0;
    uint64_t copied_bytes = 0;  // into slots and staging buffers
    uint64_t chunks = 0;        // that this rank added up, in arenas
    uint64_t looked = 0;        // times that it began to spin for what it waits for
    uint64_t slept = 0;         // times that it went to sleep
    uint64_t ticked = 0;        // sleeps without a wake-up until their tick or deadline
    uint64_t checked = 0;       // times that it checked for dead, failed or late ranks
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Finished = std::vector<std::shared_ptr<Work>>;
  // An operation waits until the counter of some rank has reached `number`.
  struct Goal {
    const Counter* counter = nullptr;
    uint32_t number = 0;
  };
  // The goal together with the counters that messages wait for. A change of any of them is a reason
  // to try again.
  struct Awaited {
    Goal goal;
    std::vector<Channels::Watch> watches;
    bool anything() const { return goal.counter != nullptr || !watches.empty(); }
    bool come() const;
  };
  // The next step of the first operation in the queue.
  enum class Phase { kPublish, kMeet, kSlots, kArenas, kLeaveArenas, kPieces };

  static constexpr Nanoseconds kPatience = std::chrono::milliseconds(1);
  static constexpr Nanoseconds kLongPatience = std::chrono::milliseconds(50);
  static constexpr int kMostIdle = 10;  // idle rounds before the group's own thread sleeps
  static constexpr size_t kMostCallers = 64;
  static constexpr int kLooks = 64;  // looks between two yields
  static constexpr uint64_t kMostBytes = uint64_t{1} << 48;
  static constexpr uint64_t kMostChunkBytes = uint64_t{256} << 10;
  static constexpr uint64_t kPageBytes = 4096;                // chunks are multiples of it
  static constexpr uint64_t kChunksEach = 4;                  // per part, if the part is large
  static constexpr uint64_t kLargeBytes = uint64_t{1} << 20;  // start() adds up no more than this
  static constexpr int kAllAddUp = 3;  // with more ranks, each adds up only a part of a piece

  void lead(const Work* work, TimePoint deadline, bool looks = true) ABSL_LOCKS_EXCLUDED(mutex_);
  bool look_for(const Awaited& awaited);
  void run_in_background() ABSL_LOCKS_EXCLUDED(mutex_);
  void call_soon(std::function<void()> call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status add_caller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run_calls() ABSL_LOCKS_EXCLUDED(mutex_);
  static void tell(Finished& finished);

  // These do what can be done now, and return false if nothing could.
  bool advance_all() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool advance_channels() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool advance_phase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool meet() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool take_slots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool take_arenas() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_long() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool add_chunks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool leave_arenas() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool all_are_well() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool move_pieces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool stage_piece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool take_piece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status compare() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status plan_pulls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status place_pulls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void take_whole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sum(uint64_t base, uint64_t first, uint64_t count, std::span<std::byte* const> targets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sum_to_parts(uint64_t first, uint64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void finish_operation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void finish(std::shared_ptr<Work> work, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool nothing_under_way() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wake_background() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Work> transfer(bool send, Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void fail(absl::Status reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks for ranks that are dead, have given up or are late, and then fails the group.
  void look_around() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void look_at_transfers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status end_of_all() const;

  // Whether every other rank's counter has reached `number`. If not, this becomes the goal.
  bool all_reached(Counter ControlBlock::*counter, uint32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void move(Counter ControlBlock::*counter, uint32_t next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The index of the first of `count` elements that belongs to the part of a rank.
  uint64_t part_begin(uint64_t count, int rank) const;

  const std::shared_ptr<Mesh> mesh_;  // shared with the arenas
  const Options options_;
  const Nanoseconds patience_;

  mutable Mutex mutex_;
  CondVar moved_on_;  // tells followers_ that work is done, or that no thread leads
  CondVar background_needed_;
  CondVar calls_there_;
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in lead()
  int followers_ ABSL_GUARDED_BY(mutex_) = 0;     // threads that wait for moved_on_
  bool ticking_ ABSL_GUARDED_BY(mutex_) = false;  // the group's own thread looks at intervals
  // The number of works under way with a when_done() call. For them the group's own thread does not
  // wait for `patience`.
  size_t urgent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool giving_way_ ABSL_GUARDED_BY(mutex_) = false;  // it waits until no other thread leads
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Work>> queue_ ABSL_GUARDED_BY(mutex_);
  Finished finished_ ABSL_GUARDED_BY(mutex_);  // done; for tell(), outside of the lock
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  Channels channels_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Work>> transfers_ ABSL_GUARDED_BY(mutex_);  // messages under way

  uint32_t operations_ ABSL_GUARDED_BY(mutex_) = 0;     // number of operations that are done
  uint32_t pieces_before_ ABSL_GUARDED_BY(mutex_) = 0;  // number of pieces of these operations
  uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;          // grows when something moves; for drain()
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  Goal goal_ ABSL_GUARDED_BY(mutex_);
  // The counter that all ranks must bring to goal_.number; null: none.
  Counter ControlBlock::*awaited_ ABSL_GUARDED_BY(mutex_) = nullptr;

  // ---- state of the first operation in the queue
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kPublish;
  std::vector<Record> records_ ABSL_GUARDED_BY(mutex_);      // by rank, private copies
  std::vector<std::byte*> sources_ ABSL_GUARDED_BY(mutex_);  // by rank, where to read its data
  uint64_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of the largest one that is in no slot
  uint64_t pieces_ ABSL_GUARDED_BY(mutex_) = 0;   // number of its pieces
  uint64_t pieces_staged_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t pieces_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool piece_reduced_ ABSL_GUARDED_BY(mutex_) = false;

  // ---- buffers; kept so that their memory is used again
  std::vector<const std::byte*> shifted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte*> targets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte> scratch_ ABSL_GUARDED_BY(mutex_);

  SpinPolicy spin_;                                           // used only by the thread that leads
  std::vector<std::thread> callers_ ABSL_GUARDED_BY(mutex_);  // run calls_, as many as needed
  size_t idle_callers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool caller_refused_ ABSL_GUARDED_BY(mutex_) = false;  // background_ tries again to get a thread
  std::thread background_;
};

}  // namespace weft::comm_internal
