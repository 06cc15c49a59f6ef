// Counts the bytes of tensors that a thread allocates and frees, while this object exists.
//
// It counts what LibTorch's CPU allocator reports on this thread, and only memory that was also
// allocated while it exists.
//
// Thread safety: create, use and destroy it on one thread.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::pipeline_internal {

class AllocatedBytes {
 public:
  AllocatedBytes();
  ~AllocatedBytes();

  // Allocated since the beginning, and not freed again.
  int64_t now() const;

 private:
  class Reports;
  const std::shared_ptr<Reports> reports_;  // shared with LibTorch's list for this thread
  const c10::DebugInfoGuard guard_;
};

}  // namespace weft::pipeline_internal
