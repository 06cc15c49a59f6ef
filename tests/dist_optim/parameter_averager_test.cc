#include "weft/dist_optim/parameter_averager.h"

#include <map>
#include <set>

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
  void leave(const std::string& name) {
    CallContext caller(clock_, ids_.at(name), name, kNever);
    averager_->leave(caller);
  }
  void kill(const std::string& name) {
    dead_.insert(ids_.at(name));
    clock_.advance(std::chrono::seconds(1));
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
  // The latecomer hears the same, and the next round works.
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
  EXPECT_EQ(first(average("a", 1, 50)), 3);  // the round's memory
}

TEST_F(ParameterAveragerTest, RoundsAreIndependent) {
  const auto a1 = average("a", 1, 1);
  const auto a2 = average("a", 2, 10);
  (void)average("b", 2, 10);
  (void)average("c", 2, 10);
  EXPECT_EQ(first(a2), 10);
  EXPECT_FALSE(a1.done());
}

TEST_F(ParameterAveragerTest, RefusesStrangersAndOtherShapes) {
  EXPECT_EQ(average("x", 1, 1).result().status().code(), absl::StatusCode::kInvalidArgument);
  const auto a = average("a", 1, 1);
  EXPECT_EQ(average("b", 1, 1, 3).result().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(a.done());
}

TEST_F(ParameterAveragerTest, ItsEndCancelsOpenRounds) {
  const auto a = average("a", 1, 1);
  averager_.reset();
  EXPECT_EQ(a.result().status().code(), absl::StatusCode::kCancelled);
  clock_.advance(std::chrono::seconds(60));  // its timer finds nothing
}

}  // namespace
}  // namespace weft
