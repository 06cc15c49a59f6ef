#include "weft/async/executor.h"

#include <optional>

#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/base/mutex.h"
#include "weft/base/thread.h"

namespace weft {
namespace {

using std::chrono::seconds;

// An event that a task can wait for without the executor knowing that it waits.
class ForeignEvent {
 public:
  void set() {
    const MutexLock lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  void wait() {
    const MutexLock lock(mutex_);
    while (!set_) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// A stall rule that never fires: growth in these tests has another cause.
ThreadExecutorOptions without_stalls(size_t threads) {
  ThreadExecutorOptions options;
  options.threads = threads;
  options.stall = std::chrono::hours(1);
  return options;
}

TEST(ThreadExecutorTest, RunsEveryTaskNeverInsideSchedule) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(2));
  std::atomic<int> ran{0};
  Promise<void> last;
  Future<void> done = last.future();
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> inside{false};
  for (int i = 0; i < 1000; ++i) {
    executor.schedule([&] {
      if (std::this_thread::get_id() == here) inside = true;
      EXPECT_EQ(Executor::current(), &executor);
      if (++ran == 1000) last.set_value();
    });
  }
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_FALSE(inside);
  EXPECT_EQ(Executor::current(), nullptr);
  EXPECT_LE(executor.thread_count(), 2u);
}

// Each task waits for the next one to run. If the two threads stayed two, the third task would
// never run.
TEST(ThreadExecutorTest, GrowsWhenTasksAnnounceThatTheyWait) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(2));
  constexpr int kDepth = 50;
  std::vector<Promise<void>> promises(kDepth + 1);
  std::vector<Future<void>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  for (int i = 0; i < kDepth; ++i) {
    executor.schedule([&, i] {
      futures[i + 1].wait();
      promises[i].set_value();
    });
  }
  executor.schedule([&] { promises[kDepth].set_value(); });
  ASSERT_TRUE(futures[0].wait_for(seconds(60)));
  for (Future<void>& future : futures) future.wait();
  executor.stop();
}

TEST(ThreadExecutorTest, GrowsWhenATaskBeginsToWaitAfterWorkWasQueued) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  ForeignEvent queued;
  Promise<void> second;
  Future<void> ran = second.future();
  Promise<void> first;
  Future<void> done = first.future();
  executor.schedule([&] {
    queued.wait();  // not announced: no second thread is started yet
    ran.wait();     // announced
    first.set_value();
  });
  executor.schedule([&] { second.set_value(); });
  EXPECT_EQ(executor.thread_count(), 1u);
  queued.set();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_EQ(executor.thread_count(), 2u);
}

TEST(ThreadExecutorTest, GrowsByTheStallRuleWhenTasksWaitUnseen) {
  SystemClock clock;
  ThreadExecutorOptions options;
  options.threads = 2;
  options.stall = std::chrono::milliseconds(2);
  ThreadExecutor executor(clock, options);
  ForeignEvent event;
  for (int i = 0; i < 5; ++i) executor.schedule([&] { event.wait(); });
  Promise<void> last;
  Future<void> done = last.future();
  executor.schedule([&] {
    event.set();
    last.set_value();
  });
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_GE(executor.thread_count(), 6u);
  executor.stop();
}

TEST(ThreadExecutorTest, DoesNotGrowWhileTasksFinish) {
  ManualClock clock;
  ThreadExecutorOptions options;
  options.threads = 1;
  options.stall = std::chrono::milliseconds(10);
  ThreadExecutor executor(clock, options);
  for (int round = 0; round < 20; ++round) {
    ForeignEvent go, started;
    Promise<void> quick;
    Future<void> done = quick.future();
    executor.schedule([&] { quick.set_value(); });
    executor.schedule([&] {
      started.set();
      go.wait();
    });
    Promise<void> after;
    Future<void> drained = after.future();
    executor.schedule([&] { after.set_value(); });
    done.wait();
    started.wait();
    if (round % 2 == 0) clock.advance(std::chrono::milliseconds(10));
    go.set();
    drained.wait();
  }
  EXPECT_LE(executor.thread_count(), 1u);
}

TEST(ThreadExecutorTest, SaysThatItIsSaturatedAtItsBoundAndNotAfterwards) {
  ManualClock clock;
  ThreadExecutorOptions options;
  options.threads = 1;
  options.max_threads = 3;
  options.stall = std::chrono::milliseconds(10);
  ThreadExecutor executor(clock, options);
  ForeignEvent event;
  for (int i = 0; i < 5; ++i) executor.schedule([&] { event.wait(); });
  Promise<void> last;
  Future<void> done = last.future();
  executor.schedule([&] { last.set_value(); });
  EXPECT_FALSE(executor.saturated());
  // The new threads take tasks off the queue at some later time. Each advance may add one thread.
  for (int i = 0; i < 10000 && !executor.saturated(); ++i) {
    clock.advance(std::chrono::milliseconds(10));
    std::this_thread::yield();
  }
  EXPECT_TRUE(executor.saturated());
  EXPECT_EQ(executor.thread_count(), 3u);
  event.set();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_FALSE(executor.saturated());
  executor.stop();
}

// An executor with one thread, which a test makes wait, while the system refuses to start another.
class AtAThreadLimit : public ::testing::Test {
 protected:
  AtAThreadLimit() {
    EXPECT_TRUE(executor_.start().ok());
    none_.emplace(0);
  }
  ~AtAThreadLimit() override { executor_.stop(); }

  // Occupies the thread until release().
  void occupy(bool announced) {
    executor_.schedule([this, announced] {
      std::optional<BlockingSection> section;
      if (announced) section.emplace();
      waits_.set();
      release_.wait();
    });
    waits_.wait();
  }
  void release() { release_.set(); }
  void call(std::atomic<int>& ran) {
    executor_.schedule_call({[&] { ++ran; }, [this] { ++refused_; }, {}});
  }
  void stall() { clock_.advance(std::chrono::milliseconds(10)); }

  ManualClock clock_;
  ThreadExecutor executor_{clock_, {.threads = 2}};
  std::optional<ThreadLimit> none_;
  ForeignEvent waits_, release_;
  std::atomic<int> refused_{0};
};

TEST_F(AtAThreadLimit, TasksRunLaterOnTheThreadThatThereIs) {
  occupy(false);
  std::atomic<int> ran{0};
  Promise<void> last;
  Future<void> done = last.future();
  for (int i = 0; i < 100; ++i) call(ran);
  executor_.schedule([&] { last.set_value(); });
  EXPECT_EQ(executor_.thread_count(), 1u);
  EXPECT_EQ(none_->refused(), 1) << "it is not asked for each task";
  release();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(refused_, 0);
}

TEST_F(AtAThreadLimit, CallsAreRefusedWhenEveryThreadWaits) {
  occupy(true);
  std::atomic<int> ran{0};
  call(ran);
  Promise<void> plain;
  Future<void> done = plain.future();
  executor_.schedule([&] { plain.set_value(); });
  EXPECT_FALSE(executor_.saturated());
  stall();
  EXPECT_TRUE(executor_.saturated());
  EXPECT_EQ(refused_, 1);
  EXPECT_FALSE(done.done()) << "what cannot be refused waits";
  release();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_EQ(ran, 0) << "a refused call was executed";
}

// A task answers its caller before the executor counts it as finished. The executor must accept the
// caller's next call.
TEST_F(AtAThreadLimit, CallsAreAcceptedOnceAWaitHasEnded) {
  ForeignEvent answered, ends;
  executor_.schedule([&] {
    {
      const BlockingSection section;
      waits_.set();
      release_.wait();
    }
    answered.set();
    ends.wait();
  });
  waits_.wait();
  std::atomic<int> ran{0};
  call(ran);
  stall();
  EXPECT_TRUE(executor_.saturated());
  release();
  answered.wait();
  EXPECT_FALSE(executor_.saturated());
  ends.set();
  executor_.stop();
}

TEST_F(AtAThreadLimit, ACallWaitsForAThreadThatMayBeComputing) {
  occupy(false);
  std::atomic<int> ran{0};
  call(ran);
  for (int i = 0; i < 99; ++i) stall();
  EXPECT_FALSE(executor_.saturated()) << "it computes for a second";
  stall();
  EXPECT_TRUE(executor_.saturated()) << "further ones are refused before they come here";
  EXPECT_EQ(refused_, 0);
  Promise<void> last;
  Future<void> done = last.future();
  executor_.schedule([&] { last.set_value(); });
  release();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_EQ(ran, 1);
}

TEST_F(AtAThreadLimit, TheSystemIsAskedAgainAfterAWhile) {
  occupy(true);
  Promise<void> promise;
  Future<void> done = promise.future();
  executor_.schedule([&] { promise.set_value(); });
  stall();
  none_.reset();
  EXPECT_EQ(executor_.thread_count(), 1u);
  stall();
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_EQ(executor_.thread_count(), 2u);
  release();
}

TEST(ThreadExecutorTest, WithoutAnyThreadACallIsRefused) {
  ManualClock clock;
  ThreadExecutor executor(clock, {.threads = 2});
  const ThreadLimit none(0);
  EXPECT_EQ(executor.start().code(), absl::StatusCode::kResourceExhausted);
  int refused = 0;
  executor.schedule_call({[] { FAIL(); }, [&] { ++refused; }, {}});
  clock.advance(std::chrono::milliseconds(10));
  EXPECT_EQ(refused, 1);
  EXPECT_TRUE(executor.saturated());
  clock.advance(std::chrono::milliseconds(10));
  EXPECT_FALSE(executor.saturated()) << "nothing waits any more";
}

TEST(ThreadExecutorTest, AtItsBoundCallsThatWaitAreRefusedWhenEveryThreadWaits) {
  ManualClock clock;
  ThreadExecutor executor(clock, {.threads = 1, .max_threads = 1});
  ForeignEvent waits, go;
  executor.schedule([&] {
    const BlockingSection section;
    waits.set();
    go.wait();
  });
  waits.wait();
  int refused = 0;
  executor.schedule_call({[] { FAIL(); }, [&] { ++refused; }, {}});
  clock.advance(std::chrono::milliseconds(10));
  EXPECT_EQ(refused, 1);
  go.set();
  executor.stop();
}

// The thread that computes will take the next call. Only one of the two threads waits, although it
// announces two waits.
TEST(ThreadExecutorTest, AWaitInsideAWaitCountsAsOneThread) {
  ManualClock clock;
  ThreadExecutor executor(clock, {.threads = 2, .max_threads = 2});
  ForeignEvent waits, computes, go;
  executor.schedule([&] {
    const BlockingSection outer;
    const BlockingSection inner;
    waits.set();
    go.wait();
  });
  waits.wait();
  executor.schedule([&] {
    computes.set();
    go.wait();
  });
  computes.wait();
  int refused = 0;
  executor.schedule_call({[] {}, [&] { ++refused; }, {}});
  clock.advance(std::chrono::milliseconds(10));
  EXPECT_EQ(refused, 0);
  go.set();
  executor.stop();
}

TEST(ThreadExecutorTest, StopDropsQueuedTasksAndLetsRunningOnesEnd) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  ForeignEvent started, go;
  std::atomic<bool> ended{false};
  executor.schedule([&] {
    started.set();
    go.wait();
    ended = true;
  });
  const auto owned = std::make_shared<int>(1);
  std::atomic<bool> ran{false};
  executor.schedule([&, owned] { ran = true; });
  started.wait();
  EXPECT_FALSE(executor.idle());
  std::thread letting_go([&] { go.set(); });
  executor.stop();
  letting_go.join();
  executor.schedule([&, owned] { ran = true; });
  EXPECT_TRUE(ended);
  // The queued task ran only if the running task finished before stop() came.
  if (!ran) {
    EXPECT_EQ(owned.use_count(), 1);
  }
  EXPECT_EQ(executor.thread_count(), 0u);
  executor.stop();
}

TEST(ThreadExecutorTest, TasksScheduledAfterStopAreDestroyedUnrun) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  executor.stop();
  const auto owned = std::make_shared<int>(1);
  executor.schedule([owned] { FAIL(); });
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(ThreadExecutorTest, ATaskMayWaitForTheEndOfADroppedOne) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  ForeignEvent started, dropped;
  executor.schedule([&] {
    started.set();
    dropped.wait();
  });
  started.wait();
  executor.schedule(
      [owned = std::shared_ptr<void>(nullptr, [&](void*) { dropped.set(); })] { FAIL(); });
  executor.stop();
}

TEST(ThreadExecutorTest, HooksRunWhenItStopsWhileTasksStillRun) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  ForeignEvent started, go;
  std::vector<int> ran;
  executor.schedule([&] {
    started.set();
    go.wait();
  });
  started.wait();
  EXPECT_NE(executor.at_stop([&] {
    ran.push_back(1);
    go.set();  // nothing else would let the task finish
  }),
            0u);
  const auto owned = std::make_shared<int>(1);
  executor.forget(executor.at_stop([&ran, owned] { ran.push_back(2); }));
  EXPECT_EQ(owned.use_count(), 1);
  executor.stop();
  executor.stop();
  EXPECT_EQ(ran, std::vector<int>{1});
  EXPECT_EQ(executor.at_stop([&] { ran.push_back(3); }), 0u);
  EXPECT_EQ(ran, (std::vector<int>{1, 3}));
}

TEST(ThreadExecutorTest, AStallTimerMayOutliveTheExecutor) {
  ManualClock clock;
  {
    ThreadExecutor executor(clock, {});
    Promise<void> ran;
    Future<void> done = ran.future();
    executor.schedule([&] { ran.set_value(); });
    done.wait();
  }
  clock.advance(seconds(1));
}

TEST(ThreadExecutorTest, EachThreadRunsTheStartHookFirst) {
  SystemClock clock;
  ThreadExecutorOptions options = without_stalls(2);
  static thread_local bool started = false;
  options.on_thread_start = std::make_shared<const std::function<void()>>([] { started = true; });
  ThreadExecutor executor(clock, options);
  Promise<bool> seen;
  Future<bool> future = seen.future();
  executor.schedule([&] { seen.set(started); });
  EXPECT_TRUE(future.wait());
}

TEST(StrandTest, RunsTasksInOrderAndOneAtATime) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(4));
  Strand strand(executor);
  constexpr int kTasks = 5000;
  std::vector<int> order;  // guarded by the strand
  std::atomic<int> inside{0};
  std::atomic<bool> overlapped{false};
  Promise<void> last;
  Future<void> done = last.future();
  for (int i = 0; i < kTasks; ++i) {
    strand.schedule([&, i] {
      if (++inside != 1) overlapped = true;
      order.push_back(i);
      --inside;
      if (i == kTasks - 1) last.set_value();
    });
  }
  ASSERT_TRUE(done.wait_for(seconds(60)));
  EXPECT_FALSE(overlapped);
  ASSERT_EQ(order.size(), static_cast<size_t>(kTasks));
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(order[i], i);
}

TEST(StrandTest, QueuedTasksOutliveTheStrand) {
  ManualExecutor executor;
  int ran = 0;
  {
    Strand strand(executor);
    strand.schedule([&] { ++ran; });
    strand.schedule([&] { ++ran; });
    EXPECT_EQ(ran, 0);
  }
  executor.run_all();
  EXPECT_EQ(ran, 2);
}

TEST(StrandTest, TasksThatOwnTheirStrandDieWithAnExecutorThatStops) {
  SystemClock clock;
  ThreadExecutor executor(clock, without_stalls(1));
  executor.stop();
  auto strand = std::make_shared<Strand>(executor);
  const std::weak_ptr<Strand> watched = strand;
  strand->schedule([strand] {});
  strand.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(ManualExecutorTest, RunsWhenToldAndWhatTasksAdd) {
  ManualExecutor executor;
  std::vector<int> order;
  executor.schedule([&] {
    order.push_back(1);
    executor.schedule([&] { order.push_back(3); });
  });
  executor.schedule([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(order, std::vector<int>{1});
  EXPECT_EQ(executor.run_all(), 2u);
  EXPECT_FALSE(executor.run_one());
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace weft
