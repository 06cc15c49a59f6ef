// Records which incarnation of its owner a checkpoint folder belongs to, and lets one process at a
// time change the folder.
//
//   root/incarnation   the newest claim, replaced atomically
//   root/lock          locked while a process makes a claim, or renames a manifest and removes old
//                      steps
//
// The folder counts the incarnations itself. It cannot use the worker's own number: that number
// begins at 1 again with the next job, and an owner may come back on another worker.
//
// Thread safety: plain functions. A FolderLock belongs to one thread.
// Blocking: file I/O. take() also waits for the lock, up to its `wait`.
// Errors: DataLoss (the claim is damaged), DeadlineExceeded (names the folder and the process that
// holds the lock), and those of file_error and of regular_file.h.
// Protocol: docs/durable_steps.md, "Two incarnations of one owner".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft::checkpoint_internal {

inline constexpr uint64_t kMaxIncarnation = 999'999'999'999'999;

struct FolderClaim {
  uint64_t incarnation = 0;  // counts from 1; 0: nobody has claimed the folder
  std::string owner;         // a line that names the process and differs for each claim
};

// A new FolderClaim::owner for this process. It contains a random number, so each call differs.
std::string name_this_process();

// Returns incarnation 0 if there is no claim.
absl::StatusOr<FolderClaim> read_claim(const std::string& folder);
absl::Status write_claim(const std::string& folder, const FolderClaim& claim,
                         const FileCalls& calls);

// The exclusive right to change the folder. It is an open file description lock. The kernel
// releases it when the FolderLock is destroyed or its process dies.
class FolderLock {
 public:
  // `holder` names this process in the errors of other processes. With a `wait` of 0 it tries once.
  // A `wait` above 1 h counts as 1 h.
  static absl::StatusOr<FolderLock> take(const std::string& folder, std::string_view holder,
                                         Nanoseconds wait);
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  // False: another process holds the lock, or the path now names another file.
  absl::StatusOr<bool> try_lock(const std::string& path);

  int descriptor_;
};

}  // namespace weft::checkpoint_internal
