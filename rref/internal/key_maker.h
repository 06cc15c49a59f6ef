// Makes the keys of RRefs from the kernel's random numbers.
//
// It reads many at a time, because a system call costs more than the rest of a creation.
//
// Thread safety: none; the driver's lock guards it.
// Errors: it ends the process if the kernel has no random numbers.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <sys/random.h>
#include <system_error>
#include <utility>

#include "weft/base/log.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft::rref_internal {

class KeyMaker {
 public:
  KeyMaker() = default;
  KeyMaker(const KeyMaker&) = delete;  // the copy would make the same keys
  KeyMaker& operator=(const KeyMaker&) = delete;

  RRefKey next() {
    if (used_ == keys_.size()) {
      fill();
      used_ = 0;
    }
    return std::exchange(keys_[used_++], 0);
  }

 private:
  void fill() {
    // The kernel gives up to 256 bytes at once. Signals interrupt it only while it gathers its
    // first random numbers.
    static_assert(sizeof keys_ <= 256);
    ssize_t size = 0;
    do {
      size = ::getrandom(keys_.data(), sizeof keys_, 0);
    } while (size < 0 && errno == EINTR);
    if (size == ssize_t{sizeof keys_}) return;
    log_error("the kernel gives no random numbers: ", std::generic_category().message(errno));
    std::abort();
  }

  std::array<RRefKey, 32> keys_{};
  size_t used_ = keys_.size();
};

}  // namespace weft::rref_internal
