#include "weft/security/command/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::security_internal {
namespace {

absl::Status cannot_write(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

absl::Status write_all(int descriptor, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cannot_write(path, errno);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(descriptor) == 0 ? absl::OkStatus() : cannot_write(path, errno);
}

}  // namespace

absl::Status write_whole(const std::string& path, std::string_view content, mode_t mode,
                         Existing existing) {
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".new");
  const int descriptor =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (descriptor < 0) return cannot_write(temporary, errno);
  const absl::Cleanup remove = [&temporary] { ::unlink(temporary.c_str()); };
  absl::Status written = write_all(descriptor, content, temporary);
  if (written.ok() && ::fchmod(descriptor, mode) != 0) written = cannot_write(temporary, errno);
  ::close(descriptor);
  WEFT_RETURN_IF_ERROR(written);
  if (existing == Existing::kReplace) {
    return std::rename(temporary.c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                             : cannot_write(path, errno);
  }
  if (::link(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (errno != EEXIST) return cannot_write(path, errno);
  return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
}

}  // namespace weft::security_internal
