#include "weft/tests/chaos/processes/process_threads.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft::chaos {
namespace {

std::string read_own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "8:pids:/path"
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() == 3 && parts[1] == "pids") return "/sys/fs/cgroup/pids" + parts[2];
  }
  return "";
}

// The group of this process before it limited any process. Its workers start there.
const std::string& own_group() {
  static const std::string group = read_own_group();
  return group;
}

std::string group_of(pid_t pid) { return absl::StrCat(own_group(), "/weft-chaos-", pid); }

absl::Status write(const std::string& path, uint64_t number) {
  std::ofstream file(path);
  file << number << std::flush;
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

uint64_t threads_of(pid_t pid) {
  uint64_t count = 0;
  std::error_code error;
  for ([[maybe_unused]] const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    ++count;
  }
  return count;
}

}  // namespace

absl::Status can_limit_threads() {
  const std::string group = own_group();
  if (group.empty()) return absl::UnavailableError("there is no pids controller of cgroup v1");
  if (::access((group + "/cgroup.procs").c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(group, ": ", std::strerror(errno)));
}

absl::Status limit_threads(pid_t pid, uint64_t more) {
  if (absl::Status able = can_limit_threads(); !able.ok()) return able;
  const std::string group = group_of(pid);
  std::error_code error;
  std::filesystem::create_directory(group, error);
  if (error) return absl::UnavailableError(absl::StrCat(group, ": ", error.message()));
  // The process may enter whatever the limit is. From then on the limit counts.
  absl::Status done = write(group + "/pids.max", threads_of(pid) + more);
  if (done.ok()) done = write(group + "/cgroup.procs", static_cast<uint64_t>(pid));
  if (!done.ok()) std::filesystem::remove(group, error);
  return done;
}

void lift_thread_limit(pid_t pid) {
  const std::string group = group_of(pid);
  (void)write(own_group() + "/cgroup.procs", static_cast<uint64_t>(pid));  // it may be dead
  std::error_code error;
  std::filesystem::remove(group, error);
}

}  // namespace weft::chaos
