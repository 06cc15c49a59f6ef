// Averages gradients over the ranks of a group while a backward pass still runs.
//
// The reducer copies each gradient into its bucket when it arrives. It starts the bucket's
// all_reduce (or hook) when the bucket is full and all earlier buckets are under way. At the end of
// the pass it puts the averages where the gradients were. ReductionOrder decides when,
// GradientBuckets holds the tensors, and this class connects both with the engines of backward.
//
// In a pass of LibTorch's engine, hooks on the AccumulateGrad nodes announce the gradients, which
// are in `.grad`. Another engine calls gradient_ready and finish itself, with a GradientHome.
//
// Thread safety: call gradient_ready, give_up, broken, in_pass and missing from any thread, and the
// methods around forward from one thread at a time. No lock is held while a call of gradient_ready
// works on the buckets; it has its turn (ReductionOrder). finish runs after the last turn.
// Lifetime: the destructor removes the hooks. No pass may run then.
// Blocking: rebuild_buckets, shadow_pass and finish wait for the other ranks, no longer than the
// group's timeout. gradient_ready waits for sparse gradients, for a hook, and for another thread in
// gradient_ready.
// Errors: c10::Error. An error of the group is thrown again with the names of the parameters.
// Protocol: docs/ddp.md, "A step".
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/comm/process_group.h"
#include "weft/ddp/reducer/gradient_buckets.h"
#include "weft/ddp/reducer/reduction_order.h"
#include "weft/ddp/reducer/used_parameters.h"

namespace weft::ddp_internal {

struct ReducerOptions {
  bool find_unused = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  bool check_nans = false;
  bool whole_gradients = false;                     // see ReducerCore::Options
  std::vector<uint64_t> first_limits = {kNoLimit};  // bytes, before the order is known
  std::vector<uint64_t> limits = {kNoLimit};        // bytes, after the order is known
};

class Reducer {
 public:
  // Durations of the last pass. prepare() sets `forward`, finish() sets the others. Zero: no pass
  // has got so far.
  struct Times {
    std::chrono::nanoseconds forward{0}, backward{0}, communication{0}, overlap{0};
  };

  Reducer(std::vector<ReducerParameter> parameters, std::shared_ptr<ProcessGroup> group,
          ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
    buckets_.set_hook(std::move(hook));
  }
  bool has_hook() const { return buckets_.has_hook(); }

  // Collective. Builds the buckets again, and returns true, the first time that the order of
  // arrival is known.
  bool rebuild_buckets() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass is reduced. It may start from any of `outputs`.
  void prepare(const std::vector<at::Tensor>& outputs) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass is not reduced: gradients only accumulate.
  void prepare_to_accumulate() ABSL_LOCKS_EXCLUDED(mutex_);
  void forward_begins() { forward_began_ = Clock::now(); }
  // c10::Error: the previous pass failed, and no set_group has followed.
  void check_whole() const ABSL_LOCKS_EXCLUDED(mutex_);

  // A gradient of a pass outside LibTorch's engine is final. True: it was the last one, so call
  // finish().
  bool gradient_ready(size_t parameter, GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the buckets and puts the averages into `home`.
  void finish(GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up the current pass and the group, because the ranks no longer agree on their position.
  // No pass can be reduced until set_group.
  void give_up(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  bool broken() const { return broken_; }
  // The outermost backward pass of LibTorch's engine begins.
  void backward_begins();

  const std::shared_ptr<ProcessGroup>& group() const { return buckets_.group(); }

  // For a rank without inputs: takes part in the other ranks' pass with zeros.
  void shadow_pass() ABSL_LOCKS_EXCLUDED(mutex_);

  // The number by which sums are divided; by default the size of the group.
  void set_divisor(int divisor) { buckets_.set_divisor(divisor); }
  // Gives up the current pass. From now on reduces over `group`, with the first buckets again.
  void set_group(std::shared_ptr<ProcessGroup> group) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<ReducerParameter>& parameters() const { return parameters_; }
  Buckets buckets() const { return buckets_.assignment(); }
  std::vector<uint64_t> bucket_bytes() const { return buckets_.bytes(); }
  std::vector<size_t> order_before() const { return order_.order_before(); }
  bool has_rebuilt() const { return rebuilt_; }
  bool in_pass() const { return order_.in_pass(); }
  std::vector<std::string> missing() const { return order_.missing(); }
  size_t unused_count() const { return unused_count_; }
  uint64_t passes() const { return order_.passes(); }
  Times times() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::string failure() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class LocalHome;
  using Clock = std::chrono::steady_clock;

  void install_hooks();
  void local_gradient(size_t parameter) ABSL_LOCKS_EXCLUDED(mutex_);
  void gradient_elsewhere(size_t parameter);
  void queue_end();
  ReductionOrder::Step arrive(size_t parameter, GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  void act(const ReductionOrder::Step& step, GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  void start(size_t bucket) ABSL_LOCKS_EXCLUDED(mutex_);
  void wait_for_buckets() ABSL_LOCKS_EXCLUDED(mutex_);
  void wait_for_used() ABSL_LOCKS_EXCLUDED(mutex_);
  void put_back(GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<size_t> order_of_rank_zero(const std::vector<size_t>& mine);
  at::Device device() const { return parameters_.front().variable.device(); }
  void set_failure(std::string failure, bool broken) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the first failure that broke the reducer.
  void set_first_failure(std::string failure) ABSL_LOCKS_EXCLUDED(mutex_);
  void clear_failure() ABSL_LOCKS_EXCLUDED(mutex_);
  [[noreturn]] void fail(const absl::Status& status, bool broken) ABSL_LOCKS_EXCLUDED(mutex_);
  [[noreturn]] void fail_reduction(const std::string& what, const std::exception& why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<ReducerParameter> parameters_;
  const ReducerOptions options_;
  const std::unique_ptr<LocalHome> local_;
  // Set by the constructor.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // by parameter
  std::vector<uintptr_t> hooks_;

  ReductionOrder order_;  // has a lock of its own

  // No lock guards these. In a pass, the thread whose turn it is uses them, and finish() after the
  // last turn. Between passes, the forward's thread uses them.
  GradientBuckets buckets_;
  UsedParameters used_;
  Clock::time_point reduction_began_, gradients_complete_;

  // Only the forward's thread uses these.
  bool rebuilt_ = false;
  size_t unused_count_ = 0;
  Clock::time_point forward_began_;

  // Guards only the result of the last pass, which any thread of that pass may set. No gradient
  // takes it unless something fails.
  mutable Mutex mutex_;
  std::string failure_ ABSL_GUARDED_BY(mutex_);
  Times times_ ABSL_GUARDED_BY(mutex_);
  // The ranks must begin again with set_group. Atomic, because other threads ask before each pass.
  std::atomic<bool> broken_{false};
};

}  // namespace weft::ddp_internal
