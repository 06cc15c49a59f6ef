// Runs tasks on threads that multiply while tasks block, so that waiting inside a task never
// starves the tasks it waits for.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: `stop` (or the destructor) joins every thread and must not be called from one of them.
// Blocking: a wait inside a task announces itself by BlockingSection; Weft's own waits all do.
// Errors: where the system refuses a thread, the executor does as at its own bound, and tries again
// each `stall`: tasks wait for the threads that there are. Calls are refused (`saturated`, and
// those of schedule_call that wait already) once all of these wait and nothing has finished. Where
// nothing finishes for 100 times `stall` although some do not say that they wait, new ones are.
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

  // Runs `task` once, soon, never inside this call. After `stop` tasks are destroyed unrun.
  virtual void schedule(Task task) = 0;
  // For tasks that are expected to be short: as schedule, but where the executor can, `task` runs
  // on this thread after the piece of work that it is doing.
  virtual void schedule_inline(Task task, Nanoseconds /*expected*/) { schedule(std::move(task)); }
  // A task that can also be refused, as a call can.
  struct Call {
    Task run;
    // Instead of `run`, if no thread is left for it: must not block, and may run on the clock's
    // thread.
    Task refuse;
    std::optional<Nanoseconds> expected;  // if given: as schedule_inline
  };
  virtual void schedule_call(Call call) {
    if (call.expected.has_value()) return schedule_inline(std::move(call.run), *call.expected);
    schedule(std::move(call.run));
  }
  // True while what comes now may never get its turn, so that new work should be refused.
  virtual bool saturated() const { return false; }
  // Nothing is queued and no task runs; one that waits still runs.
  virtual bool idle() const = 0;

  // For what holds promises outside any task: `hook` runs once when the executor begins to stop,
  // before queued tasks are dropped, on the thread that stops it (here, if it has begun). Returns a
  // number to `forget` it by, which does not wait for a hook that runs. Only a worker's own
  // executor keeps hooks; others drop them.
  virtual uint64_t at_stop(Task /*hook*/) { return 0; }
  virtual void forget(uint64_t /*hook*/) {}

  // The executor whose task runs on this thread; null elsewhere.
  static Executor* current();
  // How many waits the tasks of this thread have announced.
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

// Announces that the current task is going to wait: the executor may put another thread to work.
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
  std::string name = "weft";  // of its threads, up to 15 bytes: what debuggers and top show
  size_t threads = 2;         // working at the same time, not counting those that wait
  size_t max_threads = 1024;  // waiting ones included
  // A thread is added when tasks have waited this long and none has finished: they may be waiting
  // for something that the executor cannot see.
  Nanoseconds stall = std::chrono::milliseconds(10);
  // Runs first on each new thread.
  std::shared_ptr<const std::function<void()>> on_thread_start = {};
};

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(Clock& clock, ThreadExecutorOptions options);
  ~ThreadExecutor() override;

  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the first thread; later ones come as they are needed. ResourceExhausted: the system
  // refuses it.
  absl::Status start() ABSL_LOCKS_EXCLUDED(mutex_);
  void schedule_call(Call call) override ABSL_LOCKS_EXCLUDED(mutex_);
  // On ServingThreads, which must end before this executor.
  void schedule_inline(Task task, Nanoseconds expected) override ABSL_LOCKS_EXCLUDED(mutex_);

  // While every thread that the bound or the system allows exists, tasks wait for one, and all of
  // them wait or have finished nothing for long; until the next task or wait ends.
  bool saturated() const override { return saturated_.load(std::memory_order_relaxed); }
  size_t thread_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t at_stop(Task hook) override ABSL_LOCKS_EXCLUDED(mutex_);
  void forget(uint64_t hook) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs the hooks of at_stop, and no more: tasks go on. For who stops other things first that
  // tasks may keep from stopping. Idempotent.
  void begin_stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins to stop, drops queued tasks, lets running ones end, joins all threads. Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  void begin_wait() override ABSL_LOCKS_EXCLUDED(mutex_);
  void end_wait() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class ServingThreads;
  struct Stall;  // what the clock's callback may touch after this executor is gone

  // For ServingThreads: runs what schedule_inline gave it, or puts it into the queue after all.
  void run_nearby(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  void give_back_nearby(Call call) ABSL_LOCKS_EXCLUDED(mutex_);

  void enqueue(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  void work() ABSL_LOCKS_EXCLUDED(mutex_);
  void retire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the calling thread is about to return
  absl::Status add_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void add_thread_if_short() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void watch_for_stall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the calls that are to be refused.
  std::vector<Call> check_stall() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Call> take_calls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock& clock_;
  const ThreadExecutorOptions options_;
  const std::shared_ptr<Stall> stall_;
  mutable Mutex mutex_;
  CondVar work_ready_;
  std::deque<Call> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> retired_ ABSL_GUARDED_BY(mutex_);  // to be joined
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // tasks
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t extra_ ABSL_GUARDED_BY(mutex_) = 0;  // threads added for unannounced waits
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_at_check_ ABSL_GUARDED_BY(mutex_) = 0;
  int stalls_ ABSL_GUARDED_BY(mutex_) = 0;  // checks in a row at which nothing had finished
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // a thread, by the system, since the last check
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_begun_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Task> at_stop_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_hook_ ABSL_GUARDED_BY(mutex_) = 1;
  std::atomic<bool> saturated_{false};
  std::atomic<size_t> nearby_{0};  // tasks that serving threads run or are about to
};

// Runs tasks one at a time, in order, on another executor.
//
// Lifetime: tasks already queued keep the strand's state alive; the executor must outlive them.
class Strand {
 public:
  explicit Strand(Executor& executor);
  void schedule(Executor::Task task);

 private:
  struct State;
  class Run;
  static void run(State& state);
  const std::shared_ptr<State> state_;  // shared with the task that runs what is queued
};

// Runs tasks when told, on the calling thread: for tests and simulation.
class ManualExecutor final : public Executor {
 public:
  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs until nothing is queued; returns how many ran.
  size_t run_all() ABSL_LOCKS_EXCLUDED(mutex_);
  bool run_one() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft
