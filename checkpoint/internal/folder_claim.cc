#include "weft/checkpoint/internal/folder_claim.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <random>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/status.h"
#include "weft/checkpoint/internal/regular_file.h"

namespace weft::checkpoint_internal {
namespace {

constexpr uint64_t kMaxText = 4096;  // bytes that are read of `incarnation` or `lock`
constexpr absl::string_view kIncarnation = "incarnation ";
constexpr absl::string_view kOwner = "\nowner: ";
// Nothing signals the release of an OFD lock, so take() tries again every kLook. A holder keeps the
// lock only for a rename, a flush and the removal of old steps.
constexpr Nanoseconds kLongestWait = std::chrono::hours(1);
constexpr auto kLook = std::chrono::milliseconds(5);

std::string claim_path(const std::string& folder) { return absl::StrCat(folder, "/incarnation"); }
std::string lock_path(const std::string& folder) { return absl::StrCat(folder, "/lock"); }

// The name of the process that took the lock last. It may be incomplete, if the process died while
// it wrote the name.
std::string holder_of(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      read_whole_file(lock_path(folder), RegularFile::Links::kRefuse, kMaxText);
  if (!text.ok() || text->empty()) return "a process that did not leave its name";
  return absl::CHexEscape(absl::StripSuffix(*text, "\n"));
}

}  // namespace

std::string name_this_process() {
  char host[256] = "";
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  std::random_device random;
  return absl::StrFormat("process %d on host %s, claim %08x%08x", ::getpid(),
                         absl::CHexEscape(host), random(), random());
}

absl::StatusOr<FolderClaim> read_claim(const std::string& folder) {
  const std::string path = claim_path(folder);
  const absl::StatusOr<std::string> text =
      read_whole_file(path, RegularFile::Links::kRefuse, kMaxText);
  if (absl::IsNotFound(text.status())) return FolderClaim();
  WEFT_RETURN_IF_ERROR(text.status());
  absl::string_view rest = *text;
  FolderClaim claim;
  const size_t owner = rest.find(kOwner);
  if (!absl::ConsumePrefix(&rest, kIncarnation) || owner == absl::string_view::npos ||
      !absl::SimpleAtoi(rest.substr(0, owner - kIncarnation.size()), &claim.incarnation) ||
      claim.incarnation == 0 || claim.incarnation > kMaxIncarnation) {
    return absl::DataLossError(
        absl::StrCat(path, " does not say whose the folder is: it is damaged. Remove it to go on"));
  }
  rest.remove_prefix(owner - kIncarnation.size() + kOwner.size());
  claim.owner = absl::CHexEscape(absl::StripSuffix(rest, "\n"));
  return claim;
}

absl::Status write_claim(const std::string& folder, const FolderClaim& claim,
                         const FileCalls& calls) {
  return write_file_atomically(
      claim_path(folder), absl::StrCat(kIncarnation, claim.incarnation, kOwner, claim.owner, "\n"),
      calls);
}

absl::StatusOr<FolderLock> FolderLock::take(const std::string& folder, std::string_view holder,
                                            Nanoseconds wait) {
  const std::string path = lock_path(folder);
  const auto deadline = std::chrono::steady_clock::now() + std::min(wait, kLongestWait);
  for (;;) {
    // Open the file anew each time: if it was removed, a lock on the old file excludes nobody.
    const int descriptor =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (descriptor < 0) return file_error("cannot open", path, errno);
    FolderLock lock(descriptor);
    WEFT_ASSIGN_OR_RETURN(const bool locked, lock.try_lock(path));
    if (locked) {
      // The name serves only the errors of other processes, so a failed write (full disk) is no
      // error here.
      const std::string line(holder);
      if (::ftruncate(descriptor, 0) == 0) {
        (void)!::pwrite(descriptor, line.data(), line.size(), 0);
      }
      return lock;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("checkpoint folder ", folder, " has been locked by ", holder_of(folder),
                       " for longer than ", absl::FormatDuration(absl::FromChrono(wait)),
                       ": that process hangs, and has to be killed"));
    }
    std::this_thread::sleep_for(kLook);
  }
}

absl::StatusOr<bool> FolderLock::try_lock(const std::string& path) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(descriptor_, F_OFD_SETLK, &whole) != 0) {
    if (errno == EAGAIN || errno == EACCES || errno == EINTR) return false;
    return file_error("cannot lock", path, errno);
  }
  struct stat mine {
  }, there{};
  return ::fstat(descriptor_, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace weft::checkpoint_internal
