// Runs the collectives of the ranks of one host, one after the other, through each other's memory.
//
// Thread safety: all methods may be called from any thread. The order in which start() is called is
// the order of the operations, and must be the same on all ranks.
// Lifetime: work may outlive the group: it ends with Cancelled at the latest when the group does.
// Blocking: wait(), until its deadline. Whoever waits does the work; for work that nobody waits for
// a thread of the group does it, after Options::patience.
// Errors: ResourceExhausted (the system refuses a thread that the group needs), InvalidArgument
// (ranks called different operations; all of them say which), Unavailable
// (a rank has died, or has given up: its reason), DeadlineExceeded (names the ranks that were
// late), Cancelled (abort, or the end of the group). After the first one every operation fails with
// it. Protocol: docs/same_host_collectives.md.
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

// Memory of other ranks that lies outside their control blocks.
class ArenaDirectory {
 public:
  virtual ~ArenaDirectory() = default;
  // [offset, offset + size) of an arena of that rank. InvalidArgument if there is no such memory.
  virtual absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset,
                                            uint64_t size) = 0;
};

class CollectiveGroup {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Nanoseconds = std::chrono::nanoseconds;

  struct Options {
    Nanoseconds spin = std::chrono::microseconds(100);  // looked for before sleeping; 0: not at all
    ArenaDirectory* arenas = nullptr;                   // borrowed; none: no resident memory
    // A sleep is no longer than this, and then the ranks that are waited for are checked.
    Nanoseconds tick = std::chrono::milliseconds(20);
    // After this the group's own thread runs collectives that nobody waits for; messages after
    // kPatience at the latest. Zero: kPatience as well if there are more processors than ranks,
    // else kLongPatience, as it would only take the processor from who computes.
    Nanoseconds patience{0};
  };

  // An operation under way.
  class Work {
   public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    // Once done.
    const absl::Status& status() const { return status_; }
    int peer() const { return peer_; }  // who sent a message, or got it

   private:
    friend class CollectiveGroup;
    Operation operation_;
    TimePoint deadline_;
    std::vector<std::function<void()>> then_;  // under the group's lock
    std::shared_ptr<const void> memory_;       // of a message
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

  // Shared by who waits and the group.
  std::shared_ptr<Work> start(Operation operation, TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // A message between this rank and another (a receive: Lanes::kAnyone as well), beside the
  // collectives and in no order with them.
  std::shared_ptr<Work> send(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Work> receive(Channels::Message message, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls it once the work is done, on a thread of the group that does nothing else. It may start
  // work and wait for it, and for other such calls (kMostCallers at a time, or as many threads as
  // the system gives). If it gives none the group fails, and `then` is called here.
  void when_done(const std::shared_ptr<Work>& work, std::function<void()> then)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what can run now, and waits for nobody.
  void poll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until it is done, or `deadline`: DeadlineExceeded then, and it goes on. Else its status.
  absl::Status wait(const std::shared_ptr<Work>& work, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for all that is under way, as long as something moves: returns once nothing is left, or
  // nothing has gone on for `still`.
  void drain(Nanoseconds still) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails all that is under way here and, with this reason, at the other ranks.
  void abort(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, because this rank has no more use for the group; where another one has died, that is
  // the reason which the rest are told.
  void leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this is a thread of the group: it cannot destroy the group.
  bool on_own_thread() const ABSL_LOCKS_EXCLUDED(mutex_);
  // OK as long as operations can succeed.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // What this rank has done so far.
  struct Counts {
    uint64_t in_slots = 0;  // operations, by where the data lay
    uint64_t in_arenas = 0;
    uint64_t in_pieces = 0;
    uint64_t copied_bytes = 0;  // into slots and stages
    uint64_t chunks = 0;        // that this rank added up, in arenas
    uint64_t looked = 0;        // times it began to look for what it waits for
    uint64_t slept = 0;         // times it went to sleep
    uint64_t ticked = 0;        // sleeps that nobody ended before their tick or deadline
    uint64_t checked = 0;       // times it checked who is dead, has given up or is late
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Finished = std::vector<std::shared_ptr<Work>>;
  // What an operation waits for: that a counter of some rank comes to the number.
  struct Goal {
    const Counter* counter = nullptr;
    uint32_t number = 0;
  };
  // The same with what messages wait for: any of them is worth a look.
  struct Awaited {
    Goal goal;
    std::vector<Channels::Watch> watches;
    bool anything() const { return goal.counter != nullptr || !watches.empty(); }
    bool come() const;
  };
  // How far the first operation of the queue has come.
  enum class Phase { kPublish, kMeet, kSlots, kArenas, kLeaveArenas, kPieces };

  static constexpr Nanoseconds kPatience = std::chrono::milliseconds(1);
  static constexpr Nanoseconds kLongPatience = std::chrono::milliseconds(50);
  static constexpr int kMostIdle = 10;  // ticks
  static constexpr size_t kMostCallers = 64;
  static constexpr int kLooks = 64;  // before it yields
  static constexpr uint64_t kMostBytes = uint64_t{1} << 48;
  static constexpr uint64_t kMostChunkBytes = uint64_t{256} << 10;
  static constexpr uint64_t kPageBytes = 4096;                // chunks are multiples of it
  static constexpr uint64_t kChunksEach = 4;                  // at least, where they are that large
  static constexpr uint64_t kLargeBytes = uint64_t{1} << 20;  // more is not added up by start()
  static constexpr int kAllAddUp = 3;  // ranks: with more, each adds up a part

  void lead(const Work* work, TimePoint deadline, bool looks = true) ABSL_LOCKS_EXCLUDED(mutex_);
  bool look_for(const Awaited& awaited);
  void run_in_background() ABSL_LOCKS_EXCLUDED(mutex_);
  void call_soon(std::function<void()> call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status add_caller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run_calls() ABSL_LOCKS_EXCLUDED(mutex_);
  static void tell(Finished& finished);

  // Does what can be done now; false if nothing could.
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
  // Who is dead, has given up or is late.
  void look_around() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void look_at_transfers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status end_of_all() const;

  // Whether every other rank's counter has come there; if not, it is the goal now.
  bool all_reached(Counter ControlBlock::*counter, uint32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void move(Counter ControlBlock::*counter, uint32_t next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of `count` elements, where the part of a rank begins.
  uint64_t part_begin(uint64_t count, int rank) const;

  const std::shared_ptr<Mesh> mesh_;  // shared with the arenas
  const Options options_;
  const Nanoseconds patience_;

  mutable Mutex mutex_;
  CondVar moved_on_;  // work is done, or nobody leads; told to followers_
  CondVar background_needed_;
  CondVar calls_there_;
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in lead()
  int followers_ ABSL_GUARDED_BY(mutex_) = 0;     // wait for moved_on_
  bool ticking_ ABSL_GUARDED_BY(mutex_) = false;  // the group's thread looks now and then
  // Work under way whose end somebody is to be told of: for it that thread does not wait that long.
  size_t urgent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool giving_way_ ABSL_GUARDED_BY(mutex_) = false;  // that thread waits until nobody else leads
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Work>> queue_ ABSL_GUARDED_BY(mutex_);
  Finished finished_ ABSL_GUARDED_BY(mutex_);  // to be told
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  Channels channels_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Work>> transfers_ ABSL_GUARDED_BY(mutex_);  // messages under way

  uint32_t operations_ ABSL_GUARDED_BY(mutex_) = 0;     // done
  uint32_t pieces_before_ ABSL_GUARDED_BY(mutex_) = 0;  // of those
  uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;  // that anything took: grows while something moves
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  Goal goal_ ABSL_GUARDED_BY(mutex_);
  Counter ControlBlock::*awaited_ ABSL_GUARDED_BY(mutex_) =
      nullptr;  // of all ranks, to goal_.number

  // ---- of the first one in the queue
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kPublish;
  std::vector<Record> records_ ABSL_GUARDED_BY(mutex_);      // by rank, private copies
  std::vector<std::byte*> sources_ ABSL_GUARDED_BY(mutex_);  // by rank, where it can be read
  uint64_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // contribution that lies in no slot, in bytes
  uint64_t pieces_ ABSL_GUARDED_BY(mutex_) = 0;   // of it
  uint64_t pieces_staged_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t pieces_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool piece_reduced_ ABSL_GUARDED_BY(mutex_) = false;

  // ---- kept for their memory
  std::vector<const std::byte*> shifted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte*> targets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte> scratch_ ABSL_GUARDED_BY(mutex_);

  SpinPolicy spin_;                                           // of whoever leads
  std::vector<std::thread> callers_ ABSL_GUARDED_BY(mutex_);  // of calls_, as many as it takes
  size_t idle_callers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool caller_refused_ ABSL_GUARDED_BY(mutex_) = false;  // background_ asks for it again
  std::thread background_;
};

}  // namespace weft::comm_internal
