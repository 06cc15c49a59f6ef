#include "weft/checkpoint/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <random>
#include <stdio.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"

namespace weft {
namespace {

// Some systems refuse writes above 2 GiB at once.
constexpr size_t kLargestWrite = size_t{1} << 30;
constexpr int kCreateAttempts = 16;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A hidden name in the folder of `path`. It is random, so that no two writers share one.
std::string temporary_beside(const std::string& path) {
  std::random_device random;
  const uint64_t nonce = (uint64_t{random()} << 32) | random();
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  return absl::StrCat(path.substr(0, name), ".", path.substr(name), ".",
                      absl::Hex(nonce, absl::kZeroPad16), ".tmp");
}

absl::StatusCode code_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

const FileCalls& FileCalls::system() {
  static const FileCalls calls = {::write, ::fsync, ::rename, ::mkdir, ::remove};
  return calls;
}

absl::Status file_error(std::string_view what, const std::string& path, int error_number) {
  const absl::Status named =
      absl::ErrnoToStatus(error_number, absl::StrCat(absl_view(what), " ", path));
  return absl::Status(code_of(error_number), named.message());
}

absl::StatusOr<AtomicFile> AtomicFile::create(std::string path, const FileCalls& calls) {
  if (path.empty() || path.back() == '/') {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' does not name a file"));
  }
  for (int attempt = 0; attempt < kCreateAttempts; ++attempt) {
    std::string temporary = temporary_beside(path);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      return AtomicFile(std::move(path), std::move(temporary), descriptor, calls);
    }
    if (errno != EEXIST && errno != EINTR) return file_error("cannot create", temporary, errno);
  }
  return absl::InternalError(absl::StrCat("found no free temporary name beside ", path));
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor,
                       const FileCalls& calls)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      descriptor_(descriptor),
      calls_(&calls) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      descriptor_(std::exchange(other.descriptor_, -1)),
      calls_(other.calls_) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

absl::Status AtomicFile::append(std::string_view bytes) {
  if (descriptor_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is closed: a write failed before"));
  }
  while (!bytes.empty()) {
    const ssize_t written =
        calls_->write(descriptor_, bytes.data(), std::min(bytes.size(), kLargestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      absl::Status error = file_error("cannot write", path_, written < 0 ? errno : ENOSPC);
      discard();
      return error;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::commit(const std::function<absl::Status()>& allowed) {
  if (descriptor_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is closed: nothing to commit"));
  }
  const auto fail = [this](std::string_view what) {
    absl::Status error = file_error(what, path_, errno);
    discard();
    return error;
  };
  // A failed fsync may have dropped the dirty pages, and a second one would then succeed without
  // having written them. So there is no second attempt.
  if (calls_->fsync(descriptor_) != 0) return fail("cannot flush");
  if (::close(std::exchange(descriptor_, -1)) != 0) return fail("cannot close");
  absl::Status refused = allowed == nullptr ? absl::OkStatus() : allowed();
  if (!refused.ok()) {
    discard();
    return refused;
  }
  WEFT_FAIL_POINT("file.rename.next");
  if (calls_->rename(temporary_.c_str(), path_.c_str()) != 0) return fail("cannot replace");
  WEFT_FAIL_POINT("file.renamed");
  temporary_.clear();
  absl::Status flushed = flush_folder(folder_of(path_), *calls_);
  if (flushed.ok()) return flushed;
  return prepend(absl::StrCat(path_, " is written but may not survive a power cut: "), flushed);
}

absl::Status write_file_atomically(const std::string& path, std::string_view content,
                                   const FileCalls& calls) {
  WEFT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path, calls));
  WEFT_RETURN_IF_ERROR(file.append(content));
  return file.commit();
}

absl::Status flush_folder(const std::string& folder, const FileCalls& calls) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return file_error("cannot open folder", folder, errno);
  const int result = calls.fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // A file system that does not support fsync of folders has nothing to flush.
  if (result == 0 || error_number == EINVAL || error_number == ENOTSUP) return absl::OkStatus();
  return file_error("cannot flush folder", folder, error_number);
}

}  // namespace weft
