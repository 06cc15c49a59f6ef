// Gathers one worker's calls into batches: groups of calls that may run together, timers, the
// executor. Knows nothing of types and tensors.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the batcher, its running batches and the looks that it asked for; timers know
// it weakly. `end` ends it, and so does its worker's executor when it stops; what waits then fails.
// Blocking: `wait_for_executions`, but not for one that this thread is inside of.
// Errors: of the items: Cancelled (ended, given up), DeadlineExceeded (before its batch began),
// ResourceExhausted (too much waits).
// Protocol: docs/batching.md.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/async/run_lengths.h"
#include "weft/base/mutex.h"
#include "weft/rpc/batching/batch_options.h"
#include "weft/rpc/batching/internal/batch_policy.h"
#include "weft/rpc/runtime.h"

namespace weft::rpc_internal {

// One caller's call: its arguments, and where its result goes.
class BatchItem {
 public:
  virtual ~BatchItem() = default;
  virtual void fail(const absl::Status& status) = 0;
  // Its future is complete already: cancelled, that is.
  virtual bool done() const = 0;
  // `hook` runs when it is.
  virtual void on_cancel(Executor::Task hook) = 0;
  virtual size_t bytes() const = 0;
};
using BatchItems = std::vector<std::unique_ptr<BatchItem>>;

// What tells groups apart: numbers that say type, device and shape of a call's tensors.
using BatchShape = std::vector<int64_t>;

class BatchQueue : public std::enable_shared_from_this<BatchQueue> {
 public:
  // Ends a batch: user code is through; `deliver` completes the futures. To be called once, from
  // any thread.
  using End = absl::AnyInvocable<void(Executor::Task deliver)>;
  // Runs one batch, in the scope that nested calls are to be made in. Dropping `end` ends it too.
  using RunBatch = std::function<void(BatchQueue& queue, BatchItems items, End end)>;

  // Marks this thread as being inside the function.
  class Inside {
   public:
    explicit Inside(const BatchQueue* queue);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    const BatchQueue* const previous_;
  };

  BatchQueue(const BatchOptions& options, std::shared_ptr<const RunBatch> run_batch,
             const std::shared_ptr<RpcRuntime>& runtime);
  ~BatchQueue();
  // Before anything else: ends the queue with the executor.
  void watch_executor();

  const std::weak_ptr<RpcRuntime>& runtime() const { return runtime_; }
  const BatchOptions& options() const { return options_; }

  // Takes a call to its worker; the call's scope is this thread's. An error fails the item.
  // `alone`: it is joined with nobody and waits for no company.
  void add(const std::shared_ptr<RpcRuntime>& runtime, BatchShape shape, bool alone,
           std::unique_ptr<BatchItem> item) ABSL_LOCKS_EXCLUDED(mutex_);
  // What waits now begins as soon as it may, full or not.
  void flush() ABSL_LOCKS_EXCLUDED(mutex_);
  // From the next batch on. What is full by it begins at the next look.
  void set_max_size(size_t max_size) ABSL_LOCKS_EXCLUDED(mutex_);
  // Soon, on the executor: takes out who gave up, begins what is due. Once for many that ask.
  void look_soon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls that wait fail; none is taken any more. Idempotent.
  void end() ABSL_LOCKS_EXCLUDED(mutex_);
  void wait_for_executions() ABSL_LOCKS_EXCLUDED(mutex_);
  BatchStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Key {
    ContextId context;
    bool alone = false;
    BatchShape shape;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Waiting {
    std::unique_ptr<BatchItem> item;
    CallScope scope;                    // without the runtime: what waits must not keep it
    std::shared_ptr<CallContext> call;  // null outside handlers
    uint64_t cancel_hook = 0;
    // Set by the hook. Not CallContext::cancelled(): the budget of a call by `remote` ends with its
    // acceptance.
    std::shared_ptr<std::atomic<bool>> cancelled;
    TimePoint arrived;
  };
  struct Group {
    std::deque<Waiting> waiting;
    size_t flushed = 0;                 // how many of them, from the front
    TimePoint first_deadline = kNever;  // of those that wait; may be of one that has gone
    TimePoint timer_at = kNever;
    TimerId timer;
  };
  using Groups = std::map<Key, Group>;
  // One batch among those that run: begun, then executing, at last given back.
  class Place;
  struct Batch;
  // Work for after the lock is gone.
  struct Actions;

  void run_one(std::shared_ptr<Place> place) ABSL_LOCKS_EXCLUDED(mutex_);
  bool take_batch(RpcRuntime& runtime, TimePoint now, Batch& batch, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static CallScope scope_of(const std::vector<Waiting>& calls);
  void executed(size_t calls, bool full, Nanoseconds run, Nanoseconds from_arrival)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void give_back(Place& place) ABSL_LOCKS_EXCLUDED(mutex_);
  void give_back_locked(Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void look() ABSL_LOCKS_EXCLUDED(mutex_);
  // No thread is left for the batch: all calls that wait fail, here.
  void refuse(Place& place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes out all calls that wait; they fail with `why`.
  void take_waiting(RpcRuntime* runtime, const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Begins what is due and may run; sets timers for what will be.
  void begin_due(RpcRuntime& runtime, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When a batch of the group may begin; TimePoint::min() if time does not matter.
  TimePoint due_at(const Groups::value_type& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t size_of(const Key& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out calls whose callers gave up, until the first `wanted` are calls that are waited for.
  void prune_front(Group& group, size_t wanted, TimePoint now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop(Waiting call, TimePoint now, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Groups::iterator erase(Groups::iterator entry, RpcRuntime& runtime)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void set_timer(const Key& key, Group& group, RpcRuntime& runtime, TimePoint when)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_timer(const Key& key, TimePoint when) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins places, and fails calls on the executor.
  void perform(const std::shared_ptr<RpcRuntime>& runtime, Actions actions)
      ABSL_LOCKS_EXCLUDED(mutex_);
  static void fail_here(Actions& actions);
  absl::Status refuse_more(const Key& key, const Waiting& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ended() const;

  static bool gave_up(const Waiting& call, TimePoint now);

  const BatchOptions options_;
  const std::shared_ptr<const RunBatch> run_batch_;  // shared by the queues of a batcher
  // Locked before mutex_ and let go after it: whoever lets go last ends a worker's life.
  const std::weak_ptr<RpcRuntime> runtime_;
  uint64_t stop_hook_ = 0;
  async_internal::RunLengths run_lengths_;
  mutable Mutex mutex_;
  CondVar execution_ended_;
  BatchPolicy policy_ ABSL_GUARDED_BY(mutex_);
  Groups groups_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;    // places: begun, not yet given back
  size_t unstarted_ ABSL_GUARDED_BY(mutex_) = 0;  // of these, still in the executor's queue
  size_t executing_ ABSL_GUARDED_BY(mutex_) = 0;  // in the function, or waiting for its future
  size_t executing_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;  // a look is in the executor's queue
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  BatchStats stats_ ABSL_GUARDED_BY(mutex_);
};

// A batcher's queues: one for each worker of this process that is called.
//
// Thread safety, blocking: those of BatchQueue. Lifetime: `close` is the end.
class BatchQueues {
 public:
  BatchQueues(BatchOptions options, bool joins, BatchQueue::RunBatch run_batch)
      : options_(std::move(options)),
        joins_(joins),
        run_batch_(std::make_shared<const BatchQueue::RunBatch>(std::move(run_batch))),
        max_size_(options_.max_size) {}

  const BatchOptions& options() const { return options_; }
  // Its calls are joined, so that their shapes matter.
  bool joins() const { return joins_; }

  std::shared_ptr<BatchQueue> of(const std::shared_ptr<RpcRuntime>& runtime)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void flush() ABSL_LOCKS_EXCLUDED(mutex_);
  // Throws RpcError (InvalidArgument): zero, or more than max_pending.
  void set_max_size(size_t max_size) ABSL_LOCKS_EXCLUDED(mutex_);
  void close() ABSL_LOCKS_EXCLUDED(mutex_);
  BatchStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::vector<std::shared_ptr<BatchQueue>> all() const ABSL_LOCKS_EXCLUDED(mutex_);

  const BatchOptions options_;  // but for max_size
  const bool joins_;
  const std::shared_ptr<const BatchQueue::RunBatch> run_batch_;
  mutable Mutex mutex_;
  size_t max_size_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<BatchQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  BatchStats of_gone_workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
