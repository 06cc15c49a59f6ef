// Hooks that decide how DistributedDataParallel reduces a bucket of gradients.
//
//   model.register_comm_hook(weft::fp16_compress_hook(group));
//
//   struct Sum : c10d::CppCommHookInterface<std::shared_ptr<weft::ProcessGroup>> {  // one's own
//     using CppCommHookInterface::CppCommHookInterface;
//     c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
//       return state_->all_reduce_async(bucket.getBufferRef())->getFuture();
//     }
//   };
//   model.register_comm_hook(std::make_shared<Sum>(group));
//
// A hook is a c10d::CommHookInterface, of Weft or of the user. The reducer calls runHook(bucket)
// for each bucket, in the order of the buckets on every rank; the bucket holds this rank's
// gradients, not yet divided. When the future that it returns is complete, parseHookResult of its
// value is the bucket's result on this rank. A hook may use the GradBucket only until runHook
// returns; the tensors in it for longer.
//
// Order of collectives: these hooks issue exactly one per bucket, inside runHook, on the group they
// were given. So that may be the reducer's own group. A hook that issues more than one, as PowerSGD
// does (power_sgd_hook.h), cannot issue the later ones when the earlier end: that is at different
// times on different ranks, perhaps after the next bucket's. It needs a group and a thread of its
// own.
//
// Thread safety: runHook on one thread at a time. Lifetime: they share the group; futures may
// outlive the hook. Blocking: runHook does not wait for CPU tensors; for CUDA tensors it does what
// wait() of the group's backend does, on a stream beside the caller's.
// Errors: in the future, those of the group's collectives; factories: c10::ValueError.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "weft/comm/process_group.h"

namespace weft {

using CommHook = std::shared_ptr<c10d::CommHookInterface>;

// The mean, as without a hook: divided by the group's size, then summed.
CommHook allreduce_hook(std::shared_ptr<ProcessGroup> group);

// Cast to half precision, divided, summed in it, and cast back.
CommHook fp16_compress_hook(std::shared_ptr<ProcessGroup> group);
CommHook bf16_compress_hook(std::shared_ptr<ProcessGroup> group);

// The inner hook sees the bucket in half precision; its result is cast back into the bucket. So
// fp16_compress_hook(group) does what fp16_compress_wrapper(allreduce_hook(group)) does.
CommHook fp16_compress_wrapper(CommHook inner);
CommHook bf16_compress_wrapper(CommHook inner);

// Leaves each rank's gradients as they are; to measure what communication costs.
CommHook noop_hook();

struct PostLocalSgdOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  // As a rule the ranks of one host; null only if they are not reduced among after the start.
  std::shared_ptr<ProcessGroup> subgroup = nullptr;
  int64_t start_local_sgd_iter = 1000;        // iterations that reduce over `group`
  bool post_local_gradient_allreduce = true;  // false: nothing is reduced after the start

  void validate() const;
};

// Reduces over all ranks at first, then only within subgroups; to be used with a ModelAverager
// (model_averaging.h) whose warmup_steps is start_local_sgd_iter.
CommHook post_local_sgd_hook(PostLocalSgdOptions options);

}  // namespace weft
