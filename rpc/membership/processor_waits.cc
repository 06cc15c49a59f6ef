#include "weft/rpc/membership/processor_waits.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/thread.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostThreads = 256;  // read per process, to bound the time of a look
constexpr size_t kStartTime = 19;     // index of the start time in stat; the state has index 0

// Returns the first 1,024 bytes of a file; "" if it cannot be read.
std::string read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::array<char, 1024> text;
  const ssize_t size = ::read(fd, text.data(), text.size());
  ::close(fd);
  return size <= 0 ? "" : std::string(text.data(), static_cast<size_t>(size));
}

bool counts(absl::string_view name) {
  name = absl::StripTrailingAsciiWhitespace(name);
  return name == kClockThread || name == kServingThread;
}

uint64_t started_at(const std::string& stat) {
  const std::vector<std::string> words = absl::StrSplit(stat, ' ');
  uint64_t started = 0;
  if (words.size() > kStartTime) (void)absl::SimpleAtoi(words[kStartTime], &started);
  return started;
}

}  // namespace

ProcessorWaits::ProcessorWaits(std::string proc) : proc_(std::move(proc)) {
  const std::string boot(
      absl::StripAsciiWhitespace(read_file(absl::StrCat(proc_, "/sys/kernel/random/boot_id"))));
  std::error_code failed;
  const std::string pids =
      std::filesystem::read_symlink(absl::StrCat(proc_, "/self/ns/pid"), failed).string();
  const std::string whole = read_file(absl::StrCat(proc_, "/self/stat"));
  if (boot.empty() || failed || !absl::SimpleAtoi(whole.substr(0, whole.find(' ')), &self_.pid)) {
    return;
  }
  self_.started = started_at(stat(absl::StrCat(proc_, "/self")));
  self_.host = absl::StrCat(boot, " ", pids);
}

std::string ProcessorWaits::stat(const std::string& folder) const {
  const std::string whole = read_file(absl::StrCat(folder, "/stat"));
  const size_t name_end = whole.rfind(") ");
  return name_end == std::string::npos ? "" : whole.substr(name_end + 2);
}

bool ProcessorWaits::matches(const HostProcess& process) const {
  if (self_.host.empty() || process.host != self_.host) return false;
  return started_at(stat(absl::StrCat(proc_, "/", process.pid))) == process.started;
}

void ProcessorWaits::begin(TimePoint now) {
  std::erase_if(watches_, [this](const auto& watch) { return watch.second.look != look_; });
  ++look_;
  since_last_ = now - now_;
  now_ = now;
}

Nanoseconds ProcessorWaits::of(const HostProcess& process) {
  if (!matches(process)) return Nanoseconds(0);
  Watch& watch = watches_[process.pid];
  if (watch.started != process.started) watch = {process.started, 0, Nanoseconds(0), {}};
  // Two workers may share a process. The second one gets the result of the same look.
  if (std::exchange(watch.look, look_) == look_) return watch.waited;
  watch.waited = Nanoseconds(0);
  const std::string tasks = absl::StrCat(proc_, "/", process.pid, "/task");
  const auto known = std::exchange(watch.threads, {});  // threads that have exited are forgotten
  std::error_code failed;
  for (std::filesystem::directory_iterator next(tasks, failed), end;
       !failed && next != end && watch.threads.size() < kMostThreads; next.increment(failed)) {
    const std::string folder = next->path().string();
    const std::string id = next->path().filename().string();
    std::optional<Thread>& thread = watch.threads[id];
    if (const auto before = known.find(id); before != known.end()) {
      thread = before->second;
    } else if (counts(read_file(absl::StrCat(folder, "/comm")))) {
      thread.emplace();
    }
    if (thread) watch.waited = std::max(watch.waited, look_at(folder, *thread));
  }
  return watch.waited;
}

// The kernel adds a wait to the second number of schedstat only when the wait is over. So a thread
// that is runnable and whose schedstat has not changed since the last look has waited that long.
Nanoseconds ProcessorWaits::look_at(const std::string& folder, Thread& thread) const {
  std::string schedstat = read_file(absl::StrCat(folder, "/schedstat"));
  const std::vector<std::string> words = absl::StrSplit(schedstat, ' ');
  uint64_t waited = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &waited)) return Nanoseconds(0);
  Nanoseconds more{0};
  if (thread.schedstat.empty()) {
    thread.waited = waited;
  } else if (schedstat == thread.schedstat) {
    if (stat(folder).starts_with('R')) more = since_last_;
    thread.told += more;
  } else {
    more = std::max(Nanoseconds(static_cast<int64_t>(waited - thread.waited)) - thread.told,
                    Nanoseconds(0));
    thread.told = Nanoseconds(0);
    thread.waited = waited;
  }
  thread.schedstat = std::move(schedstat);
  return more;
}

}  // namespace weft::rpc_internal
