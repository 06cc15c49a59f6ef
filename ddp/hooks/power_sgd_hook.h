// Sends low-rank approximations of the gradients in place of the gradients (PowerSGD,
// arXiv:1905.13727).
//
//   model.register_comm_hook(weft::power_sgd_hook(group, {.matrix_approximation_rank = 2}));
//
// The first iterations average as allreduce_hook does. After that, each gradient that saves enough
// is treated as a matrix M (rows: its first dimension). The ranks exchange P = MQ and Q = M'P, and
// make P orthonormal in between. All ranks get P Q'. The error is added to the same bucket's
// gradients in the next iteration (error feedback). Vectors and small matrices are averaged as they
// are.
//
// Order of collectives: a bucket needs several collectives, one after the other. If they were
// chained on futures, their order among those of other buckets would differ between ranks.
// Therefore the hook has its own group, with all ranks of the given one, and one thread. The thread
// issues all collectives of the hook, bucket by bucket. No other collective is on this group.
//
// State is kept by the bucket's index. It is dropped if the bucket's shapes, type or device change
// (DDP rebuilds its buckets after the first iteration).
//
// Thread safety: runHook on one thread at a time; the other methods from any thread.
// Lifetime: the destructor waits for the bucket that is being reduced, at most until the group's
// timeout. Later buckets fail. Callbacks of the futures run on the hook's thread, so they must not
// wait for the next bucket.
// Blocking: construction waits for all ranks, because it makes a group. runHook never blocks.
// Errors: c10::ValueError for options. Errors of the collectives are in the future.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "weft/comm/process_group.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace weft {

class SerialThread;

namespace ddp_internal {
class PowerSgd;
}  // namespace ddp_internal

struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;  // columns of P and Q, or fewer if the matrix has fewer
  int64_t start_power_sgd_iter = 1000;    // iterations that are averaged without compression
  double min_compression_rate = 2;        // compresses only if that saves more than this factor
  bool use_error_feedback = true;
  bool warm_start = true;  // the next iteration begins with the last Q, not a random one
  double orthogonalization_epsilon = 0;  // added to the norms of columns
  uint32_t random_seed = 0;              // of the random Q; must be the same on all ranks
  bool batch_tensors_with_same_shape = false;
  // Takes the whole bucket as one square matrix. This is faster, but mixes gradients of different
  // layers.
  bool flatten_bucket = false;

  // c10::ValueError: a value is out of range. Error feedback and warm start need
  // start_power_sgd_iter > 1, because the first iterations of DDP have other buckets.
  void validate() const;
};

// The numbers of elements since the start, of the iterations that compress.
struct PowerSgdStats {
  int64_t numel_before = 0;
  int64_t numel_after = 0;
  double rate() const { return numel_after > 0 ? double(numel_before) / numel_after : 0; }
};

class PowerSgdHook : public c10d::CommHookInterface {
 public:
  // Collective over `group`.
  PowerSgdHook(const std::shared_ptr<ProcessGroup>& group, const PowerSgdOptions& options);
  ~PowerSgdHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

  // These three wait for the buckets that runHook has got before. Do not call them from a future's
  // callback.
  PowerSgdStats stats() const;
  // This rank's iteration number, errors and Qs. Errors differ between ranks, so each rank saves
  // and loads its own.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void on_thread(const std::function<void(ddp_internal::PowerSgd&)>& call) const;

  const std::shared_ptr<ddp_internal::PowerSgd> power_sgd_;  // shared with the thread's tasks
  const std::unique_ptr<SerialThread> thread_;
};

std::shared_ptr<PowerSgdHook> power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                             const PowerSgdOptions& options = {});
// The same with flatten_bucket.
std::shared_ptr<PowerSgdHook> batched_power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                                     PowerSgdOptions options = {});

}  // namespace weft
