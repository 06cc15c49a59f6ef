// Runs tasks on threads and adds threads while tasks wait, so that a task may wait for other tasks.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: `stop` (or the destructor) joins all threads and must not be called from one of them.
// Blocking: a task that is going to wait announces it with a BlockingSection. Weft's waits all do.
// Errors: if the system refuses a thread, the executor acts as at `max_threads`: tasks wait for the
// existing threads, and the executor asks the system again after each `stall`. Calls are refused if
// all threads have announced a wait and no task has finished for one `stall`. This holds for new
// calls (`saturated`) and for queued ones (schedule_call). If some threads have not announced a
// wait and no task has finished for 100 times `stall`, only new calls are refused.
// Design: docs/threading.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft {

class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;

  // Runs `task` once, soon, and never inside this call. After `stop` it destroys tasks unrun.
  virtual void schedule(Task task) = 0;
  // For tasks that are expected to be short. As schedule; but if this is a serving thread inside a
  // piece of work, `task` may run on this thread after that piece.
  virtual void schedule_inline(Task task, Nanoseconds /*expected*/) { schedule(std::move(task)); }
  // A task that the executor may refuse instead of running it.
  struct Call {
    Task run;
    // Runs instead of `run` if no thread is left, maybe on the clock's thread. It must not block.
    Task refuse;
    std::optional<Nanoseconds> expected;  // if set, the call is scheduled as by schedule_inline
  };
  virtual void schedule_call(Call call) {
    if (call.expected.has_value()) return schedule_inline(std::move(call.run), *call.expected);
    schedule(std::move(call.run));
  }
  // True while a new task might never run, so that callers should refuse new work.
  virtual bool saturated() const { return false; }
  // No task is queued and none runs. A task that waits counts as running.
  virtual bool idle() const = 0;

  // For objects that hold promises outside any task. Runs `hook` once when the executor begins to
  // stop, before it drops queued tasks, on the thread that stops it. If the stop has begun, `hook`
  // runs inside this call. Only ThreadExecutor keeps hooks; this default drops `hook` unrun.
  // Returns a number for `forget`, which drops the hook but does not wait for one that runs.
  virtual uint64_t at_stop(Task /*hook*/) { return 0; }
  virtual void forget(uint64_t /*hook*/) {}

  // The executor whose task runs on this thread; null if no task runs here.
  static Executor* current();
  // How many BlockingSections have begun on this thread.
  static uint64_t announced_waits();

 protected:
  friend class BlockingSection;
  virtual void begin_wait() {}
  virtual void end_wait() {}

  // Marks this thread as running tasks of `executor`.
  class Enter {
   public:
    explicit Enter(Executor* executor);
    ~Enter();

   private:
    Executor* const previous_;
  };
};

// Announces, while it exists, that the current task waits. The executor may use another thread.
class BlockingSection {
 public:
  BlockingSection();
  ~BlockingSection();
  BlockingSection(const BlockingSection&) = delete;
  BlockingSection& operator=(const BlockingSection&) = delete;

 private:
  Executor* const executor_;
};

struct ThreadExecutorOptions {
  std::string name = "weft";  // of its threads, in debuggers and top; cut to 15 bytes
  size_t threads = 2;         // work at the same time; threads that wait do not count
  size_t max_threads = 1024;  // threads that wait included
  // If tasks are queued and none has finished for this long, the executor adds a thread: the
  // running tasks may wait for something that the executor cannot see.
  Nanoseconds stall = std::chrono::milliseconds(10);
  // Each thread calls it before its first task.
  std::shared_ptr<const std::function<void()>> on_thread_start = {};
};

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(Clock& clock, ThreadExecutorOptions options);
  ~ThreadExecutor() override;

  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the first thread; the executor starts further ones when it needs them.
  // ResourceExhausted: the system refuses the first thread.
  absl::Status start() ABSL_LOCKS_EXCLUDED(mutex_);
  void schedule_call(Call call) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `task` on ServingThreads if this is one of them; they must be joined before this executor
  // is destroyed.
  void schedule_inline(Task task, Nanoseconds expected) override ABSL_LOCKS_EXCLUDED(mutex_);

  // True from the moment at which the executor refuses calls (see Errors above). False again as
  // soon as a task finishes, a wait is over, or the queue is empty at a check.
  bool saturated() const override { return saturated_.load(std::memory_order_relaxed); }
  size_t thread_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t at_stop(Task hook) override ABSL_LOCKS_EXCLUDED(mutex_);
  void forget(uint64_t hook) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs the at_stop hooks but keeps executing tasks. Call it before stopping components whose
  // shutdown waits for tasks. Idempotent.
  void begin_stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls begin_stop, drops the queued tasks, lets running tasks finish and joins all threads.
  // Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  void begin_wait() override ABSL_LOCKS_EXCLUDED(mutex_);
  void end_wait() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class ServingThreads;
  struct Stall;  // state that the clock's callback may use after this executor is destroyed

  // For ServingThreads: runs a call that schedule_call gave to them, or enqueues it.
  void run_nearby(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool give_back_nearby(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // False: the executor has stopped. `call` is untouched, and the caller destroys it without a
  // lock.
  bool enqueue(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void work() ABSL_LOCKS_EXCLUDED(mutex_);
  void retire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the calling thread is about to return
  absl::Status add_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void add_thread_if_short() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void watch_for_stall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the queued calls that the caller must refuse, without a lock.
  std::vector<Call> check_stall() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Call> take_calls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock& clock_;
  const ThreadExecutorOptions options_;
  const std::shared_ptr<Stall> stall_;
  mutable Mutex mutex_;
  CondVar work_ready_;
  std::deque<Call> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> retired_ ABSL_GUARDED_BY(mutex_);  // not joined yet
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // tasks on threads_
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // of threads_, inside a BlockingSection
  size_t extra_ ABSL_GUARDED_BY(mutex_) = 0;    // threads added for unannounced waits
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_at_check_ ABSL_GUARDED_BY(mutex_) = 0;
  int stalls_ ABSL_GUARDED_BY(mutex_) = 0;  // checks in a row at which no task had finished
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // a thread, by the system, since the last check
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_begun_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Task> at_stop_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_hook_ ABSL_GUARDED_BY(mutex_) = 1;
  std::atomic<bool> saturated_{false};
  std::atomic<size_t> nearby_{0};  // tasks that serving threads hold or run
};

// Runs tasks one at a time, in the order in which they were scheduled, on another executor.
//
// Lifetime: a strand may be destroyed while tasks are queued, and they still run. The executor must
// outlive them.
class Strand {
 public:
  explicit Strand(Executor& executor);
  void schedule(Executor::Task task);

 private:
  struct State;
  class Run;
  static void run(State& state);
  const std::shared_ptr<State> state_;  // shared with the executor's task that runs the queue
};

// Runs tasks only inside run_one and run_all, on the calling thread. For tests and simulation.
class ManualExecutor final : public Executor {
 public:
  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs tasks until none is queued; returns how many ran.
  size_t run_all() ABSL_LOCKS_EXCLUDED(mutex_);
  bool run_one() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft
