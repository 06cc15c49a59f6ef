#include "weft/rpc/rendezvous/death_records.h"

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

DeathRecords list_of(const std::shared_ptr<MemoryStore>& store) { return {store, "job", 3}; }

TEST(DeathRecords, TheFirstWriterWins) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  EXPECT_EQ(*a.declare_dead(kA, kC, "silent"), (std::vector<DeathRecord>{{kC, kA, "silent"}}));
  EXPECT_EQ(*b.declare_dead(kB, kC, "gone for me"), (std::vector<DeathRecord>{{kC, kA, "silent"}}));
  EXPECT_TRUE(list_of(store).read()->size() == 1);
}

TEST(DeathRecords, ADeadWorkerDeclaresNobodyDead) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.declare_dead(kA, kB, "one way").ok());
  const auto read = b.declare_dead(kB, kA, "the other way");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<DeathRecord>{{kB, kA, "one way"}}));
  EXPECT_EQ(list_of(store).read()->size(), 1u);
}

// A worker's questions run one after the other. The first may have told it that it is dead.
TEST(DeathRecords, WhoHasReadItsOwnEndWritesNothingMore) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.declare_dead(kA, kB, "x").ok());
  ASSERT_EQ(b.declare_dead(kB, kC, "y")->size(), 1u);
  EXPECT_TRUE(b.declare_dead(kB, kA, "z")->empty());
  EXPECT_EQ(list_of(store).read()->size(), 1u);
  // No worker is declared dead twice.
  EXPECT_TRUE(a.declare_dead(kA, kB, "again")->empty());
  EXPECT_EQ(list_of(store).read()->size(), 1u);
}

TEST(DeathRecords, AReasonIsReadInOneLineOfPrintableText) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(
      a.declare_dead(kA, kC, "x\nweft error: forged\x1b[2J" + std::string(5000, '\x07')).ok());
  const std::vector<DeathRecord> read = *b.read();
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].reason.substr(0, 34), "x\\x0aweft error: forged\\x1b[2J\\x07");
  EXPECT_LE(read[0].reason.size(), 4096u);
}

// A worker that was cut off for long asks about another one, and learns that it is dead itself.
TEST(DeathRecords, WhoFindsItsSuspectReadsOnToTheEnd) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.declare_dead(kA, kC, "x").ok());
  ASSERT_TRUE(a.declare_dead(kA, kB, "y").ok());
  EXPECT_EQ(*b.declare_dead(kB, kC, "z"), (std::vector<DeathRecord>{{kC, kA, "x"}, {kB, kA, "y"}}));
  EXPECT_EQ(list_of(store).read()->size(), 2u);
}

TEST(DeathRecords, EachEntryIsReadOnce) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.declare_dead(kA, kC, "x").ok());
  EXPECT_EQ(b.read()->size(), 1u);
  EXPECT_TRUE(b.read()->empty());
  const auto both = b.declare_dead(kB, kA, "");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(*both, (std::vector<DeathRecord>{{kA, kB, ""}}));
}

TEST(DeathRecords, AMalformedEntryIsAnErrorAndLosesNothing) {
  const auto store = std::make_shared<MemoryStore>();
  DeathRecords a = list_of(store), b = list_of(store);
  ASSERT_TRUE(a.declare_dead(kA, kC, "x").ok());
  ASSERT_TRUE(store->set("weft/job/3/death_record/2", "nonsense").ok());
  EXPECT_EQ(b.read().status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(store->set("weft/job/3/death_record/2", "8589934593 1 y").ok());
  EXPECT_EQ(b.read()->size(), 2u);
}

// All workers declare each other dead at once. A worker that is declared dead must not have written
// afterwards, and one worker must be left.
TEST(DeathRecords, OfManyThatSuspectEachOtherOneIsLeft) {
  constexpr uint32_t kWorkers = 8;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (uint32_t me = 0; me < kWorkers; ++me) {
    threads.emplace_back([&, me] {
      DeathRecords list = list_of(store);
      std::set<WorkerId> dead;
      for (uint32_t i = 1; i < kWorkers; ++i) {
        const WorkerId suspect{(me + i) % kWorkers, 1};
        if (dead.contains({me, 1})) return;
        if (dead.contains(suspect)) continue;
        const auto read = list.declare_dead({me, 1}, suspect, "");
        for (const DeathRecord& death_record : *read) dead.insert(death_record.dead);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<WorkerId> dead;
  const auto all = list_of(store).read();
  for (const DeathRecord& death_record : *all) {
    EXPECT_FALSE(dead.contains(death_record.by)) << death_record.by << " wrote after its end";
    EXPECT_TRUE(dead.insert(death_record.dead).second)
        << death_record.dead << " was declared dead twice";
  }
  EXPECT_EQ(dead.size(), kWorkers - 1);
}

}  // namespace
}  // namespace weft
