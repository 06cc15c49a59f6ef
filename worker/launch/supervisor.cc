#include "weft/worker/launch/supervisor.h"

#include <algorithm>
#include <errno.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "weft/base/status.h"

extern char** environ;

namespace weft::launch {
namespace {

constexpr size_t kMaxPending = 1 << 20;
constexpr size_t kReadSize = 64 * 1024;
// If poll calls a pipe writable, a write of this size does not block.
constexpr size_t kWriteSize = 4096;
constexpr size_t kMaxErrorFile = 64 * 1024;
constexpr size_t kMaxErrorMessage = 2000;

int fd_of(Stream stream) { return stream == Stream::kOut ? STDOUT_FILENO : STDERR_FILENO; }

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

size_t terminal_columns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

OutputMerger::Options merger_options() {
  OutputMerger::Options options;
  options.terminal = {isatty(STDOUT_FILENO) == 1, isatty(STDERR_FILENO) == 1};
  options.columns = terminal_columns();
  return options;
}

SupervisorOptions core_options(const LaunchOptions& options) {
  return {options.processes, options.on_failure, options.max_restarts, options.grace};
}

// The message that a failed process left for its launcher, on one line. "" if there is none.
std::string read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "";
  std::string json(kMaxErrorFile, '\0');
  file.read(json.data(), static_cast<std::streamsize>(json.size()));
  json.resize(static_cast<size_t>(file.gcount()));
  std::string message = error_file_message(json);
  if (message.size() > kMaxErrorMessage) message = message.substr(0, kMaxErrorMessage) + "...";
  return absl::StrReplaceAll(message, {{"\n", " | "}, {"\r", ""}});
}

// For poll; -1: there is no deadline.
int milliseconds_until(std::optional<TimePoint> deadline) {
  if (!deadline) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

ExitStatus reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ExitStatus result;
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.code = WEXITSTATUS(status);
  }
  return result;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> result;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) result.push_back(pid);
  }
  return result;
}

}  // namespace

absl::StatusOr<FileDescriptor> take_signals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction current = {};
    sigaction(signal, nullptr, &current);
    const bool may_stay_ignored = signal == SIGINT || signal == SIGHUP;
    if (may_stay_ignored && current.sa_handler == SIG_IGN) continue;
    sigaddset(&taken, signal);
  }
  // If a parent passed on an ignored SIGCHLD, the kernel would reap the children.
  signal(SIGCHLD, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  FileDescriptor fd(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("signalfd: ", strerror(errno)));
  return fd;
}

Supervisor::Supervisor(GroupPlace place, FileDescriptor signals, NodeGroup* nodes)
    : place_([&] {
        const OutputMerger::Options options = merger_options();
        const size_t prefix = OutputMerger::prefix(place.nodes.world_size - 1).size();
        if (place.options.prefix && options.terminal[0] && options.columns > prefix + 1) {
          place.terminal_columns = options.columns - prefix - 1;
        }
        return std::move(place);
      }()),
      signals_(std::move(signals)),
      nodes_(nodes),
      core_(core_options(place_.options)),
      merger_(merger_options()),
      children_(place_.options.processes) {
  for (char** entry = environ; *entry != nullptr; ++entry) inherited_.push_back(*entry);
}

Supervisor::~Supervisor() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

absl::Status Supervisor::prepare() {
  WEFT_ASSIGN_OR_RETURN(program_, find_program(place_.options.program.front()));
  const char* temporary = getenv("TMPDIR");
  folder_ = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/weft_launch.XXXXXX");
  if (mkdtemp(folder_.data()) != nullptr) return absl::OkStatus();
  const std::string path = std::exchange(folder_, "");
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
}

absl::StatusOr<int> Supervisor::run() {
  const absl::Status prepared = prepare();
  if (!prepared.ok()) {
    tell_nodes(exit_code_of(prepared), std::string(prepared.message()));
    if (nodes_ != nullptr) leave_nodes();
    return prepared;
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  act(core_.start());
  while (!core_.done()) {
    wait_for_events();
    read_signals();
    reap_children();
    read_nodes();
    act(core_.on_time(std::chrono::steady_clock::now()));
  }
  end_strays();
  const int code = nodes_ == nullptr ? core_.exit_code() : leave_nodes();
  flush_output();
  return code;
}

void Supervisor::act(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::kStart) {
      start_child(action);
    } else if (children_[action.rank].pid > 0) {
      kill(-children_[action.rank].pid, action.signal);
    }
  }
}

void Supervisor::start_child(const Action& action) {
  if (core_.is_stopping()) {
    // The start of another rank has failed just now, so this one is not started.
    core_.on_exit(action.rank, ExitStatus(), std::chrono::steady_clock::now());
    return;
  }
  Child& child = children_[action.rank];
  child.error_file =
      absl::StrCat(folder_, "/rank_", action.rank, "_attempt_", action.restart_count, ".json");
  StartRequest request;
  request.path = program_;
  request.arguments = place_.options.program;
  request.environment =
      child_environment(inherited_, place_, action.rank, action.restart_count, child.error_file);
  request.capture_output = place_.options.prefix;
  absl::StatusOr<StartedProcess> started = start_process(request);
  if (started.ok()) {
    child.pid = started->pid;
    child.output[0] = std::move(started->out);
    child.output[1] = std::move(started->err);
    return;
  }
  const std::string text = absl::StrCat("rank ", rank_of(action.rank),
                                        " could not be started: ", started.status().message());
  merger_.say(absl::StrCat("weft_launch: ", text));
  const int code = exit_code_of(started.status());
  tell_nodes(code, text);
  act(core_.on_start_failed(action.rank, code, std::chrono::steady_clock::now()));
}

// Blocks until there is a signal, output, room for output, or the deadline.
void Supervisor::wait_for_events() {
  struct Source {
    uint32_t rank;
    Stream stream;
  };
  std::vector<pollfd> waiting = {{signals_.get(), POLLIN, 0}};
  std::vector<Source> sources;
  if (!backed_up()) {
    for (uint32_t rank = 0; rank < children_.size(); ++rank) {
      for (const Stream stream : {Stream::kOut, Stream::kErr}) {
        const FileDescriptor& output = children_[rank].output[static_cast<size_t>(stream)];
        if (!output.valid()) continue;
        waiting.push_back({output.get(), POLLIN, 0});
        sources.push_back({rank, stream});
      }
    }
  }
  const size_t first_sink = waiting.size();
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    // poll skips negative descriptors.
    waiting.push_back({merger_.pending(stream).empty() ? -1 : fd_of(stream), POLLOUT, 0});
  }
  waiting.push_back({nodes_ == nullptr ? -1 : nodes_->descriptor(), POLLIN, 0});
  if (poll(waiting.data(), waiting.size(), milliseconds_until(core_.deadline())) <= 0) return;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (waiting[i + 1].revents != 0) read_output(sources[i].rank, sources[i].stream, false);
  }
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    if (waiting[first_sink + static_cast<size_t>(stream)].revents != 0) write_output(stream);
  }
}

void Supervisor::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    tell_nodes(128 + signal, absl::StrCat("the launcher got ", signal_name(signal)));
    act(core_.on_signal(signal, std::chrono::steady_clock::now()));
  }
}

// Ends this machine's processes if the group has failed on another one.
void Supervisor::read_nodes() {
  if (nodes_ == nullptr) return;
  uint64_t count = 0;
  (void)!read(nodes_->descriptor(), &count, sizeof(count));
  const std::optional<NodeFailure> failure = nodes_->failure();
  if (!failure || group_failed_) return;
  group_failed_ = true;
  if (failure->node != place_.nodes.node) {
    merger_.say(absl::StrCat("weft_launch: node ", failure->node, " (",
                             nodes_->host_of(failure->node), "): ", failure->text));
  }
  act(core_.on_group_failure(failure->code, std::chrono::steady_clock::now()));
}

void Supervisor::tell_nodes(int code, const std::string& text) {
  if (nodes_ != nullptr) nodes_->fail(code, text);
}

// Returns the exit code once this launcher may exit. Until then it answers the others. After a
// failure it waits no longer than they may take to end. A signal ends the other nodes, and a second
// SIGINT ends the wait.
int Supervisor::leave_nodes() {
  nodes_->finish(core_.exit_code());
  std::optional<TimePoint> deadline;
  while (!nodes_->may_leave()) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (group_failed_ && !deadline) {
      deadline = now + place_.options.grace + 2 * place_.options.node_timeout;
    }
    if (deadline && now >= *deadline) break;
    std::vector<pollfd> waiting = {{signals_.get(), POLLIN, 0}, {nodes_->descriptor(), POLLIN, 0}};
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      waiting.push_back({merger_.pending(stream).empty() ? -1 : fd_of(stream), POLLOUT, 0});
    }
    (void)poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      if (waiting[2 + static_cast<size_t>(stream)].revents != 0) write_output(stream);
    }
    read_nodes();
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGINT && core_.interrupted()) return 128 + signal;
      core_.on_signal(signal, std::chrono::steady_clock::now());
      tell_nodes(128 + signal, absl::StrCat("the launcher got ", signal_name(signal)));
    }
  }
  read_nodes();
  return nodes_->exit_code();
}

// One SIGCHLD may stand for several exits.
void Supervisor::reap_children() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const auto child = std::find_if(children_.begin(), children_.end(),
                                    [&](const Child& c) { return c.pid == info.si_pid; });
    if (child == children_.end()) {
      if (info.si_pid == place_.c10d_store) merger_.say("weft_launch: the store of c10d has ended");
      reap(info.si_pid);  // or a rank started it and left it behind
    } else {
      reap_rank(static_cast<uint32_t>(child - children_.begin()));
    }
    info = {};
  }
}

void Supervisor::reap_rank(uint32_t rank) {
  Child& child = children_[rank];
  // Until the child is reaped, the kernel gives its number to no other process group. So kill
  // everything that it started now.
  kill(-child.pid, SIGKILL);
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    read_output(rank, stream, true);
    merger_.finish(rank_of(rank), stream);
    child.output[static_cast<size_t>(stream)].reset();
  }
  const ExitStatus status = reap(child.pid);
  const pid_t pid = std::exchange(child.pid, -1);
  const bool asked_for = core_.asked_for(status);
  const bool was_stopping = core_.is_stopping();
  const std::vector<Action> actions = core_.on_exit(rank, status, std::chrono::steady_clock::now());
  if (!asked_for) {
    const std::string text = describe_exit(rank, pid, status);
    merger_.say(absl::StrCat("weft_launch: ", text));
    if (core_.is_stopping() && !was_stopping) tell_nodes(status.shell_code(), text);
  }
  act(actions);
}

// Kills the processes that left their group, and their descendants. The launcher has adopted them.
// Other nodes may still need the store of c10d.
void Supervisor::end_strays() {
  const auto strays_now = [this] {
    std::vector<pid_t> children = children_of_this_process();
    std::erase(children, place_.c10d_store);
    return children;
  };
  for (std::vector<pid_t> strays = strays_now(); !strays.empty(); strays = strays_now()) {
    for (const pid_t pid : strays) {
      kill(pid, SIGKILL);
      reap(pid);
    }
  }
}

std::string Supervisor::describe_exit(uint32_t rank, pid_t pid, ExitStatus status) const {
  std::string line = absl::StrCat("rank ", rank_of(rank), " (pid ", pid, ") ");
  if (status.signal != 0) {
    absl::StrAppend(&line, "was ended by ", signal_name(status.signal));
  } else {
    absl::StrAppend(&line, "ended with exit code ", status.code);
  }
  const std::string message = read_error_file(children_[rank].error_file);
  if (!message.empty()) absl::StrAppend(&line, ": ", message);
  if (core_.is_running(rank)) {
    absl::StrAppend(&line, "; restart ", core_.restarts_of(rank), " of ",
                    place_.options.max_restarts);
  }
  return line;
}

uint32_t Supervisor::rank_of(uint32_t child) const { return place_.nodes.first_rank + child; }

void Supervisor::read_output(uint32_t rank, Stream stream, bool until_empty) {
  FileDescriptor& output = children_[rank].output[static_cast<size_t>(stream)];
  if (!output.valid()) return;
  std::string buffer(kReadSize, '\0');
  do {
    const ssize_t size = read(output.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      merger_.finish(rank_of(rank), stream);
      output.reset();
      return;
    }
    merger_.feed(rank_of(rank), stream, std::string_view(buffer.data(), static_cast<size_t>(size)));
  } while (until_empty);
}

void Supervisor::write_output(Stream stream) {
  std::string& pending = merger_.pending(stream);
  bool& closed = sink_closed_[static_cast<size_t>(stream)];
  if (!closed) {
    const ssize_t size = write(fd_of(stream), pending.data(), std::min(pending.size(), kWriteSize));
    if (size >= 0) {
      pending.erase(0, static_cast<size_t>(size));
      return;
    }
    if (errno == EINTR || errno == EAGAIN) return;
    // The reader is gone, as in `weft_launch ... | head`. The processes go on, and their output is
    // dropped.
    closed = true;
  }
  pending.clear();
}

bool Supervisor::backed_up() {
  return merger_.pending(Stream::kOut).size() > kMaxPending ||
         merger_.pending(Stream::kErr).size() > kMaxPending;
}

// Waits for a slow reader. A signal stops the wait.
void Supervisor::flush_output() {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    while (!merger_.pending(stream).empty()) {
      pollfd waiting[] = {{fd_of(stream), POLLOUT, 0}, {signals_.get(), POLLIN, 0}};
      if (poll(waiting, 2, -1) < 0) continue;
      signalfd_siginfo info;
      while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) return;
      }
      if (waiting[0].revents != 0) write_output(stream);
    }
  }
}

}  // namespace weft::launch
