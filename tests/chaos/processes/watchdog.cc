#include "weft/tests/chaos/processes/watchdog.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <execinfo.h>
#include <fstream>
#include <sys/syscall.h>
#include <unistd.h>

#include "weft/tests/chaos/oracle/ledger.h"

namespace weft::chaos {
namespace {

constexpr std::chrono::milliseconds kTick{50};
// If a tick takes longer, this process did not run in the rest of the time.
constexpr std::chrono::milliseconds kLongestTick{200};
constexpr int kMaxFrames = 64;

int dump_signal() { return SIGRTMIN + 4; }

std::atomic<int> dumped{0};  // the thread that has written its stack

void write_own_stack(int) {
  const int saved = errno;
  std::array<void*, kMaxFrames> frames;
  const int count = ::backtrace(frames.data(), kMaxFrames);
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  dumped.store(static_cast<int>(::syscall(SYS_gettid)));
  errno = saved;
}

std::string name_of_thread(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

Watchdog::Watchdog() {
  // The first backtrace loads libgcc, which a signal handler must not.
  std::array<void*, 1> frame;
  (void)::backtrace(frame.data(), 1);
  struct sigaction action {};
  action.sa_handler = write_own_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(dump_signal(), &action, nullptr);
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
  }
  thread_.join();
}

uint64_t Watchdog::begin(const char* what, uint64_t token, Nanoseconds bound) {
  MutexLock lock(mutex_);
  waits_.emplace(next_, Wait{what, token, bound, awake_});
  return next_++;
}

void Watchdog::end(uint64_t wait) {
  MutexLock lock(mutex_);
  waits_.erase(wait);
}

void Watchdog::watch() {
  auto last = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  while (!stopping_) {
    (void)stopped_.wait_until(mutex_, last + kTick);
    const auto now = std::chrono::steady_clock::now();
    awake_ += std::min<Nanoseconds>(now - last, kLongestTick);
    last = now;
    for (const auto& [number, wait] : waits_) {
      const Nanoseconds lasted = awake_ - wait.begun;
      if (lasted <= 2 * wait.bound) continue;
      std::fprintf(stderr, "watchdog: %s %llx waits for %.1f s, its bound is %.1f s\n", wait.what,
                   static_cast<unsigned long long>(wait.token),
                   std::chrono::duration<double>(lasted).count(),
                   std::chrono::duration<double>(wait.bound).count());
      dump_stacks();
      std::_Exit(kExitHang);
    }
  }
}

void Watchdog::dump_stacks() {
  const int self = static_cast<int>(::syscall(SYS_gettid));
  DIR* const folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const int thread = std::atoi(entry->d_name);
    if (thread <= 0 || thread == self) continue;
    std::fprintf(stderr, "---- thread %d %s\n", thread, name_of_thread(thread).c_str());
    std::fflush(stderr);
    if (::syscall(SYS_tgkill, ::getpid(), thread, dump_signal()) != 0) continue;
    // A thread that is stuck in the kernel writes no stack.
    for (int tries = 0; tries < 200 && dumped.load() != thread; ++tries) ::usleep(1000);
  }
  ::closedir(folder);
}

}  // namespace weft::chaos
