// A file that has no name in the file system, and that other code opens by its path again and
// again. Its content is replaced as a whole.
//
// Thread safety: none for this object. Other code may read at any time.
// Errors: those of the system calls.
// Protocol: memfd_create(2), dup3(2), proc(5).
#pragma once

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

class MemoryFile {
 public:
  // Does everything that may fail for lack of memory or descriptors.
  absl::Status prepare(std::string_view text) {
    FileDescriptor made(::memfd_create("weft-tls", MFD_CLOEXEC));
    if (!made.valid()) return absl::ErrnoToStatus(errno, "a file in memory");
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t more = ::write(made.get(), text.data() + written, text.size() - written);
      if (more < 0) return absl::ErrnoToStatus(errno, "writing a file in memory");
      written += static_cast<size_t>(more);
    }
    // A reader that compares the times before and after, in seconds, sees each replacement.
    modified_.tv_sec = std::max(modified_.tv_sec + 1, ::time(nullptr));
    const timespec times[] = {modified_, modified_};
    if (::futimens(made.get(), times) != 0) {
      return absl::ErrnoToStatus(errno, "setting the time of a file in memory");
    }
    next_ = std::move(made);
    return absl::OkStatus();
  }
  // Later opens of the path see the prepared content.
  absl::Status replace() {
    FileDescriptor made = std::move(next_);
    if (!file_.valid()) {
      file_ = std::move(made);
      // Without /proc nobody can open it.
      const FileDescriptor opened(::open(path().c_str(), O_RDONLY | O_CLOEXEC));
      if (!opened.valid()) return absl::ErrnoToStatus(errno, path());
      return absl::OkStatus();
    }
    if (::dup3(made.get(), file_.get(), O_CLOEXEC) >= 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, "replacing a file in memory");
  }
  // The same for the life of this object.
  std::string path() const { return absl::StrCat("/proc/self/fd/", file_.get()); }

 private:
  FileDescriptor file_, next_;
  timespec modified_ = {};
};

}  // namespace weft
