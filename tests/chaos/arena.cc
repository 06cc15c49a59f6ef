#include "weft/tests/chaos/arena.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/tests/chaos/processes/child.h"

namespace weft::chaos {
namespace {

constexpr int kTick = 10;  // ms, the longest time between two looks at everything
constexpr uint64_t kRestartAfter = 200 * kMillisecond;
constexpr uint64_t kJoinAgainAfter = 500 * kMillisecond;
// Without a fault a join succeeds at once. With a fault it may be refused.
constexpr int kMostRefusals = 20;
// The arena continues a process that its fail point has stopped, after this time.
constexpr uint64_t kFailPointStop = 300 * kMillisecond;
constexpr size_t kLinesOfLog = 60;
// After this many failures the run stops, because a broken worker breaks again and again.
constexpr size_t kMostFailures = 6;

std::string last_lines(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > kLinesOfLog) lines.pop_front();
  }
  return absl::StrJoin(lines, "\n    ");
}

}  // namespace

Arena::Arena(Network& network, ArenaOptions options)
    : network_(network), options_(std::move(options)), next_spawn_(options_.first_spawn) {
  slots_.resize(options_.workers);
  for (const size_t slot : options_.proxied) {
    FaultyProxy::Options proxy;
    proxy.name_space = network_.name_space_of(slot);
    proxy.host = network_.host_of(slot);
    proxy.seed = options_.seed + slot;
    proxy.target = [path = port_file(slot)]() -> uint16_t {
      int port = 0;
      std::ifstream(path) >> port;
      return static_cast<uint16_t>(port);
    };
    slots_[slot].proxy = std::make_unique<FaultyProxy>(std::move(proxy));
  }
}

Arena::~Arena() { kill_all(); }

std::string Arena::port_file(size_t slot) const {
  return absl::StrCat(network_.folder(), "/port.", options_.run_id, ".", slot);
}

void Arena::spawn(size_t place) {
  Slot& slot = slots_[place];
  Incarnation& incarnation = incarnations_.emplace_back();
  incarnation.spawn = next_spawn_++;
  incarnation.slot = place;
  const std::string& folder = network_.folder();
  const std::string ledger = absl::StrCat(folder, "/ledger.", incarnation.spawn);
  Running running{.incarnation = incarnations_.size() - 1, .tail = LedgerTail(ledger)};
  ChildRequest request;
  request.arguments = {
      options_.program,
      absl::StrCat("name=w", place),
      absl::StrCat("spawn=", incarnation.spawn),
      absl::StrCat("seed=", options_.seed),
      absl::StrCat("run=", options_.run_id),
      absl::StrCat("store=", options_.store),
      absl::StrCat("host=", network_.host_of(place)),
      absl::StrCat("ledger=", ledger),
      absl::StrCat("checkpoints=", network_.disk(), "/", options_.run_id, ".w", place)};
  if (slot.proxy != nullptr) {
    request.arguments.push_back(absl::StrCat("door=", slot.proxy->address()));
    request.arguments.push_back(absl::StrCat("port_file=", port_file(place)));
  }
  if (options_.fail_points && !healing_ &&
      incarnation.spawn >= options_.first_spawn + options_.workers) {
    running.fail_point = fail_point_for(options_.seed, incarnation.spawn).value_or("");
  }
  request.environment = {absl::StrCat("WEFT_FAIL_POINT=", running.fail_point), "OMP_NUM_THREADS=1"};
  request.name_space = network_.name_space_of(place);
  request.output = absl::StrCat(folder, "/log.", incarnation.spawn);
  running.pid = start_child(request);
  running.handle = static_cast<int>(::syscall(SYS_pidfd_open, running.pid, 0));
  slot.running.emplace(std::move(running));
}

void Arena::collect(Slot& slot) {
  Running& running = *slot.running;
  Incarnation& incarnation = incarnations_[running.incarnation];
  const size_t known = incarnation.records.size();
  if (running.tail.read(incarnation.records) == 0) return;
  for (size_t i = known; i < incarnation.records.size(); ++i) {
    const Record& record = incarnation.records[i];
    if (record.kind == RecordKind::kJoined) {
      incarnation.id = record.token;
      incarnation.joined = record.time;
      slot.refused = 0;
    } else if (record.kind == RecordKind::kCeased) {
      running.ceased = true;
    } else if (record.kind == RecordKind::kQuiet) {
      running.quiet = true;
    }
  }
}

void Arena::reap(size_t place) {
  int status = 0;
  const pid_t pid = slots_[place].running->pid;
  const pid_t changed = ::waitpid(pid, &status, WNOHANG | WUNTRACED);
  if (changed != pid) return;
  if (WIFSTOPPED(status)) {
    on_stopped(place);
  } else {
    on_ended(place, status);
  }
}

// The process was stopped by a fault, or by its fail point.
void Arena::on_stopped(size_t place) {
  Running& running = *slots_[place].running;
  if (running.stopped) return;
  running.stopped = true;
  const uint64_t now = monotonic_ns();
  incarnations_[running.incarnation].stopped.push_back({now, UINT64_MAX});
  injections_.push_back({FaultKind::kFailPoint,
                         place,
                         incarnations_[running.incarnation].spawn,
                         {now, now + kFailPointStop},
                         Injection::Effect::kYes});
  later(now + kFailPointStop,
        [this, place, incarnation = running.incarnation] { resume(place, incarnation); });
}

void Arena::on_ended(size_t place, int status) {
  Slot& slot = slots_[place];
  Running& running = *slot.running;
  collect(slot);
  Incarnation& incarnation = incarnations_[running.incarnation];
  const uint64_t now = monotonic_ns();
  incarnation.ended = now;
  if (!incarnation.stopped.empty())
    incarnation.stopped.back().end = std::min(incarnation.stopped.back().end, now);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const bool by_kill = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  // While the run goes on, others may refer to its objects for longer than a shutdown waits.
  const bool may_hold = running.leaving || !options_.exact;
  slot.start_at = now + kRestartAfter;
  std::string wrong;
  if (by_kill && running.killed) {
    incarnation.end = Incarnation::End::kKilled;
  } else if (by_kill && absl::EndsWith(running.fail_point, ":kill")) {
    incarnation.end = Incarnation::End::kKilled;
    injections_.push_back(
        {FaultKind::kFailPoint, place, incarnation.spawn, {now, now}, Injection::Effect::kYes});
  } else if (code == 0 || code == kExitFenced || (code == kExitNotQuiet && may_hold)) {
    incarnation.end = Incarnation::End::kInOrder;
    incarnation.fenced = code == kExitFenced;
    if (incarnation.fenced && ending_) wrong = "found itself alone at the end of the run";
  } else if (code == kExitNotJoined) {
    incarnation.end = Incarnation::End::kRefused;
    slot.start_at = now + kJoinAgainAfter;
    if (++slot.refused >= kMostRefusals) wrong = "could not join, as others before it";
  } else if (code != kExitHang && now < running.limited_until) {
    incarnation.end = Incarnation::End::kKilled;
    ++limit_deaths_;
  } else if (code == kExitHang) {
    wrong = "waited more than twice as long as it may";
  } else {
    wrong = absl::StrCat("ended with ", code, running.fail_point.empty() ? "" : " at or after ",
                         running.fail_point);
  }
  if (incarnation.end != Incarnation::End::kInOrder) incarnation.until_the_end = false;
  const uint32_t spawn = incarnation.spawn;
  ::close(running.handle);
  slot.running.reset();
  if (!wrong.empty()) fail(std::move(wrong), spawn);
}

bool Arena::is_hopeless() const { return failures_.size() >= kMostFailures; }

void Arena::fail(std::string what, uint32_t spawn) {
  failures_.push_back(absl::StrCat("process ", spawn, " ", what, "\n    ",
                                   last_lines(absl::StrCat(network_.folder(), "/log.", spawn))));
}

// Serves all processes and due tasks until then.
void Arena::turn(uint64_t until) {
  do {
    for (size_t place = 0; place < slots_.size(); ++place) {
      Slot& slot = slots_[place];
      if (slot.running) collect(slot);
      if (slot.running) reap(place);
      const bool wanted = !slot.running && !ending_ && !is_hopeless();
      if (wanted && slot.start_at <= monotonic_ns()) spawn(place);
    }
    while (!agenda_.empty() && agenda_.begin()->first <= monotonic_ns()) {
      const Task task = std::move(agenda_.begin()->second);
      agenda_.erase(agenda_.begin());
      task();
    }
    std::vector<pollfd> ends;
    for (const Slot& slot : slots_) {
      if (slot.running) ends.push_back({slot.running->handle, POLLIN, 0});
    }
    const uint64_t now = monotonic_ns();
    const int left = until > now ? static_cast<int>((until - now) / kMillisecond) + 1 : 0;
    (void)::poll(ends.data(), ends.size(), std::min(left, kTick));
  } while (monotonic_ns() < until);
}

bool Arena::wait_until(const char* what, std::chrono::seconds bound,
                       const std::function<bool(const Slot&)>& of_each) {
  const uint64_t end = monotonic_ns() + static_cast<uint64_t>(bound.count()) * kSecond;
  while (true) {
    std::string missing;
    for (size_t place = 0; place < slots_.size(); ++place) {
      if (!of_each(slots_[place])) absl::StrAppend(&missing, " w", place);
    }
    if (missing.empty()) return true;
    if (is_hopeless()) return false;
    if (monotonic_ns() > end) {
      failures_.push_back(
          absl::StrCat("after ", bound.count(), " s these have not ", what, ":", missing));
      return false;
    }
    turn(monotonic_ns() + 20 * kMillisecond);
  }
}

void Arena::start() {
  wait_until("joined", std::chrono::seconds(90), [this](const Slot& slot) {
    return slot.running && incarnations_[slot.running->incarnation].id != 0;
  });
}

void Arena::run(const std::vector<Fault>& plan, std::chrono::milliseconds length,
                const std::atomic<bool>& interrupted) {
  const uint64_t begin = monotonic_ns();
  const auto at = [begin](std::chrono::milliseconds offset) {
    return begin + static_cast<uint64_t>(offset.count()) * kMillisecond;
  };
  for (const Fault& fault : plan) {
    while (!interrupted.load() && !is_hopeless() && monotonic_ns() < at(fault.at)) {
      turn(std::min(at(fault.at), monotonic_ns() + 100 * kMillisecond));
    }
    if (interrupted.load() || is_hopeless()) return;
    inject(fault);
  }
  while (!interrupted.load() && !is_hopeless() && monotonic_ns() < at(length)) {
    turn(std::min(at(length), monotonic_ns() + 100 * kMillisecond));
  }
}

void Arena::finish() {
  using std::chrono::seconds;
  heal_everything();
  // Within this time, each suspicion is dropped or becomes a death record that all know.
  const uint64_t settled = monotonic_ns() + 4 * kSecond;
  wait_until("joined again", seconds(120), [&](const Slot& slot) {
    return monotonic_ns() > settled && is_able(slot) &&
           incarnations_[slot.running->incarnation].joined + 2 * kSecond < monotonic_ns();
  });
  ending_ = true;
  for (Slot& slot : slots_) {
    if (slot.running) incarnations_[slot.running->incarnation].until_the_end = true;
  }
  const auto over = [](const Slot& slot) { return !slot.running; };
  signal_all(SIGTERM);
  bool good = wait_until("ceased to call", seconds(60),
                         [&](const Slot& slot) { return over(slot) || slot.running->ceased; });
  if (good) {
    signal_all(SIGUSR1);
    good = wait_until("come to rest", seconds(60),
                      [&](const Slot& slot) { return over(slot) || slot.running->quiet; });
  }
  signal_all(SIGUSR2);
  wait_until("ended", seconds(60), over);
  kill_all();
}

void Arena::signal_all(int signal) {
  for (const Slot& slot : slots_) {
    if (slot.running) ::kill(slot.running->pid, signal);
  }
}

void Arena::kill_all() {
  for (Slot& slot : slots_) {
    if (!slot.running) continue;
    ::kill(slot.running->pid, SIGKILL);
    while (::waitpid(slot.running->pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    collect(slot);
    incarnations_[slot.running->incarnation].ended = monotonic_ns();
    ::close(slot.running->handle);
    slot.running.reset();
  }
}

}  // namespace weft::chaos
