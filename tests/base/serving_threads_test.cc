#include "weft/base/serving_threads.h"

#include <deque>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

namespace weft {
namespace {

// The queue that the threads serve: pieces of work, in order, one thread at a time.
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
      if (work == nullptr) work_.push_front(nullptr);  // for everyone who comes after
      --inside_;
    }
    if (work != nullptr) work();
    return work != nullptr;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Something to wait for; announced to the executor or not.
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
  ~ServingThreadsTest() override {
    queue_.end();
    threads_.join();
    executor_.stop();
  }

  static constexpr Nanoseconds kExpected = std::chrono::microseconds(10);

  // A piece of work that leaves `tasks` to its thread.
  template <class... Task>
  void push(Task... tasks) {
    queue_.push([this, tasks...] { (executor_.schedule_near(tasks, kExpected), ...); });
  }

  SystemClock clock_;
  ThreadExecutor executor_{clock_, {.threads = 1}};
  Queue queue_;
  ServingThreads threads_{[this] { return queue_.serve_one(); }};
};

TEST_F(ServingThreadsTest, AShortTaskRunsOnTheThreadThatServes) {
  std::thread::id serving, running;
  Executor* of = nullptr;
  Gate done;
  queue_.push([&] {
    serving = std::this_thread::get_id();
    executor_.schedule_near(
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
  executor_.schedule_near(
      [&] {
        running = std::this_thread::get_id();
        done.open();
      },
      kExpected);
  done.wait();
  EXPECT_EQ(executor_.thread_count(), 1u);
  EXPECT_NE(running, std::this_thread::get_id());
}

TEST_F(ServingThreadsTest, TasksThatTakeTooLongTogetherAreShared) {
  Gate done;
  std::vector<std::thread::id> running(3);
  queue_.push([&] {
    for (std::thread::id& id : running) {
      executor_.schedule_near(
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
  push([&] { executor_.schedule_near([&] { done.open(); }, kExpected); });
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
  done.wait(kTasks);  // Queue::serve_one checks that there is never a second one
}

TEST_F(ServingThreadsTest, TheExecutorIsNotIdleWhileATaskIsNear) {
  Gate begun, release, done;
  push([&] {
    begun.open();
    release.wait_announced();
    done.open();
  });
  begun.wait();
  EXPECT_FALSE(executor_.idle());
  release.open();
  done.wait();
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

}  // namespace
}  // namespace weft
