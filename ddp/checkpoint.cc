#include "weft/ddp/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/ddp/internal/checkpoint_agreement.h"
#include "weft/ddp/internal/move_states.h"
#include "weft/ddp/internal/old_checkpoint.h"
#include "weft/ddp/internal/optimizer_archive.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using ddp_internal::CheckpointAgreement;
using ddp_internal::FoundCheckpoint;
using ddp_internal::LoadedCheckpoint;
using torch::nn::Module;
using torch::optim::Optimizer;

constexpr std::string_view kPrefix = "module.";
constexpr const char* kModelShard = "model";
constexpr const char* kOptimizerShard = "optimizer";
constexpr const char* kStep = "step";
constexpr const char* kSamplerPosition = "sampler_position";

std::string what(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// The error text of a step; "" if it did not fail.
std::string error_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    const std::string text = what(error);
    return text.empty() ? "an error without a text" : text;
  }
  return "";
}

[[noreturn]] void fail(const absl::Status& status) {
  C10_THROW_ERROR(ValueError, std::string(status.message()));
}

// Removes the prefix if all names have it.
TensorMap unwrapped(TensorMap tensors) {
  const bool wrapped = std::all_of(tensors.begin(), tensors.end(), [](const auto& item) {
    return item.first.starts_with(kPrefix);
  });
  if (!wrapped) return tensors;
  TensorMap bare;
  for (auto& [name, tensor] : tensors) bare.emplace(name.substr(kPrefix.size()), tensor);
  return bare;
}

TensorMap tensors_of(const Module& module) {
  TensorMap tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value());
  return unwrapped(std::move(tensors));
}

// ---- an archive of an earlier release at the path of the folder

// "run/" names the folder "run".
std::string folder_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty()) C10_THROW_ERROR(ValueError, "the path of a checkpoint is empty");
  return path;
}

// save_checkpoint moves it here until the folder has a complete checkpoint.
std::string moved_archive(const std::string& path) { return path + ".old-archive"; }

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The archive that holds the checkpoint of a path without a complete checkpoint in its folder.
std::optional<std::string> archive_at(const std::string& path) {
  if (is_file(path)) return path;
  if (is_file(moved_archive(path))) return moved_archive(path);
  return std::nullopt;
}

// While it exists, an archive at the path is at moved_archive(). If nothing is saved, it goes back.
class ArchiveAway {
 public:
  explicit ArchiveAway(std::string path) : path_(std::move(path)) {}
  ~ArchiveAway() {
    if (!moved_) return;
    std::error_code ignored;
    fs::remove(fs::path(path_) / "lock", ignored);
    fs::remove(path_, ignored);  // the folder, if it is empty
    fs::rename(moved_archive(path_), path_, ignored);
  }
  ArchiveAway(const ArchiveAway&) = delete;
  ArchiveAway& operator=(const ArchiveAway&) = delete;

  absl::Status move() {
    if (!is_file(path_)) return absl::OkStatus();
    if (std::rename(path_.c_str(), moved_archive(path_).c_str()) != 0) {
      return file_error("cannot move away", path_, errno);
    }
    moved_ = true;
    return absl::OkStatus();
  }
  // The folder has a complete checkpoint.
  void remove() {
    moved_ = false;
    std::error_code failed;
    if (is_file(moved_archive(path_))) fs::remove(moved_archive(path_), failed);
    if (failed) log_warning("cannot remove ", moved_archive(path_), ": ", failed.message());
  }

 private:
  const std::string path_;
  bool moved_ = false;
};

// ---- saving

struct State {
  CheckpointInfo info;
  TensorMap model;
  std::optional<StateFile> optimizer;
};

absl::Status write_step(const CheckpointFolder& folder, const State& state) {
  std::vector<ShardRecord> shards(1);
  const int64_t step = state.info.step;
  WEFT_ASSIGN_OR_RETURN(shards[0], folder.save_shard(step, kModelShard, state.model));
  if (state.optimizer) {
    WEFT_ASSIGN_OR_RETURN(ShardRecord shard,
                          folder.save_shard(step, kOptimizerShard, state.optimizer->tensors,
                                            state.optimizer->metadata));
    shards.push_back(std::move(shard));
  }
  return folder.commit(state.info, shards);
}

// A commit removes the other steps of the folder, so all of them must be save_checkpoint's.
absl::Status check_own(const CheckpointFolder& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, folder.steps());
  for (const int64_t step : steps) {
    WEFT_ASSIGN_OR_RETURN(const CheckpointInfo info, folder.info(step));
    if (!info.metadata.contains(kStep) || !info.metadata.contains(kSamplerPosition)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the folder holds a checkpoint that save_checkpoint did not write, step ",
                       step, ": choose another folder"));
    }
  }
  return absl::OkStatus();
}

// Until the commit, the path has its old checkpoint: in the folder, or in the moved archive.
absl::Status write(const std::string& path, State state) {
  ArchiveAway archive(path);
  WEFT_RETURN_IF_ERROR(archive.move());
  CheckpointFolder::Options options;
  options.keep = 1;
  const CheckpointFolder folder(path, options);
  WEFT_RETURN_IF_ERROR(check_own(folder));
  WEFT_ASSIGN_OR_RETURN(state.info.step, folder.new_step());
  absl::Status saved;
  try {
    saved = write_step(folder, state);
  } catch (...) {  // no memory
    (void)folder.discard(state.info.step);
    throw;
  }
  if (absl::IsAborted(saved)) {  // complete, but an older step could not be removed
    log_warning(saved.message());
  } else if (!saved.ok()) {
    (void)folder.discard(state.info.step);  // the next save would remove it too
    return saved;
  }
  archive.remove();
  return absl::OkStatus();
}

// ---- loading

// Of all that the ranks must have in common.
uint64_t hash_of(const std::map<std::string, StateFile>& shards, uint64_t& bytes) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto add_number = [&](uint64_t number) {
    XXH3_64bits_update(&state, &number, sizeof(number));
  };
  const auto add_text = [&](const std::string& text) {
    add_number(text.size());
    XXH3_64bits_update(&state, text.data(), text.size());
  };
  for (const auto& [shard, file] : shards) {
    add_text(shard);
    add_number(file.metadata.size());
    for (const auto& [name, text] : file.metadata) {
      add_text(name);
      add_text(text);
    }
    for (const auto& [name, tensor] : file.tensors) {
      add_text(name);
      add_number(static_cast<uint64_t>(tensor.scalar_type()));
      add_number(static_cast<uint64_t>(tensor.dim()));
      for (const int64_t size : tensor.sizes()) add_number(static_cast<uint64_t>(size));
      XXH3_64bits_update(&state, tensor.const_data_ptr(), tensor.nbytes());
      bytes += tensor.nbytes();
    }
  }
  return XXH3_64bits_digest(&state);
}

LoadedCheckpoint read_folder(const std::string& path, Checkpoint checkpoint, bool with_optimizer) {
  const std::string step = absl::StrCat("step ", checkpoint.info.step, " in ", path);
  const auto number = [&](const char* key) {
    const auto found = checkpoint.info.metadata.find(key);
    int64_t value = 0;
    if (found == checkpoint.info.metadata.end() || !absl::SimpleAtoi(found->second, &value)) {
      C10_THROW_ERROR(ValueError, absl::StrCat(step,
                                               " was not written by save_checkpoint: its "
                                               "manifest has no number '",
                                               key, "'"));
    }
    return value;
  };
  LoadedCheckpoint loaded;
  FoundCheckpoint& found = loaded.found;
  found.progress = {.epoch = checkpoint.info.epoch,
                    .step = number(kStep),
                    .sampler_position = number(kSamplerPosition)};
  found.hash = hash_of(checkpoint.shards, found.bytes);
  const auto model = checkpoint.shards.find(kModelShard);
  if (model == checkpoint.shards.end()) {
    C10_THROW_ERROR(ValueError, absl::StrCat(step,
                                             " was not written by save_checkpoint: it has "
                                             "no shard '",
                                             kModelShard, "'"));
  }
  loaded.tensors = std::move(model->second.tensors);
  const auto optimizer = checkpoint.shards.find(kOptimizerShard);
  if (with_optimizer && optimizer != checkpoint.shards.end()) {
    loaded.optimizer = ddp_internal::optimizer_archive(optimizer->second);
  }
  return loaded;
}

void check_fit(const TensorMap& module, const TensorMap& file) {
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : module) {
    const auto found = file.find(name);
    if (found == file.end()) {
      faults.push_back(absl::StrCat("the checkpoint has no '", name, "'"));
    } else if (found->second.sizes() != tensor.sizes()) {
      faults.push_back(absl::StrCat("'", name, "' is ", c10::str(found->second.sizes()),
                                    " in the checkpoint and ", c10::str(tensor.sizes()),
                                    " in the module"));
    }
  }
  for (const auto& [name, tensor] : file) {
    if (module.count(name) == 0) faults.push_back(absl::StrCat("the module has no '", name, "'"));
  }
  if (!faults.empty()) C10_THROW_ERROR(ValueError, absl::StrJoin(faults, ", "));
}

LoadedCheckpoint read(const std::string& path, const Module& module, bool with_optimizer,
                      bool warns) {
  const CheckpointFolder folder(path);
  std::optional<std::string> archive;
  if (is_file(path) || folder.steps().value_or(std::vector<int64_t>{0}).empty()) {
    archive = archive_at(path);
  }
  LoadedCheckpoint loaded;
  if (archive) {
    loaded = ddp_internal::read_old_checkpoint(*archive);
    if (warns) {
      log_warning("the checkpoint ", *archive,
                  " is an archive of an earlier release, which the "
                  "next release cannot read: load it and call save_checkpoint with ",
                  path, " again, which replaces it by a folder");
    }
  } else {
    absl::StatusOr<Checkpoint> checkpoint = folder.load_newest();
    if (!checkpoint.ok()) fail(checkpoint.status());
    loaded = read_folder(path, *std::move(checkpoint), with_optimizer);
  }
  loaded.tensors = unwrapped(std::move(loaded.tensors));
  check_fit(tensors_of(module), loaded.tensors);
  if (with_optimizer && !loaded.optimizer) {
    C10_THROW_ERROR(ValueError, "the checkpoint was saved without an optimizer");
  }
  return loaded;
}

}  // namespace

void save_checkpoint(ProcessGroup& group, const std::string& path, const Module& module,
                     const Optimizer* optimizer, const CheckpointProgress& progress) {
  CheckpointAgreement agreement(group, module, absl::StrCat("save_checkpoint ", path, ": "));
  // No rank gets past the agreement before rank 0 reaches it, and rank 0 writes first.
  std::string error;
  if (group.rank() == 0) {
    error = error_of([&] {
      const at::NoGradGuard no_grad;
      State state;
      state.info.epoch = progress.epoch;
      state.info.world_size = group.size();
      state.info.metadata = {{kStep, absl::StrCat(progress.step)},
                             {kSamplerPosition, absl::StrCat(progress.sampler_position)}};
      state.model = tensors_of(module);
      if (optimizer != nullptr) state.optimizer = ddp_internal::optimizer_state(*optimizer);
      const absl::Status saved = write(folder_of(path), std::move(state));
      if (!saved.ok()) fail(saved);
    });
  }
  agreement.reach(error, {});
}

CheckpointProgress load_checkpoint(ProcessGroup& group, const std::string& path, Module& module,
                                   Optimizer* optimizer) {
  CheckpointAgreement agreement(group, module, absl::StrCat("load_checkpoint ", path, ": "));
  LoadedCheckpoint loaded;
  agreement.reach(error_of([&] {
                    loaded = read(folder_of(path), module, optimizer != nullptr,
                                  /*warns=*/group.rank() == 0);
                  }),
                  loaded.found);
  const at::NoGradGuard no_grad;
  agreement.reach(error_of([&] {
                    if (optimizer == nullptr) return;
                    optimizer->load(*loaded.optimizer);
                    ddp_internal::move_states_to_parameters(*optimizer);
                  }),
                  loaded.found);
  for (const auto& [name, tensor] : tensors_of(module)) tensor.copy_(loaded.tensors.at(name));
  return loaded.found.progress;
}

}  // namespace weft
