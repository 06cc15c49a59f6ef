// Says which incarnation of its owner a checkpoint folder belongs to, and lets one process at a
// time change it.
//
//   root/incarnation   the newest claim, replaced atomically
//   root/lock          locked while a claim is made or a manifest takes its place
//
// The folder counts the incarnations itself. A worker's own number would not do: it begins at 1
// again with the next job, and an owner may come back on another worker.
//
// Thread safety: plain functions; a FolderLock belongs to one thread. Blocking: file I/O; take()
// waits as long as it is told to. Errors: DataLoss (the claim cannot be read), DeadlineExceeded
// (names the folder and who holds the lock), those of file_error.
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
  uint64_t incarnation = 0;  // from 1; 0: nobody has claimed the folder
  std::string owner;         // a line that names the process and is unlike any other claim's
};

// An owner's line for this process.
std::string name_this_process();

// Incarnation 0 if there is no claim.
absl::StatusOr<FolderClaim> read_claim(const std::string& folder);
absl::Status write_claim(const std::string& folder, const FolderClaim& claim,
                         const FileCalls& calls);

// The exclusive right to change the folder, an open file description lock: the kernel releases it
// when its holder ends, however that happens.
class FolderLock {
 public:
  // `holder` is what others are told of this one. With a `wait` of 0 it is tried once.
  static absl::StatusOr<FolderLock> take(const std::string& folder, std::string_view holder,
                                         Nanoseconds wait);
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  // False: somebody else holds it, or another file has taken this one's place.
  absl::StatusOr<bool> try_lock(const std::string& path);

  int descriptor_;
};

}  // namespace weft::checkpoint_internal
