#include "weft/security/key_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"

namespace weft {

absl::StatusOr<KeptFile> keep_in_memory(const std::string& name, std::string_view content) {
  KeptFile kept;
  kept.file = FileDescriptor(::memfd_create(name.c_str(), MFD_ALLOW_SEALING | MFD_CLOEXEC));
  const int file = kept.file.get();
  if (file >= 0 && ::fchmod(file, 0600) == 0 &&
      ::write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()) &&
      ::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0) {
    // Not an inherited descriptor: some programs close those before they start others.
    kept.path = absl::StrCat("/proc/", ::getpid(), "/fd/", file);
    return kept;
  }
  return absl::UnavailableError(
      absl::StrCat("cannot keep ", name, " in memory: ", std::strerror(errno)));
}

namespace security_internal {
namespace {

// Checks what kind of file it is and who has access. Returns its size.
absl::StatusOr<size_t> check(int descriptor, const std::string& path, mode_t kind,
                             Readers readers) {
  struct stat file = {};
  if (::fstat(descriptor, &file) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot inspect ", path));
  }
  if ((file.st_mode & S_IFMT) != kind) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, kind == S_IFIFO ? " is not a pipe" : " is not a regular file"));
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
  return static_cast<size_t>(file.st_size);
}

absl::StatusOr<int> open_to_read(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor >= 0) return descriptor;
  const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

absl::Status cannot_read(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

absl::Status too_long(const std::string& path, size_t most) {
  return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", most, " bytes"));
}

// Waits until there are bytes, or the end. A regular file never waits.
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

// Reads to the end, or until there is more than `limit`: then one byte more.
absl::StatusOr<SecretBytes> read_to(int descriptor, const std::string& path, size_t limit,
                                    TimePoint deadline) {
  SecretBytes content(limit + 1);
  size_t length = 0;
  while (length <= limit) {
    WEFT_RETURN_IF_ERROR(wait_for(descriptor, path, deadline));
    const ssize_t got =
        ::read(descriptor, content.bytes().data() + length, content.size() - length);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return cannot_read(path);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  content.shrink(length);
  return content;
}

}  // namespace

absl::StatusOr<SecretBytes> read_file(const std::string& path, size_t most, Readers readers) {
  WEFT_ASSIGN_OR_RETURN(const int descriptor, open_to_read(path));
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  WEFT_ASSIGN_OR_RETURN(const size_t size, check(descriptor, path, S_IFREG, readers));
  const size_t expected = std::min(size, most);
  WEFT_ASSIGN_OR_RETURN(SecretBytes content, read_to(descriptor, path, expected, kNever));
  if (content.size() > most) return too_long(path, most);
  if (content.size() > expected) {
    return absl::UnavailableError(absl::StrCat(path, " has changed while it was read"));
  }
  return content;
}

absl::StatusOr<SecretBytes> read_pipe(const std::string& path, size_t most, TimePoint deadline) {
  WEFT_ASSIGN_OR_RETURN(const int descriptor, open_to_read(path));
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  WEFT_RETURN_IF_ERROR(check(descriptor, path, S_IFIFO, Readers::kOwner).status());
  WEFT_ASSIGN_OR_RETURN(SecretBytes content, read_to(descriptor, path, most, deadline));
  if (content.size() > most) return too_long(path, most);
  return content;
}

}  // namespace security_internal
}  // namespace weft
