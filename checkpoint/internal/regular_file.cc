#include "weft/checkpoint/internal/regular_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>
#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft::checkpoint_internal {
namespace {

constexpr size_t kLargestRead = size_t{1} << 30;
constexpr size_t kChecksumChunk = size_t{1} << 20;

}  // namespace

absl::StatusOr<RegularFile> RegularFile::open(std::string path, Links links) {
  const int follow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow);
  if (descriptor < 0) {
    if (errno == ELOOP && follow != 0) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is a link, not a regular file"));
    }
    return file_error("cannot open", path, errno);
  }
  RegularFile file(std::move(path), 0, descriptor);
  struct stat facts;
  if (::fstat(descriptor, &facts) != 0) return file_error("cannot read", file.path_, errno);
  if (!S_ISREG(facts.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(file.path_, " is not a regular file"));
  }
  file.size_ = static_cast<uint64_t>(facts.st_size);
  return file;
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::Status RegularFile::read(void* destination, size_t size) {
  char* to = static_cast<char*>(destination);
  while (size > 0) {
    const ssize_t got = ::read(descriptor_, to, std::min(size, kLargestRead));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("cannot read", path_, errno);
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, " ends ", size, " bytes early"));
    to += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> read_whole_file(const std::string& path, RegularFile::Links links,
                                            uint64_t limit) {
  WEFT_ASSIGN_OR_RETURN(RegularFile file, RegularFile::open(path, links));
  if (file.size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", file.size(), " bytes; at most ", limit, " are read"));
  }
  std::string text(file.size(), '\0');
  WEFT_RETURN_IF_ERROR(file.read(text.data(), text.size()));
  return text;
}

absl::StatusOr<uint32_t> crc32_of_file(const std::string& path, RegularFile::Links links) {
  WEFT_ASSIGN_OR_RETURN(RegularFile file, RegularFile::open(path, links));
  std::vector<unsigned char> chunk(std::min<uint64_t>(file.size(), kChecksumChunk));
  uLong checksum = ::crc32_z(0, nullptr, 0);
  for (uint64_t left = file.size(); left > 0;) {
    const size_t take = std::min<uint64_t>(left, chunk.size());
    WEFT_RETURN_IF_ERROR(file.read(chunk.data(), take));
    checksum = ::crc32_z(checksum, chunk.data(), take);
    left -= take;
  }
  return static_cast<uint32_t>(checksum);
}

}  // namespace weft::checkpoint_internal
