// Reads regular files only, and names the file in every error.
//
// Thread safety: a RegularFile belongs to one thread.
// Blocking: file I/O.
// Errors: NotFound (no such file), FailedPrecondition (a folder, link, pipe or device), DataLoss
// (the file ends too early), PermissionDenied, Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::checkpoint_internal {

class RegularFile {
 public:
  enum class Links { kFollow, kRefuse };

  // Does not block if the path is a pipe. Links::kRefuse applies to the last part of the path only.
  static absl::StatusOr<RegularFile> open(std::string path, Links links);
  RegularFile(RegularFile&& other) noexcept
      : path_(std::move(other.path_)),
        size_(other.size_),
        descriptor_(std::exchange(other.descriptor_, -1)) {}
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

  // Fills `destination` with the next `size` bytes.
  absl::Status read(void* destination, size_t size);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened

 private:
  RegularFile(std::string path, uint64_t size, int descriptor)
      : path_(std::move(path)), size_(size), descriptor_(descriptor) {}

  std::string path_;
  uint64_t size_;
  int descriptor_;
};

// The whole file as text; ResourceExhausted above `limit` bytes.
absl::StatusOr<std::string> read_whole_file(const std::string& path, RegularFile::Links links,
                                            uint64_t limit);

// zlib's CRC-32 of the whole file. It detects every change within 32 neighbouring bits.
absl::StatusOr<uint32_t> crc32_of_file(const std::string& path, RegularFile::Links links);

}  // namespace weft::checkpoint_internal
