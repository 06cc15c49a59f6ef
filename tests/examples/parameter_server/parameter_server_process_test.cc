// Runs the whole parameter-server job as processes: weft_launch, one server and its trainers.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/rpc/transport/transport.h"
#include "weft/tests/examples/data_files.h"
#include "weft/tests/examples/pipeline_resnet50/whole_model.h"
#include "weft/tests/support/spawning_test.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr const char* kLastLine =
    "test accuracy [0-9.]+ after [0-9]+ epochs, [0-9]+ workers, [0-9.]+ s";
// Less than the minute for which the job waits for a process that may come back.
constexpr auto kNoWait = std::chrono::seconds(50);

class ParameterServerJob : public weft::testing::SpawningTest {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("weft_job_test.", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    end_command();
    std::filesystem::remove_all(folder_);
  }

  void start(int trainers, std::vector<std::string> job) {
    const std::string program =
        absl::StrCat(WEFT_BUILD_DIR, "/examples/parameter_server/parameter_server");
    job.insert(job.begin(), program);
    launch(trainers, "continue", job);
  }
  // weft_launch with one server and `trainers` trainers.
  void launch(int trainers, const std::string& on_failure, const std::vector<std::string>& job) {
    std::vector<std::string> command = {absl::StrCat(WEFT_BUILD_DIR, "/worker/weft_launch"),
                                        "--no-prefix",
                                        "--on-failure",
                                        on_failure,
                                        "-n",
                                        absl::StrCat(1 + trainers),
                                        "--"};
    command.insert(command.end(), job.begin(), job.end());
    command.insert(command.end(), {"--out", folder_ / "out"});
    start_command(command);
  }

  int run(int trainers, const std::vector<std::string>& job) {
    output_.clear();
    errors_.clear();
    start(trainers, job);
    return finish();
  }

  pid_t process_of_rank(int rank) const {
    const std::string wanted = absl::StrCat("RANK=", rank);
    std::ifstream children(absl::StrCat("/proc/", process_, "/task/", process_, "/children"));
    for (pid_t child = 0; children >> child;) {
      std::ifstream file(absl::StrCat("/proc/", child, "/environ"));
      std::stringstream text;
      text << file.rdbuf();
      for (const auto& entry : absl::StrSplit(text.str(), '\0')) {
        if (entry == wanted) return child;
      }
    }
    return -1;
  }
  // Returns false if the rank does not run: kill(-1) would kill every process of the machine.
  bool kill_rank(int rank) const {
    const pid_t process = process_of_rank(rank);
    return process > 0 && kill(process, SIGKILL) == 0;
  }

  // Reads to the end of the job, which is asked to stop. Returns its exit code.
  int finish_without_waiting() {
    const auto asked = std::chrono::steady_clock::now();
    const int code = finish();
    EXPECT_LT(std::chrono::steady_clock::now() - asked, kNoWait) << output_ << errors_;
    return code;
  }

  // Runs a job whose processes are restarted. Each of `victims` is killed two epochs after the one
  // before.
  void run_under_kills(int trainers, const std::vector<int>& victims,
                       std::vector<std::string> job) {
    const std::string program =
        absl::StrCat(WEFT_BUILD_DIR, "/tests/examples/parameter_server_with_ledger");
    job.insert(job.begin(), {program, "--ledger", folder_ / "ledger"});
    job.insert(job.end(), {"--limit", "2000", "--epochs", absl::StrCat(2 + 2 * victims.size())});
    launch(trainers, "restart=9", job);
    int epoch = 1;
    for (const int victim : victims) {
      read_until(absl::StrCat("epoch ", epoch, " of"));
      ASSERT_TRUE(kill_rank(victim)) << output_ << errors_;
      epoch += 2;
    }
    ASSERT_EQ(finish(), 0) << output_ << errors_;
    EXPECT_THAT(last_line(), MatchesRegex(kLastLine)) << errors_;
  }

  struct Line {
    uint64_t last = 0;         // step
    uint64_t most_redone = 0;  // after one loss
    int returns = 0;
  };
  // Follows the step sequence of a trainer: one step after the other, and never back before a
  // durable one.
  Line follow_ledger(int trainer) const {
    Line line;
    uint64_t durable = 0;
    std::ifstream file(folder_ / absl::StrCat("ledger/trainer", trainer, ".csv"));
    for (std::string text; std::getline(file, text);) {
      const std::vector<std::string> fields = absl::StrSplit(text, ',');
      const uint64_t step = std::stoull(fields.at(2));
      if (fields.at(1) == "applied") {
        EXPECT_EQ(step, line.last + 1) << text;
        durable = std::max<uint64_t>(durable, std::stoull(fields.at(3)));
      } else {
        EXPECT_GE(step, durable) << text;
        EXPECT_LE(step, line.last + 1) << text;  // only one step more: its answer may be lost
        if (step < line.last) line.most_redone = std::max(line.most_redone, line.last - step);
        ++line.returns;
      }
      line.last = step;
    }
    EXPECT_GT(durable, 0u);
    return line;
  }
  double adam_steps() const {
    const auto saved = CheckpointFolder(folder_ / "out/checkpoint").load_newest();
    if (!saved.ok()) return -1;
    return saved->shards.at("optimizer").tensors.at("1/hidden.weight/step").item<double>();
  }

  std::string last_line() const {
    const std::vector<std::string> lines = absl::StrSplit(output_, '\n', absl::SkipEmpty());
    return lines.empty() ? "" : lines.back();
  }
  double accuracy() const {
    const std::vector<std::string> words = absl::StrSplit(last_line(), ' ');
    double accuracy = -1;
    if (words.size() > 2) (void)absl::SimpleAtod(words[2], &accuracy);
    return accuracy;
  }

  std::filesystem::path folder_;
};

TEST_F(ParameterServerJob, TwoTrainersLearnAndLeaveCurvesAndACheckpoint) {
  ASSERT_EQ(run(2, {"--limit", "2000", "--epochs", "2"}), 0) << errors_;
  EXPECT_THAT(last_line(), MatchesRegex(kLastLine));
  EXPECT_THAT(last_line(), HasSubstr("after 2 epochs, 3 workers, "));
  // 60 runs ended between 0.57 and 0.73, because the trainers' steps come in another order each
  // time. A model that learns nothing has 0.1.
  EXPECT_GT(accuracy(), 0.4);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/curves.csv"));
  EXPECT_GT(std::filesystem::file_size(folder_ / "out/curves.png"), 1000u);
  const auto saved = CheckpointFolder(folder_ / "out/checkpoint").load_newest();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->info.epoch, 2);
  EXPECT_TRUE(saved->shards.contains("trainer"));
  EXPECT_TRUE(saved->shards.contains("server"));
  EXPECT_TRUE(saved->shards.contains("optimizer"));
}

// The dropout is so large that an evaluation in training mode would be noticed.
TEST_F(ParameterServerJob, LearnsFromATenthOfThePicturesAndIsTestedOnAllWithNothingDropped) {
  const absl::StatusOr<FashionMnist> real = load_fashion_mnist();
  ASSERT_TRUE(real.ok()) << real.status();
  ASSERT_EQ(real->test.size(), 10'000);
  const std::filesystem::path data = folder_ / "data";
  std::filesystem::create_directories(data);
  testing::write_data_part(
      data, "train",
      {real->train.images.narrow(0, 0, 6000), real->train.labels.narrow(0, 0, 6000)});
  testing::write_data_part(data, "t10k", real->test);

  ASSERT_EQ(run(2, {"--data", data, "--epochs", "3", "--eval-every", "3", "--dropout", "0.5"}), 0)
      << errors_;
  EXPECT_THAT(last_line(), HasSubstr("after 3 epochs, 3 workers, "));
  EXPECT_GT(accuracy(), 0.7);
  const absl::StatusOr<Checkpoint> saved =
      CheckpointFolder(folder_ / "out/checkpoint").load_newest();
  ASSERT_TRUE(saved.ok()) << saved.status();
  at::set_num_threads(1);  // as in the job: sums of the same numbers in the same order
  EXPECT_NEAR(accuracy(), testing::accuracy_of(*saved, real->test), 5e-4);
}

TEST_F(ParameterServerJob, WorkersOfTheProtocolBeforeJoinTrainAndLeave) {
  const std::string program =
      absl::StrCat(WEFT_BUILD_DIR, "/examples/parameter_server/parameter_server");
  const std::string earlier = absl::StrCat(kProtocols.newest - 1);
  // The server and one trainer, then the other trainer.
  for (const char* parity : {"0", "1"}) {
    SCOPED_TRACE(parity);
    launch(2, "end",
           {"sh", "-c",
            absl::StrCat("[ $((RANK % 2)) = ", parity,
                         " ] && export WEFT_NEWEST_PROTOCOL=", earlier, "; exec \"$0\" \"$@\""),
            program, "--limit", "2000", "--epochs", "2"});
    ASSERT_EQ(finish(), 0) << errors_;
    EXPECT_GT(accuracy(), 0.4);
  }
}

TEST_F(ParameterServerJob, ResumesAfterTheLastFinishedEpoch) {
  const std::string folder = folder_ / "saved";
  ASSERT_EQ(run(2, {"--limit", "1000", "--epochs", "1", "--checkpoint", folder}), 0) << errors_;
  EXPECT_NE(run(2, {"--limit", "1000", "--epochs", "2", "--checkpoint", folder}), 0);
  EXPECT_THAT(errors_, HasSubstr("--resume"));
  ASSERT_EQ(run(2, {"--limit", "1000", "--epochs", "2", "--checkpoint", folder, "--resume"}), 0)
      << errors_;
  EXPECT_THAT(output_, Not(HasSubstr("epoch 1 of 2")));
  EXPECT_THAT(output_, HasSubstr("epoch 2 of 2"));
  EXPECT_THAT(last_line(), HasSubstr("after 2 epochs"));
  // After the last epoch nothing is trained. The same weights give the same accuracy.
  const double before = accuracy();
  ASSERT_EQ(run(1, {"--limit", "1000", "--epochs", "2", "--checkpoint", folder, "--resume"}), 0)
      << errors_;
  EXPECT_EQ(accuracy(), before);
}

// A scheduler sends SIGTERM to the launcher, which passes it on.
TEST_F(ParameterServerJob, AStoppedRunSavesAndEndsAsIfItHadNotStopped) {
  // 500 steps in each epoch
  const std::vector<std::string> job = {"--limit",   "1000", "--batch",  "2",
                                        "--dropout", "0",    "--epochs", "4"};
  const auto saved = [this](const std::string& name) {
    return CheckpointFolder(folder_ / name).load_newest();
  };
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    return more;
  };
  ASSERT_EQ(run(1, with({"--checkpoint", folder_ / "whole"})), 0) << errors_;
  const auto whole = saved("whole");
  ASSERT_TRUE(whole.ok()) << whole.status();

  output_.clear();
  start(1, with({"--checkpoint", folder_ / "parts"}));
  read_until("epoch 1 of");
  ASSERT_EQ(kill(process_, SIGTERM), 0);
  EXPECT_EQ(finish(), kStoppedExitCode) << output_ << errors_;
  EXPECT_THAT(last_line(), MatchesRegex("stopped after step [0-9]+"));
  EXPECT_THAT(errors_, Not(HasSubstr("weft_launch:"))) << "nothing failed";
  const auto inside = saved("parts");
  ASSERT_TRUE(inside.ok()) << inside.status();
  EXPECT_EQ(last_line(), absl::StrCat("stopped after step ", inside->info.step));

  ASSERT_EQ(run(1, with({"--checkpoint", folder_ / "parts", "--resume"})), 0) << errors_;
  const auto parts = saved("parts");
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->info.step, whole->info.step);
  EXPECT_EQ(parts->info.metadata.at("accuracy"), whole->info.metadata.at("accuracy"));
  for (const auto& [shard, content] : whole->shards) {
    for (const auto& [name, value] : content.tensors) {
      if (name == "steps") continue;  // counts of one run of the optimizer
      EXPECT_TRUE(value.equal(parts->shards.at(shard).tensors.at(name))) << shard << " " << name;
    }
  }
}

TEST_F(ParameterServerJob, SigtermToOneProcessStopsAll) {
  constexpr int64_t kStepsPerEpoch = 200;
  for (const char* every : {"", "100"}) {  // the server's own checkpoints
    for (const int rank : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " ", every));
      output_.clear();
      errors_.clear();
      std::vector<std::string> job = {"--limit", "1600", "--batch", "4", "--epochs", "500"};
      if (*every != '\0') {
        job.emplace_back("--checkpoint-every");
        job.emplace_back(every);
      }
      start(2, job);
      read_until("epoch 1 of");
      const pid_t process = process_of_rank(rank);
      ASSERT_GT(process, 0) << output_ << errors_;
      ASSERT_EQ(kill(process, SIGTERM), 0);
      EXPECT_EQ(finish_without_waiting(), kStoppedExitCode) << output_ << errors_;
      // The launcher was not asked, so it reports every process whose exit code is not 0.
      const std::vector<std::string> parts =
          absl::StrSplit(output_ + errors_, "ended with exit code 143");
      EXPECT_EQ(parts.size(), 1 + 3u) << errors_;
      const auto saved = CheckpointFolder(folder_ / "out/checkpoint").load_newest();
      ASSERT_TRUE(saved.ok()) << saved.status();
      EXPECT_THAT(output_, HasSubstr(absl::StrCat("stopped after step ", saved->info.step)));
      // None if the job has stopped at the end of an epoch.
      EXPECT_EQ(saved->info.metadata.at("pictures"),
                absl::StrCat(saved->info.step % kStepsPerEpoch * 4 * 2));
    }
  }
}

TEST_F(ParameterServerJob, AJobThatTwoTrainersStoppedGoesOnWithOne) {
  const std::string folder = folder_ / "saved";
  const std::vector<std::string> job = {"--limit", "1600", "--batch", "4", "--checkpoint", folder};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    return more;
  };
  start(2, with({"--epochs", "500"}));
  read_until("epoch 1 of");
  ASSERT_EQ(kill(process_, SIGTERM), 0);
  EXPECT_EQ(finish(), kStoppedExitCode) << output_ << errors_;
  const auto stopped = CheckpointFolder(folder).load_newest();
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  int64_t pictures = -1;  // of the epoch
  ASSERT_TRUE(absl::SimpleAtoi(stopped->info.metadata.at("pictures"), &pictures));

  const std::string epochs = absl::StrCat(stopped->info.epoch + 1);
  ASSERT_EQ(run(1, with({"--epochs", epochs, "--resume"})), 0) << errors_;
  const auto ended = CheckpointFolder(folder).load_newest();
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->info.step, stopped->info.step + (1600 - pictures) / 4);
}

TEST_F(ParameterServerJob, AfterSigtermTheServerDoesNotWaitForDeadTrainers) {
  start(2, {"--limit", "600", "--epochs", "500", "--checkpoint-every", "100"});
  read_until("epoch 1 of");
  const pid_t server = process_of_rank(0);
  ASSERT_GT(server, 0) << output_ << errors_;
  ASSERT_TRUE(kill_rank(1) && kill_rank(2)) << output_ << errors_;
  ASSERT_EQ(kill(server, SIGTERM), 0);
  EXPECT_EQ(finish_without_waiting(), 128 + SIGKILL);  // the launcher's report of a killed rank
  EXPECT_THAT(errors_, Not(HasSubstr("rank 0 (pid"))) << "the server's exit code is 0";
}

// The server is halted before the trainers are asked, so they cannot save.
TEST_F(ParameterServerJob, AfterSigtermTrainersDoNotWaitForADeadServer) {
  start(2, {"--limit", "600", "--epochs", "500", "--checkpoint-every", "100"});
  read_until("epoch 1 of");
  std::vector<pid_t> processes;
  for (const int rank : {0, 1, 2}) {
    processes.push_back(process_of_rank(rank));
    ASSERT_GT(processes.back(), 0) << output_ << errors_;
  }
  ASSERT_EQ(kill(processes[0], SIGSTOP), 0);
  ASSERT_EQ(kill(processes[1], SIGTERM), 0);
  ASSERT_EQ(kill(processes[2], SIGTERM), 0);
  ASSERT_EQ(kill(processes[0], SIGKILL), 0);
  EXPECT_NE(finish_without_waiting(), 0);
  EXPECT_THAT(errors_, HasSubstr("trainer1: "));
  EXPECT_THAT(errors_, HasSubstr("trainer2: "));
}

TEST_F(ParameterServerJob, AKilledTrainerIsNamedAndTheOthersFinish) {
  for (const int victim : {1, 2}) {
    SCOPED_TRACE(victim);
    output_.clear();
    errors_.clear();
    start(2, {"--limit", "600", "--epochs", "12"});
    read_until("epoch 2 of");
    ASSERT_TRUE(kill_rank(victim)) << output_ << errors_;
    EXPECT_EQ(finish(), 128 + SIGKILL);  // the launcher's report of the killed rank
    EXPECT_THAT(errors_, HasSubstr(absl::StrCat("trainer", victim, " has died")));
    EXPECT_THAT(last_line(), MatchesRegex(kLastLine)) << errors_;
  }
}

TEST_F(ParameterServerJob, AKilledServerIsAnErrorOnEveryTrainerWithinThreeSeconds) {
  start(2, {"--limit", "600", "--epochs", "500"});
  read_until("epoch 2 of");
  const auto killed_at = std::chrono::steady_clock::now();
  ASSERT_TRUE(kill_rank(0)) << output_ << errors_;
  const std::vector<std::string> said = {"trainer1: lost worker 'ps'",
                                         "trainer2: lost worker 'ps'"};
  const auto all_said = [&] {
    return absl::StrContains(errors_, said[0]) && absl::StrContains(errors_, said[1]);
  };
  while (!all_said() && read_some()) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(3));
  EXPECT_TRUE(all_said()) << errors_;
  EXPECT_NE(finish(), 0);
}

TEST_F(ParameterServerJob, KilledProcessesComeBackAndNoStepCountsTwiceOrIsLost) {
  run_under_kills(2, {0, 1, 2}, {"--checkpoint-every", "10"});
  const Line one = follow_ledger(1), two = follow_ledger(2);
  EXPECT_EQ(adam_steps(), static_cast<double>(one.last + two.last));
  EXPECT_GE(one.returns, 2);  // one for the server, one for its own restart
  EXPECT_GE(two.returns, 2);
  EXPECT_LT(std::max(one.most_redone, two.most_redone), 2 * 10u);
  EXPECT_GT(accuracy(), 0.6);
}

// While the only trainer is dead, the server has no client.
TEST_F(ParameterServerJob, AnOnlyTrainerComesBackToItsServer) {
  run_under_kills(1, {1, 1}, {"--checkpoint-every", "10"});
  const Line line = follow_ledger(1);
  EXPECT_EQ(adam_steps(), static_cast<double>(line.last));
  EXPECT_EQ(line.last, 6u * 32);  // no batch came twice, and none was skipped
  EXPECT_EQ(line.most_redone, 0u);
}

TEST_F(ParameterServerJob, WithEveryStepDurableNoneIsDoneAgain) {
  run_under_kills(2, {0, 0}, {"--durable", "every-step"});
  const Line one = follow_ledger(1), two = follow_ledger(2);
  EXPECT_EQ(adam_steps(), static_cast<double>(one.last + two.last)) << output_ << errors_;
  EXPECT_GE(one.returns, 2);
  EXPECT_EQ(one.most_redone + two.most_redone, 0u);
  EXPECT_THAT(errors_, HasSubstr("the server saved itself"));
}

TEST_F(ParameterServerJob, MissingAndDamagedDataFilesAreNamed) {
  EXPECT_NE(run(1, {"--data", folder_ / "nothing"}), 0);
  EXPECT_THAT(errors_, HasSubstr((folder_ / "nothing").string()));

  const std::filesystem::path data = folder_ / "data";
  std::filesystem::copy(kFashionMnistFolder, data);
  const std::filesystem::path labels = data / "train-labels-idx1-ubyte.gz";
  std::filesystem::resize_file(labels, std::filesystem::file_size(labels) / 2);
  EXPECT_NE(run(1, {"--data", data}), 0);
  EXPECT_THAT(errors_, HasSubstr(labels.string()));
  std::filesystem::remove(labels);
  EXPECT_NE(run(1, {"--data", data}), 0);
  EXPECT_THAT(errors_, HasSubstr(labels.string()));
}

TEST_F(ParameterServerJob, HelpNeedsNoGroup) {
  const std::string program =
      absl::StrCat(WEFT_BUILD_DIR, "/examples/parameter_server/parameter_server");
  start_command({program, "--help"});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(output_, HasSubstr("--trainers 4"));
}

TEST_F(ParameterServerJob, MissingAndDamagedCheckpointsAreNamed) {
  const std::string saved = folder_ / "saved";
  EXPECT_NE(run(1, {"--checkpoint", saved, "--resume"}), 0);
  EXPECT_THAT(errors_, HasSubstr(saved));
  ASSERT_EQ(run(1, {"--limit", "200", "--epochs", "1", "--checkpoint", saved}), 0) << errors_;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(saved)) {
    if (entry.path().filename() != "server.safetensors") continue;
    std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 1);
  }
  EXPECT_NE(run(1, {"--epochs", "2", "--checkpoint", saved, "--resume"}), 0);
  EXPECT_THAT(errors_, HasSubstr("server.safetensors"));
}

}  // namespace
}  // namespace weft::examples
