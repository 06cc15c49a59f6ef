#include "weft/shm/wait_word.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace weft {

bool WaitWord::sleep(uint32_t seen, TimePoint deadline) {
  timespec left = {};
  const timespec* limit = nullptr;  // null: no time limit
  if (deadline != TimePoint::max()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
    left.tv_sec = static_cast<time_t>(time / 1'000'000'000);
    left.tv_nsec = static_cast<long>(time % 1'000'000'000);
    limit = &left;
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the number again under its own lock, so no change in between is missed.
  const bool late =
      ::syscall(SYS_futex, &value, FUTEX_WAIT, seen, limit, nullptr, 0) != 0 && errno == ETIMEDOUT;
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return !late;
}

void WaitWord::wake() { ::syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace weft
