#include "weft/bench/harness.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

using testing::ElementsAre;

// Writes all its calls into a log that all groups share.
class FakeGroup final : public Group {
 public:
  FakeGroup(std::string name, bool spins, std::vector<std::string>& log)
      : name_(std::move(name)), spins_(spins), log_(log) {}

  const std::string& name() const override { return name_; }
  bool spins_when_idle() const override { return spins_; }
  absl::Status start() override {
    log_.push_back("start " + name_);
    return start_status_;
  }
  void pause() override { log_.push_back("pause " + name_); }
  void resume() override { log_.push_back("resume " + name_); }
  absl::StatusOr<BlockResult> run(const Row& row, double) override {
    log_.push_back("run " + name_);
    ++runs_;
    if (const auto it = errors_.find(row.name); it != errors_.end()) {
      if (runs_ >= it->second.first) return it->second.second;
    }
    BlockResult result;
    result.calls = runs_;
    return result;
  }

  const std::string name_;
  const bool spins_;
  std::vector<std::string>& log_;
  absl::Status start_status_;
  int runs_ = 0;
  std::map<std::string, std::pair<int, absl::Status>> errors_;  // by row: run, error
};

const Row kSmall{"small call", Work::kAdd, 0, "us"};
const Row kRref{"rref life", Work::kRref, 0, "us"};
const Row kIdle{"after 2 s idle", Work::kAddAfterIdle, 0, "us"};

class HarnessTest : public testing::Test {
 protected:
  FakeGroup& add_group(const std::string& name, bool spins = false) {
    auto group = std::make_unique<FakeGroup>(name, spins, log_);
    FakeGroup& reference = *group;
    groups_.push_back(std::move(group));
    return reference;
  }

  Harness::Options options(int rounds) {
    Harness::Options options;
    options.rounds = rounds;
    options.seed = 42;
    options.sleep = [this](double) { log_.push_back("sleep"); };
    options.report = [this](const std::string& what) { reports_.push_back(what); };
    return options;
  }

  std::vector<std::string> log_;
  std::vector<std::string> reports_;
  std::vector<std::unique_ptr<Group>> groups_;
};

TEST_F(HarnessTest, FirstRoundIsDiscarded) {
  add_group("a");
  const RowResult result = Harness(groups_, options(3)).run(kSmall);
  ASSERT_EQ(result.series.size(), 1u);
  std::vector<int64_t> runs;
  for (const BlockResult& block : result.series[0].blocks) runs.push_back(block.calls);
  EXPECT_THAT(runs, ElementsAre(2, 3, 4));
}

TEST_F(HarnessTest, EveryRoundRunsEveryContestantOnceInAnOrderThatChanges) {
  for (const char* name : {"a", "b", "c"}) add_group(name);
  Harness(groups_, options(29)).run(kSmall);
  ASSERT_EQ(log_.size(), 90u);
  std::set<std::vector<std::string>> orders;
  for (size_t round = 0; round < 30; ++round) {
    const std::vector<std::string> order(log_.begin() + round * 3, log_.begin() + round * 3 + 3);
    EXPECT_EQ(std::set<std::string>(order.begin(), order.end()).size(), 3u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST_F(HarnessTest, SameSeedSameOrder) {
  for (const char* name : {"a", "b", "c"}) add_group(name);
  Harness(groups_, options(10)).run(kSmall);
  const std::vector<std::string> first = std::exchange(log_, {});
  Harness(groups_, options(10)).run(kSmall);
  EXPECT_EQ(log_, first);
}

TEST_F(HarnessTest, SpinningContestantRunsOnlyInItsOwnBlocks) {
  add_group("still");
  add_group("spinner", /*spins=*/true);
  Harness(groups_, options(5)).run(kSmall);
  bool paused = false;
  for (const std::string& event : log_) {
    if (event == "pause spinner") paused = true;
    if (event == "resume spinner") paused = false;
    if (event == "run still") {
      EXPECT_TRUE(paused);
    }
    if (event == "run spinner") {
      EXPECT_FALSE(paused);
    }
  }
  EXPECT_TRUE(paused);
}

TEST_F(HarnessTest, IdleOnesShareOnePauseAndASpinnerHasItsOwn) {
  add_group("a");
  add_group("b");
  add_group("spinner", /*spins=*/true);
  Harness(groups_, options(1)).run(kIdle);
  EXPECT_EQ(std::count(log_.begin(), log_.end(), "sleep"), 4);  // two in each of two rounds
  for (size_t i = 0; i + 1 < log_.size(); ++i) {
    if (log_[i] == "resume spinner") {
      EXPECT_EQ(log_[i + 1], "sleep");
      EXPECT_EQ(log_[i + 2], "run spinner");
    }
    if (log_[i] == "run spinner") {
      EXPECT_EQ(log_[i + 1], "pause spinner");
    }
  }
}

TEST_F(HarnessTest, MissingRowIsNoFailure) {
  add_group("a");
  FakeGroup& b = add_group("b");
  b.errors_[kRref.name] = {0, absl::UnimplementedError("")};
  Harness harness(groups_, options(2));
  const RowResult result = harness.run(kRref);
  EXPECT_TRUE(absl::IsUnimplemented(result.series[1].status));
  EXPECT_EQ(result.series[0].blocks.size(), 2u);
  EXPECT_EQ(b.runs_, 1);  // asked once, not in every round
  harness.run(kSmall);
  EXPECT_THAT(log_, testing::Not(testing::Contains("start b")));
  EXPECT_TRUE(reports_.empty());
}

TEST_F(HarnessTest, FailureIsReportedByNameEndsTheRowAndRestartsForTheNext) {
  FakeGroup& a = add_group("a");
  a.errors_[kRref.name] = {2, absl::DataLossError("wrong sum")};
  Harness harness(groups_, options(4));
  const RowResult broken = harness.run(kRref);
  EXPECT_TRUE(absl::IsDataLoss(broken.series[0].status));
  EXPECT_EQ(a.runs_, 2);
  EXPECT_THAT(reports_, ElementsAre(testing::AllOf(testing::HasSubstr("a failed"),
                                                   testing::HasSubstr("rref life"),
                                                   testing::HasSubstr("wrong sum"))));
  const RowResult next = harness.run(kSmall);
  EXPECT_EQ(std::count(log_.begin(), log_.end(), "start a"), 1);
  EXPECT_TRUE(next.series[0].status.ok());
  EXPECT_EQ(next.series[0].blocks.size(), 4u);
}

TEST_F(HarnessTest, ContestantThatDoesNotStartAgainIsLeftOut) {
  FakeGroup& a = add_group("a");
  a.errors_[kRref.name] = {0, absl::UnavailableError("gone")};
  a.start_status_ = absl::UnavailableError("no port");
  Harness harness(groups_, options(2));
  harness.run(kRref);
  const int runs = a.runs_;
  const RowResult next = harness.run(kSmall);
  EXPECT_FALSE(next.series[0].status.ok());
  EXPECT_EQ(a.runs_, runs);
  EXPECT_THAT(reports_, testing::Contains(testing::HasSubstr("does not start again")));
}

TEST(HarnessOptions, RefuseWhatCannotBeMeasured) {
  Harness::Options options;
  EXPECT_TRUE(options.validate().ok());
  options.rounds = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(options.validate()));
  options.rounds = 1;
  options.block_seconds = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(options.validate()));
  options.block_seconds = 1;
  options.idle_seconds = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(options.validate()));
}

}  // namespace
}  // namespace weft::bench
