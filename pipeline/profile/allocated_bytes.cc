#include "weft/pipeline/profile/allocated_bytes.h"

#include <unordered_set>

#include <c10/core/Allocator.h>

namespace weft::pipeline_internal {

class AllocatedBytes::Reports : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* address, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (bytes > 0) known_.insert(address);
    // Memory from before has no place in the sum.
    if (bytes < 0 && known_.erase(address) == 0) return;
    now_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t now() const { return now_; }

 private:
  std::unordered_set<void*> known_;
  int64_t now_ = 0;
};

// LibTorch's profiler uses the same place in the list, so a profiled thread cannot be measured too.
AllocatedBytes::AllocatedBytes()
    : reports_(std::make_shared<Reports>()), guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}
AllocatedBytes::~AllocatedBytes() = default;

int64_t AllocatedBytes::now() const { return reports_->now(); }

}  // namespace weft::pipeline_internal
