#include "weft/shm/wait_word.h"

#include <cerrno>
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace weft {

bool WaitWord::sleep(uint32_t seen, TimePoint deadline, uint32_t groups) {
  timespec until = {};
  const timespec* limit = nullptr;  // null: no time limit
  if (deadline != TimePoint::max()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    const auto time = deadline.time_since_epoch();  // of CLOCK_MONOTONIC, as the kernel wants it
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    until.tv_sec = static_cast<time_t>(seconds.count());
    until.tv_nsec = static_cast<long>(std::chrono::nanoseconds(time - seconds).count());
    limit = &until;
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the number again under its own lock, so no change in between is missed.
  const bool late =
      ::syscall(SYS_futex, &value, FUTEX_WAIT_BITSET, seen, limit, nullptr, groups) != 0 &&
      errno == ETIMEDOUT;
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return !late;
}

void WaitWord::wake(uint32_t groups) {
  ::syscall(SYS_futex, &value, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, groups);
}

}  // namespace weft
