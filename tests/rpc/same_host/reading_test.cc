// The test's own thread plays the serving thread. Spinning is off, so a thread that reads and finds
// nothing arms the wake bits and sleeps: the test can see that.
#include "weft/rpc/same_host/connection/reading.h"

#include <optional>
#include <random>
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

class ReadingTest : public ::testing::Test {
 protected:
  struct Visit {
    size_t slot;
    Group reader;
    friend bool operator==(const Visit&, const Visit&) = default;
  };

  void visit(size_t slot, Group reader) {
    visits_.push_back({slot, reader});
    if (slot == kReply) reply_->set(1);
    if (slot == kRequest && reader == Group::kCaller) {
      reading_->post([this] { visit(kRequest, Group::kServing); });
    }
  }
  // Starts a thread that waits, and returns when it reads and sleeps.
  std::thread waiting_thread() {
    reply_.emplace();
    std::thread thread([this] { reading_->read_until_done(*reply_->state()); });
    EXPECT_TRUE(eventually([&] { return armed_for(Group::kCaller); }));
    return thread;
  }
  bool armed_for(Group reader) const { return bits_.armed.load() == static_cast<uint32_t>(reader); }
  const std::shared_ptr<WakePage> page_ = WakePage::create().value();
  WakeBits& bits_ = page_->bits();
  std::optional<Promise<int>> reply_;
  std::vector<Visit> visits_;
  const std::shared_ptr<Reading> reading_ = std::make_shared<Reading>(
      page_, Nanoseconds(0), [this](size_t slot, Group reader) { visit(slot, reader); });
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
  reading_->read_until_done(*reply_->state());
  EXPECT_TRUE(reply_->future().done());
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
  Promise<int> other;
  reading_->read_until_done(*other.state());  // returns at once
  waits.join();
  EXPECT_FALSE(reply_->future().done());
  EXPECT_TRUE(armed_for(Group::kServing));
  EXPECT_EQ(reading_->direct_replies(), 0u);
  reading_->read_until_done(*reply_->state());  // skipped
  bits_.signal(kReply);
  EXPECT_TRUE(reading_->work());
  EXPECT_TRUE(reply_->future().done());
}

TEST_F(ReadingTest, ACallerDoesNotReadBeforeTasksThatWait) {
  reading_->post([] {});
  reply_.emplace();
  reading_->read_until_done(*reply_->state());  // returns at once
  EXPECT_TRUE(reading_->work());
}

TEST_F(ReadingTest, ATaskThatTakesLongDoesNotHoldACallerWhoseResultIsComplete) {
  Promise<void> begun, finish;
  reading_->post([&] {
    begun.set_value();
    finish.future().wait();
  });
  std::thread serving([&] { EXPECT_TRUE(reading_->work()); });
  begun.future().wait();
  std::thread waits = waiting_thread();
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
    Promise<int> other;
    reading_->read_until_done(*other.state());
    tried = true;
    return true;
  });
  threads.join();
  EXPECT_TRUE(tried);
}

TEST_F(ReadingTest, AfterAnInterruptionSomeWaitsDoNotRead) {
  for (const int expected : {1, 3, 7, 15, 31, 63, 64, 64}) {
    std::thread waits = waiting_thread();
    bits_.signal(kRequest);
    waits.join();
    EXPECT_TRUE(reading_->work());
    for (int skipped = 0; skipped < expected; ++skipped) {
      reading_->read_until_done(*reply_->state());  // returns at once
    }
  }
  std::thread waits = waiting_thread();
  bits_.signal(kReply);
  waits.join();
  waits = waiting_thread();  // reads at once: the last one was not interrupted
  bits_.signal(kReply);
  waits.join();
  EXPECT_EQ(reading_->direct_replies(), 2u);
}

TEST_F(ReadingTest, CloseEndsTheReadingForGood) {
  std::thread waits = waiting_thread();
  reading_->close();
  waits.join();
  reply_.emplace();
  reading_->read_until_done(*reply_->state());  // returns at once
  EXPECT_EQ(reading_->direct_replies(), 0u);
  while (reading_->work()) {
  }
}

// Two peers answer and interrupt at random, while one thread waits again and again and another one
// serves.
TEST_F(ReadingTest, NoReplyAndNoRequestIsLost) {
  constexpr int kRounds = 3000;
  constexpr uint32_t kSeed = 20261127;
  SCOPED_TRACE(kSeed);
  std::atomic<uint64_t> asked{0}, requests{0};
  std::atomic<uint64_t> handled{0};
  std::atomic<bool> over{false};
  uint64_t answered = 0, seen = 0;  // used only by the thread that reads
  std::optional<Promise<int>> waited;
  Reading* reading = nullptr;
  std::atomic<bool> looks{false};
  const auto look = [&](size_t slot, Group reader) {
    EXPECT_FALSE(looks.exchange(true)) << "two threads read";
    if (slot == kReply && answered < asked.load()) {
      ++answered;
      waited->set(1);
    }
    if (slot == kRequest) {
      const uint64_t now = requests.load();
      const uint64_t fresh = now - std::exchange(seen, now);
      if (reader == Group::kServing) {
        handled.fetch_add(fresh);
      } else {
        reading->post([&handled, fresh] { handled.fetch_add(fresh); });
      }
    }
    looks.store(false);
  };
  Reading shared(page_, std::chrono::microseconds(5), look);
  reading = &shared;
  std::thread serving([&] {
    while (!over.load()) {
      if (!shared.work()) shared.rest();
    }
  });
  std::thread answering([&] {
    for (uint64_t done = 0; done < kRounds;) {
      if (asked.load() == done) {
        std::this_thread::yield();
        continue;
      }
      ++done;
      bits_.signal(kReply);
    }
  });
  std::thread interrupting([&] {
    std::mt19937 random(kSeed);
    while (!over.load()) {
      for (uint32_t i = random() % 64; i > 0; --i) std::this_thread::yield();
      requests.fetch_add(1);
      bits_.signal(kRequest);
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    waited.emplace();
    const Future<int> future = waited->future();
    asked.fetch_add(1);
    shared.read_until_done(*future.state());
    EXPECT_TRUE(future.result().ok());
  }
  answering.join();
  over.store(true);
  interrupting.join();
  shared.post([] {});  // wakes the serving thread
  serving.join();
  while (shared.work()) {
  }
  EXPECT_EQ(handled.load(), requests.load());
  EXPECT_GT(shared.direct_replies(), 0u);
}

}  // namespace
}  // namespace weft::rpc_internal
