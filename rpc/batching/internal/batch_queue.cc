#include "weft/rpc/batching/internal/batch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

thread_local const BatchQueue* inside_here = nullptr;

}  // namespace

struct BatchQueue::Batch {
  std::vector<Waiting> calls;
  bool full = false;
};

struct BatchQueue::Actions {
  struct Failed {
    Waiting call;
    absl::Status why;
  };
  std::vector<Failed> failed;
  size_t begun = 0;  // slots to put into the executor
};

class BatchQueue::Place {
 public:
  Place(std::shared_ptr<BatchQueue> queue, std::shared_ptr<RpcRuntime> runtime)
      : queue_(std::move(queue)), runtime_(std::move(runtime)) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    execution_ended();
    queue_->give_back(*this);
  }

  BatchQueue& queue() const { return *queue_; }
  const std::shared_ptr<RpcRuntime>& runtime() const { return runtime_; }
  bool started() const { return started_; }
  void start() { started_ = true; }
  bool given_back() const { return given_back_; }
  void set_given_back() { given_back_ = true; }

  void execution_begins(TimePoint oldest, size_t calls, bool full) {
    oldest_ = oldest;
    calls_ = calls;
    full_ = full;
    began_ = runtime_->clock().now();
    executing_ = true;
  }
  void execution_ended() {
    if (!std::exchange(executing_, false)) return;
    const TimePoint now = runtime_->clock().now();
    queue_->executed(calls_, full_, now - began_, now - oldest_);
  }

 private:
  const std::shared_ptr<BatchQueue> queue_;
  const std::shared_ptr<RpcRuntime> runtime_;
  bool started_ = false;
  bool given_back_ = false;
  bool executing_ = false;
  bool full_ = false;
  size_t calls_ = 0;
  TimePoint oldest_;
  TimePoint began_;
};

BatchQueue::Inside::Inside(const BatchQueue* queue)
    : previous_(std::exchange(inside_here, queue)) {}
BatchQueue::Inside::~Inside() { inside_here = previous_; }

BatchQueue::BatchQueue(const BatchOptions& options, std::shared_ptr<const RunBatch> run_batch,
                       const std::shared_ptr<RpcRuntime>& runtime)
    : options_(options), run_batch_(std::move(run_batch)), runtime_(runtime), policy_(options_) {}

BatchQueue::~BatchQueue() {
  if (const auto runtime = runtime_.lock()) runtime->executor().forget(stop_hook_);
}

void BatchQueue::watch_executor() {
  if (const auto runtime = runtime_.lock()) {
    stop_hook_ = runtime->executor().at_stop([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->end();
    });
  }
}

void BatchQueue::add(const std::shared_ptr<RpcRuntime>& runtime, BatchShape shape, bool alone,
                     std::unique_ptr<BatchItem> item) {
  Waiting waiting;
  waiting.item = std::move(item);
  waiting.scope = CallScope::current();
  waiting.scope.runtime = nullptr;
  waiting.call = std::exchange(waiting.scope.call_context, nullptr);
  waiting.arrived = runtime->clock().now();
  if (waiting.call != nullptr) {
    waiting.cancelled = std::make_shared<std::atomic<bool>>(false);
    waiting.cancel_hook =
        waiting.call->on_explicit_cancel([weak = weak_from_this(), cancelled = waiting.cancelled] {
          cancelled->store(true);
          if (const auto self = weak.lock()) self->look_soon();
        });
  }
  waiting.item->on_cancel([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->look_soon();
  });
  Key key{waiting.scope.context, alone, std::move(shape)};
  Actions actions;
  Actions own;  // the caller has no future of it yet, so it may fail on this thread
  {
    MutexLock lock(mutex_);
    if (absl::Status refused = refuse_more(key, waiting); !refused.ok()) {
      own.failed.push_back({std::move(waiting), std::move(refused)});
    } else if (gave_up(waiting, waiting.arrived)) {
      const TimePoint now = waiting.arrived;
      ++pending_;
      pending_bytes_ += waiting.item->bytes();
      drop(std::move(waiting), now, own);
    } else {
      Group& group = groups_[std::move(key)];
      group.first_deadline = std::min(group.first_deadline, waiting.scope.deadline);
      ++pending_;
      pending_bytes_ += waiting.item->bytes();
      group.waiting.push_back(std::move(waiting));
      policy_.seen(pending_ + executing_calls_);
      begin_due(*runtime, actions);
    }
  }
  perform(runtime, std::move(actions));
  fail_here(own);
}

absl::Status BatchQueue::refuse_more(const Key& key, const Waiting& call) {
  if (ended_) return ended();
  const auto exhausted = [&](auto... text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++stats_.refused;
    return absl::ResourceExhaustedError(absl::StrCat("batcher '", options_.name, "': ", text...));
  };
  if (pending_ >= options_.max_pending) return exhausted(pending_, " calls wait already");
  if (pending_ > 0 && pending_bytes_ + call.item->bytes() > options_.max_pending_bytes) {
    return exhausted("the calls that wait hold ", pending_bytes_, " bytes of tensors already");
  }
  if (groups_.size() >= options_.max_groups && !groups_.contains(key)) {
    return exhausted("calls of ", groups_.size(), " shapes or contexts wait already");
  }
  return absl::OkStatus();
}

void BatchQueue::flush() {
  const std::shared_ptr<RpcRuntime> runtime = runtime_.lock();
  if (runtime == nullptr) return;
  Actions actions;
  {
    MutexLock lock(mutex_);
    for (auto& [key, group] : groups_) group.flushed = group.waiting.size();
    begin_due(*runtime, actions);
  }
  perform(runtime, std::move(actions));
}

void BatchQueue::set_max_size(size_t max_size) {
  MutexLock lock(mutex_);
  policy_.set_max_size(max_size);
}

void BatchQueue::end() {
  const std::shared_ptr<RpcRuntime> runtime = runtime_.lock();
  Actions actions;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    take_waiting(runtime.get(), ended(), actions);
  }
  fail_here(actions);
}

void BatchQueue::refuse(Place& place) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    give_back_locked(place);  // first, because a caller whose call fails may call again at once
    stats_.refused += pending_;
    const std::string why =
        absl::StrCat("batcher '", options_.name, "': no thread is left for a batch of ", pending_,
                     " calls that wait");
    take_waiting(place.runtime().get(), absl::ResourceExhaustedError(why), actions);
  }
  fail_here(actions);
  // Destroying what the callers attached to their calls may take long, so the executor does it:
  // this may be the clock's thread.
  place.runtime()->executor().schedule([dead = std::move(actions)] {});
}

void BatchQueue::take_waiting(RpcRuntime* runtime, const absl::Status& why, Actions& actions) {
  for (auto& [key, group] : groups_) {
    if (group.timer_at != kNever && runtime != nullptr) runtime->clock().cancel(group.timer);
    for (Waiting& call : group.waiting) actions.failed.push_back({std::move(call), why});
  }
  groups_.clear();
  pending_ = 0;
  pending_bytes_ = 0;
}

void BatchQueue::wait_for_executions() {
  BlockingSection waiting;
  MutexLock lock(mutex_);
  const size_t own = inside_here == this ? 1 : 0;
  while (executing_ > own) execution_ended_.wait(mutex_);
}

BatchStats BatchQueue::stats() const {
  MutexLock lock(mutex_);
  BatchStats stats = stats_;
  stats.pending = pending_;
  stats.size = policy_.size();
  stats.usual_run = policy_.usual_run();
  return stats;
}

void BatchQueue::run_one(std::shared_ptr<Place> place) {
  Batch batch;
  Actions actions;
  bool found = false;
  const TimePoint now = place->runtime()->clock().now();
  {
    MutexLock lock(mutex_);
    place->start();
    --unstarted_;
    found = take_batch(*place->runtime(), now, batch, actions);
    if (found) ++executing_;
  }
  perform(place->runtime(), std::move(actions));
  if (!found) return;
  BatchItems items;
  items.reserve(batch.calls.size());
  CallScope scope = scope_of(batch.calls);
  scope.runtime = place->runtime();
  for (Waiting& call : batch.calls) {
    if (call.call != nullptr) call.call->forget(call.cancel_hook);
    items.push_back(std::move(call.item));
  }
  place->execution_begins(batch.calls.front().arrived, batch.calls.size(), batch.full);
  CallScopeGuard guard(std::move(scope));
  async_internal::RunLengths::Measure measure(run_lengths_);
  // The callback owns the slot, so the slot is also given back if the callback is dropped.
  (*run_batch_)(*this, std::move(items), [place](Executor::Task deliver) {
    place->execution_ended();
    deliver();
  });
}

// The scope of a batch: that of the oldest call, with the latest deadline of all calls. It is
// inside all serial objects of the calls: at most kMostHeld, the innermost of each call first.
CallScope BatchQueue::scope_of(const std::vector<Waiting>& calls) {
  CallScope scope = calls.front().scope;
  size_t deepest = 0;
  for (const Waiting& call : calls) {
    scope.deadline = std::max(scope.deadline, call.scope.deadline);
    if (call.scope.held != nullptr) deepest = std::max(deepest, call.scope.held->size());
  }
  if (deepest == 0) return scope;
  std::vector<ChainId> held;
  for (size_t depth = 1; depth <= deepest; ++depth) {
    for (const Waiting& call : calls) {
      if (call.scope.held == nullptr || call.scope.held->size() < depth) continue;
      const ChainId id = (*call.scope.held)[call.scope.held->size() - depth];
      if (held.size() < CallScope::kMostHeld &&
          std::find(held.begin(), held.end(), id) == held.end()) {
        held.push_back(id);
      }
    }
  }
  std::reverse(held.begin(), held.end());  // the newest last
  scope.held = std::make_shared<const std::vector<ChainId>>(std::move(held));
  return scope;
}

bool BatchQueue::take_batch(RpcRuntime& runtime, TimePoint now, Batch& batch, Actions& actions) {
  for (;;) {
    // Of the groups that are due, the one whose oldest call arrived first.
    auto chosen = groups_.end();
    for (auto entry = groups_.begin(); entry != groups_.end(); ++entry) {
      if (due_at(*entry) > now) continue;
      if (chosen == groups_.end() ||
          entry->second.waiting.front().arrived < chosen->second.waiting.front().arrived) {
        chosen = entry;
      }
    }
    if (chosen == groups_.end()) return false;
    Group& group = chosen->second;
    // After this no call of the batch is checked again, so a batch that is full stays full.
    prune_front(group, size_of(chosen->first), now, actions);
    if (due_at(*chosen) <= now) {
      while (!group.waiting.empty() && batch.calls.size() < size_of(chosen->first)) {
        Waiting call = std::move(group.waiting.front());
        group.waiting.pop_front();
        if (group.flushed > 0) --group.flushed;
        --pending_;
        pending_bytes_ -= call.item->bytes();
        batch.calls.push_back(std::move(call));
      }
    }
    batch.full = batch.calls.size() == policy_.size();
    if (group.waiting.empty()) erase(chosen, runtime);
    if (!batch.calls.empty()) break;
  }
  executing_calls_ += batch.calls.size();
  ++stats_.batches;
  stats_.calls += batch.calls.size();
  stats_.largest = std::max<uint64_t>(stats_.largest, batch.calls.size());
  return true;
}

void BatchQueue::executed(size_t calls, bool full, Nanoseconds run, Nanoseconds from_arrival) {
  MutexLock lock(mutex_);
  --executing_;
  executing_calls_ -= calls;
  policy_.finished(full, run);
  if (policy_.late(from_arrival)) ++stats_.late;
  execution_ended_.notify_all();
}

void BatchQueue::give_back_locked(Place& place) {
  place.set_given_back();
  --running_;
  if (!place.started()) --unstarted_;
}

void BatchQueue::give_back(Place& place) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    if (place.given_back()) return;
    give_back_locked(place);
    // A slot that never started was dropped by an executor that has stopped. Its at_stop hook has
    // closed the queue.
    if (place.started()) begin_due(*place.runtime(), actions);
  }
  perform(place.runtime(), std::move(actions));
}

void BatchQueue::look_soon() {
  const std::shared_ptr<RpcRuntime> runtime = runtime_.lock();
  if (runtime == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (ended_ || std::exchange(looking_, true)) return;
  }
  runtime->executor().schedule([self = shared_from_this()] { self->look(); });
}

void BatchQueue::look() {
  const std::shared_ptr<RpcRuntime> runtime = runtime_.lock();
  if (runtime == nullptr) return;
  const TimePoint now = runtime->clock().now();
  Actions actions;
  {
    MutexLock lock(mutex_);
    looking_ = false;
    for (auto& [key, group] : groups_) prune_front(group, group.waiting.size(), now, actions);
    begin_due(*runtime, actions);
  }
  Actions failed;
  failed.failed.swap(actions.failed);
  perform(runtime, std::move(actions));
  fail_here(failed);
}

void BatchQueue::begin_due(RpcRuntime& runtime, Actions& actions) {
  if (ended_) return;
  const TimePoint now = runtime.clock().now();
  const bool may_begin =
      running_ < options_.max_running;  // otherwise the slot that is given back next looks again
  size_t batches = 0;                   // that could begin now
  for (auto entry = groups_.begin(); entry != groups_.end();) {
    const Key& key = entry->first;
    Group& group = entry->second;
    if (group.first_deadline <= now) prune_front(group, group.waiting.size(), now, actions);
    if (may_begin && policy_.waits() && due_at(*entry) == TimePoint::min()) {
      prune_front(group, size_of(key), now, actions);  // calls that were given up do not fill it
    }
    if (group.waiting.empty()) {
      entry = erase(entry, runtime);
      continue;
    }
    const TimePoint due = due_at(*entry);
    set_timer(key, group, runtime,
              may_begin && due > now ? std::min(due, group.first_deadline) : group.first_deadline);
    if (due <= now) batches += (group.waiting.size() - 1) / size_of(key) + 1;
    ++entry;
  }
  while (running_ < options_.max_running && unstarted_ < batches) {
    ++running_;
    ++unstarted_;
    ++actions.begun;
  }
}

size_t BatchQueue::size_of(const Key& key) const { return key.alone ? 1 : policy_.size(); }

TimePoint BatchQueue::due_at(const Groups::value_type& entry) const {
  const auto& [key, group] = entry;
  if (group.waiting.empty()) return kNever;
  if (group.flushed > 0 || key.alone) return TimePoint::min();
  return policy_.begins_at(group.waiting.size(), group.waiting.front().arrived);
}

bool BatchQueue::gave_up(const Waiting& call, TimePoint now) {
  return call.item->done() || call.scope.deadline <= now ||
         (call.cancelled != nullptr && call.cancelled->load());
}

void BatchQueue::prune_front(Group& group, size_t wanted, TimePoint now, Actions& actions) {
  std::deque<Waiting>& waiting = group.waiting;
  const bool all = wanted >= waiting.size();
  const size_t flushed = group.flushed;
  size_t seen = 0, dropped = 0;
  for (; seen < waiting.size() && seen - dropped < wanted; ++seen) {
    if (!gave_up(waiting[seen], now)) continue;
    drop(std::move(waiting[seen]), now, actions);
    ++dropped;
    if (seen < flushed) --group.flushed;
  }
  if (dropped > 0) {  // the calls that stay move back, next to the calls that were not checked
    for (size_t to = seen, from = seen; from-- > 0;) {
      if (waiting[from].item != nullptr && --to != from) waiting[to] = std::move(waiting[from]);
    }
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(dropped));
  }
  if (!all) return;
  group.first_deadline = kNever;
  for (const Waiting& call : waiting) {
    group.first_deadline = std::min(group.first_deadline, call.scope.deadline);
  }
}

void BatchQueue::drop(Waiting call, TimePoint now, Actions& actions) {
  --pending_;
  pending_bytes_ -= call.item->bytes();
  ++stats_.abandoned;
  const std::string text =
      absl::StrCat("batcher '", options_.name, "': the caller gave up before the call's batch");
  absl::Status why =
      call.scope.deadline <= now ? absl::DeadlineExceededError(text) : absl::CancelledError(text);
  actions.failed.push_back({std::move(call), std::move(why)});
}

BatchQueue::Groups::iterator BatchQueue::erase(Groups::iterator entry, RpcRuntime& runtime) {
  if (entry->second.timer_at != kNever) runtime.clock().cancel(entry->second.timer);
  return groups_.erase(entry);
}

void BatchQueue::set_timer(const Key& key, Group& group, RpcRuntime& runtime, TimePoint when) {
  if (group.timer_at == when) return;
  if (group.timer_at != kNever) runtime.clock().cancel(group.timer);
  group.timer_at = when;
  if (when == kNever) return;
  group.timer = runtime.clock().call_at(when, [weak = weak_from_this(), key, when] {
    if (const auto self = weak.lock()) self->on_timer(key, when);
  });
}

void BatchQueue::on_timer(const Key& key, TimePoint when) {
  {
    MutexLock lock(mutex_);
    const auto group = groups_.find(key);
    if (group == groups_.end() || group->second.timer_at != when) return;
    group->second.timer_at = kNever;
  }
  look_soon();  // on the executor: a failing call releases what it holds, which may take long
}

void BatchQueue::perform(const std::shared_ptr<RpcRuntime>& runtime, Actions actions) {
  for (size_t i = 0; i < actions.begun; ++i) {
    Executor::Call batch;
    auto place = std::make_shared<Place>(shared_from_this(), runtime);
    batch.refuse = [place] { place->queue().refuse(*place); };
    batch.run = [place = std::move(place)]() mutable {
      BatchQueue& queue = place->queue();
      queue.run_one(std::move(place));
    };
    if (run_lengths_.short_lately()) batch.expected = run_lengths_.usual();
    runtime->executor().schedule_call(std::move(batch));
  }
  // A failing call releases what its caller attached to it. That may block: not on this thread.
  if (actions.failed.empty()) return;
  runtime->executor().schedule([actions = std::move(actions)]() mutable { fail_here(actions); });
}

void BatchQueue::fail_here(Actions& actions) {
  for (Actions::Failed& failed : actions.failed) {
    if (failed.call.call != nullptr) failed.call.call->forget(failed.call.cancel_hook);
    failed.call.item->fail(with_ran(std::move(failed.why), Ran::kNo));
  }
}

absl::Status BatchQueue::ended() const {
  return absl::CancelledError(
      absl::StrCat("batcher '", options_.name, "' or its worker has ended"));
}

std::shared_ptr<BatchQueue> BatchQueues::of(const std::shared_ptr<RpcRuntime>& runtime) {
  std::shared_ptr<BatchQueue> made;
  std::vector<std::shared_ptr<BatchQueue>> gone;  // destroyed outside the lock
  bool closed = false;
  {
    MutexLock lock(mutex_);
    // Compares ownership, because a new runtime may have the address of one that is gone.
    for (const auto& queue : queues_) {
      if (!queue->runtime().owner_before(runtime) && !runtime.owner_before(queue->runtime())) {
        return queue;
      }
    }
    const auto rest = std::partition(queues_.begin(), queues_.end(),
                                     [](const auto& queue) { return !queue->runtime().expired(); });
    for (auto queue = rest; queue != queues_.end(); ++queue) {
      BatchStats counts = (*queue)->stats();
      counts.pending = counts.size = 0;  // these say what is now, and the worker is gone
      counts.usual_run = {};
      of_gone_workers_ += counts;
      gone.push_back(std::move(*queue));
    }
    queues_.erase(rest, queues_.end());
    BatchOptions options = options_;
    options.max_size = max_size_;
    made = std::make_shared<BatchQueue>(options, run_batch_, runtime);
    queues_.push_back(made);
    closed = closed_;
  }
  made->watch_executor();
  if (closed) made->end();
  return made;
}

std::vector<std::shared_ptr<BatchQueue>> BatchQueues::all() const {
  MutexLock lock(mutex_);
  return queues_;
}

void BatchQueues::flush() {
  for (const auto& queue : all()) queue->flush();
}

void BatchQueues::set_max_size(size_t max_size) {
  BatchOptions options = options_;
  options.max_size = max_size;
  if (absl::Status status = options.validate(); !status.ok()) throw RpcError(std::move(status));
  {
    // Under the lock, so that all queues have the value of the last caller.
    MutexLock lock(mutex_);
    max_size_ = max_size;
    for (const auto& queue : queues_) queue->set_max_size(max_size);
  }
  for (const auto& queue : all()) queue->look_soon();
}

void BatchQueues::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  // All queues are closed first, because a batch of one queue may wait for a call in another one.
  const auto queues = all();
  for (const auto& queue : queues) queue->end();
  for (const auto& queue : queues) queue->wait_for_executions();
}

BatchStats BatchQueues::stats() const {
  std::vector<std::shared_ptr<BatchQueue>> queues;
  BatchStats stats;
  {
    MutexLock lock(mutex_);
    queues = queues_;
    stats = of_gone_workers_;
  }
  for (const auto& queue : queues) stats += queue->stats();
  return stats;
}

}  // namespace weft::rpc_internal
