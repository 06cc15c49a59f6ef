// The faults that the arena injects into its workers, and how it repairs them.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/chaos/arena.h"
#include "weft/tests/chaos/processes/process_threads.h"

namespace weft::chaos {
namespace {

constexpr uint64_t kResetEvery = 150 * kMillisecond;
constexpr uint64_t kFillEvery = 50 * kMillisecond;
// For so long after a limit was lifted, it may still be the reason for a worker's exit.
constexpr uint64_t kLimitLingers = 5 * kSecond;
// Probabilities of the faults of a proxy, per piece of up to 64 KiB.
constexpr uint64_t kTruncateOneIn = 20;
constexpr uint64_t kHangOneIn = 20;
constexpr uint64_t kFlipOneIn = 10;

// Returns one more than the highest descriptor that the process has open.
uint64_t highest_descriptor(pid_t pid) {
  uint64_t highest = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    highest =
        std::max<uint64_t>(highest, std::strtoull(entry.path().filename().c_str(), nullptr, 10));
  }
  return highest + 1;
}

uint64_t mapped_bytes(pid_t pid) {
  uint64_t pages = 0;
  std::ifstream(absl::StrCat("/proc/", pid, "/statm")) >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Fills the disk until nothing more fits.
void fill(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  static const std::array<char, 4096> kNothing{};
  while (::write(file, kNothing.data(), kNothing.size()) > 0) {
  }
  ::close(file);
}

}  // namespace

bool Arena::is_able(const Slot& slot) const {
  if (!slot.running || slot.running->leaving || slot.running->stopped || slot.running->killed) {
    return false;
  }
  return incarnations_[slot.running->incarnation].id != 0;
}

size_t Arena::note(const Fault& fault, uint64_t end) {
  const Running& running = *slots_[fault.slot].running;
  injections_.push_back({fault.kind,
                         fault.slot,
                         incarnations_[running.incarnation].spawn,
                         {monotonic_ns(), end},
                         Injection::Effect::kByTraffic});
  return injections_.size() - 1;
}

void Arena::inject(const Fault& fault) {
  Slot& slot = slots_[fault.slot];
  if (!is_able(slot)) return;
  const auto length = static_cast<uint64_t>(fault.length.count()) * kMillisecond;
  const size_t injection = note(fault, monotonic_ns() + length);
  switch (fault.kind) {
    case FaultKind::kKill:
      slot.running->killed = true;
      ::kill(slot.running->pid, SIGKILL);
      break;
    case FaultKind::kLeave:
      slot.running->leaving = true;
      ::kill(slot.running->pid, SIGUSR2);
      break;
    case FaultKind::kStop:
      stop(fault, injection);
      break;
    case FaultKind::kPartition:
    case FaultKind::kOneWay:
    case FaultKind::kIsolate:
    case FaultKind::kStoreCut:
    case FaultKind::kLoss:
      cut(fault, injection);
      break;
    case FaultKind::kReset:
      reset(fault, injection);
      break;
    case FaultKind::kProxyDelay:
    case FaultKind::kProxyTruncate:
    case FaultKind::kProxyHang:
    case FaultKind::kProxyFlip:
      trouble_proxy(fault, injection);
      break;
    case FaultKind::kFullDisk:
      fill_disk(injection);
      break;
    case FaultKind::kFileLimit:
    case FaultKind::kMemoryLimit:
      limit(fault, injection);
      break;
    case FaultKind::kThreadLimit:
      take_threads(fault, injection);
      break;
    case FaultKind::kFailPoint:
      break;  // a process is started with it (spawn)
  }
}

void Arena::stop(const Fault& fault, size_t injection) {
  Running& running = *slots_[fault.slot].running;
  running.stopped = true;
  const Span span = injections_[injection].span;
  incarnations_[running.incarnation].stopped.push_back({span.begin, UINT64_MAX});
  ::kill(running.pid, SIGSTOP);
  later(span.end, [this, slot = fault.slot, incarnation = running.incarnation] {
    resume(slot, incarnation);
  });
}

void Arena::resume(size_t place, size_t incarnation) {
  Slot& slot = slots_[place];
  if (!slot.running || slot.running->incarnation != incarnation || !slot.running->stopped) return;
  ::kill(slot.running->pid, SIGCONT);
  slot.running->stopped = false;
  incarnations_[incarnation].stopped.back().end = monotonic_ns();
}

void Arena::cut(const Fault& fault, size_t injection) {
  PacketRules rules;
  for (const size_t other : fault.others) rules.peers.push_back(network_.host_of(other));
  if (fault.kind == FaultKind::kIsolate || fault.kind == FaultKind::kLoss) {
    for (size_t other = 0; other < slots_.size(); ++other) {
      if (other != fault.slot) rules.peers.push_back(network_.host_of(other));
    }
  }
  if (cuts_store(fault.kind)) rules.peers.push_back(network_.store_host());
  if (fault.kind == FaultKind::kLoss) rules.permille = fault.number;
  if (fault.kind == FaultKind::kOneWay) {
    rules.in = fault.number % 2 == 0;
    rules.out = !rules.in;
  }
  network_.apply(fault.slot, rules);
  injections_[injection].span.begin = monotonic_ns();  // not earlier: nft takes some time
  later(injections_[injection].span.end, [this, injection, slot = fault.slot] {
    network_.heal(slot);
    injections_[injection].span.end = monotonic_ns();
  });
}

// The kernel closes the victim's connections again and again, or its packet filter answers every
// segment with RST.
void Arena::reset(const Fault& fault, size_t injection) {
  PacketRules rules;
  for (const size_t other : fault.others) rules.peers.push_back(network_.host_of(other));
  if (fault.number % 2 == 0 && network_.kill_connections(fault.slot, rules.peers)) {
    const uint64_t next = monotonic_ns() + kResetEvery;
    if (next >= injections_[injection].span.end) return;
    later(next, [this, fault, injection] {
      if (!healing_) reset(fault, injection);
    });
    return;
  }
  rules.reset = true;
  network_.apply(fault.slot, rules);
  later(injections_[injection].span.end, [this, slot = fault.slot] { network_.heal(slot); });
}

void Arena::trouble_proxy(const Fault& fault, size_t injection) {
  FaultyProxy& proxy = *slots_[fault.slot].proxy;
  const auto met = [kind = fault.kind](const FaultyProxy::Counts& counts) {
    return kind == FaultKind::kProxyDelay      ? counts.delayed
           : kind == FaultKind::kProxyTruncate ? counts.truncated
           : kind == FaultKind::kProxyHang     ? counts.hung
                                               : counts.flipped;
  };
  if (fault.kind == FaultKind::kProxyDelay) proxy.delay(std::chrono::milliseconds(fault.number));
  if (fault.kind == FaultKind::kProxyTruncate) proxy.truncate_one_in(kTruncateOneIn);
  if (fault.kind == FaultKind::kProxyHang) proxy.hang_at_one_in(kHangOneIn);
  if (fault.kind == FaultKind::kProxyFlip) proxy.flip_one_in(kFlipOneIn);
  later(injections_[injection].span.end,
        [this, &proxy, injection, met, before = met(proxy.counts())] {
          proxy.delay(std::chrono::milliseconds(0));
          proxy.truncate_one_in(0);
          proxy.hang_at_one_in(0);
          proxy.flip_one_in(0);
          injections_[injection].effect =
              met(proxy.counts()) > before ? Injection::Effect::kYes : Injection::Effect::kNo;
        });
}

// Repeated, because space that old checkpoints free must be taken as well.
void Arena::fill_disk(size_t injection) {
  const std::string path = absl::StrCat(network_.disk(), "/filler.", injection);
  if (healing_ || monotonic_ns() >= injections_[injection].span.end) {
    ::unlink(path.c_str());
    return;
  }
  fill(path);
  later(monotonic_ns() + kFillEvery, [this, injection] { fill_disk(injection); });
}

void Arena::limit(const Fault& fault, size_t injection) {
  Running& running = *slots_[fault.slot].running;
  const bool files = fault.kind == FaultKind::kFileLimit;
  const auto which = files ? RLIMIT_NOFILE : RLIMIT_AS;
  rlimit before{};
  if (::prlimit(running.pid, which, nullptr, &before) != 0) return;
  rlimit now = before;
  now.rlim_cur = files ? highest_descriptor(running.pid) + fault.number
                       : mapped_bytes(running.pid) + (fault.number << 20);
  if (now.rlim_cur >= before.rlim_cur) return;
  if (::prlimit(running.pid, which, &now, nullptr) != 0) return;
  running.limited_until = injections_[injection].span.end + kLimitLingers;
  later(injections_[injection].span.end,
        [this, before, which, slot = fault.slot, incarnation = running.incarnation] {
          const Slot& of = slots_[slot];
          if (!of.running || of.running->incarnation != incarnation) return;
          (void)::prlimit(of.running->pid, which, &before, nullptr);
        });
}

// Unlike with the other limits, a worker must survive this one.
void Arena::take_threads(const Fault& fault, size_t injection) {
  const pid_t pid = slots_[fault.slot].running->pid;
  if (!limit_threads(pid, fault.number).ok()) return;
  later(injections_[injection].span.end, [pid] { lift_thread_limit(pid); });
}

void Arena::heal_everything() {
  healing_ = true;
  while (!agenda_.empty()) {
    const Task task = std::move(agenda_.begin()->second);
    agenda_.erase(agenda_.begin());
    task();
  }
  const uint64_t now = monotonic_ns();
  for (Injection& injection : injections_) injection.span.end = std::min(injection.span.end, now);
}

}  // namespace weft::chaos
