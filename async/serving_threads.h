// Threads that serve one queue (a transport's completions), one at a time, and that can run short
// tasks of an executor between two pieces of that work. This saves waking another thread for each
// task, which costs more than a short task itself.
//
// What many pieces would each do at a cost (write to a socket, wake a thread) they can deferred
// until the thread has done what it is at, so that it is done once for all of them.
//
// The thread that serves is replaced as soon as a task of its own waits (BlockingSection), and by a
// watcher when a task takes longer than a tick: so a task that blocks delays the queue by at most
// two ticks and never stops it.
//
// Thread safety: all methods may be called from any thread.
// Errors: if the system refuses even the first thread, `started` says so and nothing serves. While
// it refuses another one to stand by, tasks go to their executor, and it is asked again every now
// and then.
// Lifetime: `join` (or the destructor) waits for `serve_one` to say that the queue has ended, and
// for tasks that still run.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "weft/async/executor.h"

namespace weft {

class ServingThreads {
 public:
  // `serve_one` waits for one piece of work and does it; false once the queue has ended.
  // While tasks have taken less than `together`, what they deferred waits for the next ones.
  explicit ServingThreads(std::function<bool()> serve_one, Nanoseconds tick = kTick,
                          Nanoseconds together = kTogether);
  ~ServingThreads();
  ServingThreads(const ServingThreads&) = delete;
  ServingThreads& operator=(const ServingThreads&) = delete;

  absl::Status started() const ABSL_LOCKS_EXCLUDED(mutex_);
  void join() ABSL_LOCKS_EXCLUDED(mutex_);

  // For `serve_one`, once it has waited: what this thread does now is the piece of work.
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
  // Whether this thread does a piece of work, not a task.
  static bool in_work() { return here_ != nullptr && here_->in_work; }
  // Whether it serves, so that what it puts off will be done soon.
  static bool may_defer() { return here_ != nullptr && (here_->in_work || here_->in_task); }
  // Runs `what`, which must not block, once the piece of work is done, or after some of the tasks
  // that it left: at the latest when one of them waits, or ends after `together`, or takes two
  // ticks. False: this thread does not serve, or no more; `what` was not taken.
  static bool defer(Executor::Task what);
  // Of a piece of work only: runs `what` after all its tasks, or when another thread takes over
  // because one of them waits or takes two ticks.
  static bool defer_to_end(Executor::Task what);

 private:
  friend class ThreadExecutor;
  static constexpr Nanoseconds kTick = std::chrono::milliseconds(1);
  static constexpr size_t kMaxThreads = 16;
  static constexpr int kRetry = 1000;  // ticks, after a thread was refused
  // What one piece of work may leave to its thread; the rest is worth other threads.
  static constexpr Nanoseconds kMostExpected = std::chrono::microseconds(100);
  static constexpr Nanoseconds kLeastExpected = std::chrono::microseconds(1);  // of one task
  static constexpr Nanoseconds kTogether = std::chrono::microseconds(20);

  struct Nearby {
    ThreadExecutor* executor;
    Executor::Call call;
  };
  // What a serving thread knows of itself.
  struct Here {
    explicit Here(ServingThreads* threads_in) : threads(threads_in) {}
    ServingThreads* const threads;
    uint64_t term = 1;  // the one it serves in, or served in
    bool in_work = false;
    bool in_task = false;
    std::vector<Nearby> taken;        // from the piece of work that is under way
    Nanoseconds expected{0};          // what they take
    std::vector<Executor::Task> due;  // deferred, to be done by this thread
    std::vector<Executor::Task> end;  // deferred to the end by the piece of work
  };
  static thread_local Here* here_;

  // For ThreadExecutor. The thread is no serving one, or its own task runs, or it has enough:
  // false.
  static bool take(ThreadExecutor& executor, Executor::Call& call);
  static bool on_this_thread() { return here_ != nullptr; }
  // The calling thread's task is about to wait.
  static void hand_over();

  static void run_due(Here& here);
  // Makes due what tasks deferred, and what waits for their end too.
  void collect(Here& here, bool with_end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(bool serve) ABSL_LOCKS_EXCLUDED(mutex_);
  void serve(Here& here) ABSL_LOCKS_EXCLUDED(mutex_);
  void run_tasks(Here& here) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the term to serve in, or 0 once the queue has ended.
  uint64_t stand_by() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status start(bool serve) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So that nobody serves alone who may run tasks.
  void start_stand_by() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the next term: what the serving thread still had to run goes to the executor.
  uint64_t take_over() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<bool()> serve_one_;
  const Nanoseconds tick_;
  const Nanoseconds together_;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status started_ ABSL_GUARDED_BY(mutex_);
  TimePoint retry_at_ ABSL_GUARDED_BY(mutex_) = kNever;  // a thread to stand by was refused
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<Nearby> tasks_ ABSL_GUARDED_BY(mutex_);  // of the serving thread, not begun
  std::vector<Executor::Task> deferred_ ABSL_GUARDED_BY(mutex_);  // by tasks
  std::vector<Executor::Task> end_ ABSL_GUARDED_BY(mutex_);       // to their end
  bool running_ ABSL_GUARDED_BY(mutex_) = false;                  // the serving thread runs a task
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;                    // tasks
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;     // tasks run: a stand-by looks every tick
  bool has_watcher_ ABSL_GUARDED_BY(mutex_) = false;  // that one
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;  // nobody serves
  size_t standing_by_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> may_take_{true};  // somebody stands by
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft
