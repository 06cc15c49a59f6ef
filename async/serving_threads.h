// Threads of which one at a time serves a queue (a transport's completions) and also runs short
// tasks of an executor between two pieces of that work.
//
// To wake another thread for a short task would cost more than the task itself.
//
// Many pieces of work may need the same expensive action (write to a socket, wake a thread). They
// defer it until the thread has finished its work, so that it is done once for all of them.
//
// Another thread stands by. It takes over the queue as soon as a task on the serving thread
// announces a wait (BlockingSection). If it sees the same task at two ticks, it takes over too. So
// a task that blocks delays the queue by at most two ticks.
//
// Thread safety: all methods may be called from any thread.
// Errors: if the system refuses the first thread, `started` returns the error and no thread serves.
// If it refuses a thread that stands by, tasks go to their executor, and the serving thread asks
// the system again after 1,000 ticks.
// Lifetime: `join` (or the destructor) waits until `serve_one` has returned false and running tasks
// have finished.
// Design: docs/threading.md.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "weft/async/executor.h"

namespace weft {

class ServingThreads {
 public:
  // `serve_one` waits for one piece of work and does it; false: the queue is closed.
  // Work that tasks defer waits for the tasks behind them until these have taken `together`.
  explicit ServingThreads(std::function<bool()> serve_one, Nanoseconds tick = kTick,
                          Nanoseconds together = kTogether);
  ~ServingThreads();
  ServingThreads(const ServingThreads&) = delete;
  ServingThreads& operator=(const ServingThreads&) = delete;

  absl::Status started() const ABSL_LOCKS_EXCLUDED(mutex_);
  void join() ABSL_LOCKS_EXCLUDED(mutex_);

  // Marks the piece of work. `serve_one` makes one after its wait and keeps it during the work.
  class Work {
   public:
    Work() { set(true); }
    ~Work() { set(false); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    static void set(bool in_work) {
      if (here_ != nullptr) here_->in_work = in_work;
    }
  };
  // Whether this thread is inside a piece of work; false inside a task.
  static bool in_work() { return here_ != nullptr && here_->in_work; }
  // Whether this thread is inside a piece of work or a task, so that it may defer work.
  static bool may_defer() { return here_ != nullptr && (here_->in_work || here_->in_task); }
  // Defers `what`, which must not block. Inside a piece of work, it runs after that piece. Inside a
  // task, it runs after this task or one behind it: at the latest when a task waits, takes two
  // ticks, or finishes after `together`. False: this thread does not serve (any more), and `what`
  // was not taken.
  static bool defer(Executor::Task what);
  // Only inside a piece of work: runs `what` after all tasks that the piece leaves to this thread.
  // If another thread takes over, that thread runs it. False: not inside a piece of work.
  static bool defer_to_end(Executor::Task what);

 private:
  friend class ThreadExecutor;
  static constexpr Nanoseconds kTick = std::chrono::milliseconds(1);
  static constexpr size_t kMaxThreads = 16;
  static constexpr int kRetry = 1000;  // ticks until it asks the system for a refused thread again
  // The time of all tasks that one piece of work may leave to its thread. For longer work it pays
  // to wake other threads.
  static constexpr Nanoseconds kMostExpected = std::chrono::microseconds(100);
  static constexpr Nanoseconds kLeastExpected = std::chrono::microseconds(1);  // of one task
  static constexpr Nanoseconds kTogether = std::chrono::microseconds(20);

  struct Nearby {
    ThreadExecutor* executor;
    Executor::Call call;
  };
  // The state of one serving thread, which only that thread uses.
  struct Here {
    explicit Here(ServingThreads* threads_in) : threads(threads_in) {}
    ServingThreads* const threads;
    uint64_t term = 1;  // the term in which it serves, or last served
    bool in_work = false;
    bool in_task = false;
    std::vector<Nearby> taken;        // tasks of the current piece of work
    Nanoseconds expected{0};          // the time that they will take
    std::vector<Executor::Task> due;  // deferred work that this thread does next
    std::vector<Executor::Task> end;  // work that the piece deferred until after its tasks
  };
  static thread_local Here* here_;

  // For ThreadExecutor: takes `call` for this thread. False, with `call` untouched, if this thread
  // is not inside a piece of work, has enough tasks, or has no thread that stands by.
  static bool take(ThreadExecutor& executor, Executor::Call& call);
  static bool on_this_thread() { return here_ != nullptr; }
  // The calling thread's task is about to wait: the thread that stands by takes over.
  static void hand_over();

  static void run_due(Here& here);
  // Moves the work that tasks deferred to here.due; `with_end`: that of defer_to_end too.
  void collect(Here& here, bool with_end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(bool serve) ABSL_LOCKS_EXCLUDED(mutex_);
  void serve(Here& here) ABSL_LOCKS_EXCLUDED(mutex_);
  void run_tasks(Here& here) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until this thread must serve. Returns its term, or 0 if the queue is closed.
  uint64_t stand_by() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status start(bool serve) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a thread that stands by. Without one, the serving thread takes no tasks (may_take_),
  // because a task that blocks would stop the queue.
  void start_stand_by() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the next term. Tasks that the serving thread has not begun go to their executor. If that
  // has stopped, they go to `unrun`, which the caller destroys outside the lock.
  uint64_t take_over(std::vector<Executor::Call>& unrun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<bool()> serve_one_;
  const Nanoseconds tick_;
  const Nanoseconds together_;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status started_ ABSL_GUARDED_BY(mutex_);
  TimePoint retry_at_ ABSL_GUARDED_BY(mutex_) = kNever;  // set if a thread to stand by was refused
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<Nearby> tasks_ ABSL_GUARDED_BY(mutex_);  // of the serving thread, not begun
  std::vector<Executor::Task> deferred_ ABSL_GUARDED_BY(mutex_);  // deferred by tasks
  std::vector<Executor::Task> end_ ABSL_GUARDED_BY(mutex_);       // deferred until after all tasks
  bool running_ ABSL_GUARDED_BY(mutex_) = false;                  // the serving thread runs a task
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;                    // number of tasks
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;     // tasks run, so a stand-by checks every tick
  bool has_watcher_ ABSL_GUARDED_BY(mutex_) = false;  // that stand-by exists
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;  // the task waits; a stand-by takes over
  size_t standing_by_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> may_take_{true};  // a thread stands by
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft
