#include "weft/dist_optim/parameter_averager.h"

#include <map>
#include <set>
#include <utility>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using Tensors = std::vector<at::Tensor>;

// Three trainers "a", "b", "c" and a server, on a clock that stands still.
class ParameterAveragerTest : public ::testing::Test {
 protected:
  ParameterAveragerTest() : executor_(system_, {.name = "average", .threads = 1}) {
    averager_ = std::make_unique<ParameterAverager>(
        std::vector<std::string>{"a", "b", "c"}, 30.0,
        ParameterAverager::Surroundings{clock_, executor_,
                                        [this](WorkerId id) { return is_live(id); },
                                        [this](const std::string& name) { return resolve(name); }});
  }

  bool is_live(WorkerId id) const { return !dead_.contains(id); }
  absl::StatusOr<WorkerId> resolve(const std::string& name) const {
    const auto found = ids_.find(name);
    if (found == ids_.end()) return absl::NotFoundError(name);
    return found->second;
  }
  Future<Tensors> average(const std::string& name, int64_t round, double value, int64_t size = 2) {
    CallContext caller(clock_, ids_.at(name), name, kNever);
    return averager_->average(caller, round, {at::full({size}, value)});
  }
  Future<AveragedRound> enter(const std::string& name) {
    CallContext caller(clock_, ids_.at(name), name, kNever);
    return averager_->enter(caller);
  }
  void restore(const std::string& name, const std::map<int64_t, double>& rounds) {
    CallContext caller(clock_, ids_.at(name), name, kNever);
    std::vector<AveragedRound> told;
    for (const auto& [number, value] : rounds) told.push_back({number, {at::full({2}, value)}});
    averager_->restore(caller, std::move(told));
  }
  void leave(const std::string& name) {
    CallContext caller(clock_, ids_.at(name), name, kNever);
    averager_->leave(caller);
  }
  void kill(const std::string& name) {
    dead_.insert(ids_.at(name));
    clock_.advance(std::chrono::seconds(1));
  }
  void restart(const std::string& name) {
    kill(name);
    ++ids_.at(name).incarnation;
  }
  static std::pair<int64_t, double> entered(const Future<AveragedRound>& future) {
    const AveragedRound round = future.wait();
    return {round.number, round.average.at(0)[0].item<double>()};
  }
  static double first(const Future<Tensors>& future) { return future.wait()[0][0].item<double>(); }

  std::map<std::string, WorkerId> ids_ = {
      {"a", {0, 1}}, {"b", {1, 1}}, {"c", {2, 1}}, {"x", {3, 1}}};
  std::set<WorkerId> dead_;
  SystemClock system_;
  ManualClock clock_;
  ThreadExecutor executor_;
  std::unique_ptr<ParameterAverager> averager_;
};

TEST_F(ParameterAveragerTest, EveryoneGetsTheMeanOnceAllHaveCome) {
  const auto a = average("a", 20, 1);
  const auto b = average("b", 20, 2);
  clock_.advance(std::chrono::seconds(5));
  EXPECT_FALSE(a.done());
  const auto c = average("c", 20, 6);
  EXPECT_EQ(first(a), 3);
  EXPECT_EQ(first(b), 3);
  EXPECT_EQ(first(c), 3);
}

TEST_F(ParameterAveragerTest, TheDeadAreNotWaitedForNorCounted) {
  const auto a = average("a", 1, 1);
  const auto b = average("b", 1, 100);
  kill("b");
  EXPECT_FALSE(a.done());
  const auto c = average("c", 1, 3);
  EXPECT_EQ(first(a), 2);
  EXPECT_EQ(first(c), 2);
}

TEST_F(ParameterAveragerTest, ADeathInMidRoundEndsTheWait) {
  const auto a = average("a", 1, 1);
  const auto c = average("c", 1, 3);
  kill("b");
  EXPECT_EQ(first(a), 2);
  EXPECT_EQ(first(c), 2);
}

TEST_F(ParameterAveragerTest, WhoLeftIsNotWaitedForUntilItComesAgain) {
  const auto a = average("a", 1, 1);
  const auto c = average("c", 1, 3);
  leave("b");
  EXPECT_EQ(first(a), 2);
  EXPECT_EQ(first(c), 2);
  const auto a2 = average("a", 2, 1);
  const auto b2 = average("b", 2, 2);
  EXPECT_FALSE(a2.done());
  (void)average("c", 2, 3);
  EXPECT_EQ(first(a2), 2);
}

TEST_F(ParameterAveragerTest, ARestartedTrainerTakesItsPlaceAgain) {
  kill("b");
  (void)average("a", 1, 1);
  EXPECT_EQ(first(average("c", 1, 3)), 2);
  ids_["b"] = {1, 2};
  const auto b = average("b", 2, 6);
  const auto a = average("a", 2, 1);
  EXPECT_FALSE(a.done());
  (void)average("c", 2, 2);
  EXPECT_EQ(first(a), 3);
}

TEST_F(ParameterAveragerTest, ALateRoundFailsNamingWhoWasMissing) {
  const auto a = average("a", 1, 1);
  (void)average("c", 1, 1);
  clock_.advance(std::chrono::seconds(31));
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(a.result().status().message().find("for b"), absl::string_view::npos)
      << a.result().status();
  // The late trainer gets the same error, and the next round works.
  EXPECT_EQ(average("b", 1, 1).result().status().code(), absl::StatusCode::kDeadlineExceeded);
  (void)average("a", 2, 1);
  (void)average("b", 2, 1);
  EXPECT_EQ(first(average("c", 2, 1)), 1);
}

TEST_F(ParameterAveragerTest, TheSameValuesTwiceCountOnce) {
  const auto a = average("a", 1, 1);
  const auto again = average("a", 1, 1);
  (void)average("b", 1, 2);
  (void)average("c", 1, 6);
  EXPECT_EQ(first(a), 3);
  EXPECT_EQ(first(again), 3);
  EXPECT_EQ(first(average("a", 1, 50)), 3);  // the round is remembered
}

TEST_F(ParameterAveragerTest, RoundsAreIndependent) {
  const auto a1 = average("a", 1, 1);
  const auto a2 = average("a", 2, 10);
  (void)average("b", 2, 20);
  EXPECT_FALSE(a1.done());
  (void)average("c", 1, 3);
  EXPECT_EQ(first(a1), 2);
  EXPECT_FALSE(a2.done());
  (void)average("c", 2, 30);
  EXPECT_EQ(first(a2), 20);
}

TEST_F(ParameterAveragerTest, RefusesUnknownProcessesAndOtherShapes) {
  EXPECT_EQ(average("x", 1, 1).result().status().code(), absl::StatusCode::kInvalidArgument);
  const auto a = average("a", 1, 1);
  EXPECT_EQ(average("b", 1, 1, 3).result().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(a.done());
}

TEST_F(ParameterAveragerTest, WhoHasComeToALaterRoundIsNotWaitedFor) {
  const auto b = average("b", 1, 2);
  const auto c = average("c", 1, 4);
  EXPECT_FALSE(b.done());
  const auto a = average("a", 2, 9);
  EXPECT_EQ(first(b), 3);
  EXPECT_EQ(first(c), 3);
  EXPECT_FALSE(a.done());
}

TEST_F(ParameterAveragerTest, ARestartedTrainerIsWaitedForOnceItEnters) {
  (void)average("a", 1, 1);
  restart("b");
  EXPECT_EQ(first(average("c", 1, 3)), 2);
  EXPECT_EQ(entered(enter("b")), std::pair(int64_t{1}, 2.0));
  const auto a = average("a", 2, 1);
  const auto c = average("c", 2, 2);
  EXPECT_FALSE(a.done());
  (void)average("b", 2, 6);
  EXPECT_EQ(first(a), 3);
}

TEST_F(ParameterAveragerTest, WhoEntersBeforeARoundHasEndedGetsTheFirstThatDoes) {
  const auto b = enter("b");
  const auto a = average("a", 7, 1);
  EXPECT_FALSE(b.done());
  (void)average("c", 7, 3);
  EXPECT_EQ(first(a), 2) << "b does not know enough to be waited for";
  EXPECT_EQ(entered(b), std::pair(int64_t{7}, 2.0));
  const auto next = average("a", 8, 1);
  (void)average("c", 8, 1);
  EXPECT_FALSE(next.done());
  (void)average("b", 8, 1);
  EXPECT_EQ(first(next), 1);
}

TEST_F(ParameterAveragerTest, AValueOfAnEarlierIncarnationIsNotCounted) {
  (void)average("b", 1, 100);
  const auto a = average("a", 1, 1);
  dead_.insert(ids_.at("b"));
  ++ids_.at("b").incarnation;  // before the server has noticed the death
  const auto b = enter("b");
  EXPECT_FALSE(a.done());
  (void)average("c", 1, 3);
  EXPECT_EQ(first(a), 2);
  EXPECT_EQ(entered(b), std::pair(int64_t{1}, 2.0));
}

TEST_F(ParameterAveragerTest, IfAllWhoLiveEnterNobodyKnowsARoundAndTheyBeginTogether) {
  kill("c");
  const auto a = enter("a");
  EXPECT_FALSE(a.done());
  const auto b = enter("b");
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(b.result().status().code(), absl::StatusCode::kNotFound);
  const auto first_round = average("a", 1, 1);
  EXPECT_FALSE(first_round.done());
  (void)average("b", 1, 3);
  EXPECT_EQ(first(first_round), 2);
}

TEST_F(ParameterAveragerTest, ADeathMayLeaveNobodyWhoKnowsARound) {
  const auto a = enter("a");
  leave("c");
  EXPECT_FALSE(a.done());
  kill("b");
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kNotFound);
}

// A round without any live trainer's values fails. It must not be the round with which trainers
// enter.
TEST_F(ParameterAveragerTest, ARoundWhoseGiversHaveAllDiedIsNoRound) {
  const auto a = average("a", 1, 1);
  dead_.insert(ids_.at("a"));
  dead_.insert(ids_.at("b"));
  kill("c");
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kUnavailable);
  restart("a");
  EXPECT_EQ(enter("a").result().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(first(average("a", 1, 4)), 4);
}

// A restarted server learns of earlier rounds from the trainers that are past them.
TEST_F(ParameterAveragerTest, ARestoredRoundIsWhatItWasForAllWhoComeToIt) {
  const auto early = average("b", 4, 50);
  EXPECT_FALSE(early.done());
  restore("a", {{5, 5}, {4, 4}});
  EXPECT_EQ(first(early), 4);
  EXPECT_EQ(first(average("c", 4, 60)), 4);
  EXPECT_EQ(first(average("b", 5, 60)), 5);
  restore("c", {{5, 77}});
  EXPECT_EQ(first(average("b", 5, 60)), 5) << "all must see the same";
  const auto next = average("b", 6, 2);
  (void)average("c", 6, 2);
  EXPECT_FALSE(next.done());
  (void)average("a", 6, 2);
  EXPECT_EQ(first(next), 2);
}

TEST_F(ParameterAveragerTest, WhoEntersGetsARestoredRound) {
  const auto b = enter("b");
  EXPECT_FALSE(b.done());
  restore("a", {{3, 3}, {5, 5}});
  EXPECT_EQ(entered(b), std::pair(int64_t{5}, 5.0));
  const auto earlier = average("c", 4, 4);
  EXPECT_EQ(first(earlier), 4) << "the others are past it";
}

TEST_F(ParameterAveragerTest, OnlyTheNewestRoundsAreKept) {
  leave("b");
  leave("c");
  for (int64_t round = 1; round <= 10; ++round) (void)average("a", round, 1).wait();
  EXPECT_EQ(first(average("b", 3, 9)), 1);
  EXPECT_EQ(average("b", 2, 9).result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ParameterAveragerTest, ItsEndCancelsOpenRounds) {
  const auto a = average("a", 1, 1);
  averager_.reset();
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kCancelled);
  clock_.advance(std::chrono::seconds(60));  // its timer finds nothing
}

}  // namespace
}  // namespace weft
