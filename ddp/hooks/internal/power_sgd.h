// Runs PowerSGD on one rank: reduces one bucket after the other, and keeps errors and Qs by bucket.
//
// Thread safety: none; only the hook's thread uses it.
// Blocking: `reduce` waits for its collectives.
// Errors: those of the collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/ddp/hooks/internal/low_rank.h"
#include "weft/ddp/hooks/power_sgd_hook.h"

namespace weft::ddp_internal {

// The parts of a c10d::GradBucket that may be used after runHook has returned.
struct HookedBucket {
  size_t index = 0;
  bool last = false;  // of the iteration
  at::Tensor buffer;
  std::vector<at::Tensor> gradients;  // views of the buffer
};

class PowerSgd {
 public:
  PowerSgd(std::shared_ptr<ProcessGroup> group, const PowerSgdOptions& options);

  bool started() const { return iteration_ >= options_.start_power_sgd_iter; }
  // Counts a bucket that is averaged instead of passed to `reduce`.
  void count(const HookedBucket& bucket) { iteration_ += bucket.last; }
  // Reduces the bucket. Its buffer then holds the result, which is the same on all ranks.
  void reduce(const HookedBucket& bucket);

  ProcessGroup& group() const { return *group_; }
  const PowerSgdStats& stats() const { return stats_; }
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct Memory {
    std::vector<std::vector<int64_t>> shapes;  // of the gradients
    at::Tensor error;  // flat, as long as the compressed part; undefined: none yet
    at::Tensor qs;     // all Qs of the bucket, flat; undefined: none yet
  };
  struct Factors;
  struct Parts;

  Memory& memory_of(const HookedBucket& bucket);
  Parts split(const HookedBucket& bucket, const at::Tensor& flat);
  Factors factors(const Parts& parts, Memory& memory);
  void fill(const Factors& factors);
  void wake(const Factors& factors);

  const std::shared_ptr<ProcessGroup> group_;
  const PowerSgdOptions options_;
  SeedSequence seeds_;
  int64_t iteration_ = 0;
  std::map<size_t, Memory> memories_;  // by bucket
  PowerSgdStats stats_;
};

}  // namespace weft::ddp_internal
