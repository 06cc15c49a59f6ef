// Sends the gradients' low-rank parts in place of the gradients (PowerSGD, arXiv:1905.13727).
//
//   model.register_comm_hook(weft::power_sgd_hook(group, {.matrix_approximation_rank = 2}));
//
// The first iterations average as allreduce_hook does. Then each gradient that is worth it is seen
// as a matrix M (rows: its first dimension) and sent as P = MQ and Q = M'P, with P made orthonormal
// in between: all ranks get P Q'. What that leaves out is added to the same bucket's gradients of
// the next iteration (error feedback). Vectors and small matrices are averaged as they are.
//
// Order of collectives: a bucket needs several, one after the other, so they would meet those of
// other buckets differently on each rank if they were chained on futures. Therefore the hook has a
// group of its own, with all ranks of the given one, and one thread that issues all of its
// collectives, bucket by bucket. They meet nobody else's.
//
// What is remembered is kept by the bucket's index and forgotten when the bucket's shapes, type or
// device change (DDP rebuilds its buckets after the first iteration).
//
// Thread safety: runHook on one thread at a time; the rest from any thread.
// Lifetime: the destructor waits for the bucket that is being reduced, at most until the group's
// timeout; buckets behind it fail. Callbacks of the futures run on the hook's thread: they must not
// wait for the next bucket.
// Blocking: construction, until all ranks have come (it makes a group); runHook never.
// Errors: c10::ValueError for options; those of the collectives are in the future.
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
  int64_t matrix_approximation_rank = 1;  // columns of P and Q; fewer where a matrix has fewer
  int64_t start_power_sgd_iter = 1000;    // iterations that are averaged without compression
  double min_compression_rate = 2;        // compressed only if it saves more than this factor
  bool use_error_feedback = true;
  bool warm_start = true;  // the next iteration begins with the last one's Q, not a random one
  double orthogonalization_epsilon = 0;  // added to the norms of columns
  uint32_t random_seed = 0;              // of the random Q; the same on all ranks
  bool batch_tensors_with_same_shape = false;
  // The whole bucket as one square matrix: faster, but gradients of different layers are mixed.
  bool flatten_bucket = false;

  // Error feedback and warm start want start_power_sgd_iter > 1: the first iterations of DDP have
  // other buckets.
  void validate() const;
};

// Numbers of elements since the start, of the iterations that compress.
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

  // These wait for the buckets that runHook has been given before; not from a future's callback.
  PowerSgdStats stats() const;
  // This rank's iteration number, errors and Qs. Errors differ from rank to rank, so each saves and
  // loads its own.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void on_thread(const std::function<void(ddp_internal::PowerSgd&)>& call) const;

  const std::shared_ptr<ddp_internal::PowerSgd>
      power_sgd_;  // shared with the thread's tasks; theirs
  const std::unique_ptr<SerialThread> thread_;
};

std::shared_ptr<PowerSgdHook> power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                             const PowerSgdOptions& options = {});
// With flatten_bucket.
std::shared_ptr<PowerSgdHook> batched_power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                                     PowerSgdOptions options = {});

}  // namespace weft
