#include "weft/checkpoint/step_snapshot.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft::checkpoint_internal {
namespace {

constexpr const char* kShard = "owner";
constexpr std::string_view kParameter = "parameter/";

std::string prefix_of(size_t optimizer) { return absl::StrCat("optimizer/", optimizer, "/"); }
std::string name_key(size_t optimizer) { return absl::StrCat(prefix_of(optimizer), "name"); }
// The keys of a checkpoint call a step sequence a line.
std::string sequence_prefix(size_t optimizer) {
  return absl::StrCat(prefix_of(optimizer), "line/");
}

}  // namespace

absl::StatusOr<int64_t> write_snapshot(const CheckpointFolder& folder,
                                       const StepSnapshot& snapshot) {
  WEFT_RETURN_IF_ERROR(folder.check_claim());  // before anything is written
  CheckpointInfo info;
  WEFT_ASSIGN_OR_RETURN(info.step, folder.new_step());
  TensorMap tensors;
  for (const auto& [name, value] : snapshot.parameters) {
    tensors[std::string(kParameter) + name] = value;
  }
  size_t place = 0;
  for (const auto& [name, optimizer] : snapshot.optimizers) {
    for (const auto& [field, value] : optimizer.state) tensors[prefix_of(place) + field] = value;
    info.metadata[name_key(place)] = name;
    for (const auto& [sequence, number] : optimizer.sequences) {
      info.metadata[sequence_prefix(place) + sequence] = absl::StrCat(number);
    }
    ++place;
  }
  absl::Status saved;
  try {
    saved = folder.save(info, {{kShard, tensors}});
  } catch (...) {  // no memory: remove the files, or each failed attempt would leave a folder
    (void)folder.discard(info.step);
    throw;
  }
  if (saved.ok()) return info.step;
  if (absl::IsAborted(saved)) {  // complete, but an older step could not be removed
    log_warning(saved.message());
    return info.step;
  }
  const absl::Status removed = folder.discard(info.step);
  // FailedPrecondition: the manifest is in place and only the flush of the folder failed. The step
  // stays, and the next snapshot gets another step.
  if (!removed.ok() && !absl::IsFailedPrecondition(removed))
    log_warning("after a failed checkpoint: ", removed.ToString());
  // A later incarnation removes steps that an earlier one has not completed. Then its claim is the
  // real reason for the failure.
  absl::Status claimed = folder.check_claim();
  return absl::IsFailedPrecondition(claimed) ? claimed : saved;
}

absl::StatusOr<StepSnapshot> read_snapshot(const CheckpointFolder& folder, int64_t step) {
  WEFT_ASSIGN_OR_RETURN(Checkpoint checkpoint, folder.load(step));
  const auto fault = [&](const std::string& what) {
    return absl::DataLossError(
        absl::StrCat("step ", step, " in ", folder.root(), " is no owner's checkpoint: ", what));
  };
  const auto shard = checkpoint.shards.find(kShard);
  if (shard == checkpoint.shards.end()) return fault("it has no such shard");
  StepSnapshot snapshot;
  TensorMap& tensors = shard->second.tensors;
  const Metadata& metadata = checkpoint.info.metadata;
  for (size_t place = 0; metadata.contains(name_key(place)); ++place) {
    SavedOptimizer& optimizer = snapshot.optimizers[metadata.at(name_key(place))];
    const std::string sequences = sequence_prefix(place);
    for (auto it = metadata.lower_bound(sequences); it != metadata.end(); ++it) {
      if (!it->first.starts_with(sequences)) break;
      uint64_t& number = optimizer.sequences[it->first.substr(sequences.size())];
      if (!absl::SimpleAtoi(it->second, &number)) return fault(it->second);
    }
    const std::string prefix = prefix_of(place);
    for (auto it = tensors.lower_bound(prefix); it != tensors.end();) {
      if (!it->first.starts_with(prefix)) break;
      optimizer.state[it->first.substr(prefix.size())] = std::move(it->second);
      it = tensors.erase(it);
    }
  }
  for (auto& [name, value] : tensors) {
    if (!name.starts_with(kParameter)) return fault(name);
    snapshot.parameters[name.substr(kParameter.size())] = std::move(value);
  }
  return snapshot;
}

}  // namespace weft::checkpoint_internal
