// Keeps the states of a training run in one folder and finds the newest complete one again.
//
//   root/step-000123/trainer.safetensors   one file per shard, each written atomically
//   root/step-000123/server.safetensors
//   root/step-000123/manifest.json         written last: a step without it does not count
//
// Several workers may each write their own shard of one step (`save_shard`) before one of them
// commits it; a single writer uses `save`. A crash at any moment leaves the earlier steps as they
// were.
//
// A folder with one owner is claimed by each incarnation of it, and from then on commits of the
// earlier ones are refused (docs/durable_steps.md, "Two incarnations of one owner"). Beside the
// steps there are then the files `incarnation` and `lock`; a folder that nobody claims has the
// latter only.
//
// Thread safety: const methods from any thread. One worker at a time commits or saves one step.
// Blocking: file I/O on the caller's thread.
// Errors: NotFound (nothing saved yet), DataLoss (names the damaged or missing file), AlreadyExists
// (the step is complete already), InvalidArgument (a name that is refused), ResourceExhausted,
// FailedPrecondition (a later incarnation has claimed the folder: names both), DeadlineExceeded
// (another process holds the folder's lock: names folder and process).
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
  std::map<std::string, StateFile> shards;  // by file name without ".safetensors"
};

class CheckpointFolder {
 public:
  struct Options {
    int keep = 3;  // complete steps that a commit leaves; 0 keeps all
    const FileCalls* calls = &FileCalls::system();  // outlive this
    // A commit or claim waits so long for another process's; that takes milliseconds. At most 1 h.
    Nanoseconds lock_wait = std::chrono::seconds(10);
  };

  // `root` is made by the first save.
  explicit CheckpointFolder(std::string root);
  CheckpointFolder(std::string root, Options options);

  // Makes this the folder's owner, with an incarnation that is one more than any before. Once, and
  // before the methods below. A folder that is not this object's own is taken away from its owner.
  absl::Status claim();
  uint64_t incarnation() const { return incarnation_; }  // 0: not claimed by this
  // FailedPrecondition if a later incarnation has claimed the folder. Every commit asks it.
  absl::Status check_claim() const;

  // Makes the folder of a step behind all others, complete or not, which no other writer is given.
  absl::StatusOr<int64_t> new_step() const;
  // All shards and then the manifest. Names: letters, digits, '.', '_', '-'.
  absl::Status save(const CheckpointInfo& info,
                    const std::map<std::string, TensorMap>& shards) const;

  // One worker's part of a step; the record goes to whoever commits. Writing a shard again before
  // the commit replaces it.
  absl::StatusOr<ShardRecord> save_shard(int64_t step, const std::string& name,
                                         const TensorMap& tensors,
                                         const Metadata& metadata = {}) const;
  // Makes the step complete, then removes what the options no longer keep, and remains of steps
  // that were never completed. An error in the removal does not undo the commit: it is returned
  // with code Aborted.
  absl::Status commit(const CheckpointInfo& info, const std::vector<ShardRecord>& shards) const;

  // Removes what was written of a step that is not complete.
  absl::Status discard(int64_t step) const;

  // Complete steps, ascending; empty if there is no such folder.
  absl::StatusOr<std::vector<int64_t>> steps() const;
  // Each shard is compared with the manifest's size and sum before it is parsed. A damaged step is
  // an error, never silently passed over for an older one.
  absl::StatusOr<Checkpoint> load_newest() const;
  absl::StatusOr<Checkpoint> load(int64_t step) const;
  // The manifest alone.
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
  std::string owner_;  // names this claim
};

}  // namespace weft
