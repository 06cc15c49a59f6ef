#include "weft/worker/ready_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

absl::Status ReadyFile::prepare(const std::string& path) {
  path_ = path;
  WEFT_RETURN_IF_ERROR(make(""));  // a worker should fail before it joins, not after
  remove();
  return absl::OkStatus();
}

absl::Status ReadyFile::make(const std::string& line) {
  if (path_.empty()) return absl::OkStatus();
  const FileDescriptor file(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  const std::string text = line + "\n";
  if (file.valid() &&
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("cannot write WEFT_READY_FILE, ", path_, ": ", std::strerror(errno)));
}

void ReadyFile::remove() {
  if (!path_.empty()) (void)::unlink(path_.c_str());
}

}  // namespace weft
