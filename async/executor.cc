#include "weft/async/executor.h"

#include <algorithm>
#include <functional>
#include <pthread.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/base/thread.h"

namespace weft {
namespace {

thread_local Executor* current_executor = nullptr;
thread_local uint64_t waits_here = 0;
thread_local int sections_here = 0;  // of the executor's task; they may be nested

// A thread beyond `ThreadExecutorOptions::threads` stops after this long without a task.
constexpr std::chrono::seconds kIdleThreadLife{10};
// After this many stalls in a row the executor refuses new calls, even if some threads have not
// announced a wait. Such threads compute, or they wait for something that the executor cannot see.
constexpr int kMostStalls = 100;

}  // namespace

Executor* Executor::current() { return current_executor; }
uint64_t Executor::announced_waits() { return waits_here; }

Executor::Enter::Enter(Executor* executor) : previous_(current_executor) {
  current_executor = executor;
}
Executor::Enter::~Enter() { current_executor = previous_; }

BlockingSection::BlockingSection() : executor_(Executor::current()) {
  ++waits_here;
  if (executor_ != nullptr) executor_->begin_wait();
}
BlockingSection::~BlockingSection() {
  if (executor_ != nullptr) executor_->end_wait();
}

struct ThreadExecutor::Stall {
  Mutex mutex;
  ThreadExecutor* executor ABSL_GUARDED_BY(mutex) = nullptr;  // null once stopped
  // The clock's thread is refusing calls, without a lock; `stop` waits for it.
  bool refusing ABSL_GUARDED_BY(mutex) = false;
  CondVar refused;
};

ThreadExecutor::ThreadExecutor(Clock& clock, ThreadExecutorOptions options)
    : clock_(clock), options_(std::move(options)), stall_(std::make_shared<Stall>()) {
  MutexLock lock(stall_->mutex);
  stall_->executor = this;
}

ThreadExecutor::~ThreadExecutor() { stop(); }

absl::Status ThreadExecutor::start() {
  MutexLock lock(mutex_);
  return threads_.empty() ? add_thread() : absl::OkStatus();
}

void ThreadExecutor::schedule(Task task) {
  Call call{std::move(task), {}, {}};
  (void)enqueue(call);
}

void ThreadExecutor::schedule_inline(Task task, Nanoseconds expected) {
  schedule_call({std::move(task), {}, expected});
}

void ThreadExecutor::schedule_call(Call call) {
  if (!call.expected.has_value()) {
    (void)enqueue(call);
    return;
  }
  nearby_.fetch_add(1);  // before the call is visible anywhere, so that `idle` never misses it
  if (ServingThreads::take(*this, call)) return;
  (void)enqueue(call);
  nearby_.fetch_sub(1);
}

bool ThreadExecutor::enqueue(Call& call) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    queue_.push_back(std::move(call));
    // A notified thread counts as idle until it wakes. So the idle threads serve the first `idle_`
    // tasks of the queue, and each further task needs another thread.
    wake = idle_ > 0;
    if (queue_.size() > idle_) {
      add_thread_if_short();
      watch_for_stall();
    }
  }
  if (wake) work_ready_.notify_one();
  return true;
}

void ThreadExecutor::run_nearby(Call call) {
  bool stopped = false;
  {
    MutexLock lock(mutex_);
    stopped = stopping_;
  }
  if (!stopped) {
    // A serving thread may run tasks of several executors, and prepares itself for each of them.
    thread_local const ThreadExecutor* prepared = nullptr;
    if (options_.on_thread_start && prepared != this) (*options_.on_thread_start)();
    prepared = this;
    Enter enter(this);
    call.refuse = nullptr;
    call.run();
    call.run = nullptr;
  }
  nearby_.fetch_sub(1);
}

bool ThreadExecutor::give_back_nearby(Call& call) {
  const bool taken = enqueue(call);
  nearby_.fetch_sub(1);
  return taken;
}

void ThreadExecutor::add_thread_if_short() {
  if (refused_) return;  // until the next check
  if (threads_.size() - waiting_ < options_.threads + extra_) (void)add_thread();
}

void ThreadExecutor::retire() {
  auto self = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  retired_.push_back(std::move(*self));
  threads_.erase(self);
}

absl::Status ThreadExecutor::add_thread() {
  if (stopping_) return absl::CancelledError("the executor stops");
  if (threads_.size() >= options_.max_threads) {
    return absl::ResourceExhaustedError(absl::StrCat(threads_.size(), " threads are the most"));
  }
  // A retired thread takes no lock any more, so these joins are short although a lock is held.
  for (std::thread& thread : retired_) thread.join();
  retired_.clear();
  absl::StatusOr<std::thread> thread =
      start_thread(absl::StrCat("the handlers of '", options_.name, "'"), [this] { work(); });
  refused_ = !thread.ok();
  if (refused_) return thread.status();
  threads_.push_back(*std::move(thread));
  return absl::OkStatus();
}

void ThreadExecutor::watch_for_stall() {
  if (watching_ || stopping_) return;
  watching_ = true;
  finished_at_check_ = finished_;
  clock_.call_at(clock_.now() + options_.stall, [stall = stall_] {
    std::vector<Call> refused;
    {
      // Keeps the executor alive: `stop` takes this lock. Lock order: stall->mutex, then mutex_.
      MutexLock lock(stall->mutex);
      if (stall->executor == nullptr) return;
      refused = stall->executor->check_stall();
      stall->refusing = true;
    }
    for (Call& call : refused) call.refuse();
    refused.clear();
    MutexLock lock(stall->mutex);
    stall->refusing = false;
    stall->refused.notify_all();
  });
}

std::vector<ThreadExecutor::Call> ThreadExecutor::check_stall() {
  MutexLock lock(mutex_);
  watching_ = false;
  refused_ = false;
  std::vector<Call> refused;
  if (queue_.empty() || stopping_) {
    stalls_ = 0;
    saturated_.store(false, std::memory_order_relaxed);
    return refused;
  }
  if (idle_ > 0) {
    stalls_ = 0;
  } else {
    if (finished_ != finished_at_check_) {
      stalls_ = 0;
      add_thread_if_short();  // one that the system refused before
    } else if (add_thread().ok()) {
      ++extra_;  // the running tasks seem to wait unseen, so one thread more may work
    } else if (waiting_ >= threads_.size()) {
      saturated_.store(true, std::memory_order_relaxed);
      refused = take_calls();
    } else if (++stalls_ >= kMostStalls) {
      saturated_.store(true, std::memory_order_relaxed);
    }
  }
  watch_for_stall();
  return refused;
}

std::vector<ThreadExecutor::Call> ThreadExecutor::take_calls() {
  std::vector<Call> calls;
  std::deque<Call> others;
  for (Call& each : queue_) {
    if (each.refuse) {
      calls.push_back(std::move(each));
    } else {
      others.push_back(std::move(each));
    }
  }
  queue_.swap(others);
  return calls;
}

void ThreadExecutor::work() {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  if (options_.on_thread_start) (*options_.on_thread_start)();
  Enter enter(this);
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) {
      if (extra_ > 0) --extra_;  // this thread has no task, so the stall is over
      ++idle_;
      const bool told =
          work_ready_.wait_until(mutex_, std::chrono::steady_clock::now() + kIdleThreadLife);
      --idle_;
      if (!told && queue_.empty() && !stopping_ && threads_.size() > options_.threads) {
        retire();
        return;
      }
    }
    if (stopping_) return;
    {
      Call call = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
      if (!queue_.empty()) watch_for_stall();
      mutex_.unlock();
      call.refuse = nullptr;
      call.run();
      call.run = nullptr;  // destroys the captures before the task counts as finished
      mutex_.lock();
      --running_;
    }
    ++finished_;
    saturated_.store(false, std::memory_order_relaxed);
  }
}

void ThreadExecutor::begin_wait() {
  if (ServingThreads::on_this_thread()) {
    ServingThreads::hand_over();
    return;
  }
  if (sections_here++ > 0) return;
  bool wake = false;
  {
    MutexLock lock(mutex_);
    ++waiting_;
    if (queue_.empty()) return;
    wake = idle_ > 0;
    if (queue_.size() > idle_) add_thread_if_short();
  }
  if (wake) work_ready_.notify_one();
}

void ThreadExecutor::end_wait() {
  if (ServingThreads::on_this_thread()) return;
  if (--sections_here > 0) return;
  MutexLock lock(mutex_);
  --waiting_;
  // The receiver of this task's answer may call again before the task counts as finished. That call
  // must not be refused.
  saturated_.store(false, std::memory_order_relaxed);
}

size_t ThreadExecutor::thread_count() const {
  MutexLock lock(mutex_);
  return threads_.size();
}

bool ThreadExecutor::idle() const {
  MutexLock lock(mutex_);
  return queue_.empty() && running_ == 0 && nearby_.load() == 0;
}

void ThreadExecutor::begin_stop() {
  std::map<uint64_t, Task> hooks;
  {
    MutexLock lock(mutex_);
    stop_begun_ = true;
    hooks.swap(at_stop_);
  }
  for (auto& [number, hook] : hooks) hook();
}

void ThreadExecutor::stop() {
  begin_stop();
  {
    MutexLock lock(stall_->mutex);
    stall_->executor = nullptr;
    while (stall_->refusing) stall_->refused.wait(stall_->mutex);
  }
  std::deque<Call> dropped;
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
    threads.swap(threads_);
    for (std::thread& thread : retired_) threads.push_back(std::move(thread));
    retired_.clear();
  }
  work_ready_.notify_all();
  // Before the joins, because a running task may wait for a promise that only a dropped task holds.
  dropped.clear();
  for (std::thread& thread : threads) thread.join();
}

uint64_t ThreadExecutor::at_stop(Task hook) {
  {
    MutexLock lock(mutex_);
    if (!stop_begun_) {
      at_stop_.emplace(next_hook_, std::move(hook));
      return next_hook_++;
    }
  }
  hook();
  return 0;
}

void ThreadExecutor::forget(uint64_t hook) {
  Task forgotten;  // destroyed outside the lock
  MutexLock lock(mutex_);
  const auto found = at_stop_.find(hook);
  if (found == at_stop_.end()) return;
  forgotten = std::move(found->second);
  at_stop_.erase(found);
}

struct Strand::State {
  explicit State(Executor& executor_in) : executor(executor_in) {}
  Executor& executor;
  Mutex mutex;
  std::deque<Executor::Task> queue ABSL_GUARDED_BY(mutex);
  bool running ABSL_GUARDED_BY(mutex) = false;
};

// The task that a strand gives to the executor. If the executor has stopped and destroys it unrun,
// it destroys the queued tasks too. Otherwise a queued task that owns the strand would never be
// destroyed.
class Strand::Run {
 public:
  explicit Run(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Run(Run&&) = default;
  ~Run() {
    if (state_ == nullptr) return;
    std::deque<Executor::Task> dropped;
    MutexLock lock(state_->mutex);
    dropped.swap(state_->queue);
    state_->running = false;
  }
  void operator()() {
    const std::shared_ptr<State> state = std::exchange(state_, nullptr);
    run(*state);
  }

 private:
  std::shared_ptr<State> state_;
};

Strand::Strand(Executor& executor) : state_(std::make_shared<State>(executor)) {}

void Strand::schedule(Executor::Task task) {
  {
    MutexLock lock(state_->mutex);
    state_->queue.push_back(std::move(task));
    if (state_->running) return;
    state_->running = true;
  }
  state_->executor.schedule(Run(state_));
}

void Strand::run(State& state) {
  while (true) {
    Executor::Task task;
    {
      MutexLock lock(state.mutex);
      if (state.queue.empty()) {
        state.running = false;
        return;
      }
      task = std::move(state.queue.front());
      state.queue.pop_front();
    }
    task();
  }
}

void ManualExecutor::schedule(Task task) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(task));
}

bool ManualExecutor::run_one() {
  Task task;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    task = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
  }
  {
    Enter enter(this);
    task();
  }
  MutexLock lock(mutex_);
  --running_;
  return true;
}

bool ManualExecutor::idle() const {
  MutexLock lock(mutex_);
  return queue_.empty() && running_ == 0;
}

size_t ManualExecutor::run_all() {
  size_t count = 0;
  while (run_one()) ++count;
  return count;
}

}  // namespace weft
