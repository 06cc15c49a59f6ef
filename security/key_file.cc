#include "weft/security/key_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"

namespace weft::security_internal {
namespace {

absl::Status check_access(const std::string& path, const struct stat& file, Readers readers) {
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, " belongs to user ", file.st_uid,
                                                    ", not to this user (", ::geteuid(),
                                                    ") or to root"));
  }
  const bool anybody_reads = readers == Readers::kEverybody;
  const mode_t readable = anybody_reads ? 0044 : file.st_uid == 0 ? 0040 : 0;
  const mode_t permissions = file.st_mode & 07777;
  if ((permissions & 0066 & ~readable) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s has mode %04o, so other users could %s it. Run: chmod %s %s", path, permissions,
        anybody_reads ? "change" : "read or change", anybody_reads ? "go-w" : "600", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SecretBytes> read_file(const std::string& path, size_t most, Readers readers) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  struct stat file = {};
  if (::fstat(descriptor, &file) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot inspect ", path));
  }
  WEFT_RETURN_IF_ERROR(check_access(path, file, readers));

  const size_t expected = std::min(static_cast<size_t>(file.st_size), most);
  SecretBytes content(expected + 1);
  size_t length = 0;
  while (length <= expected) {
    const ssize_t got =
        ::read(descriptor, content.bytes().data() + length, content.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
    }
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  if (length > most) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", most, " bytes"));
  }
  if (length > expected) {
    return absl::UnavailableError(absl::StrCat(path, " has changed while it was read"));
  }
  content.shrink(length);
  return content;
}

}  // namespace weft::security_internal
