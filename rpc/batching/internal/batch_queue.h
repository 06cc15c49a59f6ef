// Gathers the calls of one worker into batches and runs them on the worker's executor. It has
// groups of calls that may run together, timers and slots, and knows no types and no tensors.
//
// A slot is one batch among those that run (docs/batching.md, "Inside").
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the batcher, its slots and the looks that it scheduled. Timers and hooks hold
// it weakly. `end` closes it, and so does the worker's executor when it stops; calls that wait then
// fail.
// Blocking: only `wait_for_executions`. It does not wait for a batch that this thread is inside of.
// Errors, of the items: Cancelled (the queue is closed, or the caller gave up), DeadlineExceeded
// (before its batch began), ResourceExhausted (too many calls wait, or no thread is left).
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

// The call of one caller: its arguments, and the promise of its result.
class BatchItem {
 public:
  virtual ~BatchItem() = default;
  virtual void fail(const absl::Status& status) = 0;
  // Whether its future is complete, because the caller cancelled it.
  virtual bool done() const = 0;
  // Runs `hook` when the caller cancels the future.
  virtual void on_cancel(Executor::Task hook) = 0;
  virtual size_t bytes() const = 0;
};
using BatchItems = std::vector<std::unique_ptr<BatchItem>>;

// Numbers that encode type, device and shape of a call's tensors. Calls of one group have the same.
using BatchShape = std::vector<int64_t>;

class BatchQueue : public std::enable_shared_from_this<BatchQueue> {
 public:
  // Completes a batch after its user code: takes the time of the execution, then runs `deliver`,
  // which completes the futures. Call it once, from any thread.
  using End = absl::AnyInvocable<void(Executor::Task deliver)>;
  // Runs one batch, in the scope for nested calls. Destroying `end` completes the batch too.
  using RunBatch = std::function<void(BatchQueue& queue, BatchItems items, End end)>;

  // Marks this thread as running the batched function, while it exists.
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
  // Closes the queue when the worker's executor stops. Call it before all other methods.
  void watch_executor();

  const std::weak_ptr<RpcRuntime>& runtime() const { return runtime_; }
  const BatchOptions& options() const { return options_; }

  // Adds a call with the scope of this thread. An error fails the item. `alone`: the call runs
  // without other calls, and does not wait for any.
  void add(const std::shared_ptr<RpcRuntime>& runtime, BatchShape shape, bool alone,
           std::unique_ptr<BatchItem> item) ABSL_LOCKS_EXCLUDED(mutex_);
  // The calls that wait now begin as soon as a slot is free, in full batches or not.
  void flush() ABSL_LOCKS_EXCLUDED(mutex_);
  // Changes the size from the next batch on. Batches that are full by it begin at the next look.
  void set_max_size(size_t max_size) ABSL_LOCKS_EXCLUDED(mutex_);
  // Schedules a look on the executor, one for all requests until it runs. A look drops calls whose
  // callers gave up, and begins batches that are due.
  void look_soon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails the calls that wait, and each later one. Idempotent.
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
    CallScope scope;                    // without the runtime, which a waiting call must not keep
    std::shared_ptr<CallContext> call;  // null outside handlers
    uint64_t cancel_hook = 0;
    // The hook sets it. CallContext::cancelled() does not serve: it also becomes true at the
    // deadline, and that of a `remote` call counts only until the call is accepted.
    std::shared_ptr<std::atomic<bool>> cancelled;
    TimePoint arrived;
  };
  struct Group {
    std::deque<Waiting> waiting;
    size_t flushed = 0;                 // how many calls, from the front, `flush` has found
    TimePoint first_deadline = kNever;  // of calls that wait, or of one that no longer waits
    TimePoint timer_at = kNever;
    TimerId timer;
  };
  using Groups = std::map<Key, Group>;
  // A slot: put into the executor, then executing a batch, at last given back.
  class Place;
  struct Batch;
  // Work to do after the lock is released.
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
  // No thread is left for the batch: fails all calls that wait, inside this call.
  void refuse(Place& place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes all calls that wait and adds them to `actions`, to fail with `why`.
  void take_waiting(RpcRuntime* runtime, const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Begins slots for batches that are due, and sets timers for later ones.
  void begin_due(RpcRuntime& runtime, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When a batch of the group may begin. TimePoint::min(): now, whatever the time is.
  TimePoint due_at(const Groups::value_type& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t size_of(const Key& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes calls whose callers gave up, until callers wait for each of the first `wanted` calls.
  void prune_front(Group& group, size_t wanted, TimePoint now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop(Waiting call, TimePoint now, Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Groups::iterator erase(Groups::iterator entry, RpcRuntime& runtime)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void set_timer(const Key& key, Group& group, RpcRuntime& runtime, TimePoint when)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_timer(const Key& key, TimePoint when) ABSL_LOCKS_EXCLUDED(mutex_);
  // Puts slots into the executor, and fails calls on the executor.
  void perform(const std::shared_ptr<RpcRuntime>& runtime, Actions actions)
      ABSL_LOCKS_EXCLUDED(mutex_);
  static void fail_here(Actions& actions);
  absl::Status refuse_more(const Key& key, const Waiting& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ended() const;

  static bool gave_up(const Waiting& call, TimePoint now);

  const BatchOptions options_;
  const std::shared_ptr<const RunBatch> run_batch_;  // shared by the queues of a batcher
  // Methods lock this pointer before mutex_ and release it after mutex_. If theirs is the last
  // reference, the release destroys the runtime, which must not happen under mutex_.
  const std::weak_ptr<RpcRuntime> runtime_;
  uint64_t stop_hook_ = 0;  // set by watch_executor(), before other threads know this queue
  async_internal::RunLengths run_lengths_;
  mutable Mutex mutex_;
  CondVar execution_ended_;
  BatchPolicy policy_ ABSL_GUARDED_BY(mutex_);
  Groups groups_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;    // slots that are not given back yet
  size_t unstarted_ ABSL_GUARDED_BY(mutex_) = 0;  // those of them in the executor's queue
  size_t executing_ ABSL_GUARDED_BY(mutex_) = 0;  // batches in the function or its future
  size_t executing_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;  // a look is scheduled
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  BatchStats stats_ ABSL_GUARDED_BY(mutex_);
};

// The queues of a batcher: one for each worker of this process that is called.
//
// Thread safety: all methods may be called from any thread.
// Blocking: only `close`, which closes all queues and waits for their batches.
class BatchQueues {
 public:
  BatchQueues(BatchOptions options, bool joins, BatchQueue::RunBatch run_batch)
      : options_(std::move(options)),
        joins_(joins),
        run_batch_(std::make_shared<const BatchQueue::RunBatch>(std::move(run_batch))),
        max_size_(options_.max_size) {}

  const BatchOptions& options() const { return options_; }
  // Whether its calls are joined, so that their shapes matter.
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

  const BatchOptions options_;  // max_size_ replaces options_.max_size
  const bool joins_;
  const std::shared_ptr<const BatchQueue::RunBatch> run_batch_;
  mutable Mutex mutex_;
  size_t max_size_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<BatchQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  BatchStats of_gone_workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
