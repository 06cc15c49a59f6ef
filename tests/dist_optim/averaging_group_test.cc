#include "weft/dist_optim/averaging_group.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"

namespace weft {
namespace {

using testing::WorkerWorld;

const Function<RRef<ParameterAverager>()> kFindAverager{"averaging_group_test/averager"};

// Makes the averager when the first member asks for it.
struct AveragerServer {
  Mutex mutex;
  RRef<ParameterAverager> averager ABSL_GUARDED_BY(mutex);

  void offer(WorkerOptions& options, std::vector<std::string> members) {
    options.registry.add("averaging_group_test/averager", [this, members = std::move(members)] {
      MutexLock lock(mutex);
      if (!averager) averager = remote<ParameterAverager>(WorkerWorld::name(0), members, 120.0);
      return averager;
    });
  }
  void clear() {
    MutexLock lock(mutex);
    averager = {};
  }
};

// Worker 0 is the server, the others are the members.
class AveragingGroupTest : public ::testing::Test {
 protected:
  ~AveragingGroupTest() override {
    first_.clear();
    second_.clear();
  }

  void start(size_t members) {
    for (size_t rank = 1; rank <= members; ++rank) names_.push_back(WorkerWorld::name(rank));
    world_.emplace(1 + members, [this](size_t rank, WorkerOptions& options) {
      if (rank == 0) first_.offer(options, names_);
    });
  }
  // The server dies, and its next incarnation knows no round.
  void restart_server() {
    world_->kill(0);
    WorkerOptions options = world_->options_of(0, 1 + names_.size());
    options.place.restart_count = 1;
    second_.offer(options, names_);
    restarted_.emplace(Worker::join(std::move(options)));
  }

  std::unique_ptr<AveragingGroup> group_of(size_t rank) {
    return std::make_unique<AveragingGroup>(
        AveragingGroup::Options{.names = names_,
                                .self = WorkerWorld::name(rank),
                                .on_loss = [this, rank](const std::vector<std::string>& lost) {
                                  if (rank == names_.size()) lost_ = lost;
                                }});
  }
  void connect(AveragingGroup& group, size_t rank, int64_t round) {
    Worker& worker = (*world_)[rank];
    worker.wait_for(WorkerWorld::name(0), std::chrono::seconds(20));
    group.connect(rpc_sync(worker.to(WorkerWorld::name(0)), kFindAverager), round);
  }

  AveragerServer first_;
  AveragerServer second_;
  std::vector<std::string> names_;  // of the members
  std::optional<WorkerWorld> world_;
  std::optional<Worker> restarted_;
  std::vector<std::string> lost_;  // as told to the last member
};

TEST_F(AveragingGroupTest, TheAverageIsEveryonesAndADeadMemberIsNamed) {
  start(3);
  std::vector<std::unique_ptr<AveragingGroup>> groups;
  for (size_t rank = 1; rank <= 3; ++rank) {
    groups.push_back(group_of(rank));
    connect(*groups.back(), rank, 0);
  }
  const AveragingGroup::Position position = {7, -3, int64_t{1} << 40};
  int64_t number = 0;
  const auto round = [&](const std::vector<size_t>& members) {
    ++number;
    std::vector<double> seen(3, -1);
    std::vector<std::thread> threads;
    for (const size_t member : members) {
      threads.emplace_back([&, member] {
        const AveragingGroup::Round ended =
            groups[member]->average(number, {.position = position,
                                             .step = 10 * member,
                                             .values = {at::full({2}, static_cast<double>(member))},
                                             .flag = member == 2});
        EXPECT_TRUE(ended.flag);
        EXPECT_EQ(ended.number, number);
        EXPECT_EQ(ended.step, 10 * member);
        EXPECT_EQ(ended.position, position);
        seen[member] = ended.average.at(0)[1].item<double>();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return seen;
  };
  EXPECT_EQ(round({0, 1, 2}), (std::vector<double>{1, 1, 1}));
  EXPECT_TRUE(groups[0]->leads());
  EXPECT_FALSE(groups[1]->leads());

  world_->kill(1);
  EXPECT_EQ(round({1, 2}), (std::vector<double>{-1, 1.5, 1.5}));
  EXPECT_EQ(lost_, std::vector<std::string>{WorkerWorld::name(1)});
  EXPECT_TRUE(groups[1]->leads());
  EXPECT_EQ(groups[2]->place(), 1u);
}

// When the server died, one member had its result and went on, and the other one had none.
TEST_F(AveragingGroupTest, ARoundThatAMemberHasPassedIsTheSameOnTheRestartedServer) {
  start(2);
  const auto ahead = group_of(1);
  const auto behind = group_of(2);
  const auto give = [](AveragingGroup& group, int64_t round, double value) {
    return group.average(round, {.position = {round}, .values = {at::full({1}, value)}});
  };
  connect(*ahead, 1, 0);
  connect(*behind, 2, 0);
  for (int64_t round = 1; round <= 2; ++round) {
    std::thread other([&] { give(*behind, round, 6); });
    give(*ahead, round, 2);
    other.join();
  }
  restart_server();
  connect(*behind, 2, 0);
  std::vector<double> seen;
  std::thread other([&] {
    for (int64_t round = 1; round <= 2; ++round) {
      seen.push_back(give(*behind, round, 100).average[0].item<double>());
    }
  });
  connect(*ahead, 1, 2);
  other.join();
  EXPECT_EQ(seen, (std::vector<double>{4, 4}));
  EXPECT_TRUE(ahead->leads());
}

TEST_F(AveragingGroupTest, AMemberThatEntersLearnsWhereTheOthersStand) {
  start(3);
  const auto one = group_of(1);
  const auto two = group_of(2);
  connect(*one, 1, 0);
  connect(*two, 2, 0);
  const auto late = group_of(3);
  std::thread third([&] {
    connect(*late, 3, 0);
    late->average(1, {.position = {5}, .step = 33, .values = {at::full({1}, 0.0)}});
  });
  std::thread second(
      [&] { two->average(1, {.position = {5}, .step = 2, .values = {at::full({1}, 3.0)}}); });
  one->average(1, {.position = {5}, .step = 1, .values = {at::full({1}, 6.0)}, .flag = true});
  second.join();
  third.join();

  const auto again = group_of(3);  // as a restarted member: it knows nothing
  connect(*again, 3, 0);
  const std::optional<AveragingGroup::Round> round = again->enter();
  ASSERT_TRUE(round.has_value());
  EXPECT_EQ(round->number, 1);
  EXPECT_EQ(round->position, AveragingGroup::Position{5});
  EXPECT_EQ(round->average.at(0).item<double>(), 3);
  EXPECT_TRUE(round->flag);
  EXPECT_EQ(round->step, 33u);
}

TEST_F(AveragingGroupTest, RefusesANameThatIsNoMember) {
  EXPECT_THROW(AveragingGroup({.names = {"worker1"}, .self = "server"}), std::invalid_argument);
}

}  // namespace
}  // namespace weft
