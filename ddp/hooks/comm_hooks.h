// Makes hooks that decide how DistributedDataParallel reduces a bucket of gradients.
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
// A hook is a c10d::CommHookInterface, of Weft or of the program. The reducer calls runHook(bucket)
// for each bucket, in the order of the buckets on every rank. The bucket holds this rank's
// gradients, not yet divided. When the returned future is complete, parseHookResult of its value is
// the bucket's result on this rank. A hook may use the GradBucket only until runHook returns. It
// may keep the tensors in it for longer.
//
// Order of collectives: each of these hooks issues exactly one collective for each bucket, inside
// runHook, on its group. So this group may be the reducer's own. A hook that needs several, such as
// PowerSGD (power_sgd_hook.h), cannot issue the later ones when the earlier complete. That happens
// at different times on different ranks, perhaps after the next bucket's collective. It needs its
// own group and its own thread.
//
// Thread safety: runHook on one thread at a time.
// Lifetime: hooks share the group. Futures may outlive the hook.
// Blocking: runHook does not wait for CPU tensors. For CUDA tensors it does what wait() of the
// group's backend does, on another stream than the caller's.
// Errors: those of the group's collectives, in the future. The functions that make hooks throw
// c10::ValueError.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "weft/comm/process_group.h"

namespace weft {

using CommHook = std::shared_ptr<c10d::CommHookInterface>;

// The mean, as without a hook: divided by the group's size, then summed.
CommHook allreduce_hook(std::shared_ptr<ProcessGroup> group);

// Casts to half precision, divides, sums in half precision, and casts back.
CommHook fp16_compress_hook(std::shared_ptr<ProcessGroup> group);
CommHook bf16_compress_hook(std::shared_ptr<ProcessGroup> group);

// The inner hook sees the bucket in half precision. Its result is cast back into the bucket. So
// fp16_compress_hook(group) does the same as fp16_compress_wrapper(allreduce_hook(group)).
CommHook fp16_compress_wrapper(CommHook inner);
CommHook bf16_compress_wrapper(CommHook inner);

// Leaves each rank's gradients as they are, to measure the cost of communication.
CommHook noop_hook();

struct PostLocalSgdOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  // Usually the ranks of one host. It may be null only if nothing is reduced after the start.
  std::shared_ptr<ProcessGroup> subgroup = nullptr;
  int64_t start_local_sgd_iter = 1000;        // iterations that reduce over `group`
  bool post_local_gradient_allreduce = true;  // false: nothing is reduced after the start

  void validate() const;
};

// Reduces over all ranks at first, then only within subgroups. Use it with a ModelAverager
// (model_averaging.h) whose warmup_steps is start_local_sgd_iter.
CommHook post_local_sgd_hook(PostLocalSgdOptions options);

}  // namespace weft
