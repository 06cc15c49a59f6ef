#include "weft/examples/parameter_server/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/examples/support/must.h"

namespace weft::examples {
namespace {

constexpr const char* kRun = "run";            // metadata of a checkpoint: the run that saved it
constexpr const char* kAccuracy = "accuracy";  // and the accuracy that it had
constexpr const char* kPictures = "pictures";  // Moment::pictures
constexpr const char* kTrainerShard = "trainer";
constexpr const char* kServerShard = "server";
constexpr const char* kOptimizerShard = "optimizer";

TensorMap tensors_of(const Checkpoint& checkpoint, const char* shard, const std::string& folder) {
  const auto found = checkpoint.shards.find(shard);
  if (found == checkpoint.shards.end()) {
    throw RpcError(
        absl::DataLossError(absl::StrCat("the checkpoint in ", folder, " has no shard ", shard)));
  }
  return found->second.tensors;
}

std::optional<double> accuracy_in(const CheckpointInfo& info) {
  double accuracy = 0;
  const auto saved = info.metadata.find(kAccuracy);
  if (saved == info.metadata.end() || !absl::SimpleAtod(saved->second, &accuracy)) return {};
  return accuracy;
}

// 0 if there is no entry: an earlier version, which saved only after an epoch, wrote none.
int64_t pictures_in(const CheckpointInfo& info, const std::string& folder) {
  int64_t pictures = 0;
  const auto saved = info.metadata.find(kPictures);
  if (saved == info.metadata.end()) return 0;
  if (!absl::SimpleAtoi(saved->second, &pictures) || pictures < 0) {
    throw RpcError(
        absl::DataLossError(absl::StrCat("the checkpoint in ", folder, " has ", kPictures, "=",
                                         saved->second, ", which is not a number of pictures")));
  }
  return pictures;
}

}  // namespace

JobCheckpoints::JobCheckpoints(const JobOptions& options)
    : options_(options), folder_(options.checkpoint_folder()) {}

bool JobCheckpoints::must_clear() const {
  if (options_.resume || empty()) return false;
  if (options_.checkpoint.empty()) return true;
  throw RpcError(absl::AlreadyExistsError(
      absl::StrCat("folder ", folder_.root(),
                   " holds the checkpoints of another run; go on from them with --resume, or "
                   "choose an empty folder")));
}

void JobCheckpoints::clear() const { std::filesystem::remove_all(folder_.root()); }

bool JobCheckpoints::empty() const { return must(folder_.steps()).empty(); }

bool JobCheckpoints::is_over() const {
  const std::vector<int64_t> saved = must(folder_.steps());
  if (saved.empty()) return false;
  CheckpointInfo info = must(folder_.info(saved.back()));
  // Without an accuracy it lies inside the next epoch: a run with more epochs has stopped there.
  return info.epoch == options_.epochs && info.metadata[kRun] == options_.run && accuracy_in(info);
}

bool JobCheckpoints::holds(int64_t step) const {
  const std::vector<int64_t> saved = must(folder_.steps());
  return std::find(saved.begin(), saved.end(), step) != saved.end();
}

std::optional<double> JobCheckpoints::accuracy(int64_t step) const {
  if (!holds(step)) return {};
  CheckpointInfo info = must(folder_.info(step));
  if (info.metadata[kRun] != options_.run) return {};
  return accuracy_in(info);
}

std::optional<double> JobCheckpoints::last_accuracy() const {
  return accuracy_in(must(folder_.info(must(folder_.steps()).back())));
}

void JobCheckpoints::save(const Moment& moment, std::optional<double> accuracy,
                          size_t workers) const {
  CheckpointInfo info{
      .step = moment.step,
      .epoch = moment.epoch,
      .world_size = static_cast<int64_t>(workers),
      .seed = options_.seed,
      .metadata = {{kRun, options_.run}, {kPictures, absl::StrCat(moment.pictures)}}};
  if (accuracy) info.metadata[kAccuracy] = absl::StrCat(*accuracy);
  must(folder_.save(info, {{kTrainerShard, moment.state.trainer},
                           {kServerShard, moment.state.server},
                           {kOptimizerShard, moment.state.optimizer}}));
}

JobCheckpoints::Moment JobCheckpoints::load_newest() const {
  const Checkpoint checkpoint = must(folder_.load_newest());
  if (checkpoint.info.seed != options_.seed) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("the checkpoint in ", folder_.root(), " was made with --seed ",
                     checkpoint.info.seed, ", not ", options_.seed)));
  }
  const int64_t epoch = checkpoint.info.epoch;
  const int64_t pictures = pictures_in(checkpoint.info, folder_.root());
  if (epoch > options_.epochs || (epoch == options_.epochs && pictures > 0)) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("the checkpoint in ", folder_.root(), " is of epoch ",
                     pictures > 0 ? epoch + 1 : epoch, ", behind --epochs ", options_.epochs)));
  }
  return {.step = checkpoint.info.step,
          .epoch = epoch,
          .pictures = pictures,
          .state = {tensors_of(checkpoint, kTrainerShard, folder_.root()),
                    tensors_of(checkpoint, kServerShard, folder_.root()),
                    tensors_of(checkpoint, kOptimizerShard, folder_.root())}};
}

}  // namespace weft::examples
