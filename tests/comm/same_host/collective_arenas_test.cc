// Reductions of memory that all ranks reach: which rank adds up what.
#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/comm/operations.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm_internal {
namespace {

using testing::all_reduce;
using testing::in_time;
using testing::numbers;
using testing::Ranks;
using testing::run;
using testing::sum_in_order;

// All ranks are threads of one process, so they reach each other's tensors without a mapping.
class OneProcess final : public ArenaDirectory {
 public:
  explicit OneProcess(int ranks) : all(ranks) {}
  absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset,
                                    uint64_t size) override {
    std::vector<double>& data = all[rank][arena];
    if (offset != 0 || size != data.size() * sizeof(double)) {
      return absl::InvalidArgumentError("no such tensor");
    }
    return reinterpret_cast<std::byte*>(data.data());
  }
  Operation operation(int rank, uint32_t arena) {
    Operation operation = all_reduce(all[rank][arena]);
    operation.resident = {arena, 0};
    return operation;
  }
  std::vector<std::vector<double>> contributions(size_t arena) const {
    std::vector<std::vector<double>> one;
    for (const auto& tensors : all) one.push_back(tensors[arena]);
    return one;
  }

  std::vector<std::vector<std::vector<double>>> all;  // by rank and arena
};

TEST(CollectiveArenasTest, WhoWaitsAddsUpForWhoComputes) {
  constexpr size_t kCount = 1 << 20;
  OneProcess memory(2);
  for (int rank = 0; rank < 2; ++rank) {
    memory.all[rank] = {numbers(static_cast<uint64_t>(rank), kCount)};
  }
  const std::vector<double> truth = sum_in_order(memory.contributions(0));
  CollectiveGroup::Options options;
  options.arenas = &memory;
  options.patience = std::chrono::hours(1);
  Ranks group(2, options);
  const auto late = group[0].start(memory.operation(0, 0), in_time());
  std::thread waits([&] { EXPECT_EQ(run(group[1], memory.operation(1, 0)), absl::OkStatus()); });
  constexpr uint64_t kChunks = kCount * sizeof(double) / (256 << 10);
  const auto deadline = in_time();
  while (group[1].counts().chunks < kChunks && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(group[1].counts().chunks, kChunks);
  EXPECT_FALSE(late->done());
  group[0].poll();  // it finds nothing left to add up
  EXPECT_EQ(group[0].wait(late, in_time()), absl::OkStatus());
  waits.join();
  EXPECT_EQ(group[0].counts().chunks, 0);
  EXPECT_EQ(memory.all[0][0], truth);
  EXPECT_EQ(memory.all[1][0], truth);
}

TEST(CollectiveArenasTest, EveryChunkIsAddedUpOnce) {
  constexpr int kRanks = 3;
  constexpr uint32_t kOperations = 100;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  OneProcess memory(kRanks);
  std::vector<std::vector<double>> truth;
  for (uint32_t i = 0; i < kOperations; ++i) {
    const size_t most = random() % 10 == 0 ? (size_t{2} << 20) / sizeof(double) : 20'000;
    const size_t count = kSlotBytes / sizeof(double) + 1 + random() % most;
    for (auto& tensors : memory.all) tensors.push_back(numbers(random(), count));
    truth.push_back(sum_in_order(memory.contributions(i)));
  }
  CollectiveGroup::Options options;
  options.arenas = &memory;
  Ranks group(kRanks, options);
  group.each([&](int rank) {
    std::mt19937_64 waits(seed + static_cast<uint64_t>(rank));
    std::vector<std::shared_ptr<CollectiveGroup::Work>> works;
    for (uint32_t i = 0; i < kOperations; ++i) {
      works.push_back(group[rank].start(memory.operation(rank, i), in_time()));
      if (waits() % 4 == 0) {
        EXPECT_EQ(group[rank].wait(works.back(), in_time()), absl::OkStatus());
      } else if (waits() % 2 == 0) {
        group[rank].poll();
      }
    }
    for (const auto& work : works) EXPECT_EQ(group[rank].wait(work, in_time()), absl::OkStatus());
    EXPECT_EQ(group[rank].counts().in_arenas, kOperations);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    for (uint32_t i = 0; i < kOperations; ++i) {
      ASSERT_EQ(memory.all[rank][i], truth[i])
          << "rank " << rank << ", operation " << i << ", seed " << seed;
    }
  }
}

CollectiveGroup* gives_up = nullptr;

TEST(CollectiveArenasTest, ARankThatGivesUpInTheMiddleOfASumIsNamed) {
  for (const size_t count : {size_t{20'000}, size_t{1} << 20}) {
    OneProcess memory(2);
    for (auto& tensors : memory.all) tensors = {numbers(1, count)};
    CollectiveGroup::Options options;
    options.arenas = &memory;
    options.patience = std::chrono::hours(1);
    Ranks group(2, options);
    gives_up = &group[0];
    const auto first = group[0].start(memory.operation(0, 0), in_time());
    Operation operation = memory.operation(1, 0);
    operation.kernel = [](std::span<const std::byte* const>, std::span<std::byte* const>, size_t) {
      gives_up->abort(absl::CancelledError("it had enough"));
    };
    const absl::Status status = run(group[1], std::move(operation));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("it had enough"));
    EXPECT_EQ(group[1].counts().chunks, 1) << "it goes on for nobody";
    EXPECT_FALSE(group[0].wait(first, in_time()).ok());
  }
}

TEST(CollectiveArenasTest, WhatIsQueuedBehindOthersHasADeadlineToo) {
  OneProcess memory(2);
  for (auto& tensors : memory.all) tensors = {numbers(1, 20'000), numbers(2, 20'000)};
  CollectiveGroup::Options options;
  options.arenas = &memory;
  Ranks group(2, options);
  const auto first = group[0].start(memory.operation(0, 0), in_time());
  const auto behind = group[0].start(testing::barrier(), std::chrono::steady_clock::now());
  const absl::Status status = group[0].wait(behind, in_time());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("barrier, behind all_reduce(sum, float64) and 0 more, was not "
                                   "done in time: rank 1 did not come"));
}

TEST(CollectiveArenasTest, WhatCannotBeDoneFailsTheGroupAndHoldsNobody) {
  Ranks group(2);
  group.each([&](int rank) {
    Operation operation = testing::barrier();
    if (rank == 0) {
      operation.plan = [](std::span<const uint64_t>,
                          std::vector<Operation::Pull>&) -> absl::Status {
        throw std::bad_alloc();
      };
    }
    const absl::Status status = run(group[rank], std::move(operation));
    EXPECT_TRUE(rank != 0 || absl::IsResourceExhausted(status)) << status;
    EXPECT_FALSE(run(group[rank], testing::barrier()).ok());
  });
}

// The group does not know LibTorch's types, but an operation may throw one of LibTorch's errors.
TEST(CollectiveArenasTest, TheStackOfAnErrorIsNotPartOfTheGroupsFailure) {
  Ranks group(2);
  group.each([&](int rank) {
    Operation operation = testing::barrier();
    operation.plan = [](std::span<const uint64_t>, std::vector<Operation::Pull>&) -> absl::Status {
      throw std::runtime_error(
          "no such shape\nException raised from plan at Shape.cpp:7 (most recent call first):\n"
          "frame #0: c10::Error::Error");
    };
    const absl::Status status = run(group[rank], std::move(operation));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no such shape"));
    EXPECT_THAT(std::string(status.message()),
                ::testing::Not(::testing::HasSubstr("Exception raised from")));
  });
}

}  // namespace
}  // namespace weft::comm_internal
