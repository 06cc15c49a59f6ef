// The test's own thread plays the serving thread. Spinning is off, so a thread that reads and finds
// nothing arms the wake bits and sleeps: the test can see that.
#include "weft/rpc/same_host/connection/reading.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/async/serving_threads.h"
#include "weft/tests/support/eventually.h"

namespace weft::rpc_internal {
namespace {

using ::testing::ElementsAre;
using testing::eventually;
using ::testing::IsEmpty;
using Group = WakeBits::Group;

constexpr size_t kReply = 3;    // a signal of this slot brings the reply
constexpr size_t kRequest = 7;  // this one brings what only the serving thread may handle
constexpr size_t kNothing = 9;  // this one brings nothing
constexpr uint64_t kCall = 41;
constexpr WorkerId kPeer{1, 1};

class ReadingTest : public ::testing::Test {
 protected:
  struct Visit {
    size_t slot;
    Group reader;
    friend bool operator==(const Visit&, const Visit&) = default;
  };

  void serve(size_t slot) {
    visits_.push_back({slot, Group::kServing});
    if (slot == kReply) reply_->set(1);
  }
  void take(size_t slot, Reading::Awaited& awaited) {
    visits_.push_back({slot, Group::kCaller});
    EXPECT_EQ(awaited.peer, kPeer);
    EXPECT_EQ(awaited.call, kCall);
    if (slot == kReply) awaited.reply.emplace();
    if (slot == kRequest) awaited.for_serving.push_back([this] { serve(kRequest); });
  }
  // True: it has read the reply, which then completes the promise, as the agent does.
  bool read_reply() {
    const bool read = reading_->read_reply(kPeer, kCall, *reply_->state(),
                                           [&](const ConnectionPtr&, Frame) { return rest(); });
    if (read) reply_->set(1);
    return read;
  }
  // A task that is left when the reply is accepted.
  virtual Reading::Task rest() { return nullptr; }
  // Starts a thread that waits, and returns when it reads and sleeps.
  std::thread waiting_thread() {
    reply_.emplace();
    std::thread thread([this] { read_reply(); });
    EXPECT_TRUE(eventually([&] { return armed_for(Group::kCaller); }));
    return thread;
  }
  // The same while a task runs: the serving thread arms for the caller when the task is done.
  std::thread thread_that_waits_for_a_task() {
    reply_.emplace();
    std::thread thread([this] { read_reply(); });
    EXPECT_TRUE(eventually([&] { return bits_.word.sleepers.load() == 1; }));
    return thread;
  }
  // Starts a serving thread, and returns when it is inside a task, which lasts until `finish`.
  std::thread serving_thread_in_a_task(const Promise<void>& finish) {
    const auto begun = std::make_shared<Promise<void>>();
    reading_->post([begun, over = finish.future()] {
      begun->set_value();
      over.wait();
    });
    std::thread serving([this] { EXPECT_TRUE(reading_->work()); });
    begun->future().wait();
    return serving;
  }
  bool armed_for(Group reader) const { return bits_.armed.load() == static_cast<uint32_t>(reader); }
  // For tests in which a second caller comes.
  bool another_reads() {
    Promise<int> other;
    return reading_->read_reply(kPeer, kCall + 1, *other.state(),
                                [](const ConnectionPtr&, Frame) { return nullptr; });
  }

  const std::shared_ptr<WakePage> page_ = WakePage::create().value();
  WakeBits& bits_ = page_->bits();
  std::optional<Promise<int>> reply_;
  std::vector<Visit> visits_;
  const std::shared_ptr<Reading> reading_ = std::make_shared<Reading>(
      page_, Nanoseconds(0),
      Reading::Visits{[this](size_t slot) { serve(slot); },
                      [this](size_t slot, Reading::Awaited& awaited) { take(slot, awaited); },
                      [](size_t slot, WorkerId) { return slot == kReply; }});
};

TEST_F(ReadingTest, AThreadThatWaitsReadsItsReply) {
  std::thread waits = waiting_thread();
  bits_.signal(kReply);
  waits.join();
  EXPECT_THAT(visits_, ElementsAre(Visit{kReply, Group::kCaller}));
  EXPECT_EQ(reading_->direct_replies(), 1u);
  // The serving thread may sleep, and the next signal wakes it.
  EXPECT_TRUE(armed_for(Group::kServing));
}

TEST_F(ReadingTest, AReplyThatIsThereBeforeItSleepsIsRead) {
  reply_.emplace();
  bits_.signal(kReply);
  EXPECT_TRUE(read_reply());
}

TEST_F(ReadingTest, WhatOtherPeersHaveSentDoesNotDelayTheReply) {
  reply_.emplace();
  bits_.signal(kReply);
  bits_.signal(kRequest);
  EXPECT_TRUE(read_reply());
  EXPECT_THAT(visits_, ElementsAre(Visit{kReply, Group::kCaller}));
  EXPECT_TRUE(reading_->work());
  EXPECT_THAT(visits_,
              ElementsAre(Visit{kReply, Group::kCaller}, Visit{kRequest, Group::kServing}));
  EXPECT_FALSE(another_reads()) << "it was not alone";
}

class ReadingRestTest : public ReadingTest {
 protected:
  Reading::Task rest() override {
    return [this] { rest_ran_on_ = std::this_thread::get_id(); };
  }
  std::optional<std::thread::id> rest_ran_on_;
};

TEST_F(ReadingRestTest, TheServingThreadRunsWhatIsLeftOfAReply) {
  std::thread waits = waiting_thread();
  bits_.signal(kReply);
  waits.join();
  EXPECT_FALSE(rest_ran_on_.has_value());
  EXPECT_TRUE(reading_->work());
  EXPECT_EQ(rest_ran_on_, std::this_thread::get_id());
}

TEST_F(ReadingTest, ASignalThatBringsNothingDoesNotEndTheWait) {
  std::thread waits = waiting_thread();
  bits_.signal(kNothing);
  EXPECT_TRUE(eventually([&] { return armed_for(Group::kCaller); }));
  bits_.signal(kReply);
  waits.join();
  EXPECT_EQ(visits_.back(), (Visit{kReply, Group::kCaller}));
}

TEST_F(ReadingTest, ACompletionFromElsewhereEndsTheWait) {
  std::thread waits = waiting_thread();
  reply_->set(1);
  waits.join();
  EXPECT_THAT(visits_, IsEmpty());
}

TEST_F(ReadingTest, ATaskRunsOnTheServingThreadWhileAnotherOneWaits) {
  std::thread waits = waiting_thread();
  std::optional<std::thread::id> ran;
  reading_->post([&] { ran = std::this_thread::get_id(); });
  EXPECT_TRUE(reading_->work());
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_FALSE(reading_->work());
  EXPECT_TRUE(eventually([&] { return armed_for(Group::kCaller); }));
  bits_.signal(kReply);
  waits.join();
  EXPECT_THAT(visits_, ElementsAre(Visit{kReply, Group::kCaller}));
}

TEST_F(ReadingTest, ARequestGoesToTheServingThread) {
  std::thread waits = waiting_thread();
  const uint32_t wakes = bits_.word.load();
  bits_.signal(kRequest);
  waits.join();
  EXPECT_GE(bits_.word.load(), wakes + 2) << "the serving thread may sleep and must be woken";
  EXPECT_TRUE(reading_->work());
  EXPECT_THAT(visits_,
              ElementsAre(Visit{kRequest, Group::kCaller}, Visit{kRequest, Group::kServing}));
}

TEST_F(ReadingTest, ASignalThatComesWhenTheWaitEndsWakesTheServingThread) {
  std::thread waits = waiting_thread();
  const uint32_t wakes = bits_.word.load();
  bits_.pending[0].fetch_or(uint64_t{1} << kRequest);  // without a wake-up
  reply_->set(1);
  waits.join();
  if (visits_.empty()) {  // the completion woke it, and not the end of its longest sleep
    EXPECT_GE(bits_.word.load(), wakes + 2);
    EXPECT_TRUE(reading_->work());
  }
}

TEST_F(ReadingTest, TheServingThreadSleepsWhileAnotherThreadReads) {
  std::thread waits = waiting_thread();
  std::atomic<bool> slept{false};
  std::thread serving([&] {
    reading_->rest();
    slept.store(true);
    while (reading_->work()) {
    }
  });
  EXPECT_TRUE(eventually([&] { return bits_.word.sleepers.load() == 2 || slept.load(); }));
  bits_.signal(kReply);
  waits.join();
  // A signal wakes it, although it went to sleep while the other thread read.
  while (!slept.load()) bits_.signal(kRequest);
  serving.join();
  bits_.signal(kRequest);
  EXPECT_TRUE(reading_->work());
  EXPECT_EQ(visits_.front(), (Visit{kReply, Group::kCaller}));
  EXPECT_EQ(visits_.back(), (Visit{kRequest, Group::kServing}));
}

TEST_F(ReadingTest, TheServingThreadLooksIfTheOtherOneGetsNoProcessor) {
  std::thread waits = waiting_thread();
  bits_.pending[0].fetch_or(uint64_t{1} << kReply);  // without a wake-up
  const auto begun = std::chrono::steady_clock::now();
  reading_->rest();
  (void)reading_->work();
  waits.join();
  ASSERT_EQ(visits_.size(), 1u);
  if (std::chrono::steady_clock::now() - begun < WakeBits::kLongestSleep) {
    EXPECT_EQ(visits_.front(), (Visit{kReply, Group::kServing}));
  }
}

TEST_F(ReadingTest, WhenASecondCallerComesTheServingThreadReadsForBoth) {
  std::thread waits = waiting_thread();
  EXPECT_FALSE(another_reads());
  waits.join();
  EXPECT_FALSE(reply_->future().done());
  EXPECT_TRUE(armed_for(Group::kServing));
  EXPECT_EQ(reading_->direct_replies(), 0u);
  EXPECT_FALSE(read_reply()) << "skipped";
  bits_.signal(kReply);
  EXPECT_TRUE(reading_->work());
  EXPECT_TRUE(reply_->future().done());
}

TEST_F(ReadingTest, ACallerDoesNotReadBeforeTasksThatWait) {
  reading_->post([] {});
  reply_.emplace();
  EXPECT_FALSE(read_reply());
  EXPECT_TRUE(reading_->work());
}

TEST_F(ReadingTest, ACallerWhoseResultIsCompleteDoesNotRead) {
  reply_.emplace();
  reply_->set(1);
  bits_.signal(kReply);
  EXPECT_FALSE(read_reply());
  EXPECT_TRUE(bits_.any_pending());
}

TEST_F(ReadingTest, ASignalDuringATaskIsTakenAfterIt) {
  Promise<void> finish;
  std::thread serving = serving_thread_in_a_task(finish);
  std::thread waits = thread_that_waits_for_a_task();
  bits_.signal(kReply);
  finish.set_value();
  waits.join();
  serving.join();
  EXPECT_TRUE(reply_->future().done());
  ASSERT_EQ(visits_.size(), 1u);
  EXPECT_EQ(visits_[0].slot, kReply);
  EXPECT_EQ(reading_->lost_signals(), 0u);
}

TEST_F(ReadingTest, ATaskThatTakesLongDoesNotHoldACallerWhoseResultIsComplete) {
  Promise<void> finish;
  std::thread serving = serving_thread_in_a_task(finish);
  std::thread waits = thread_that_waits_for_a_task();
  reply_->set(1);
  waits.join();
  finish.set_value();
  serving.join();
}

TEST_F(ReadingTest, AServingThreadDoesNotReadWhileItWaits) {
  bool tried = false;
  bool served = false;
  ServingThreads threads([&] {
    if (std::exchange(served, true)) return false;
    const ServingThreads::Work work;
    EXPECT_FALSE(another_reads());
    tried = true;
    return true;
  });
  threads.join();
  EXPECT_TRUE(tried);
}

TEST_F(ReadingTest, AfterAnInterruptionTheNextCallerDoesNotRead) {
  std::thread waits = waiting_thread();
  bits_.signal(kRequest);
  waits.join();
  EXPECT_TRUE(reading_->work());
  EXPECT_FALSE(read_reply());
  waits = waiting_thread();
  bits_.signal(kReply);
  waits.join();
  EXPECT_EQ(reading_->direct_replies(), 1u);
}

// The serving thread wants to visit the same peer while a caller does, and comes next.
TEST_F(ReadingTest, WhatACallerFindsIsHandledBeforeWhatThePeerSendsLater) {
  for (int round = 0; round < 20; ++round) {
    std::string order;  // used only by the serving thread
    std::thread serving;
    std::optional<Reading> reading;
    const auto take = [&](size_t slot, Reading::Awaited& awaited) {
      awaited.for_serving.push_back([&] { order += "first "; });
      for (int i = 0; i < 20'000; ++i) awaited.for_serving.push_back([] {});  // takes a while
      bits_.signal(slot);
      serving = std::thread([&] {
        while (reading->work()) {
        }
      });
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
    };
    reading.emplace(page_, Nanoseconds(0),
                    Reading::Visits{[&](size_t) { order += "later "; }, take,
                                    [](size_t, WorkerId) { return false; }});
    const Promise<int> promise;
    bits_.signal(kRequest);
    EXPECT_FALSE(reading->read_reply(kPeer, kCall, *promise.state(),
                                     [](const ConnectionPtr&, Frame) { return nullptr; }));
    serving.join();
    while (reading->work()) {
    }
    EXPECT_EQ(order, "first later ");
  }
}

// The serving thread polls for the lock. So a caller that locks it again at once could keep it out.
TEST_F(ReadingTest, ACallerThatFindsSomethingAgainAndAgainLetsTheServingThreadIn) {
  constexpr int kMostLooks = 500;  // of 1 ms each
  std::atomic<bool> served{false}, reads{false};
  int looks = 0;  // used only by the caller
  const auto take = [&](size_t slot, Reading::Awaited& awaited) {
    reads.store(true);
    if (served.load() || ++looks == kMostLooks) {
      awaited.reply.emplace();
      return;
    }
    bits_.signal(slot);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  Reading reading(page_, Nanoseconds(0),
                  {[](size_t) {}, take, [](size_t, WorkerId) { return true; }});
  bits_.signal(kNothing);
  std::thread waits([&] {
    const Promise<int> promise;
    (void)reading.read_reply(kPeer, kCall, *promise.state(),
                             [](const ConnectionPtr&, Frame) { return nullptr; });
  });
  EXPECT_TRUE(eventually([&] { return reads.load(); }));
  reading.post([&] { served.store(true); });
  (void)reading.work();
  bits_.signal(kNothing);  // replaces the signal that work() has taken, and ends the caller's wait
  waits.join();
  EXPECT_LT(looks, kMostLooks) << "the serving thread got in only when the caller had ended";
}

TEST_F(ReadingTest, CloseEndsTheReadingForGood) {
  std::thread waits = waiting_thread();
  reading_->close();
  waits.join();
  reply_.emplace();
  EXPECT_FALSE(read_reply());
  EXPECT_EQ(reading_->direct_replies(), 0u);
  while (reading_->work()) {
  }
}

// Two peers answer and interrupt at random, with pauses, while two threads wait again and again,
// one posts tasks, and one serves.
TEST_F(ReadingTest, NoReplyAndNoRequestIsLost) {
  constexpr uint64_t kRounds = 2000;
  constexpr uint32_t kSeed = 20261128;
  SCOPED_TRACE(kSeed);
  constexpr size_t kCallers = 2;
  struct Call {
    std::atomic<uint64_t> asked{0};
    uint64_t answered = 0;  // used only by the thread that reads
    std::optional<Promise<int>> result;
  };
  Call calls[kCallers];  // a signal of slot i answers calls[i]
  std::atomic<uint64_t> requests{0};
  uint64_t handled = 0;  // used only by the serving thread
  std::atomic<bool> over{false}, looks{false};
  const auto handle = [&](uint64_t up_to) {
    EXPECT_GE(up_to, handled) << "requests of one peer have overtaken each other";
    handled = up_to;
  };
  const auto answered = [&](size_t slot) {
    Call& call = calls[slot];
    return call.answered < call.asked.load() && ++call.answered > 0;
  };
  const auto serve = [&](size_t slot) {
    EXPECT_FALSE(looks.exchange(true)) << "two threads read";
    if (slot < kCallers && answered(slot)) calls[slot].result->set(1);
    if (slot == kRequest) handle(requests.load());
    looks.store(false);
  };
  const auto take = [&](size_t slot, Reading::Awaited& awaited) {
    EXPECT_FALSE(looks.exchange(true)) << "two threads read";
    if (slot < kCallers && answered(slot)) {
      if (awaited.call == slot) {
        awaited.reply.emplace();
      } else {
        awaited.for_serving.push_back([&calls, slot] { calls[slot].result->set(1); });
      }
    }
    if (slot == kRequest) {
      awaited.for_serving.push_back([&handle, up_to = requests.load()] { handle(up_to); });
    }
    looks.store(false);
  };
  Reading reading(page_, std::chrono::microseconds(5),
                  {serve, take, [](size_t, WorkerId) { return false; }});
  const auto yield_up_to = [](std::mt19937& random, uint32_t most) {
    for (uint32_t i = random() % most; i > 0; --i) std::this_thread::yield();
  };
  std::thread serving([&] {
    while (!over.load()) {
      if (!reading.work()) reading.rest();
    }
  });
  std::vector<std::thread> peers;
  for (size_t slot = 0; slot < kCallers; ++slot) {
    peers.emplace_back([&, slot] {
      std::mt19937 random(kSeed + static_cast<uint32_t>(slot));
      for (uint64_t done = 0; done < kRounds;) {
        if (calls[slot].asked.load() == done) {
          std::this_thread::yield();
          continue;
        }
        ++done;
        yield_up_to(random, 32);
        bits_.signal(slot);
      }
    });
  }
  std::thread interrupting([&] {
    std::mt19937 random(kSeed + 10);
    while (!over.load()) {
      yield_up_to(random, 256);
      requests.fetch_add(1);
      bits_.signal(kRequest);
      if (random() % 4 == 0) reading.post([] {});
    }
  });
  std::vector<std::thread> callers;
  for (size_t slot = 0; slot < kCallers; ++slot) {
    callers.emplace_back([&, slot] {
      std::mt19937 random(kSeed + 20 + static_cast<uint32_t>(slot));
      for (uint64_t round = 0; round < kRounds; ++round) {
        calls[slot].result.emplace();
        const Future<int> future = calls[slot].result->future();
        calls[slot].asked.fetch_add(1);
        const bool read = reading.read_reply(kPeer, slot, *future.state(),
                                             [](const ConnectionPtr&, Frame) { return nullptr; });
        if (read) calls[slot].result->set(1);
        EXPECT_TRUE(future.result().ok());
        yield_up_to(random, 64);
      }
    });
  }
  for (std::thread& each : callers) each.join();
  for (std::thread& each : peers) each.join();
  over.store(true);
  interrupting.join();
  reading.post([] {});  // wakes the serving thread
  serving.join();
  while (reading.work()) {
  }
  EXPECT_EQ(handled, requests.load());
  EXPECT_GT(reading.direct_replies(), 0u);
  EXPECT_EQ(reading.lost_signals(), 0u);
}

// ---- Who should read

// How many callers leave the reading to the serving thread before the next one reads.
int skipped(ReadPolicy& policy) {
  int skipped = 0;
  while (!policy.begin()) ++skipped;
  return skipped;
}

TEST(ReadPolicyTest, CallersReadAsLongAsTheyAreAlone) {
  ReadPolicy policy;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(policy.begin());
    policy.end(true);
  }
}

TEST(ReadPolicyTest, EachDisturbedCallerMakesMoreCallersSkip) {
  ReadPolicy policy;
  std::vector<int> numbers;
  for (int i = 0; i < 9; ++i) {
    numbers.push_back(skipped(policy));
    policy.end(false);
  }
  EXPECT_THAT(numbers, ElementsAre(0, 1, 3, 7, 15, 31, 63, 64, 64));
}

TEST(ReadPolicyTest, EachCallerThatIsAloneHalvesTheNumberForTheNextTime) {
  ReadPolicy policy;
  for (int i = 0; i < 4; ++i) {
    skipped(policy);
    policy.end(false);
  }
  EXPECT_EQ(skipped(policy), 15);
  policy.end(true);  // 15 -> 7
  EXPECT_EQ(skipped(policy), 0);
  policy.end(false);
  EXPECT_EQ(skipped(policy), 15);
}

TEST(ReadPolicyTest, ACallerAfterTheServingThreadHadToReadIsDisturbed) {
  ReadPolicy policy;
  policy.served();
  EXPECT_TRUE(policy.begin());
  policy.end(true);
  EXPECT_EQ(skipped(policy), 1);
  // What the serving thread reads for a caller that skips is no disturbance.
  policy.end(true);
  policy.served();
  EXPECT_TRUE(policy.begin());
  policy.end(true);
  EXPECT_FALSE(policy.begin());
  policy.served();
  EXPECT_TRUE(policy.begin());
  policy.end(true);
  EXPECT_TRUE(policy.begin());
}

}  // namespace
}  // namespace weft::rpc_internal
