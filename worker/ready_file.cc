#include "weft/worker/ready_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

namespace {

constexpr char kBeside[] = ".new";

absl::Status failed(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot write WEFT_READY_FILE, ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status ReadyFile::prepare(const std::string& path) {
  path_ = path;
  if (path_.empty()) return absl::OkStatus();
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return failed(path_);
  WEFT_RETURN_IF_ERROR(write(""));  // a worker should fail before it joins, not after
  (void)::unlink((path_ + kBeside).c_str());
  return absl::OkStatus();
}

absl::Status ReadyFile::make(const std::string& line) {
  if (path_.empty()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(write(line));
  return ::rename((path_ + kBeside).c_str(), path_.c_str()) == 0 ? absl::OkStatus() : failed(path_);
}

absl::Status ReadyFile::write(const std::string& line) const {
  const FileDescriptor file(::open((path_ + kBeside).c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  const std::string text = line + "\n";
  const bool written = file.valid() && ::write(file.get(), text.data(), text.size()) ==
                                           static_cast<ssize_t>(text.size());
  return written ? absl::OkStatus() : failed(path_);
}

void ReadyFile::remove() {
  if (!path_.empty()) (void)::unlink(path_.c_str());
  path_.clear();  // the next file there belongs to another worker of this process
}

}  // namespace weft
