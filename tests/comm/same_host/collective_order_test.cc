// The memory order of what ranks read of each other.
//
// The ranks are threads that use one mapping of each control block and of each arena. So
// ThreadSanitizer (preset tsan) sees both sides of an access. A counter publishes data. If a rank
// reads the data without having seen the counter, ThreadSanitizer reports a race. Without
// ThreadSanitizer these tests check only the results.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "weft/tests/comm/operations.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm_internal {
namespace {

using std::chrono::seconds;
using testing::all_reduce;
using testing::in_time;
using testing::message;
using testing::numbers;
using testing::Ranks;
using testing::run;
using testing::sum_in_order;

// Arena 0 of a rank is a piece of this process's memory.
class SharedArenas : public ArenaDirectory {
 public:
  explicit SharedArenas(std::vector<std::vector<double>>& arenas) : arenas_(arenas) {}
  absl::StatusOr<std::byte*> locate(int rank, uint32_t, uint64_t offset, uint64_t size) override {
    std::vector<double>& arena = arenas_[static_cast<size_t>(rank)];
    if (offset + size > arena.size() * sizeof(double)) {
      return absl::InvalidArgumentError("not in the arena");
    }
    return reinterpret_cast<std::byte*>(arena.data()) + offset;
  }

 private:
  std::vector<std::vector<double>>& arenas_;
};

// The parameter says whether a rank spins before it sleeps (true), or sleeps each time.
class OneMapping : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kRanks = 4;  // more than kAllAddUp: each adds up a part

  OneMapping() {
    for (const auto& reader : meshes_) {
      for (const auto& owner : meshes_) reader->share_mapping_of(*owner);
    }
  }
  CollectiveGroup::Options options() {
    CollectiveGroup::Options options;
    options.arenas = &directory_;
    if (!GetParam()) options.spin = seconds(0);
    return options;
  }
  // By rank; the numbers differ from round to round.
  static std::vector<std::vector<double>> contributions(int round, size_t count) {
    std::vector<std::vector<double>> all;
    for (int rank = 0; rank < kRanks; ++rank) {
      all.push_back(numbers(static_cast<uint64_t>(100 * round + rank), count));
    }
    return all;
  }

  std::vector<std::vector<double>> arenas_{kRanks};
  SharedArenas directory_{arenas_};
  const testing::Meshes meshes_ = testing::connected(kRanks);  // outlive the groups
  Ranks group_{meshes_, options()};
};
INSTANTIATE_TEST_SUITE_P(Ranks, OneMapping, ::testing::Values(true, false), [](const auto& info) {
  return info.param ? "LookBeforeTheySleep" : "SleepEachTime";
});

// There are more rounds than slots, so that each slot is used again.
TEST_P(OneMapping, ASlotIsReadAfterItWasPublishedAndWrittenAfterItWasRead) {
  for (int round = 0; round < 3 * static_cast<int>(kSlots); ++round) {
    std::vector<std::vector<double>> all = contributions(round, 1'000);
    const std::vector<double> truth = sum_in_order(all);
    group_.each(
        [&](int rank) { ASSERT_EQ(run(group_[rank], all_reduce(all[rank])), absl::OkStatus()); });
    for (const std::vector<double>& sum : all) ASSERT_EQ(sum, truth);
  }
}

// The same, but the threads are not joined between the rounds, since a join would order all
// accesses.
TEST_P(OneMapping, SlotsOfOperationsThatFollowEachOtherAreNotMixedUp) {
  constexpr int kRounds = 10 * static_cast<int>(kSlots);
  std::vector<std::vector<std::vector<double>>> rounds;
  for (int round = 0; round < kRounds; ++round) rounds.push_back(contributions(round, 500));
  std::vector<std::vector<double>> truths;
  for (const auto& round : rounds) truths.push_back(sum_in_order(round));
  group_.each([&](int rank) {
    for (auto& round : rounds)
      ASSERT_EQ(run(group_[rank], all_reduce(round[rank])), absl::OkStatus());
  });
  for (int round = 0; round < kRounds; ++round) {
    for (const std::vector<double>& sum : rounds[round]) ASSERT_EQ(sum, truths[round]);
  }
}

TEST_P(OneMapping, StagesAreReadAfterTheyWereFilledAndFilledAfterTheyWereRead) {
  constexpr int kRounds = 3;
  constexpr size_t kCount = 5 * kStageBytes / sizeof(double) / 2;
  std::vector<std::vector<std::vector<double>>> rounds;
  std::vector<std::vector<double>> truths;
  for (int round = 0; round < kRounds; ++round) {
    rounds.push_back(contributions(round, kCount));
    truths.push_back(sum_in_order(rounds.back()));
  }
  group_.each([&](int rank) {
    for (auto& round : rounds)
      ASSERT_EQ(run(group_[rank], all_reduce(round[rank])), absl::OkStatus());
  });
  for (int round = 0; round < kRounds; ++round) {
    for (const std::vector<double>& sum : rounds[round]) ASSERT_EQ(sum, truths[round]);
  }
}

// A rank writes sums into the tensors of all ranks, but only into chunks that it has claimed.
TEST_P(OneMapping, AChunkInArenasIsWrittenByTheRankThatClaimedIt) {
  constexpr int kRounds = 10;
  constexpr size_t kCount = 60'000;
  for (std::vector<double>& arena : arenas_) arena.resize(kCount);
  std::vector<std::vector<std::vector<double>>> rounds;
  for (int round = 0; round < kRounds; ++round) rounds.push_back(contributions(round, kCount));
  std::vector<std::vector<double>> truths;
  for (const auto& round : rounds) truths.push_back(sum_in_order(round));
  group_.each([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<double>& mine = arenas_[rank];
      mine = rounds[round][rank];
      Operation operation = all_reduce(mine);
      operation.resident = Operation::Resident{0, 0};
      ASSERT_EQ(run(group_[rank], std::move(operation)), absl::OkStatus());
      ASSERT_EQ(mine, truths[round]);
    }
  });
  EXPECT_EQ(group_[0].counts().in_arenas, static_cast<uint64_t>(kRounds));
}

// The `shares` that a rank publishes: how much of its contribution each other rank takes.
TEST_P(OneMapping, SharesAreReadAfterTheyWerePublished) {
  constexpr int kRounds = 3 * static_cast<int>(kSlots);
  group_.each([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      // Rank r has r + round + 1 numbers for each rank.
      std::vector<double> mine(static_cast<size_t>(kRanks * (rank + round + 1)), rank);
      std::vector<std::vector<double>> taken;
      Operation operation;
      operation.label = "all_to_all";
      operation.parts = {testing::part_of(mine)};
      operation.shares.assign(kRanks, mine.size() * sizeof(double) / kRanks);
      for (int other = 0; other < kRanks; ++other) {
        taken.emplace_back(static_cast<size_t>(other + round + 1));
      }
      for (int other = 0; other < kRanks; ++other) {
        if (other == rank) continue;
        const Operation::Part to = testing::part_of(taken[static_cast<size_t>(other)]);
        operation.pulls.push_back({other, 0, to.size, to.data, true});
      }
      ASSERT_EQ(run(group_[rank], std::move(operation)), absl::OkStatus());
      for (int other = 0; other < kRanks; ++other) {
        if (other == rank) continue;
        for (const double one : taken[static_cast<size_t>(other)]) ASSERT_EQ(one, other);
      }
    }
  });
}

// Each message is longer than the ring, so that the ring's bytes are used again within one message.
TEST_P(OneMapping, ARingIsReadAfterItWasWrittenAndWrittenAfterItWasRead) {
  constexpr int kRounds = 4;
  constexpr size_t kCount = 3 * kChannelBytes / sizeof(double) + 5;
  group_.each([&](int rank) {
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<double> out = numbers(static_cast<uint64_t>(10 * round + rank), kCount);
      std::vector<double> in(kCount);
      const auto sent = group_[rank].send(message(next, round, out), in_time());
      const auto come = group_[rank].receive(message(before, round, in), in_time());
      ASSERT_EQ(group_[rank].wait(come, in_time()), absl::OkStatus());
      ASSERT_EQ(group_[rank].wait(sent, in_time()), absl::OkStatus());
      ASSERT_EQ(in, numbers(static_cast<uint64_t>(10 * round + before), kCount));
    }
  });
}

}  // namespace
}  // namespace weft::comm_internal
