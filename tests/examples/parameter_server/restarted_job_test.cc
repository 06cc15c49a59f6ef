// A server or a trainer of the job dies at a known step and is restarted, or the job stops there
// and is resumed.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/tests/dist_optim/step_ledger.h"
#include "weft/tests/examples/bands.h"
#include "weft/tests/examples/data_files.h"
#include "weft/tests/examples/parameter_server/job_world.h"
#include "weft/tests/examples/parameter_server/step_ledger.h"
#include "weft/tests/support/eventually.h"

namespace weft::examples {
namespace {

using Next = Position::Next;
using testing::JobWorld;

constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 30;  // steps of an epoch
constexpr int64_t kEpochs = 2;

// Trainer 1 trains. If there is a trainer 2, it is the test. It joins the rounds of averages with
// layers of its own, and so decides how far trainer 1 may go.
class RestartedJobTest : public ::testing::Test {
 protected:
  void set_up(uint32_t trainers, const std::string& name, int64_t checkpoint_every = 8) {
    at::set_num_threads(1);  // sums of the same numbers in the same order
    at::manual_seed(9);
    trainers_ = trainers;
    std::filesystem::create_directories(scratch_ / name);
    testing::write_data_part(scratch_ / name, "t10k", testing::bands(100));
    testing::write_data_part(scratch_ / name, "train",
                             testing::bands(kLength * kBatch * static_cast<int64_t>(trainers)));
    options_.data = scratch_ / name;
    options_.out = scratch_ / (name + "/out");
    testing::ledger_folder = scratch_ / (name + "/ledger");
    options_.epochs = kEpochs;
    options_.batch = kBatch;
    options_.dropout = 0;
    options_.checkpoint_every = checkpoint_every;
    at_ = {};
    end_ = {};
    group_.reset();
    world_.emplace(trainers, options_);
  }

  std::thread start_job(bool restarted) {
    return std::thread([this, restarted, &worker = (*world_)[1]] {
      try {
        end_ = train<testing::LedgerTrainer>(worker, options_, restarted);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        if (trainers_ > 1) group_->leave();
      }
    });
  }
  // In such a round the flag asks the job to stop. In the others it says that the work is done.
  static bool averages(const Position& at) {
    return at.next == Next::kAverage || at.next == Next::kLastAverage;
  }
  // Trainer 1 as in the job, for `steps` steps. Then its process is gone.
  void live_and_die(int64_t steps) {
    testing::LedgerTrainer trainer((*world_)[1], options_);
    AveragingGroup group({.names = trainer_names(1 + trainers_), .self = "trainer1"});
    group.connect(trainer.connect(), 0);
    uint64_t number = 0;
    Position at;
    while (at.steps < steps) {
      if (at.next == Next::kStep) {
        at = at.after_step(kLength);
        number = trainer.step(make_batch(testing::bands(kBatch), 0, kBatch), 0.1).result.number;
      } else {
        const auto round = group.average(at.round + 1, {.position = at.numbers(),
                                                        .step = number,
                                                        .values = trainer.own_layers(),
                                                        .flag = !averages(at)});
        at = Position::of(round.position).after_round(round.flag, kLength, kEpochs);
        trainer.set_own_layers(round.average);
      }
    }
  }

  // ---- trainer 2
  void join_group() {
    group_.emplace(
        AveragingGroup::Options{.names = trainer_names(1 + trainers_), .self = "trainer2"});
    find_server();
  }
  void find_server() {
    const Worker& self = (*world_)[2];
    self.wait_for(kServerName, std::chrono::seconds(20));
    group_->connect(rpc_sync(self.to(kServerName), kFindAverager), at_.round);
  }
  void come_to_rounds_until(const std::function<bool(const Position&)>& stop) {
    while (!stop(at_)) {
      if (at_.next == Next::kStep) {
        at_ = at_.after_step(kLength);
      } else {
        std::vector<at::Tensor> layers;
        for (const at::Tensor& one : FeatureLayers(options_.seed).parameters()) {
          layers.push_back(one.detach());
        }
        const auto round = group_->average(
            at_.round + 1,
            {.position = at_.numbers(), .values = layers, .flag = asks_ && averages(at_)});
        EXPECT_EQ(Position::of(round.position), at_) << "round " << at_.round + 1;
        at_ = Position::of(round.position).after_round(round.flag, kLength, kEpochs);
      }
    }
  }
  static bool at_average(const Position& at) { return at.next == Next::kAverage; }
  static bool at_the_end(const Position& at) { return at.next == Next::kDone; }

  // ---- what trainer 1 has left behind
  std::vector<std::string> ledger() const {
    std::ifstream file(testing::ledger_folder + "/trainer1.csv");
    std::vector<std::string> events;
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ',');
      events.push_back(absl::StrCat(fields.at(1), " ", fields.at(2)));
    }
    return events;
  }
  void wait_for_event(const std::string& event) const {
    EXPECT_TRUE(testing::eventually([&] {
      const std::vector<std::string> events = ledger();
      return std::find(events.begin(), events.end(), event) != events.end();
    })) << event;
  }
  static void append_steps(std::vector<std::string>& events, int64_t first, int64_t last) {
    for (int64_t n = first; n <= last; ++n) events.push_back(absl::StrCat("applied ", n));
  }
  Checkpoint saved() const { return *CheckpointFolder(options_.checkpoint_folder()).load_newest(); }
  static void expect_equal(const Checkpoint& truth, const Checkpoint& again) {
    for (const auto& [shard, content] : truth.shards) {
      for (const auto& [name, value] : content.tensors) {
        if (name == "steps") continue;  // counts of one incarnation of the optimizer
        EXPECT_TRUE(at::equal(value, again.shards.at(shard).tensors.at(name)))
            << shard << " " << name;
      }
    }
  }
  static double adam_steps(const Checkpoint& checkpoint) {
    return checkpoint.shards.at("optimizer").tensors.at("1/hidden.weight/step").item<double>();
  }

  const testing::ScratchFolder scratch_;
  uint32_t trainers_ = 0;
  JobOptions options_;
  std::optional<JobWorld> world_;
  std::optional<AveragingGroup> group_;
  Position at_;
  bool asks_ = false;     // trainer 2 was asked to stop
  TrainingJob::End end_;  // of trainer 1
};

TEST_F(RestartedJobTest, AfterTheServersDeathTheJobEndsAsIfItHadNotDied) {
  const auto run = [&](const std::string& name, bool die) {
    set_up(2, name);
    join_group();
    std::thread job = start_job(false);
    come_to_rounds_until(at_average);
    wait_for_event("applied 20");
    if (die) {
      world_->kill(0);
      world_->revive(0);
      find_server();
    }
    come_to_rounds_until(at_the_end);
    job.join();
    world_->shutdown();
    return saved();
  };
  const Checkpoint truth = run("undisturbed", false);
  const Checkpoint again = run("disturbed", true);
  EXPECT_TRUE(end_.last_line.has_value());
  EXPECT_EQ(again.info.step, kEpochs * kLength);
  expect_equal(truth, again);
  // At most one interval was repeated.
  const std::vector<std::string> events = ledger();
  ASSERT_GT(events.size(), 20u);
  absl::string_view number = events[20];
  int64_t resumed = -1;
  ASSERT_TRUE(absl::ConsumePrefix(&number, "resumed ")) << events[20];
  ASSERT_TRUE(absl::SimpleAtoi(number, &resumed)) << events[20];
  EXPECT_GE(resumed, 20 - options_.checkpoint_every);
  EXPECT_LE(resumed, 20);
  EXPECT_EQ(events.back(), absl::StrCat("applied ", kEpochs * kLength));
}

TEST_F(RestartedJobTest, ARestartedTrainerGoesOnBehindItsLastStep) {
  set_up(2, "job");
  join_group();
  std::thread first([&] { live_and_die(25); });
  come_to_rounds_until([](const Position& at) { return at.next == Next::kLastAverage; });
  first.join();
  world_->kill(1);
  world_->revive(1);
  std::thread job = start_job(true);
  wait_for_event("applied 26");  // it is in the group: from now on rounds wait for it
  come_to_rounds_until(at_the_end);
  job.join();
  std::vector<std::string> expected;
  append_steps(expected, 1, 25);
  expected.push_back("resumed 25");
  append_steps(expected, 26, kEpochs * kLength);
  EXPECT_EQ(ledger(), expected);
  EXPECT_EQ(saved().info.step, kEpochs * kLength);
  EXPECT_EQ(adam_steps(saved()), kEpochs * kLength);
  world_->shutdown();
}

TEST_F(RestartedJobTest, AnAloneTrainerEntersAtTheServersNewestRound) {
  set_up(1, "job");
  std::thread([&] { live_and_die(25); }).join();
  world_->kill(1);
  world_->revive(1);
  start_job(true).join();
  EXPECT_TRUE(end_.last_line.has_value());
  EXPECT_EQ(saved().info.step, kEpochs * kLength);
  EXPECT_EQ(adam_steps(saved()), kEpochs * kLength);
  world_->shutdown();
}

TEST_F(RestartedJobTest, IfAllHaveDiedTheJobBeginsAgain) {
  set_up(1, "job");
  std::thread([&] { live_and_die(25); }).join();
  world_->kill(1);
  world_->kill(0);
  world_->revive(0);
  world_->revive(1);
  start_job(true).join();
  EXPECT_TRUE(end_.last_line.has_value());
  const std::vector<std::string> events = ledger();
  EXPECT_EQ(std::count(events.begin(), events.end(), "loaded 24"), 1);
  EXPECT_EQ(saved().info.step, kEpochs * kLength);
  EXPECT_EQ(adam_steps(saved()), kEpochs * kLength) << "with the first weights";
  world_->shutdown();
}

TEST_F(RestartedJobTest, AStoppedJobGoesOnInsideTheEpochAsIfItHadNotStopped) {
  const auto begin = [&](const std::string& name, bool resume) {
    options_.resume = resume;
    set_up(2, name, /*checkpoint_every=*/0);
    join_group();
    return start_job(false);
  };
  const auto finish = [&](std::thread job) {
    come_to_rounds_until(at_the_end);
    job.join();
    EXPECT_EQ(world_->server().stop().exit_code(), end_.exit_code) << "all have the same";
    world_->shutdown();
    return saved();
  };
  const Checkpoint truth = finish(begin("whole", false));
  EXPECT_EQ(end_.exit_code, 0);

  std::thread stopped = begin("parts", false);
  come_to_rounds_until(at_average);
  asks_ = true;
  const Checkpoint inside = finish(std::move(stopped));
  EXPECT_EQ(end_.exit_code, kStoppedExitCode);
  EXPECT_EQ(end_.last_line.value_or("nothing"), "stopped after step 20");
  EXPECT_EQ(inside.info.step, 20);
  EXPECT_EQ(inside.info.epoch, 0);
  EXPECT_EQ(inside.info.metadata.count("accuracy"), 0u);
  EXPECT_FALSE(JobCheckpoints(options_).is_over());

  asks_ = false;
  std::thread resumed = begin("parts", true);
  at_.step = at_.steps = 20;
  const Checkpoint again = finish(std::move(resumed));
  EXPECT_EQ(end_.exit_code, 0);
  EXPECT_EQ(again.info.step, kEpochs * kLength);
  expect_equal(truth, again);
}

TEST_F(RestartedJobTest, AJobThatIsAskedAtTheEndOfAnEpochEvaluatesItAndStops) {
  set_up(2, "job", /*checkpoint_every=*/0);
  join_group();
  std::thread job = start_job(false);
  come_to_rounds_until([](const Position& at) { return at.next == Next::kLastAverage; });
  asks_ = true;
  come_to_rounds_until(at_the_end);
  job.join();
  EXPECT_EQ(end_.exit_code, kStoppedExitCode);
  EXPECT_EQ(saved().info.step, kLength);
  EXPECT_EQ(saved().info.epoch, 1);
  EXPECT_TRUE(JobCheckpoints(options_).accuracy(kLength).has_value());
  world_->shutdown();
}

// Trainer 1 has saved and waits in the last round when the server dies. Nobody restarts it.
TEST_F(RestartedJobTest, TheServersDeathAfterTheSaveDoesNotUndoTheStop) {
  for (const int64_t checkpoint_every : {0, 8}) {
    SCOPED_TRACE(checkpoint_every);
    asks_ = true;
    set_up(2, absl::StrCat("every", checkpoint_every), checkpoint_every);
    join_group();
    std::thread job = start_job(false);
    come_to_rounds_until([](const Position& at) { return at.next == Next::kSave; });
    EXPECT_TRUE(testing::eventually(
        [&] { return JobCheckpoints(options_).holds(Position::kAverageEvery); }));
    world_->kill(0);
    job.join();
    EXPECT_EQ(end_.exit_code, kStoppedExitCode);
    EXPECT_EQ(end_.last_line.value_or("nothing"), "stopped after step 20");
    EXPECT_EQ(saved().info.step, Position::kAverageEvery);
    world_->shutdown();
  }
}

TEST_F(RestartedJobTest, AJobIsOverWhenItsLastEpochIsSaved) {
  set_up(1, "job");
  EXPECT_FALSE(JobCheckpoints(options_).is_over());
  start_job(false).join();
  EXPECT_TRUE(JobCheckpoints(options_).is_over());
  JobOptions other = options_;
  other.run = "another";
  EXPECT_FALSE(JobCheckpoints(other).is_over());
  other = options_;
  ++other.epochs;
  EXPECT_FALSE(JobCheckpoints(other).is_over());
  world_->shutdown();
}

}  // namespace
}  // namespace weft::examples
