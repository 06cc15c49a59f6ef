// Keeps the states of a training run in one folder and finds the newest complete state again.
//
//   root/step-000123/trainer.safetensors   one file per checkpoint shard, each written atomically
//   root/step-000123/server.safetensors
//   root/step-000123/manifest.json         written last: a step without it is not complete
//
// Several workers may each write their own shard of one step (`save_shard`) before one of them
// commits the step. A single writer uses `save`. A crash at any moment leaves the earlier steps as
// they were.
//
// If a folder has one owner, each incarnation of the owner claims the folder. After a claim, the
// commits of earlier incarnations are refused (docs/durable_steps.md, "Two incarnations of one
// owner"). Such a folder has the files `incarnation` and `lock` beside the steps. A folder that
// nobody claims has only `lock`.
//
// Thread safety: const methods may be called from any thread. Only one worker at a time may commit
// or save one step.
// Blocking: file I/O on the caller's thread.
// Errors:
//   NotFound: nothing is saved yet.
//   DataLoss: a file is damaged or missing; the error names it.
//   AlreadyExists: the step is complete already.
//   InvalidArgument: a name is refused, or a number is out of range.
//   ResourceExhausted: the disk or a quota is full, no number is left, or a file is too large.
//   FailedPrecondition: a later incarnation has claimed the folder; the error names both.
//   DeadlineExceeded: another process holds the folder's lock; the error names folder and process.
//   Aborted: only from save() and commit(), see there.
//   Others: those of file_error and of loading a state file.
// Protocol: docs/durable_steps.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/checkpoint_info.h"
#include "weft/checkpoint/state_file.h"

namespace weft {

namespace checkpoint_internal {
struct FolderClaim;
class FolderLock;
struct Manifest;
}  // namespace checkpoint_internal

struct Checkpoint {
  CheckpointInfo info;
  std::map<std::string, StateFile> shards;  // key: the file name without ".safetensors"
};

class CheckpointFolder {
 public:
  struct Options {
    int keep = 3;  // number of complete steps that a commit keeps; 0 keeps all
    const FileCalls* calls = &FileCalls::system();  // must outlive the CheckpointFolder
    // How long a commit or claim waits for the lock while another process holds it, at most 1 h.
    // A holder normally needs milliseconds.
    Nanoseconds lock_wait = std::chrono::seconds(10);
  };

  // The first save creates `root`.
  explicit CheckpointFolder(std::string root);
  CheckpointFolder(std::string root, Options options);

  // Makes this object the folder's owner. Its incarnation is one more than the highest before. If
  // the folder has another owner, this takes it away from that owner. Call it once, before the
  // methods below.
  absl::Status claim();
  uint64_t incarnation() const { return incarnation_; }  // 0: this object has not claimed it
  // FailedPrecondition if a later incarnation has claimed the folder. Every commit calls this.
  absl::Status check_claim() const;

  // Makes a folder for a new step and returns the step's number. The number is above those of all
  // other steps, complete or not, and no other writer gets it.
  absl::StatusOr<int64_t> new_step() const;
  // Writes all shards and then the manifest. A shard's name has letters, digits, '.', '_' and '-',
  // and does not start with '.'.
  absl::Status save(const CheckpointInfo& info,
                    const std::map<std::string, TensorMap>& shards) const;

  // Writes one worker's shard of a step. The worker that commits the step needs the returned
  // record. Writing a shard again before the commit replaces it.
  absl::StatusOr<ShardRecord> save_shard(int64_t step, const std::string& name,
                                         const TensorMap& tensors,
                                         const Metadata& metadata = {}) const;
  // Makes the step complete. Then it removes complete steps beyond Options::keep, and the remains
  // of incomplete steps with lower numbers. An error in the removal does not undo the commit, and
  // is returned with code Aborted.
  absl::Status commit(const CheckpointInfo& info, const std::vector<ShardRecord>& shards) const;

  // Removes the files of an incomplete step. FailedPrecondition: the step is complete.
  absl::Status discard(int64_t step) const;

  // The complete steps in ascending order; empty if the folder does not exist.
  absl::StatusOr<std::vector<int64_t>> steps() const;
  // These compare each shard with the size and CRC-32 in the manifest before they parse it. If the
  // newest step is damaged, load_newest() fails. It never loads an older step instead.
  absl::StatusOr<Checkpoint> load_newest() const;
  absl::StatusOr<Checkpoint> load(int64_t step) const;
  // Reads only the manifest.
  absl::StatusOr<CheckpointInfo> info(int64_t step) const;
  absl::StatusOr<StateFile> load_shard(int64_t step, const std::string& name) const;

  const std::string& root() const { return root_; }

 private:
  std::string step_folder(int64_t step) const;
  absl::StatusOr<checkpoint_internal::Manifest> manifest(int64_t step) const;
  absl::StatusOr<StateFile> checked_shard(int64_t step, const ShardRecord& shard) const;
  absl::Status prune(int64_t committed) const;
  absl::StatusOr<checkpoint_internal::FolderClaim> newest_claim(
      checkpoint_internal::FolderClaim newest) const;
  absl::StatusOr<checkpoint_internal::FolderLock> lock() const;
  const FileCalls& calls() const { return *options_.calls; }

  std::string root_;
  Options options_;
  uint64_t incarnation_ = 0;
  std::string owner_;  // the line that names this claim; empty without a claim
};

}  // namespace weft
