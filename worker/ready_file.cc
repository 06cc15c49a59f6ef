#include "weft/worker/ready_file.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft {
namespace {

absl::Status cannot_write(const std::string& path, absl::string_view reason) {
  return absl::UnavailableError(absl::StrCat("cannot write WEFT_READY_FILE, ", path, ": ", reason));
}

}  // namespace

absl::Status ReadyFile::prepare(const std::string& path) {
  path_ = path;
  if (path_.empty()) return absl::OkStatus();
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return cannot_write(path_, std::strerror(errno));
  }
  // A worker should fail before it joins, not after. Without a commit no file appears.
  const auto trial = AtomicFile::create(path_);
  return trial.ok() ? absl::OkStatus() : cannot_write(path_, trial.status().message());
}

absl::Status ReadyFile::make(const std::string& line) {
  if (path_.empty()) return absl::OkStatus();
  const absl::Status written = write_file_atomically(path_, line + "\n");
  return written.ok() ? absl::OkStatus() : cannot_write(path_, written.message());
}

void ReadyFile::remove() {
  if (!path_.empty()) (void)::unlink(path_.c_str());
  path_.clear();  // the next file there belongs to another worker of this process
}

}  // namespace weft
