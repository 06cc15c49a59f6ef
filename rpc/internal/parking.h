// Counts the calls that wait on this worker for an object, or for their turn at a serial object,
// and limits their number and bytes.
//
// A call that enters gives its credit back, because it may wait for another call that itself waits
// for credit. If there is no room, the call keeps its credit, and further calls queue at the
// caller.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstddef>

#include "weft/base/mutex.h"

namespace weft::rpc_internal {

struct ParkingLimits {
  size_t calls = 65536;
  size_t bytes = size_t{256} << 20;  // a larger call may enter if there is no other one
};

class Parking {
 public:
  explicit Parking(ParkingLimits limits) : limits_(limits) {}

  // False: there is no room, and the call did not enter.
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
