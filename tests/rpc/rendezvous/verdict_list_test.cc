#include "weft/rpc/rendezvous/verdict_list.h"

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/rendezvous/memory_store.h"

namespace weft {
namespace {

constexpr WorkerId kA{0, 1};
constexpr WorkerId kB{1, 1};
constexpr WorkerId kC{2, 7};

VerdictList list_of(const std::shared_ptr<MemoryStore>& store) { return {store, "job", 3}; }

TEST(VerdictList, TheFirstWriterWins) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  EXPECT_EQ(*a.condemn(kA, kC, "silent"), (std::vector<Verdict>{{kC, kA, "silent"}}));
  EXPECT_EQ(*b.condemn(kB, kC, "gone for me"), (std::vector<Verdict>{{kC, kA, "silent"}}));
  EXPECT_TRUE(list_of(store).read()->size() == 1);
}

TEST(VerdictList, WhoIsCondemnedCondemnsNobody) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kB, "one way").ok());
  const auto read = b.condemn(kB, kA, "the other way");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<Verdict>{{kB, kA, "one way"}}));
  EXPECT_EQ(list_of(store).read()->size(), 1u);
}

// Two questions of one worker are put one after the other: the first may have told it of its end.
TEST(VerdictList, WhoHasReadItsOwnEndWritesNothingMore) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kB, "x").ok());
  ASSERT_EQ(b.condemn(kB, kC, "y")->size(), 1u);
  EXPECT_TRUE(b.condemn(kB, kA, "z")->empty());
  EXPECT_EQ(list_of(store).read()->size(), 1u);
  // Nor is anybody condemned twice.
  EXPECT_TRUE(a.condemn(kA, kB, "again")->empty());
  EXPECT_EQ(list_of(store).read()->size(), 1u);
}

TEST(VerdictList, AReasonIsReadInOneLineOfPrintableText) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kC, "x\nweft error: forged\x1b[2J" + std::string(5000, '\x07')).ok());
  const std::vector<Verdict> read = *b.read();
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].reason.substr(0, 34), "x\\x0aweft error: forged\\x1b[2J\\x07");
  EXPECT_LE(read[0].reason.size(), 4096u);
}

// Who was cut off for long asks about somebody, and learns that it is dead itself.
TEST(VerdictList, WhoFindsItsSuspectReadsOnToTheEnd) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kC, "x").ok());
  ASSERT_TRUE(a.condemn(kA, kB, "y").ok());
  EXPECT_EQ(*b.condemn(kB, kC, "z"), (std::vector<Verdict>{{kC, kA, "x"}, {kB, kA, "y"}}));
  EXPECT_EQ(list_of(store).read()->size(), 2u);
}

TEST(VerdictList, EachEntryIsReadOnce) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kC, "x").ok());
  EXPECT_EQ(b.read()->size(), 1u);
  EXPECT_TRUE(b.read()->empty());
  const auto both = b.condemn(kB, kA, "");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(*both, (std::vector<Verdict>{{kA, kB, ""}}));
}

TEST(VerdictList, AMalformedEntryIsAnErrorAndLosesNothing) {
  const auto store = std::make_shared<MemoryStore>();
  VerdictList a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.condemn(kA, kC, "x").ok());
  ASSERT_TRUE(store->set("weft/job/3/verdict/2", "nonsense").ok());
  EXPECT_EQ(b.read().status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(store->set("weft/job/3/verdict/2", "8589934593 1 y").ok());
  EXPECT_EQ(b.read()->size(), 2u);
}

// Everybody condemns everybody at once: nobody who is condemned has written afterwards, and one
// worker is left.
TEST(VerdictList, OfManyThatSuspectEachOtherOneIsLeft) {
  constexpr uint32_t kWorkers = 8;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (uint32_t me = 0; me < kWorkers; ++me) {
    threads.emplace_back([&, me] {
      VerdictList list = list_of(store);
      std::set<WorkerId> dead;
      for (uint32_t i = 1; i < kWorkers; ++i) {
        const WorkerId suspect{(me + i) % kWorkers, 1};
        if (dead.contains({me, 1})) return;
        if (dead.contains(suspect)) continue;
        const auto read = list.condemn({me, 1}, suspect, "");
        for (const Verdict& verdict : *read) dead.insert(verdict.dead);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<WorkerId> dead;
  const auto all = list_of(store).read();
  for (const Verdict& verdict : *all) {
    EXPECT_FALSE(dead.contains(verdict.by)) << verdict.by << " wrote after its end";
    EXPECT_TRUE(dead.insert(verdict.dead).second) << verdict.dead << " was condemned twice";
  }
  EXPECT_EQ(dead.size(), kWorkers - 1);
}

}  // namespace
}  // namespace weft
