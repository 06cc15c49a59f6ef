#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "weft/bench/report/ratios.h"
#include "weft/bench/report/tables.h"

namespace weft::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kSeed = 7;

Series latencies(const std::string& name, const std::vector<double>& medians_us) {
  Series series{.contestant = name, .status = {}, .blocks = {}};
  for (const double us : medians_us) {
    series.blocks.push_back({.calls = 10,
                             .seconds = 1,
                             .median_us = us,
                             .p99_us = 2 * us,
                             .bytes = us * 1e9,
                             .all_calls = 20,
                             .usage = {.cpu_seconds = 1e-3, .page_faults = 40, .switches = 60}});
  }
  return series;
}

RowResult small_call() {
  RowResult result;
  result.row = {"small call", Work::kAdd, 0, "us"};
  // In the last round the machine is ten times slower, for all contestants.
  result.series = {latencies("torch uv", {200, 210, 2000}), latencies("weft", {50, 52, 500}),
                   latencies("grpc unary", {40, 42, 400})};
  return result;
}

TEST(Report, RatioIsTheMedianOfTheWithinRoundRatios) {
  RowResult result = small_call();
  result.series[0] = latencies("torch uv", {100, 200, 3000});  // over 50, 52, 500: 2, 3.85, 6
  const std::vector<Comparison> lines = compare(result, "weft", kSeed);
  EXPECT_NEAR(lines[0].ratio, 200.0 / 52, 1e-9);
  EXPECT_NEAR(lines[0].low, 2, 1e-9);
  EXPECT_NEAR(lines[0].high, 6, 1e-9);
}

TEST(Report, AboveOneMeansTheSubjectIsBetterForTimesAndForRates) {
  RowResult result = small_call();
  std::vector<Comparison> lines = compare(result, "weft", kSeed);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].peer, "torch uv");
  EXPECT_NEAR(lines[0].ratio, 4, 1e-9);
  EXPECT_NEAR(lines[1].ratio, 0.8, 0.01);
  result.row = {"send 64 MB", Work::kSend, 1 << 26, "GB/s"};
  lines = compare(result, "weft", kSeed);
  EXPECT_NEAR(lines[0].ratio, 0.25, 1e-9);
}

TEST(Report, DriftOfTheMachineDoesNotWidenTheInterval) {
  const std::vector<Comparison> lines = compare(small_call(), "weft", kSeed);
  EXPECT_NEAR(lines[0].low, 4, 0.05);
  EXPECT_NEAR(lines[0].high, 4, 0.05);
}

TEST(Report, WhoeverLacksTheRowIsLeftOut) {
  RowResult result = small_call();
  result.series[0].status = absl::UnimplementedError("");
  result.series[2].status = absl::DataLossError("wrong sum");
  result.series[2].blocks.pop_back();
  EXPECT_TRUE(compare(result, "weft", kSeed).empty());
  EXPECT_TRUE(compare(small_call(), "nobody", kSeed).empty());
  RowResult own_failed = small_call();
  own_failed.series[1].status = absl::UnavailableError("gone");
  EXPECT_TRUE(compare(own_failed, "weft", kSeed).empty());
}

TEST(Report, AcrossRunsTellsTheMedianRunAndHowFarTheRunsLieApart) {
  std::vector<std::vector<Comparison>> runs;
  for (const double us : {100, 300, 200}) {
    RowResult result = small_call();
    result.series[0] = latencies("torch uv", {us, us, us});
    result.series[1] = latencies("weft", {50, 50, 50});
    if (us == 300) result.series[2].status = absl::UnavailableError("gone");
    runs.push_back(compare(result, "weft", kSeed));
  }
  const std::vector<Comparison> lines = across_runs(runs);
  ASSERT_EQ(lines.size(), 1u);  // a run lacks the other peer
  EXPECT_EQ(lines[0].peer, "torch uv");
  EXPECT_THAT(lines[0].runs, testing::ElementsAre(2, 6, 4));
  EXPECT_NEAR(lines[0].ratio, 4, 1e-9);
  EXPECT_NEAR(lines[0].low, 2, 1e-9);
  EXPECT_NEAR(lines[0].high, 6, 1e-9);
  EXPECT_NEAR(lines[0].peer_value, 200, 1e-9);
  EXPECT_THAT(comparison_table(lines, "weft"), HasSubstr("least, most of 3 runs"));
  EXPECT_EQ(to_json(lines)[0]["runs"], nlohmann::json({2.0, 6.0, 4.0}));
}

TEST(Report, JsonHasExactlyThePromisedKeys) {
  const nlohmann::json json = to_json(compare(small_call(), "weft", kSeed));
  ASSERT_TRUE(json.is_array());
  ASSERT_EQ(json.size(), 2u);
  std::vector<std::string> keys;
  for (const auto& item : json[0].items()) keys.push_back(item.key());
  EXPECT_THAT(keys, testing::UnorderedElementsAre("row", "peer", "weft", "peer_value", "unit",
                                                  "ratio", "low", "high"));
  EXPECT_EQ(json[0].at("row"), "small call");
  EXPECT_EQ(json[0].at("peer"), "torch uv");
  EXPECT_EQ(json[0].at("weft"), 52);
  EXPECT_EQ(json[0].at("peer_value"), 210);
  EXPECT_EQ(json[0].at("unit"), "us");
}

TEST(Report, EveryModeIsComparedWithThePeersAndNoneWithAnother) {
  RowResult result;
  result.row = {"allreduce 2 ranks 4 KB", Work::kAllReduce, 4096, "us"};
  result.series = {latencies("weft blocking", {20, 20, 20}), latencies("gloo", {100, 100, 100}),
                   latencies("weft", {4, 4, 4}), latencies("weft copied", {}),
                   latencies("wefty", {2, 2, 2})};
  result.series[3].status = absl::UnimplementedError("");
  std::vector<std::string> lines;
  for (const Comparison& line : compare_modes(result, "weft", kSeed)) {
    lines.push_back(absl::StrFormat("%s; %s %g", line.row, line.peer, line.ratio));
  }
  EXPECT_THAT(lines, testing::UnorderedElementsAre("allreduce 2 ranks 4 KB; gloo 25",
                                                   "allreduce 2 ranks 4 KB; wefty 0.5",
                                                   "allreduce 2 ranks 4 KB, blocking; gloo 5",
                                                   "allreduce 2 ranks 4 KB, blocking; wefty 0.1"));
}

Series steps(const std::string& name, double local_us, double step_us) {
  Series series = latencies(name, {step_us, step_us});
  for (BlockResult& block : series.blocks) {
    block.local_us = local_us;
    block.communication_us = step_us - local_us;
  }
  return series;
}

TEST(Report, StepsAreComparedByTheirCommunicationAlone) {
  RowResult result;
  result.row = {"ddp step communication", Work::kDdpStep, 0, "us"};
  result.series = {steps("gloo", 40000, 90000), steps("weft", 40000, 42500),
                   steps("faster than nothing", 40000, 39000)};
  const std::vector<Comparison> lines = compare(result, "weft", kSeed);
  EXPECT_NEAR(lines[0].subject_value, 2500, 1e-9);
  EXPECT_NEAR(lines[0].ratio, 20, 1e-9);
  EXPECT_NEAR(lines[1].peer_value, 400, 1e-9);  // noise is not a negative time
  const std::string table = step_table({result, small_call()});
  EXPECT_THAT(table, testing::ContainsRegex("gloo +40.0 +90.0 +50.00 +55.6"));
  EXPECT_THAT(table, testing::ContainsRegex("weft +40.0 +42.5 +2.50 +5.9"));
  EXPECT_EQ(step_table({small_call()}), "");
}

TEST(Report, AgentsShowWaitsAndBatches) {
  RowResult result;
  result.row = {"batched 1, 16 observers", Work::kBatched1, 16, "steps/s"};
  result.series = {{"weft",
                    absl::OkStatus(),
                    {{.calls = 500,
                      .seconds = 0.1,
                      .median_us = 80,
                      .p99_us = 210,
                      .usage = {},
                      .mean_batch = 6.5,
                      .agent_us = 30,
                      .agent_rate = 770}}},
                   {"torch python", absl::UnimplementedError("16 at most"), {}}};
  EXPECT_THAT(agent_table({result}), testing::ContainsRegex("weft +5000 +80 +210 +6\\.5"));
  EXPECT_THAT(agent_table({result}), testing::Not(testing::HasSubstr("torch python")));
  EXPECT_EQ(agent_table({small_call()}), "");
  const nlohmann::json json = to_json(compare_agents(result, "weft", kSeed));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0].at("peer"), "none");
  EXPECT_EQ(json[0].at("weft"), 5000);
  EXPECT_EQ(json[0].at("median_wait_us"), 80);
  EXPECT_EQ(json[0].at("mean_batch"), 6.5);
  EXPECT_EQ(json[0].at("agent_us"), 30);
  EXPECT_EQ(json[0].at("agent_calls_per_s"), 770);
}

TEST(Report, PipelinesAreComparedToPricesAndToTheUnsplitModelOfTheirOwnBlocks) {
  RowResult result;
  result.row = {"8 micro-batches", Work::kPipeline, 8, "pictures/s"};
  const BlockResult block{.calls = 120,
                          .seconds = 10,
                          .median_us = 10e6,
                          .usage = {},
                          .schedule_us = 9e6,
                          .fill_drain_us = 11e6,
                          .unsplit_us = 16e6};
  result.series = {{"weft", absl::OkStatus(), {block, block}},
                   {"torch python", absl::UnimplementedError("no such row"), {}}};
  const std::vector<Comparison> lines = compare_pipelines(result, "weft", kSeed);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].peer, "schedule");
  EXPECT_DOUBLE_EQ(lines[0].ratio, 0.9);
  EXPECT_DOUBLE_EQ(lines[0].subject_value, 12);
  EXPECT_DOUBLE_EQ(lines[0].peer_value, 12 / 0.9);
  EXPECT_EQ(lines[1].peer, "fill-drain");
  EXPECT_DOUBLE_EQ(lines[1].ratio, 1.1);
  EXPECT_EQ(lines[2].peer, "unsplit");
  EXPECT_DOUBLE_EQ(lines[2].ratio, 1.6);
  EXPECT_THAT(compare_pipelines(result, "torch python", kSeed), testing::IsEmpty());
}

TEST(Report, LongNamesKeepTheColumnsInLine) {
  RowResult result = small_call();
  result.row.name = "a row whose name is longer than the others";
  const std::string table = comparison_table(compare(result, "weft", kSeed), "weft");
  const size_t first = table.find('\n');
  EXPECT_EQ(table.find(" peer "), table.find(" torch uv ", first) - first - 1);
}

TEST(Report, NoComparisonIsAnEmptyArray) { EXPECT_EQ(to_json({}).dump(), "[]"); }

TEST(Report, TableNamesTheSubjectAndShowsRatioAndInterval) {
  const std::string table = comparison_table(compare(small_call(), "weft", kSeed), "weft");
  EXPECT_THAT(table, testing::ContainsRegex("row +peer +weft"));
  EXPECT_THAT(table, testing::ContainsRegex("small call +torch uv +52 +210 us +4\\.0"));
}

TEST(Report, CostsArePerOperationIncludingWarmUp) {
  RowResult result = small_call();
  result.series[2].status = absl::DataLossError("wrong sum");
  result.series.push_back({"other", absl::UnimplementedError(""), {}});
  result.stolen = 0.031;
  result.disturbed_rounds = 2;
  const std::string table = cost_table({result});
  // 1 ms, 40 faults and 60 switches over 20 operations; the tail is twice the median.
  EXPECT_THAT(table, testing::ContainsRegex("weft +52 us +104.0 +50.0 +0.000 +2.00 +3.00"));
  EXPECT_THAT(table, testing::ContainsRegex("grpc unary +failed: .*wrong sum"));
  EXPECT_THAT(table, Not(HasSubstr("other")));
  EXPECT_THAT(table, HasSubstr("stolen time 3.1 %, disturbed rounds 2"));
}

}  // namespace
}  // namespace weft::bench
