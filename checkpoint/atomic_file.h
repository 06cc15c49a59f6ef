// Replaces a file as one step: readers see the old content or the whole new one, never a part.
//
// The new content goes to a temporary file in the same folder, is flushed to the disk and takes the
// place of the old file by `rename`; the folder is flushed last. Whatever fails before the rename
// (full disk, broken disk, a crash) leaves the old file as it was, and all but a crash leave no
// temporary file either.
//
// Thread safety: an AtomicFile belongs to one thread; several may replace one path, the last wins.
// Blocking: every method does file I/O.
// Errors: ResourceExhausted (disk or quota full), NotFound (no such folder), PermissionDenied, else
// Internal; all name the path, the call and the system's reason.
#pragma once

#include <cstddef>
#include <functional>
#include <stdio.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

// The system calls that can fail under a correct program, so that tests may make them fail.
struct FileCalls {
  ssize_t (*write)(int descriptor, const void* data, size_t size);
  int (*fsync)(int descriptor);
  int (*rename)(const char* from, const char* to);
  int (*mkdir)(const char* path, mode_t mode) = ::mkdir;
  int (*remove)(const char* path) = ::remove;

  static const FileCalls& system();
};

class AtomicFile {
 public:
  // Opens the temporary file beside `path`. `calls` is borrowed.
  static absl::StatusOr<AtomicFile> create(std::string path,
                                           const FileCalls& calls = FileCalls::system());
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // not committed: removes the temporary file

  absl::Status append(std::string_view bytes);
  // Makes the content visible under the path, durably. If only the last step fails, flushing the
  // folder, the new file is in place and the error says that it may not survive a power cut.
  // `allowed`, if given, is asked when the content is on the disk, right before the rename: an
  // error of it is returned, and the old file stays.
  absl::Status commit(const std::function<absl::Status()>& allowed = nullptr);

  const std::string& path() const { return path_; }

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor, const FileCalls& calls);
  void discard();

  std::string path_;
  std::string temporary_;  // empty once committed or moved from
  int descriptor_;         // -1 once closed
  const FileCalls* calls_;
};

absl::Status write_file_atomically(const std::string& path, std::string_view content,
                                   const FileCalls& calls = FileCalls::system());

// Flushes a folder's entries, so that files created or renamed in it survive a power cut.
absl::Status flush_folder(const std::string& folder, const FileCalls& calls = FileCalls::system());

// An error of the system: `what` happened to `path` because of `error_number` (an errno).
absl::Status file_error(std::string_view what, const std::string& path, int error_number);

}  // namespace weft
