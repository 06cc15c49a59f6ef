#include "weft/base/freed_memory.h"

#include <cstdlib>
#include <malloc.h>

namespace weft {

void keep_freed_memory() {
  static const bool once = [] {
    // The second is the largest that glibc allows.
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, 128 << 20);
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, 32 << 20);
    return true;
  }();
  (void)once;
}

}  // namespace weft
