// A file that exists while a worker is a member of its group, so that a scheduler sees it: a probe
// of Kubernetes needs no port (deploy/kubernetes/). A worker that the others have declared dead
// keeps it until it leaves.
//
// Thread safety: none; one thread at a time.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace weft {

class ReadyFile {
 public:
  ReadyFile() = default;
  ~ReadyFile() { remove(); }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  // Removes a file that an earlier process has left, and tries whether one can be made there. An
  // empty path: all methods do nothing. Unavailable, with the path: it cannot.
  absl::Status prepare(const std::string& path);
  // Makes the file, with this line in it, as a whole. Unavailable, with the path: it cannot.
  absl::Status make(const std::string& line);
  void remove();

 private:
  std::string path_;
};

}  // namespace weft
