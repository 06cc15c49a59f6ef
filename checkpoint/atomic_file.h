// Replaces a file atomically: readers see the old content or the whole new content, never a part.
//
// The new content is written to a temporary file in the same folder and flushed to the disk. Then
// `rename` replaces the old file, and the folder is flushed last. If anything fails before the
// rename (full disk, broken disk, a crash), the old file stays as it was. Only a crash can leave
// the temporary file behind.
//
// Thread safety: an AtomicFile belongs to one thread. If several replace one path, the last commit
// wins.
// Blocking: create, append, commit and the destructor do file I/O.
// Errors: ResourceExhausted (disk or quota full), NotFound (no such folder), PermissionDenied,
// otherwise Internal. They name the path, the failed action and the system's reason.
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

// The system calls that can fail in a correct program. Tests replace them to make them fail.
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
  // Opens the temporary file beside `path`. `calls` must outlive the AtomicFile.
  static absl::StatusOr<AtomicFile> create(std::string path,
                                           const FileCalls& calls = FileCalls::system());
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // removes the temporary file if it was not committed

  absl::Status append(std::string_view bytes);
  // Makes the content visible under the path and durable. If only the last flush of the folder
  // fails, the new file is in place, and the error says that it may not survive a power cut.
  // If `allowed` is given, commit calls it right before the rename, when the content is on the
  // disk. If `allowed` fails, commit returns its error and the old file stays.
  absl::Status commit(const std::function<absl::Status()>& allowed = nullptr);

  const std::string& path() const { return path_; }

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor, const FileCalls& calls);
  void discard();

  std::string path_;
  std::string temporary_;  // empty once committed or moved from
  int descriptor_;         // -1 when closed
  const FileCalls* calls_;
};

absl::Status write_file_atomically(const std::string& path, std::string_view content,
                                   const FileCalls& calls = FileCalls::system());

// Flushes a folder's entries, so that files created or renamed in it survive a power cut.
absl::Status flush_folder(const std::string& folder, const FileCalls& calls = FileCalls::system());

// Makes the error "`what` `path`: reason", where `error_number` is an errno and gives the code.
absl::Status file_error(std::string_view what, const std::string& path, int error_number);

}  // namespace weft
