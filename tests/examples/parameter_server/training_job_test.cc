#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/tests/examples/bands.h"
#include "weft/tests/examples/data_files.h"
#include "weft/tests/examples/parameter_server/job_world.h"
#include "weft/tests/examples/pipeline_resnet50/whole_model.h"

namespace weft::examples {
namespace {

namespace fs = std::filesystem;
using testing::bands;
using testing::JobWorld;
using ::testing::StartsWith;

constexpr uint32_t kTrainers = 3;
constexpr int64_t kBatch = 2;
constexpr int64_t kAverageEvery = 20;  // the number of steps that the job promises
using Next = Position::Next;

std::vector<at::Tensor> some_layers(uint64_t seed, double scale) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : FeatureLayers(seed).parameters()) {
    values.push_back(parameter.detach().mul(scale));
  }
  return values;
}

// Trainers 1 and 2 run the job as it is. Trainer 3 is the test. It joins the rounds of averages
// that the job promises, in their order, and contributes a third of each average. If there is a
// round too few or too many, a trainer gets an error, because own layers meet tensors of other
// shapes.
class TrainingJobTest : public ::testing::Test {
 protected:
  TrainingJobTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_training_job_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    at::manual_seed(9);
    test_ = bands(500);
    testing::write_data_part(folder_, "t10k", test_);
    options_.data = folder_.string();
    options_.out = (folder_ / "out").string();
    options_.epochs = 1;
    options_.batch = kBatch;
  }
  ~TrainingJobTest() override { fs::remove_all(folder_); }

  // Runs one epoch of `steps` steps of each trainer. Trainer 3 gives `last` to the round before the
  // evaluation.
  void run_epoch(int64_t steps, const std::vector<at::Tensor>& last) {
    testing::write_data_part(folder_, "train", bands(steps * kBatch * kTrainers));
    JobWorld world(kTrainers, options_);
    std::vector<std::thread> trainers;
    for (const size_t rank : {1, 2}) {
      trainers.emplace_back([this, rank, &worker = world[rank]] {
        take_part(worker, [&] {
          last_lines_.at(rank) = train<Trainer>(worker, options_, /*restarted=*/false).last_line;
        });
      });
    }
    take_part(world[kTrainers], [&] { come_to_the_rounds(world[kTrainers], steps, last); });
    for (std::thread& trainer : trainers) trainer.join();
    world.shutdown();
  }

  // The other trainers do not wait for a trainer that has failed.
  static void take_part(const Worker& worker, const std::function<void()>& part) {
    try {
      part();
    } catch (const std::exception& error) {
      ADD_FAILURE() << worker.name() << ": " << error.what();
      rpc_sync(worker.to(kServerName), kFindAverager).rpc_sync(&ParameterAverager::leave);
    }
  }

  void come_to_the_rounds(const Worker& worker, int64_t steps,
                          const std::vector<at::Tensor>& last) {
    AveragingGroup group({.names = trainer_names(1 + kTrainers), .self = worker.name()});
    group.connect(rpc_sync(worker.to(kServerName), kFindAverager), 0);
    Position at;
    // All trainers must stand at this position, or their mean would differ from it.
    const auto round = [&](const std::vector<at::Tensor>& values) {
      const AveragingGroup::Round ended =
          group.average(at.round + 1, {.position = at.numbers(), .values = values});
      EXPECT_EQ(Position::of(ended.position), at) << "round " << at.round + 1;
      at = at.after_round(ended.flag, steps, options_.epochs);
      return ended.average;
    };
    const std::vector<at::Tensor> first = some_layers(options_.seed, 1);
    round(first);  // all have looked at the checkpoint folder
    for (int64_t step = 1; step <= steps; ++step) {
      at = at.after_step(steps);
      if (step % kAverageEvery == 0) round(first);
    }
    average_ = round(last);
    round(last);  // the leading trainer has evaluated and saved
    EXPECT_EQ(at.next, Next::kDone);
    group.leave();
  }

  fs::path folder_;
  JobOptions options_;
  LabelledImages test_;
  std::array<std::optional<std::string>, kTrainers> last_lines_;  // by rank
  std::vector<at::Tensor> average_;                               // before the evaluation
};

// 39 steps hold one such round and 40 steps two only if there are 20 steps between them.
TEST_F(TrainingJobTest, OwnLayersAreAveragedEveryTwentyStepsAndBeforeTheEvaluation) {
  for (const int64_t steps : {39, 40}) {
    SCOPED_TRACE(steps);
    run_epoch(steps, some_layers(options_.seed, 1));
    ASSERT_FALSE(HasFailure());
    EXPECT_THAT(last_lines_[1].value_or("nothing"), StartsWith("test accuracy "));
    EXPECT_FALSE(last_lines_[2].has_value());
  }
}

// Trainer 3's last values are so large that the average differs from the leading trainer's own
// layers.
TEST_F(TrainingJobTest, EvaluationAndCheckpointUseTheAverage) {
  at::set_num_threads(1);  // as in the job
  run_epoch(25, some_layers(options_.seed + 1, 10));
  ASSERT_FALSE(HasFailure());
  const absl::StatusOr<Checkpoint> saved =
      CheckpointFolder(options_.checkpoint_folder()).load_newest();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->info.step, 25);
  FeatureLayers names(options_.seed);
  size_t i = 0;
  for (const auto& item : names.named_parameters()) {
    EXPECT_TRUE(saved->shards.at("trainer").tensors.at(item.key()).equal(average_.at(i++)))
        << item.key();
  }
  EXPECT_THAT(last_lines_[1].value_or("nothing"),
              StartsWith(absl::StrFormat("test accuracy %.4f after 1 epochs, 4 workers, ",
                                         testing::accuracy_of(*saved, test_))));
}

// Trainer 2 runs the job as it is. Trainer 1 is the test: it leads, asks the job to stop, and dies
// before it saves.
TEST_F(TrainingJobTest, TheNextTrainerSavesThePicturesOfBothIfTheLeadingOneDiesAtTheSave) {
  constexpr int64_t kSteps = 40;  // of an epoch
  testing::write_data_part(folder_, "train", bands(kSteps * kBatch * 2));
  JobWorld world(2, options_);
  TrainingJob::End end;
  std::thread other([&, &worker = world[2]] {
    take_part(worker, [&] { end = train<Trainer>(worker, options_, /*restarted=*/false); });
  });
  take_part(world[1], [&] {
    AveragingGroup group({.names = trainer_names(1 + 2), .self = world[1].name()});
    group.connect(rpc_sync(world[1].to(kServerName), kFindAverager), 0);
    for (Position at; at.next != Next::kSave;) {
      if (at.next == Next::kStep) {
        at = at.after_step(kSteps);
        continue;
      }
      const AveragingGroup::Round ended = group.average(
          at.round + 1,
          {.position = at.numbers(), .values = some_layers(options_.seed, 1), .flag = true});
      at = at.after_round(ended.flag, kSteps, options_.epochs);
    }
  });
  world.kill(1);
  other.join();
  EXPECT_EQ(end.exit_code, kStoppedExitCode);
  EXPECT_EQ(end.last_line.value_or("nothing"), absl::StrCat("stopped after step ", kAverageEvery));
  const absl::StatusOr<Checkpoint> saved =
      CheckpointFolder(options_.checkpoint_folder()).load_newest();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->info.metadata.at("pictures"), absl::StrCat(kAverageEvery * kBatch * 2));
  world.shutdown();
}

}  // namespace
}  // namespace weft::examples
