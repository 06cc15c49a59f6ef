// Room for calls that wait here for an object or their turn at it, and not for a thread.
//
// Such a call gives its credit back while there is room, since what it waits for may be a call that
// waits for credit. Beyond that it keeps it, and its caller's calls queue at the caller.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstddef>

#include "weft/base/mutex.h"

namespace weft::rpc_internal {

struct ParkingLimits {
  size_t calls = 65536;
  size_t bytes = size_t{256} << 20;  // one larger call has room if it is alone
};

class Parking {
 public:
  explicit Parking(ParkingLimits limits) : limits_(limits) {}

  // False: there is no room.
  bool enter(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (calls_ > 0 && (calls_ >= limits_.calls || bytes_ + bytes > limits_.bytes)) return false;
    ++calls_;
    bytes_ += bytes;
    return true;
  }
  void leave(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    --calls_;
    bytes_ -= bytes;
  }

 private:
  const ParkingLimits limits_;
  Mutex mutex_;
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::rpc_internal
