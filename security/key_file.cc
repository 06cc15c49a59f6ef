#include "weft/security/key_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"

namespace weft::security_internal {
namespace {

absl::Status check_access(const std::string& path, const struct stat& file, Readers readers) {
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

absl::StatusOr<int> open_to_read(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor >= 0) return descriptor;
  const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

absl::StatusOr<struct stat> inspect(int descriptor, const std::string& path) {
  struct stat file = {};
  if (::fstat(descriptor, &file) == 0) return file;
  return absl::UnavailableError(absl::StrCat("cannot inspect ", path));
}

absl::Status cannot_read(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

absl::Status too_long(const std::string& path, size_t most) {
  return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", most, " bytes"));
}

// Waits until the pipe has bytes, or its far end has closed it.
absl::Status wait_for(int descriptor, const std::string& path, TimePoint deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting = {descriptor, POLLIN, 0};
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return cannot_read(path);
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the pipe ", path, " has not ended in time"));
    }
  }
}

}  // namespace

absl::StatusOr<SecretBytes> read_file(const std::string& path, size_t most, Readers readers) {
  WEFT_ASSIGN_OR_RETURN(const int descriptor, open_to_read(path));
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  WEFT_ASSIGN_OR_RETURN(const struct stat file, inspect(descriptor, path));
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  WEFT_RETURN_IF_ERROR(check_access(path, file, readers));

  const size_t expected = std::min(static_cast<size_t>(file.st_size), most);
  SecretBytes content(expected + 1);
  size_t length = 0;
  while (length <= expected) {
    const ssize_t got =
        ::read(descriptor, content.bytes().data() + length, content.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(path);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  if (length > most) return too_long(path, most);
  if (length > expected) {
    return absl::UnavailableError(absl::StrCat(path, " has changed while it was read"));
  }
  content.shrink(length);
  return content;
}

absl::StatusOr<SecretBytes> read_pipe(const std::string& path, size_t most, TimePoint deadline) {
  WEFT_ASSIGN_OR_RETURN(const int descriptor, open_to_read(path));
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  WEFT_ASSIGN_OR_RETURN(const struct stat file, inspect(descriptor, path));
  if (!S_ISFIFO(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a pipe"));
  }
  WEFT_RETURN_IF_ERROR(check_access(path, file, Readers::kOwner));
  SecretBytes content(most + 1);
  size_t length = 0;
  while (length <= most) {
    WEFT_RETURN_IF_ERROR(wait_for(descriptor, path, deadline));
    const ssize_t got =
        ::read(descriptor, content.bytes().data() + length, content.size() - length);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return cannot_read(path);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  if (length > most) return too_long(path, most);
  content.shrink(length);
  return content;
}

}  // namespace weft::security_internal
