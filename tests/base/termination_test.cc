#include "weft/base/termination.h"

#include <cstdlib>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr WorkerId kA{0, 1}, kB{1, 1}, kC{2, 1};

TEST(MessageCounts, NumbersMessagesPerPeerFromOne) {
  MessageCounts counts;
  EXPECT_EQ(counts.count_sent(kB), 1u);
  EXPECT_EQ(counts.count_sent(kC), 1u);
  EXPECT_EQ(counts.count_sent(kB), 2u);
  const TerminationReport report = counts.report(kA);
  EXPECT_EQ(report.sent, (std::vector<PeerCount>{{kB, 2}, {kC, 1}}));
  EXPECT_EQ(report.version, 1u);
  EXPECT_EQ(counts.report(kA).version, 2u);
  EXPECT_EQ(counts.receivers(), (std::vector<WorkerId>{kB, kC}));
}

TEST(MessageCounts, ARepetitionCountsNothingInAnyOrder) {
  MessageCounts counts;
  for (uint64_t number : {3, 1, 2, 5}) EXPECT_TRUE(counts.count_received(kB, number));
  for (uint64_t number : {0, 1, 2, 3, 5}) EXPECT_FALSE(counts.count_received(kB, number));
  EXPECT_TRUE(counts.count_received(kB, 4));
  EXPECT_EQ(counts.report(kA).received, (std::vector<PeerCount>{{kB, 5}}));
}

TEST(MessageCounts, WhoIsLeftOutCountsNoMore) {
  MessageCounts counts;
  counts.count_sent(kB);
  counts.count_received(kB);
  counts.leave_out(kB);
  EXPECT_FALSE(counts.exchanged_with(kB));
  EXPECT_EQ(counts.count_sent(kB), 0u);
  EXPECT_FALSE(counts.count_received(kB, 1));
  counts.count_received(kB);
  const TerminationReport report = counts.report(kA);
  EXPECT_TRUE(report.sent.empty());
  EXPECT_TRUE(report.received.empty());
  EXPECT_EQ(report.left_out, (std::vector<WorkerId>{kB}));
}

TEST(TerminationDetector, WaitsForEveryoneExpectedOrNamed) {
  TerminationDetector detector;
  detector.expect(kA);
  detector.expect(kC);
  EXPECT_FALSE(detector.quiescent());
  detector.update({.worker = kA, .version = 1, .sent = {{kB, 1}}});
  EXPECT_EQ(detector.workers(), (std::vector<WorkerId>{kA, kB, kC}));
  EXPECT_EQ(detector.unsettled(), (std::vector<WorkerId>{kA, kB, kC}));
  detector.update({.worker = kB, .version = 1, .received = {{kA, 1}}});
  EXPECT_EQ(detector.unsettled(), (std::vector<WorkerId>{kC}));
  EXPECT_FALSE(detector.quiescent());
  detector.update({.worker = kC, .version = 1});
  EXPECT_TRUE(detector.quiescent());
}

TEST(TerminationDetector, ComparesPairsNotSums) {
  // Both messages of A are in flight, and C claims two of B, which sent none. The sums agree.
  TerminationDetector detector;
  detector.update({.worker = kA, .version = 1, .sent = {{kC, 2}}});
  detector.update({.worker = kB, .version = 1});
  detector.update({.worker = kC, .version = 1, .received = {{kB, 2}}});
  EXPECT_FALSE(detector.quiescent());
}

TEST(TerminationDetector, SeesAMessageThatIsReceivedButNotYetReportedAsSent) {
  TerminationDetector detector;
  detector.update({.worker = kA, .version = 1});
  detector.update({.worker = kB, .version = 1, .received = {{kA, 1}}});
  EXPECT_FALSE(detector.quiescent());
  detector.update({.worker = kA, .version = 2, .sent = {{kB, 1}}});
  EXPECT_TRUE(detector.quiescent());
}

TEST(TerminationDetector, AnOlderReportChangesNothing) {
  TerminationDetector detector;
  EXPECT_TRUE(detector.update({.worker = kA, .version = 2, .sent = {{kB, 1}}}));
  EXPECT_FALSE(detector.update({.worker = kA, .version = 1}));
  EXPECT_FALSE(detector.update({.worker = kA, .version = 2}));
  detector.update({.worker = kB, .version = 1});
  EXPECT_FALSE(detector.quiescent());
}

TEST(TerminationDetector, LeavesTheDeadOutOnceAllOthersDid) {
  TerminationDetector detector;
  detector.update({.worker = kA, .version = 1, .sent = {{kB, 3}}, .received = {{kC, 1}}});
  detector.update({.worker = kB, .version = 1, .received = {{kA, 3}}});
  detector.expect(kC);
  EXPECT_FALSE(detector.quiescent());
  detector.leave_out(kC);
  EXPECT_FALSE(detector.update({.worker = kC, .version = 9})) << "the dead report nothing";
  // A message of C that is in flight could still wake A.
  EXPECT_FALSE(detector.quiescent());
  detector.update({.worker = kA, .version = 2, .sent = {{kB, 3}}, .left_out = {kC}});
  EXPECT_FALSE(detector.quiescent());
  detector.update({.worker = kB, .version = 2, .received = {{kA, 3}}, .left_out = {kC}});
  EXPECT_TRUE(detector.quiescent());
}

// Workers wake each other at random, and their reports arrive at random times. Whenever the
// detector says that the group is quiescent, all are idle and no message is in flight. At last it
// says so.
TEST(TerminationDetector, IsNeverWrongOnRandomRuns) {
  const char* text = std::getenv("WEFT_TEST_SEED");
  const uint64_t first = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + (text != nullptr ? 1 : 2000); ++seed) {
    SCOPED_TRACE(testing::Message() << "repeat with WEFT_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    const size_t workers = 2 + random() % 4;
    struct Message {
      size_t from, to;
      uint64_t number;
    };
    std::vector<MessageCounts> counts(workers);
    std::vector<int> tasks(workers, 0);
    std::vector<bool> alive(workers, true);
    std::vector<Message> messages;
    std::vector<TerminationReport> reports;
    TerminationDetector detector;
    auto id = [](size_t w) { return WorkerId{static_cast<uint32_t>(w), 1}; };
    for (size_t w = 0; w < workers; ++w) {
      detector.expect(id(w));
      tasks[w] = 1;
    }
    int budget = 12;  // messages that may still be sent
    int death_in = random() % 3 == 0 ? static_cast<int>(random() % 40) : -1;
    for (int quiet_events = 0; quiet_events < 400; ++quiet_events) {
      if (death_in-- == 0) {
        const size_t dead = random() % workers;
        alive[dead] = false;
        tasks[dead] = 0;
        std::erase_if(messages, [&](const Message& m) { return m.from == dead || m.to == dead; });
        std::erase_if(reports, [&](const TerminationReport& r) { return r.worker == id(dead); });
        for (size_t w = 0; w < workers; ++w) counts[w].leave_out(id(dead));
        detector.leave_out(id(dead));
      }
      const size_t w = random() % workers;
      switch (random() % 3) {
        case 0:  // finish a task, perhaps waking someone
          if (!alive[w] || tasks[w] == 0) break;
          while (budget > 0 && random() % 2 == 0) {
            const size_t to = random() % workers;
            if (to == w || !alive[to]) continue;
            --budget;
            messages.push_back({w, to, counts[w].count_sent(id(to))});
            if (random() % 4 == 0) messages.push_back(messages.back());
          }
          --tasks[w];
          break;
        case 1: {
          if (messages.empty()) break;
          const size_t i = random() % messages.size();
          const Message m = messages[i];
          messages.erase(messages.begin() + static_cast<ptrdiff_t>(i));
          if (counts[m.to].count_received(id(m.from), m.number)) ++tasks[m.to];
          break;
        }
        case 2:
          if (alive[w] && tasks[w] == 0) reports.push_back(counts[w].report(id(w)));
          if (!reports.empty() && random() % 2 == 0) {
            const size_t i = random() % reports.size();
            detector.update(reports[i]);
            reports.erase(reports.begin() + static_cast<ptrdiff_t>(i));
          }
          break;
      }
      if (!detector.quiescent()) continue;
      for (size_t v = 0; v < workers; ++v) ASSERT_EQ(tasks[v], 0) << "someone works";
      for (const Message& m : messages) {
        ASSERT_FALSE(counts[m.to].count_received(id(m.from), m.number)) << "a message is under way";
      }
    }
    while (!messages.empty()) {
      counts[messages.back().to].count_received(id(messages.back().from), messages.back().number);
      messages.pop_back();
    }
    for (size_t w = 0; w < workers; ++w) {
      if (alive[w]) detector.update(counts[w].report(id(w)));
    }
    ASSERT_TRUE(detector.quiescent());
  }
}

}  // namespace
}  // namespace weft
