// Runs the cores of all ranks in one thread, in every order that a random schedule finds.
#include "weft/comm/same_host/collective_core.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/comm/operations.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm_internal {
namespace {

using Progress = CollectiveCore::Progress;
using testing::all_reduce;
using testing::barrier;
using ::testing::HasSubstr;
using testing::numbers;
using testing::sum_in_order;

using Data = std::vector<double>;

// Arena n of a rank is its n-th tensor.
class TensorsAsArenas final : public ArenaDirectory {
 public:
  explicit TensorsAsArenas(int ranks) : all(static_cast<size_t>(ranks)) {}
  absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset, uint64_t) override {
    return reinterpret_cast<std::byte*>(all[static_cast<size_t>(rank)][arena].data()) + offset;
  }

  std::vector<std::vector<Data>> all;  // by rank and arena
};

class Cores {
 public:
  explicit Cores(int ranks) : tensors(ranks), meshes_(testing::connected(ranks)) {
    for (const auto& mesh : meshes_) {
      cores_.push_back(std::make_unique<CollectiveCore>(*mesh, &tensors));
    }
  }

  int size() const { return static_cast<int>(cores_.size()); }
  CollectiveCore& operator[](int rank) { return *cores_[static_cast<size_t>(rank)]; }
  Mesh& mesh(int rank) { return *meshes_[static_cast<size_t>(rank)]; }
  bool waits(int rank) {
    for (int other = 0; other < size(); ++other) {
      if ((*this)[rank].waits_for(other)) return true;
    }
    return false;
  }
  // Runs the operations of each rank, one behind the other.
  void run(std::vector<std::vector<Operation>>& operations, std::mt19937_64& random) {
    std::vector<size_t> at(operations.size());
    size_t left = operations.size() * operations[0].size();
    for (int in_vain = 0; left > 0 && in_vain < 10'000; ++in_vain) {
      const size_t rank = random() % operations.size();
      if (at[rank] == operations[rank].size()) continue;
      CollectiveCore& core = *cores_[rank];
      const absl::StatusOr<Progress> progress = core.advance(operations[rank][at[rank]]);
      ASSERT_TRUE(progress.ok()) << progress.status();
      if (*progress == Progress::kNone) {
        // It says what it waits for, and that has not come.
        ASSERT_NE(core.goal().counter, nullptr);
        ASSERT_FALSE(core.goal().reached());
        ASSERT_TRUE(waits(static_cast<int>(rank)));
        continue;
      }
      in_vain = 0;
      if (*progress != Progress::kDone) continue;
      ++at[rank];
      --left;
      ASSERT_EQ(core.done(), at[rank]);
      ASSERT_EQ(core.goal().counter, nullptr);
    }
    ASSERT_EQ(left, 0) << "no rank can go on";
  }

  TensorsAsArenas tensors;

 private:
  const testing::Meshes meshes_;
  std::vector<std::unique_ptr<CollectiveCore>> cores_;
};

// The data lies in slots, in arenas and in private memory, by turns. Whichever ranks are fast, all
// sums are those of one process.
void run_in_random_order(uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr uint32_t kOperations = 20;
  Cores cores(2 + static_cast<int>(random() % 4));
  std::vector<Data> truth;
  for (uint32_t i = 0; i < kOperations; ++i) {
    const size_t most = random() % 8 == 0 ? 2 * kStageBytes / sizeof(double) : 10'000;
    const size_t count = random() % most;
    std::vector<Data> contributions;
    for (auto& tensors : cores.tensors.all) {
      tensors.push_back(numbers(random(), count));
      contributions.push_back(tensors.back());
    }
    truth.push_back(sum_in_order(contributions));
  }
  std::vector<std::vector<Operation>> operations(cores.tensors.all.size());
  for (uint32_t i = 0; i < kOperations; ++i) {
    const uint64_t where = random() % 3;  // no rank's data in an arena; all; some
    for (size_t rank = 0; rank < operations.size(); ++rank) {
      Operation operation = all_reduce(cores.tensors.all[rank][i]);
      if (where == 1 || (where == 2 && random() % 2 == 0)) operation.resident = {i, 0};
      operations[rank].push_back(std::move(operation));
    }
  }
  ASSERT_NO_FATAL_FAILURE(cores.run(operations, random));
  for (const auto& tensors : cores.tensors.all) {
    for (uint32_t i = 0; i < kOperations; ++i) ASSERT_EQ(tensors[i], truth[i]) << "operation " << i;
  }
}

TEST(CollectiveCoreTest, InAnyOrderTheSumsAreThoseOfOneProcess) {
  for (uint64_t seed = 0; seed < 30; ++seed) ASSERT_NO_FATAL_FAILURE(run_in_random_order(seed));
}

TEST(CollectiveCoreTest, SaysWhichRanksItWaitsFor) {
  Cores cores(3);
  Operation operation = barrier();
  const auto step = [&](int rank) { return *cores[rank].advance(operation); };
  EXPECT_EQ(step(0), Progress::kMoved);
  EXPECT_FALSE(cores[0].waits_for(1));  // it has not looked yet
  EXPECT_EQ(step(0), Progress::kNone);
  EXPECT_FALSE(cores[0].waits_for(0));
  EXPECT_TRUE(cores[0].waits_for(1));
  EXPECT_TRUE(cores[0].waits_for(2));
  EXPECT_EQ(step(1), Progress::kMoved);
  EXPECT_TRUE(cores[0].goal().reached());
  EXPECT_FALSE(cores[0].waits_for(1));
  EXPECT_TRUE(cores[0].waits_for(2));
  EXPECT_EQ(step(2), Progress::kMoved);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(step(rank), Progress::kMoved);
    EXPECT_EQ(step(rank), Progress::kDone);
    EXPECT_FALSE(cores.waits(rank));
  }
}

TEST(CollectiveCoreTest, ALargeSumIsLong) {
  for (const bool in_arenas : {false, true}) {
    Cores cores(2);
    std::vector<Operation> operations;
    for (auto& tensors : cores.tensors.all) {
      tensors.push_back(numbers(1, 2 * kStageBytes / sizeof(double)));
      operations.push_back(all_reduce(tensors[0]));
      if (in_arenas) operations.back().resident = {0, 0};
    }
    for (int rank : {0, 1}) EXPECT_EQ(*cores[rank].advance(operations[rank]), Progress::kMoved);
    EXPECT_FALSE(cores[0].is_long());
    EXPECT_EQ(*cores[0].advance(operations[0]), Progress::kMoved);
    EXPECT_TRUE(cores[0].is_long());
  }
}

TEST(CollectiveCoreTest, DifferentOperationsAreAnErrorOfBothRanks) {
  Cores cores(2);
  Data data = {1.0, 2.0};
  Operation sum = all_reduce(data), other = barrier();
  EXPECT_EQ(*cores[0].advance(sum), Progress::kMoved);
  EXPECT_EQ(*cores[1].advance(other), Progress::kMoved);
  for (const absl::Status& status :
       {cores[0].advance(sum).status(), cores[1].advance(other).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce(sum, float64) of shape [2]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("barrier"));
  }
  cores[0].give_up("it had enough");
  EXPECT_THAT(std::string(cores.mesh(1).end_of(0).message()), HasSubstr("it had enough"));
}

// Such a rank may use its tensor again.
TEST(CollectiveCoreTest, TheTensorOfARankThatHasGivenUpIsNotRead) {
  Cores cores(2);
  std::vector<Operation> operations;
  for (auto& tensors : cores.tensors.all) {
    tensors.push_back(numbers(1, kSlotBytes / sizeof(double) + 1));
    operations.push_back(all_reduce(tensors[0]));
    operations.back().resident = {0, 0};
  }
  const Data before = cores.tensors.all[1][0];
  for (int rank : {0, 1}) EXPECT_EQ(*cores[rank].advance(operations[rank]), Progress::kMoved);
  EXPECT_EQ(*cores[0].advance(operations[0]), Progress::kMoved);
  cores[1].give_up("it had enough");
  const absl::Status status = cores[0].advance(operations[0]).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("it had enough"));
  EXPECT_EQ(cores[0].counts().chunks, 0);
  EXPECT_EQ(cores.tensors.all[1][0], before);
}

}  // namespace
}  // namespace weft::comm_internal
