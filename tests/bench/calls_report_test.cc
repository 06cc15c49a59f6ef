#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "weft/bench/report/ratios.h"
#include "weft/bench/report/tables.h"

namespace weft::bench {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

constexpr uint64_t kSeedOfCalls = 11;

const std::vector<Mode>& modes() {
  static const std::vector<Mode>& modes = *new std::vector<Mode>{
      {"weft", {"torch shm", "memcpy"}},
      {"weft blocking", {"futex"}},
      {"weft tcp", {"torch uv", "raw tcp"}},
  };
  return modes;
}

// Two equal blocks of ten calls of 100 MB each, each of which takes `us`.
Series calls_of(const std::string& name, double us) {
  const BlockResult block{.calls = 10,
                          .seconds = us * 1e-5,
                          .median_us = us,
                          .p99_us = 3 * us,
                          .bytes = 1e9,
                          .all_calls = 20,
                          .usage = {.cpu_seconds = 4, .page_faults = 40, .switches = 60}};
  return {.contestant = name, .status = {}, .blocks = {block, block}};
}

RowResult small_calls() {
  RowResult result;
  result.row = {"small call", Work::kAdd, 0, "us"};
  result.series = {calls_of("weft", 10),       calls_of("weft blocking", 20),
                   calls_of("weft tcp", 40),   calls_of("torch uv", 200),
                   calls_of("torch shm", 100), calls_of("futex", 8),
                   calls_of("raw tcp", 30),    {"memcpy", absl::UnimplementedError(""), {}}};
  return result;
}

std::vector<std::string> told(const std::vector<Comparison>& lines) {
  std::vector<std::string> told;
  for (const Comparison& line : lines) {
    told.push_back(absl::StrFormat("%s; %s %g", line.row, line.peer, line.ratio));
  }
  return told;
}

std::vector<std::string> told(const RowResult& result, const std::string& subject) {
  return told(compare_calls(result, modes(), subject, kSeedOfCalls));
}

TEST(CallsReport, EachModeIsComparedWithItsOwnPeersAndFloors) {
  EXPECT_THAT(told(small_calls(), "weft"),
              ElementsAre("small call; torch shm 10", "small call, blocking; futex 0.4",
                          "small call, tcp; torch uv 5", "small call, tcp; raw tcp 0.75"));
}

TEST(CallsReport, AgainstAFloorTheRatioOfARateIsItsShareToo) {
  RowResult result = small_calls();
  result.row = {"send 64 MB", Work::kSend, 64 << 20, "GB/s"};
  result.series = {calls_of("weft", 40), calls_of("memcpy", 30)};
  EXPECT_THAT(told(result, "weft"), ElementsAre("send 64 MB; memcpy 0.75"));
}

TEST(CallsReport, AnotherBuildIsAPeerOfTheFirstModeAlone) {
  RowResult result = small_calls();
  result.series = {calls_of("weft", 10), calls_of("weft blocking", 20), calls_of("before", 30)};
  EXPECT_THAT(told(result, "weft"),
              ElementsAre("small call; before 3", "small call, blocking; none 0"));
}

TEST(CallsReport, AnotherSubjectIsComparedWithEverybody) {
  RowResult result = small_calls();
  result.series = {calls_of("weft", 10), calls_of("torch uv", 200), calls_of("futex", 8)};
  EXPECT_THAT(told(result, "torch uv"),
              UnorderedElementsAre("small call; weft 0.05", "small call; futex 0.04"));
}

TEST(CallsReport, AModeThatFailedOrLacksTheRowHasNoLine) {
  RowResult result = small_calls();
  result.series[0].status = absl::DataLossError("wrong sum");
  result.series[1] = {"weft blocking", absl::UnimplementedError(""), {}};
  EXPECT_THAT(told(result, "weft"),
              ElementsAre("small call, tcp; torch uv 5", "small call, tcp; raw tcp 0.75"));
}

TEST(CallsReport, GiftsAreComparedWithTheSmallCallsOfTheirBlocks) {
  RowResult result;
  result.row = {"give 256 MB", Work::kGive, 256 << 20, "us"};
  result.series = {calls_of("weft", 12), calls_of("torch shm", 3000)};
  for (BlockResult& block : result.series[0].blocks) block.small_call_us = 9;
  const std::vector<Comparison> lines = compare_calls(result, modes(), "weft", kSeedOfCalls);
  EXPECT_THAT(told(lines),
              ElementsAre("give 256 MB; torch shm 250", "give 256 MB; small call 0.75"));
  EXPECT_EQ(lines[1].subject_value, 12);
  EXPECT_EQ(lines[1].peer_value, 9);
}

TEST(CallsReport, JsonTellsTailAndCostsOfBothSides) {
  RowResult result = small_calls();
  result.row = {"send 64 MB", Work::kSend, 64 << 20, "GB/s"};
  result.series = {calls_of("weft", 10), calls_of("memcpy", 20)};
  result.series[1].blocks[0].usage =
      result.series[1].blocks[1].usage = {.cpu_seconds = 2, .page_faults = 20, .switches = 0};
  const nlohmann::json line = to_json(compare_calls(result, modes(), "weft", kSeedOfCalls)).at(0);
  EXPECT_EQ(line.at("p50_us"), 10);
  EXPECT_EQ(line.at("p99_us"), 30);
  EXPECT_EQ(line.at("cpu_us_per_call"), 200000);
  EXPECT_EQ(line.at("cpu_s_per_gb"), 2);  // 0.2 s for 0.1 GB
  EXPECT_EQ(line.at("faults_per_call"), 2);
  EXPECT_EQ(line.at("switches_per_call"), 3);
  EXPECT_EQ(line.at("peer_cpu_us_per_call"), 100000);
  EXPECT_EQ(line.at("peer_cpu_s_per_gb"), 1);
  EXPECT_EQ(line.at("peer_faults_per_call"), 1);
  EXPECT_EQ(line.at("peer_switches_per_call"), 0);
}

TEST(CallsReport, CallsInFlightHaveNoLatencies) {
  RowResult result = small_calls();
  result.row = {"in flight 64", Work::kAddInFlight, 64, "calls/s"};
  const nlohmann::json line = to_json(compare_calls(result, modes(), "weft", kSeedOfCalls)).at(0);
  EXPECT_FALSE(line.contains("p99_us"));
  EXPECT_TRUE(line.contains("cpu_us_per_call"));
}

TEST(CallsReport, MixedTellsTheTailOfTheCallsAndTheShareOfTheStream) {
  RowResult result = small_calls();
  result.row = {"mixed", Work::kMixed, 64 << 20, "us"};
  result.series = {
      calls_of("weft", 10), calls_of("torch shm", 50), {"futex", absl::UnimplementedError(""), {}}};
  for (BlockResult& block : result.series[0].blocks) {
    block.stream_gb_per_s = 9;
    block.stream_alone_gb_per_s = 12;
  }
  const nlohmann::json line = to_json(compare_calls(result, modes(), "weft", kSeedOfCalls)).at(0);
  EXPECT_EQ(line.at("p50_us"), 10);
  EXPECT_EQ(line.at("p99_us"), 30);
  EXPECT_EQ(line.at("stream_gb_per_s"), 9);
  EXPECT_EQ(line.at("stream_alone_gb_per_s"), 12);
  EXPECT_EQ(line.at("stream_share"), 0.75);
  EXPECT_THAT(mixed_table({small_calls(), result}),
              ContainsRegex("mixed +weft +10.0 +30.0 +9.00 +12.00 +75.0"));
  EXPECT_EQ(mixed_table({small_calls()}), "");
}

RowResult workers(int count, const Footprint& footprint) {
  RowResult result;
  result.row = worker_rows(count).back();
  result.series = {calls_of("weft", 10)};
  for (BlockResult& block : result.series[0].blocks) {
    block.join_seconds = 1.5;
    block.footprint = footprint;
  }
  return result;
}

TEST(CallsReport, WorkersTellHowTheyJoinAndWhatTheyHold) {
  const RowResult pair = workers(2, {10, 30, 40, 5});
  const RowResult many = workers(64, {20, 400, 60.5, 1900});
  const nlohmann::json json = to_json(compare_workers(many, "weft", kSeedOfCalls));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0].at("peer"), "none");
  EXPECT_EQ(json[0].at("join_s"), 1.5);
  EXPECT_EQ(json[0].at("threads_per_worker"), 20);
  EXPECT_EQ(json[0].at("descriptors_per_worker"), 400);
  EXPECT_EQ(json[0].at("private_mib_per_worker"), 60.5);
  EXPECT_EQ(json[0].at("shared_mib_of_all"), 1900);
  const std::string table = workers_table({pair, many});
  EXPECT_THAT(table, ContainsRegex("2 workers +weft .* 1.50 +10 +30 +40.0 +- +5.0"));
  EXPECT_THAT(table, ContainsRegex("64 workers +weft .* 1.50 +20 +400 +60.5 +20.5 +1900.0"));
  EXPECT_EQ(workers_table({small_calls()}), "");
}

}  // namespace
}  // namespace weft::bench
