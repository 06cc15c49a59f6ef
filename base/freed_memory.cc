#include "weft/base/freed_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <malloc.h>
#include <thread>

namespace weft {

void keep_freed_memory() {
  static const bool once = [] {
    // 32 MiB is the largest M_MMAP_THRESHOLD that glibc allows.
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) {
      mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    }
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, 32 << 20);
    if (std::getenv("MALLOC_ARENA_MAX") == nullptr) {
      mallopt(M_ARENA_MAX, std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2));
    }
    return true;
  }();
  (void)once;
}

}  // namespace weft
