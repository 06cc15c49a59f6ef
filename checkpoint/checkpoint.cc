#include "weft/checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/checkpoint/internal/folder_claim.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/internal/regular_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using checkpoint_internal::Manifest;
using checkpoint_internal::RegularFile;

constexpr const char* kManifestFile = "manifest.json";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kShardSuffix = ".safetensors";

std::string step_name(int64_t step) { return absl::StrFormat("step-%06d", step); }

// The step that a folder is named after, or nothing if step_name() gives another spelling for it.
std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  if (!name.starts_with(kStepPrefix) || !absl::SimpleAtoi(name.substr(kStepPrefix.size()), &step) ||
      step < 0 || step_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::string file_of(const std::string& name) { return absl::StrCat(name, absl_view(kShardSuffix)); }

// Makes the folder and the folders above it. It also flushes the entry of a folder that exists: the
// process that made the folder may have died, or failed, before the entry was on the disk.
absl::Status make_folder(const fs::path& folder, const FileCalls& calls) {
  if (folder.empty() || folder == folder.root_path()) return absl::OkStatus();
  if (!folder.has_filename()) return make_folder(folder.parent_path(), calls);  // "run/"
  const fs::path parent = folder.parent_path();
  const std::string above = parent.empty() ? "." : parent.string();
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) {
    const absl::Status flushed = flush_folder(above, calls);
    // This process may not read the folder above, so no writer with its rights made this folder.
    return absl::IsPermissionDenied(flushed) ? absl::OkStatus() : flushed;
  }
  WEFT_RETURN_IF_ERROR(make_folder(parent, calls));
  if (calls.mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return file_error("cannot make folder", folder.string(), errno);
  }
  return flush_folder(above, calls);
}

// The steps whose folders `wanted` accepts, in ascending order.
template <class Predicate>
absl::StatusOr<std::vector<int64_t>> step_folders(const std::string& root, Predicate wanted) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of(it->path().filename().string());
    if (step && wanted(it->path())) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return file_error("cannot list", root, error.value());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool has_manifest(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder / kManifestFile, ignored));
}

// Removes the manifest and flushes that removal before it removes the first file. So if a crash or
// a power cut interrupts it, the step is left incomplete and not damaged.
absl::Status remove_step(const fs::path& folder, const FileCalls& calls) {
  const fs::path page = folder / kManifestFile;
  const bool complete = has_manifest(folder);
  if (complete && calls.remove(page.c_str()) != 0 && errno != ENOENT) {
    return file_error("cannot remove", page.string(), errno);
  }
  // An incomplete step is flushed too, because an earlier removal may have been interrupted right
  // here. But then a failed flush is ignored, so that incomplete steps do not fill a disk whose
  // flushes fail.
  const absl::Status flushed = flush_folder(folder.string(), calls);
  if (absl::IsNotFound(flushed)) return absl::OkStatus();
  if (complete) WEFT_RETURN_IF_ERROR(flushed);
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    files.push_back(it->path());
  }
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  if (error) return file_error("cannot list", folder.string(), error.value());
  files.push_back(folder);
  for (const fs::path& file : files) {
    if (calls.remove(file.c_str()) == 0 || errno == ENOENT) continue;
    return file_error("cannot remove", file.string(), errno);
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string root)
    : CheckpointFolder(std::move(root), Options()) {}
CheckpointFolder::CheckpointFolder(std::string root, Options options)
    : root_(std::move(root)), options_(options) {}

std::string CheckpointFolder::step_folder(int64_t step) const {
  return absl::StrCat(root_, "/", step_name(step));
}

absl::Status CheckpointFolder::save(const CheckpointInfo& info,
                                    const std::map<std::string, TensorMap>& shards) const {
  std::vector<ShardRecord> records;
  for (const auto& [name, tensors] : shards) {
    WEFT_ASSIGN_OR_RETURN(ShardRecord record, save_shard(info.step, name, tensors));
    records.push_back(std::move(record));
  }
  return commit(info, records);
}

// ---- the claim

absl::StatusOr<checkpoint_internal::FolderLock> CheckpointFolder::lock() const {
  const std::string holder = owner_.empty() ? checkpoint_internal::name_this_process() : owner_;
  return checkpoint_internal::FolderLock::take(root_, holder, options_.lock_wait);
}

// The incarnation in the newest manifest counts as well: the steps may have been copied to this
// folder without the file `incarnation`.
absl::StatusOr<checkpoint_internal::FolderClaim> CheckpointFolder::newest_claim(
    checkpoint_internal::FolderClaim newest) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> complete, steps());
  if (complete.empty()) return newest;
  const absl::StatusOr<Manifest> last = manifest(complete.back());
  if (last.ok() && last->info.incarnation > newest.incarnation) {
    newest = {last->info.incarnation, ""};
  }
  // A damaged manifest gives no incarnation, and must not prevent a commit of a later step.
  if (!last.ok() && !absl::IsDataLoss(last.status()) && !absl::IsNotFound(last.status())) {
    return last.status();
  }
  return newest;
}

absl::Status CheckpointFolder::claim() {
  WEFT_RETURN_IF_ERROR(make_folder(root_, calls()));
  std::string owner = checkpoint_internal::name_this_process();
  WEFT_ASSIGN_OR_RETURN(const checkpoint_internal::FolderLock held,
                        checkpoint_internal::FolderLock::take(root_, owner, options_.lock_wait));
  WEFT_ASSIGN_OR_RETURN(checkpoint_internal::FolderClaim last,
                        checkpoint_internal::read_claim(root_));
  WEFT_ASSIGN_OR_RETURN(const checkpoint_internal::FolderClaim newest,
                        newest_claim(std::move(last)));
  if (newest.incarnation >= checkpoint_internal::kMaxIncarnation) {
    return absl::ResourceExhaustedError(absl::StrCat("checkpoint folder ", root_,
                                                     " is of incarnation ", newest.incarnation,
                                                     ", the last one there is"));
  }
  const uint64_t next = newest.incarnation + 1;
  WEFT_RETURN_IF_ERROR(checkpoint_internal::write_claim(root_, {next, owner}, calls()));
  incarnation_ = next;
  owner_ = std::move(owner);
  return absl::OkStatus();
}

absl::Status CheckpointFolder::check_claim() const {
  WEFT_ASSIGN_OR_RETURN(const checkpoint_internal::FolderClaim claim,
                        checkpoint_internal::read_claim(root_));
  WEFT_ASSIGN_OR_RETURN(const checkpoint_internal::FolderClaim newest, newest_claim(claim));
  // If the claim is another one than this object's, its number does not matter: the numbers begin
  // again at 1 if somebody has cleared the folder in between.
  const bool foreign =
      claim.incarnation != 0 && (claim.incarnation != incarnation_ || claim.owner != owner_);
  if (!foreign && newest.incarnation <= incarnation_) return absl::OkStatus();
  const auto in_brackets = [](const std::string& owner) {
    return owner.empty() ? "" : absl::StrCat(" (", owner, ")");
  };
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint folder ", root_, " belongs to incarnation ", newest.incarnation,
                   " of its owner", in_brackets(newest.owner), "; this is incarnation ",
                   incarnation_, in_brackets(owner_), ", which may not write there any more"));
}

absl::StatusOr<int64_t> CheckpointFolder::new_step() const {
  constexpr int kAttempts = 100;  // other writers may take the same numbers at the same time
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                        step_folders(root_, [](const fs::path&) { return true; }));
  int64_t step = all.empty() ? 0 : all.back();
  for (int attempt = 0; attempt < kAttempts && step < checkpoint_internal::kMaxStep; ++attempt) {
    const std::string folder = step_folder(++step);
    if (calls().mkdir(folder.c_str(), 0777) == 0) return step;
    if (errno == ENOENT) {
      WEFT_RETURN_IF_ERROR(make_folder(root_, calls()));
      --step;
    } else if (errno != EEXIST) {
      return file_error("cannot make folder", folder, errno);
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat("no step behind ", step, " is free in ", root_));
}

// ---- writing

absl::StatusOr<ShardRecord> CheckpointFolder::save_shard(int64_t step, const std::string& name,
                                                         const TensorMap& tensors,
                                                         const Metadata& metadata) const {
  ShardRecord record;
  record.file = file_of(name);
  WEFT_RETURN_IF_ERROR(checkpoint_internal::check_shard_file(record.file));
  if (step < 0 || step > checkpoint_internal::kMaxStep) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " is out of range"));
  }
  const std::string folder = step_folder(step);
  if (has_manifest(folder)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " is a complete checkpoint already"));
  }
  WEFT_RETURN_IF_ERROR(make_folder(folder, calls()));
  const std::string path = absl::StrCat(folder, "/", record.file);
  WEFT_RETURN_IF_ERROR(save_tensors(path, tensors, metadata, calls()));
  WEFT_ASSIGN_OR_RETURN(RegularFile file, RegularFile::open(path, RegularFile::Links::kRefuse));
  record.bytes = file.size();
  WEFT_ASSIGN_OR_RETURN(record.crc32,
                        checkpoint_internal::crc32_of_file(path, RegularFile::Links::kRefuse));
  WEFT_FAIL_POINT("checkpoint.shard.written");
  return record;
}

absl::Status CheckpointFolder::commit(const CheckpointInfo& info,
                                      const std::vector<ShardRecord>& shards) const {
  Manifest listed{info, shards};
  listed.info.incarnation = incarnation_;
  WEFT_ASSIGN_OR_RETURN(const std::string text, checkpoint_internal::render_manifest(listed));
  const std::string folder = step_folder(info.step);
  if (has_manifest(folder)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " is a complete checkpoint already"));
  }
  for (const ShardRecord& shard : shards) {
    const std::string path = absl::StrCat(folder, "/", shard.file);
    WEFT_ASSIGN_OR_RETURN(RegularFile file, RegularFile::open(path, RegularFile::Links::kRefuse));
    if (file.size() != shard.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", file.size(), " bytes, its writer saw ", shard.bytes));
    }
  }
  WEFT_RETURN_IF_ERROR(make_folder(folder, calls()));
  WEFT_FAIL_POINT("checkpoint.manifest.next");
  WEFT_ASSIGN_OR_RETURN(AtomicFile file,
                        AtomicFile::create(absl::StrCat(folder, "/", kManifestFile), calls()));
  WEFT_RETURN_IF_ERROR(file.append(text));
  // The lock is held from check_claim() to the end of the pruning, so that nobody can make a claim
  // between the check and the rename. All slow work is done before the lock is taken.
  std::optional<checkpoint_internal::FolderLock> held;
  WEFT_RETURN_IF_ERROR(file.commit([&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(checkpoint_internal::FolderLock taken, lock());
    held.emplace(std::move(taken));
    return check_claim();
  }));
  WEFT_FAIL_POINT("checkpoint.prune.next");
  const absl::Status pruned = prune(info.step);
  if (pruned.ok()) return pruned;
  return absl::AbortedError(absl::StrCat(folder, " is saved, but: ", pruned.message()));
}

absl::Status CheckpointFolder::prune(int64_t committed) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> complete, steps());
  const size_t keep = options_.keep <= 0 ? complete.size() : static_cast<size_t>(options_.keep);
  for (size_t i = 0; i + keep < complete.size(); ++i) {
    if (complete[i] != committed)
      WEFT_RETURN_IF_ERROR(remove_step(step_folder(complete[i]), calls()));
  }
  // A writer may still be at work on an incomplete step after the committed one.
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<int64_t> remains,
      step_folders(root_, [](const fs::path& folder) { return !has_manifest(folder); }));
  for (const int64_t step : remains) {
    if (step < committed) WEFT_RETURN_IF_ERROR(remove_step(step_folder(step), calls()));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::discard(int64_t step) const {
  const std::string folder = step_folder(step);
  if (has_manifest(folder)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is a complete checkpoint"));
  }
  return remove_step(folder, calls());
}

absl::StatusOr<std::vector<int64_t>> CheckpointFolder::steps() const {
  return step_folders(root_, has_manifest);
}

absl::StatusOr<Manifest> CheckpointFolder::manifest(int64_t step) const {
  const std::string path = absl::StrCat(step_folder(step), "/", kManifestFile);
  WEFT_ASSIGN_OR_RETURN(const std::string text, checkpoint_internal::read_whole_file(
                                                    path, RegularFile::Links::kRefuse,
                                                    checkpoint_internal::kMaxManifestBytes));
  absl::StatusOr<Manifest> parsed = checkpoint_internal::parse_manifest(text);
  if (!parsed.ok()) return prepend(absl::StrCat(path, ": "), parsed.status());
  if (parsed->info.step != step) {
    return absl::DataLossError(absl::StrCat(path, ": it belongs to step ", parsed->info.step));
  }
  return parsed;
}

absl::StatusOr<StateFile> CheckpointFolder::checked_shard(int64_t step,
                                                          const ShardRecord& shard) const {
  const std::string path = absl::StrCat(step_folder(step), "/", shard.file);
  absl::StatusOr<RegularFile> file = RegularFile::open(path, RegularFile::Links::kRefuse);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat("the checkpoint's shard ", path, " is missing"));
  }
  WEFT_RETURN_IF_ERROR(file.status());
  if (file->size() != shard.bytes) {
    return absl::DataLossError(absl::StrCat("the checkpoint's shard ", path, " is damaged: ",
                                            file->size(), " bytes, saved were ", shard.bytes));
  }
  WEFT_ASSIGN_OR_RETURN(const uint32_t crc,
                        checkpoint_internal::crc32_of_file(path, RegularFile::Links::kRefuse));
  if (crc != shard.crc32) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint's shard ", path, " is damaged: its checksum does not match"));
  }
  return load_tensors(path);
}

absl::StatusOr<Checkpoint> CheckpointFolder::load_newest() const {
  // While this reads the newest step, a commit that keeps few steps may replace it by a newer one.
  constexpr int kMostTries = 10;
  for (int tries = 1;; ++tries) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> complete, steps());
    if (complete.empty()) {
      return absl::NotFoundError(absl::StrCat("no complete checkpoint in ", root_));
    }
    absl::StatusOr<Checkpoint> loaded = load(complete.back());
    if (loaded.ok() || tries == kMostTries) return loaded;
    WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> now, steps());
    if (now == complete) return loaded;
  }
}

absl::StatusOr<Checkpoint> CheckpointFolder::load(int64_t step) const {
  WEFT_ASSIGN_OR_RETURN(Manifest listed, manifest(step));
  Checkpoint checkpoint;
  for (const ShardRecord& shard : listed.shards) {
    WEFT_ASSIGN_OR_RETURN(StateFile state, checked_shard(step, shard));
    const std::string name = shard.file.substr(0, shard.file.size() - kShardSuffix.size());
    checkpoint.shards.emplace(name, std::move(state));
  }
  checkpoint.info = std::move(listed.info);
  return checkpoint;
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::info(int64_t step) const {
  WEFT_ASSIGN_OR_RETURN(Manifest listed, manifest(step));
  return std::move(listed.info);
}

absl::StatusOr<StateFile> CheckpointFolder::load_shard(int64_t step,
                                                       const std::string& name) const {
  WEFT_ASSIGN_OR_RETURN(const Manifest listed, manifest(step));
  for (const ShardRecord& shard : listed.shards) {
    if (shard.file == file_of(name)) return checked_shard(step, shard);
  }
  return absl::NotFoundError(absl::StrCat(step_folder(step), " has no shard ", file_of(name)));
}

}  // namespace weft
