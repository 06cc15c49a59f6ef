#include "weft/async/serving_threads.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/thread.h"

namespace weft {
namespace {

// The queue that the threads serve: functions that run in order, one thread at a time.
class Queue {
 public:
  void push(std::function<void()> work) {
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void end() { push(nullptr); }
  bool serve_one() {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      EXPECT_EQ(++inside_, 1) << "two threads serve at once";
      while (work_.empty()) changed_.wait(mutex_);
      work = std::move(work_.front());
      work_.pop_front();
      if (work == nullptr) work_.push_front(nullptr);  // ends the later calls too
      --inside_;
    }
    if (work == nullptr) return false;
    const ServingThreads::Work here;
    work();
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A gate that opens some number of times. Waits for it are announced to the executor, or not.
class Gate {
 public:
  void open(int count = 1) {
    MutexLock lock(mutex_);
    opened_ += count;
    changed_.notify_all();
  }
  void wait(int count = 1) {
    MutexLock lock(mutex_);
    while (opened_ < count) changed_.wait(mutex_);
  }
  void wait_announced(int count = 1) {
    BlockingSection section;
    wait(count);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ServingThreadsTest : public ::testing::Test {
 protected:
  explicit ServingThreadsTest(Nanoseconds tick = std::chrono::milliseconds(1),
                              Nanoseconds together = std::chrono::microseconds(20))
      : tick_(tick), together_(together) {}
  ~ServingThreadsTest() override {
    queue_.end();
    threads_.join();
    executor_.stop();
  }

  static constexpr Nanoseconds kExpected = std::chrono::microseconds(10);

  // Makes a function for the queue that leaves `tasks` to the thread that runs it.
  template <class... Task>
  void push(Task... tasks) {
    queue_.push([this, tasks...] { (executor_.schedule_inline(tasks, kExpected), ...); });
  }

  SystemClock clock_;
  ThreadExecutor executor_{clock_, {.threads = 1}};
  Queue queue_;
  const Nanoseconds tick_, together_;
  ServingThreads threads_{[this] { return queue_.serve_one(); }, tick_, together_};
};

TEST_F(ServingThreadsTest, AShortTaskRunsOnTheThreadThatServes) {
  std::thread::id serving, running;
  Executor* of = nullptr;
  Gate done;
  queue_.push([&] {
    serving = std::this_thread::get_id();
    executor_.schedule_inline(
        [&] {
          running = std::this_thread::get_id();
          of = Executor::current();
          done.open();
        },
        kExpected);
    EXPECT_EQ(running, std::thread::id()) << "it runs after the work, not inside it";
  });
  done.wait();
  EXPECT_EQ(running, serving);
  EXPECT_EQ(of, &executor_);
  EXPECT_EQ(executor_.thread_count(), 0u);
}

TEST_F(ServingThreadsTest, OtherThreadsUseTheExecutor) {
  Gate done;
  std::thread::id running;
  executor_.schedule_inline(
      [&] {
        running = std::this_thread::get_id();
        done.open();
      },
      kExpected);
  done.wait();
  EXPECT_EQ(executor_.thread_count(), 1u);
  EXPECT_NE(running, std::this_thread::get_id());
}

// Here no task counts as taking too long, however loaded the machine is.
class Unhurried : public ServingThreadsTest {
 protected:
  Unhurried() : ServingThreadsTest(std::chrono::hours(1), std::chrono::hours(1)) {}
};

TEST_F(Unhurried, TasksThatTakeTooLongTogetherAreShared) {
  Gate done;
  std::vector<std::thread::id> running(3);
  queue_.push([&] {
    for (std::thread::id& id : running) {
      executor_.schedule_inline(
          [&] {
            id = std::this_thread::get_id();
            done.open();
          },
          std::chrono::microseconds(40));
    }
  });
  done.wait(3);
  EXPECT_EQ(running[0], running[1]);
  EXPECT_NE(running[0], running[2]);
}

// Here all functions append to `order`, the deferred ones too.
class PuttingOff : public ServingThreadsTest {
 protected:
  // By default no task counts as taking too long, alone or with others, however loaded the machine
  // is.
  explicit PuttingOff(Nanoseconds tick = std::chrono::hours(1),
                      Nanoseconds together = std::chrono::hours(1))
      : ServingThreadsTest(tick, together) {}

  void note(const std::string& what) {
    MutexLock lock(mutex_);
    order_ += what;
  }
  void defer(const std::string& what) {
    EXPECT_TRUE(ServingThreads::defer([this, what] { note(what); }));
  }
  void defer_to_end(const std::string& what) {
    EXPECT_TRUE(ServingThreads::defer_to_end([this, what] { note(what); }));
  }
  // Returns the order once everything that was pushed has run.
  std::string order() {
    Gate done;
    queue_.push([&] { done.open(); });
    done.wait();
    MutexLock lock(mutex_);
    return order_;
  }

 private:
  Mutex mutex_;
  std::string order_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(PuttingOff, IsRefusedToOtherThreads) {
  EXPECT_FALSE(ServingThreads::may_defer());
  EXPECT_FALSE(ServingThreads::defer([] { FAIL(); }));
  EXPECT_FALSE(ServingThreads::defer_to_end([] { FAIL(); }));
  Gate done;
  executor_.schedule([&] {
    EXPECT_FALSE(ServingThreads::defer([] { FAIL(); }));
    done.open();
  });
  done.wait();
}

TEST_F(PuttingOff, WorkFirstThenItsTasksThenTheEnd) {
  queue_.push([&] {
    EXPECT_TRUE(ServingThreads::in_work());
    defer_to_end("e");
    defer("p");
    for (const char* task : {"1", "2"}) {
      executor_.schedule_inline(
          [this, task] {
            EXPECT_FALSE(ServingThreads::in_work());
            EXPECT_FALSE(ServingThreads::defer_to_end([] { FAIL(); }));
            defer(std::string("t") + task);
            note(task);
          },
          std::chrono::microseconds(1));
    }
    note("w");
  });
  EXPECT_EQ(order(), "wp12t1t2e");
}

TEST_F(PuttingOff, WithoutTasksTheEndIsAtOnce) {
  queue_.push([&] {
    defer_to_end("e");
    defer("p");
  });
  EXPECT_EQ(order(), "pe");
}

class PuttingOffBriefly : public PuttingOff {
 protected:
  PuttingOffBriefly() : PuttingOff(std::chrono::hours(1), Nanoseconds(0)) {}
};

TEST_F(PuttingOffBriefly, NextTasksAreNotWaitedForButAtTheEnd) {
  queue_.push([&] {
    defer_to_end("e");
    for (const char* task : {"1", "2", "3"}) {
      executor_.schedule_inline(
          [this, task] {
            defer(std::string("t") + task);
            note(task);
          },
          std::chrono::microseconds(15));
    }
  });
  EXPECT_EQ(order(), "1t12t23t3e");
}

TEST_F(PuttingOff, IsDoneBeforeATaskWaitsByItsOwnThread) {
  Gate done;
  push([&] {
    const std::thread::id task = std::this_thread::get_id();
    std::thread::id by;
    EXPECT_TRUE(ServingThreads::defer([&] { by = std::this_thread::get_id(); }));
    { BlockingSection section; }
    EXPECT_EQ(by, task);
    done.open();
  });
  done.wait();
}

class PuttingOffWatched : public PuttingOff {
 protected:
  PuttingOffWatched() : PuttingOff(std::chrono::milliseconds(1)) {}
};

TEST_F(PuttingOffWatched, IsDoneByAnotherThreadWhenATaskBlocksWithoutSayingSo) {
  Gate first, release, done;
  queue_.push([&] {
    defer_to_end("e");
    executor_.schedule_inline(
        [&] {
          // On a loaded machine the watcher may already have let another thread take over.
          if (!ServingThreads::defer([&] { note("t"); })) note("t");
          first.open();
        },
        kExpected);
    executor_.schedule_inline(
        [&] {
          release.wait();
          // This thread no longer serves the queue.
          EXPECT_FALSE(ServingThreads::defer([] { FAIL(); }));
          done.open();
        },
        kExpected);
  });
  first.wait();
  EXPECT_THAT(order(), ::testing::AnyOf("te", "et"));
  release.open();
  done.wait();
}

TEST_F(ServingThreadsTest, ATaskMayWaitForTheQueue) {
  Gate answered, done;
  push([&] {
    answered.wait_announced();
    done.open();
  });
  queue_.push([&] { answered.open(); });
  done.wait();
}

TEST_F(ServingThreadsTest, ATaskThatBlocksWithoutSayingSoIsReplaced) {
  Gate answered, done;
  push([&] {
    answered.wait();
    done.open();
  });
  queue_.push([&] { answered.open(); });
  done.wait();
}

TEST_F(ServingThreadsTest, TasksBehindOneThatWaitsRunElsewhere) {
  for (const bool announced : {true, false}) {
    Gate second, done;
    push(
        [&, announced] {
          announced ? second.wait_announced() : second.wait();
          done.open();
        },
        [&] { second.open(); });
    done.wait();
  }
}

TEST_F(ServingThreadsTest, ATaskMayLeaveTasks) {
  Gate done;
  push([&] { executor_.schedule_inline([&] { done.open(); }, kExpected); });
  done.wait();
}

TEST_F(ServingThreadsTest, AnyNumberOfTasksMayBlockAtOnce) {
  constexpr int kTasks = 60;
  Gate release, blocked, done;
  for (int i = 0; i < kTasks; ++i) {
    const bool announced = i % 2 == 0;
    push([&, announced] {
      blocked.open();
      announced ? release.wait_announced() : release.wait();
      done.open();
    });
  }
  blocked.wait(kTasks);
  queue_.push([&] { release.open(); });
  done.wait(kTasks);
}

TEST_F(ServingThreadsTest, ShortWaitsKeepOneThreadServing) {
  Gate done;
  constexpr int kTasks = 3000;
  for (int i = 0; i < kTasks; ++i) {
    push([&] {
      { BlockingSection section; }
      done.open();
    });
  }
  done.wait(kTasks);  // Queue::serve_one() checks that no second thread serves
}

// The executor is not idle from when a task is left to the serving thread until the task has
// finished.
TEST_F(Unhurried, TheExecutorIsNotIdleWhileATaskRunsInline) {
  Gate begun, release;
  std::atomic<bool> idle_when_left{true}, idle_behind{true};
  queue_.push([&] {
    const auto first = [&] {
      begun.open();
      release.wait();
    };
    executor_.schedule_inline(first, kExpected);
    idle_when_left = executor_.idle();  // no task has begun
    executor_.schedule_inline([&] { idle_behind = executor_.idle(); }, kExpected);
  });
  begun.wait();
  EXPECT_FALSE(idle_when_left);
  EXPECT_FALSE(executor_.idle()) << "one runs, the other waits behind it";
  release.open();
  queue_.end();
  threads_.join();
  EXPECT_FALSE(idle_behind) << "the last one runs";
  EXPECT_TRUE(executor_.idle());
  EXPECT_EQ(executor_.thread_count(), 0u) << "they did not run near";
}

// If the executor has stopped, its tasks are destroyed, which may run any code.
TEST_F(Unhurried, TasksOfAStoppedExecutorAreDestroyedOutsideTheLock) {
  Gate begun, stopped, release, destroyed;
  queue_.push([&] {
    const auto first = [&] {
      begun.open();
      stopped.wait();
      release.wait_announced();  // another thread takes over, with the second task
    };
    executor_.schedule_inline(first, kExpected);
    // Its destructor takes the lock of the serving threads.
    std::shared_ptr<void> content(nullptr, [&](void*) {
      EXPECT_TRUE(threads_.started().ok());
      destroyed.open();
    });
    executor_.schedule_inline([content] { ADD_FAILURE() << "the executor has stopped"; },
                              kExpected);
  });
  begun.wait();
  executor_.stop();
  stopped.open();
  destroyed.wait();
  release.open();
  queue_.end();
  threads_.join();
}

TEST_F(ServingThreadsTest, TheEndWaitsForTheTaskThatRuns) {
  Gate begun, release;
  std::atomic<bool> ended{false};
  push([&] {
    begun.open();
    release.wait_announced();
    ended = true;
  });
  begun.wait();
  queue_.end();
  std::thread joiner([&] {
    threads_.join();
    EXPECT_TRUE(ended);
  });
  release.open();
  joiner.join();
}

TEST(ServingThreadsWithoutThreads, SaysSoIfItGetsNotEvenOne) {
  const ThreadLimit none(0);
  ServingThreads threads([] { return false; });
  EXPECT_EQ(threads.started().code(), absl::StatusCode::kResourceExhausted);
  threads.join();
}

// If no other thread stands by, a task on the serving thread could stop the queue.
TEST(ServingThreadsWithoutThreads, TasksGoToTheExecutorUntilAnotherThreadCanStandBy) {
  SystemClock clock;
  ThreadExecutor executor(clock, {.threads = 1});
  ASSERT_TRUE(executor.start().ok());
  Queue queue;
  auto one = std::make_unique<ThreadLimit>(1);
  ServingThreads threads([&] { return queue.serve_one(); }, std::chrono::microseconds(1));
  ASSERT_TRUE(threads.started().ok());
  const auto runs_where_it_came = [&] {
    std::thread::id serving, running;
    Gate done;
    queue.push([&] {
      serving = std::this_thread::get_id();
      const auto task = [&] {
        running = std::this_thread::get_id();
        done.open();
      };
      executor.schedule_inline(task, std::chrono::microseconds(10));
    });
    done.wait();
    return running == serving;
  };
  EXPECT_FALSE(runs_where_it_came());
  Gate release, over;
  queue.push([&] {
    const auto task = [&] {
      release.wait();
      over.open();
    };
    executor.schedule_inline(task, std::chrono::microseconds(10));
  });
  queue.push([&] { release.open(); });  // served while that task blocks
  over.wait();
  one.reset();
  while (!runs_where_it_came()) {
  }
  queue.end();
  threads.join();
  executor.stop();
}

}  // namespace
}  // namespace weft
