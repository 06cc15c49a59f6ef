#include "weft/bench/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

std::vector<std::string> names_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.push_back(row.name);
  return names;
}

TEST(Rows, AreThoseTheComparisonsPromise) {
  EXPECT_THAT(names_of(rpc_rows()),
              testing::ElementsAre("small call", "in flight 64", "in flight 1000", "send 1 MB",
                                   "send 16 MB", "send 64 MB", "send 256 MB", "echo 64 MB",
                                   "give 1 MB", "give 256 MB", "mixed", "dist autograd round",
                                   "autograd depth 4", "autograd depth 16", "autograd width 4",
                                   "autograd width 16", "rref life", "after 2 s idle"));
  EXPECT_THAT(names_of(ddp_rows()),
              testing::ElementsAre(
                  "allreduce 2 ranks 4 KB", "allreduce 2 ranks 1 MB", "allreduce 2 ranks 25 MB",
                  "allreduce 2 ranks 200 MB", "ddp step communication", "allreduce 4 ranks 4 KB",
                  "allreduce 4 ranks 1 MB", "allreduce 4 ranks 25 MB", "allreduce 4 ranks 200 MB"));
}

TEST(Rows, WorkersComeInGroupsUpToTheirNumberAndStartWithOnePeer) {
  const auto counts_of = [](int workers) {
    std::vector<int> counts;
    for (const Row& row : worker_rows(workers)) counts.push_back(row.processes);
    return counts;
  };
  EXPECT_THAT(counts_of(2), testing::ElementsAre(2, 2));
  EXPECT_THAT(counts_of(8), testing::ElementsAre(2, 2, 8, 8));
  EXPECT_THAT(counts_of(12), testing::ElementsAre(2, 2, 8, 8, 12, 12));
  EXPECT_THAT(counts_of(64), testing::ElementsAre(2, 2, 8, 8, 32, 32, 64, 64));
  EXPECT_THAT(names_of(worker_rows(2)),
              testing::ElementsAre("small calls 2 workers", "send 1 MB 2 workers"));
}

TEST(Rows, ObserversAreCountedAndTheBestComesLast) {
  EXPECT_EQ(rl_rows().size(), 20u);
  EXPECT_THAT(names_of({rl_rows().begin(), rl_rows().begin() + 6}),
              testing::ElementsAre("two calls, 1 observer", "two calls, 4 observers",
                                   "two calls, 16 observers", "two calls, 64 observers",
                                   "best, two calls", "one call, 1 observer"));
  EXPECT_EQ(rl_rows()[3].amount, 64);
  EXPECT_EQ(rl_rows()[4].amount, 0);
  EXPECT_EQ(rl_rows()[4].work, Work::kTwoCalls);
}

TEST(Rows, PipelinesBestStandsBehindTheNumbersOfMicroBatches) {
  EXPECT_THAT(names_of(pipeline_rows()),
              testing::ElementsAre("3 micro-batches", "4 micro-batches", "6 micro-batches",
                                   "8 micro-batches", "12 micro-batches", "best"));
  for (const Row& row : pipeline_rows()) {
    EXPECT_EQ(row.work, Work::kPipeline);
    if (row.amount > 0) {
      EXPECT_EQ(kPipelineBatch % row.amount, 0);
    }
    EXPECT_FALSE(row.lower_is_better());
  }
  EXPECT_EQ(pipeline_rows().back().amount, 0);
}

TEST(Rows, SelectionKeepsTheirOrder) {
  const auto rows = select_rows(rpc_rows(), {"rref life", "small call"});
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(names_of(*rows), testing::ElementsAre("small call", "rref life"));
}

TEST(Rows, NoNameSelectsAll) { EXPECT_EQ(select_rows(ddp_rows(), {})->size(), ddp_rows().size()); }

TEST(Rows, UnknownNameIsNamedTogetherWithThoseThatExist) {
  const auto rows = select_rows(rpc_rows(), {"big call"});
  ASSERT_TRUE(absl::IsInvalidArgument(rows.status()));
  EXPECT_THAT(std::string(rows.status().message()),
              testing::AllOf(testing::HasSubstr("\"big call\""), testing::HasSubstr("rref life")));
}

TEST(Rows, OnlyTimesAreBetterWhenLower) {
  for (const Row& row : rpc_rows()) EXPECT_EQ(row.lower_is_better(), row.unit == "us") << row.name;
}

TEST(Rows, CollectivesNameTheirRanksAndBytes) {
  const auto rows = select_rows(ddp_rows(), {"allreduce 4 ranks 25 MB"});
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->front().work, Work::kAllReduce);
  EXPECT_EQ(rows->front().processes, 4);
  EXPECT_EQ(rows->front().amount, 25 << 20);
}

// A group is started for a number of ranks and stopped before the next.
TEST(Rows, ThoseOfEquallyManyRanksStandTogether) {
  int changes = 0;
  for (size_t i = 1; i < ddp_rows().size(); ++i) {
    changes += ddp_rows()[i].processes != ddp_rows()[i - 1].processes;
  }
  EXPECT_EQ(changes, 1);
}

}  // namespace
}  // namespace weft::bench
