// Averages gradients over the ranks of a group while a backward pass still runs.
//
// The reducer copies each gradient into its bucket when it arrives. It starts the bucket's
// all_reduce (or hook) when the bucket is full and all earlier buckets are under way. At the end of
// the pass it puts the averages where the gradients were. ReducerCore decides when; this class
// holds the tensors.
//
// In a pass of LibTorch's engine, hooks on the AccumulateGrad nodes announce the gradients, which
// are in `.grad`. Another engine calls gradient_ready and finish itself, with a GradientHome.
//
// Thread safety: call gradient_ready from any thread, and the methods around forward from one
// thread at a time. The call of gradient_ready works on the buckets in the order in which
// ReducerCore decided, one thread at a time (Turns). It holds no lock meanwhile, because hooks and
// waits may take long.
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "weft/base/mutex.h"
#include "weft/comm/process_group.h"
#include "weft/ddp/reducer/reducer_core.h"
#include "weft/ddp/reducer/turns.h"

namespace weft::ddp_internal {

struct ReducerParameter {
  std::string name;
  at::Tensor variable;
  bool sparse = false;  // its gradient is a sparse tensor
};

struct ReducerOptions {
  bool find_unused = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  bool check_nans = false;
  bool whole_gradients = false;                     // see ReducerCore::Options
  std::vector<uint64_t> first_limits = {kNoLimit};  // bytes, before the order is known
  std::vector<uint64_t> limits = {kNoLimit};        // bytes, after the order is known
};

// Keeps the gradients of one pass.
class GradientHome {
 public:
  // Undefined: there is no gradient (yet). If views() is true, the reducer may make it a slice of a
  // bucket.
  virtual at::Tensor& gradient(size_t parameter) = 0;
  // Stores the average. It is a slice of a bucket, so it must be copied. Not called if views() is
  // true.
  virtual void put(size_t parameter, const at::Tensor& average) = 0;
  virtual bool views() const { return false; }

 protected:
  ~GradientHome() = default;
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

  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);
  bool has_hook() const { return hook_ != nullptr; }

  // Collective. Builds the buckets again, and returns true, the first time that the order of
  // arrival is known.
  bool rebuild_buckets() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass is reduced. It may start from any of `outputs`.
  void prepare(const std::vector<at::Tensor>& outputs) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass is not reduced: gradients only accumulate.
  void prepare_to_accumulate() ABSL_LOCKS_EXCLUDED(mutex_);
  void forward_begins() { forward_began_ = std::chrono::steady_clock::now(); }
  // c10::Error: the previous pass failed, and no set_group has followed.
  void check_whole() const;

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
  void backward_begins() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  // For a rank without inputs: takes part in the other ranks' pass with zeros.
  void shadow_pass() ABSL_LOCKS_EXCLUDED(mutex_);

  // The number by which sums are divided; by default the size of the group.
  void set_divisor(int divisor) { divisor_ = divisor; }
  // Gives up the current pass. From now on reduces over `group`, with the first buckets again.
  void set_group(std::shared_ptr<ProcessGroup> group) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<ReducerParameter>& parameters() const { return parameters_; }
  const Buckets& buckets() const { return core_.buckets(); }
  std::vector<uint64_t> bucket_bytes() const;
  const std::vector<size_t>& order_before() const { return core_.order_before(); }
  bool has_rebuilt() const { return rebuilt_; }
  bool in_pass() const { return core_.in_pass(); }
  std::vector<std::string> missing() const { return core_.missing(); }
  size_t unused_count() const { return unused_count_; }
  const Times& times() const { return times_; }
  uint64_t passes() const { return passes_; }
  const std::string& failure() const { return failure_; }

 private:
  class LocalHome;
  using Clock = std::chrono::steady_clock;
  struct Bucket {
    std::vector<size_t> parameters;
    bool sparse = false;
    at::Tensor buffer;  // flat; of a sparse bucket, the gradient of the pass
    std::vector<at::Tensor> slices;
    std::vector<size_t> offsets, lengths;
    std::vector<c10::IntArrayRef> sizes;
    c10::intrusive_ptr<c10d::Work> work;  // the reduction of this pass is either `work` or `future`
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };
  // The work of one call of gradient_ready, as decided under the lock.
  struct Step {
    ReducerCore::Actions actions;
    std::vector<bool> used;         // parallel to actions.write
    std::vector<int32_t> used_map;  // by parameter; empty unless the ranks share it
  };

  std::vector<ParameterSize> sizes() const;
  void install_hooks();
  void local_gradient(size_t parameter) ABSL_LOCKS_EXCLUDED(mutex_);
  void gradient_elsewhere(size_t parameter) ABSL_LOCKS_EXCLUDED(mutex_);
  void allocate_buckets();
  void leave_buckets();
  Step step_of(ReducerCore::Actions actions) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void act(const Step& step, GradientHome& home);
  void write(size_t parameter, bool used, GradientHome& home);
  void write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket);
  void reduce(size_t bucket);
  void share_used(const std::vector<int32_t>& used);
  void wait_for(Bucket& bucket, size_t index);
  void wait_for_used();
  bool used_nowhere(size_t parameter);
  void put(size_t parameter, const at::Tensor& slice, GradientHome& home);
  std::string not_finite() const;
  void queue_end() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[noreturn]] void fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[noreturn]] void fail_reduction(const std::string& what, const std::exception& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::string names_in(const Bucket& bucket) const;

  const std::vector<ReducerParameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  const ReducerOptions options_;
  std::shared_ptr<c10d::CommHookInterface> hook_;
  int divisor_;
  std::unique_ptr<LocalHome> local_;

  Mutex mutex_;
  Turns turns_;       // the order of threads that touch buckets in a pass
  ReducerCore core_;  // in a pass under mutex_; between passes used by the forward's thread
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_;  // by parameter: bucket, index in it
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<uintptr_t> hooks_;

  std::vector<at::Tensor> kept_;  // by parameter: gradients of parameters that count as unused
  at::Tensor used_map_;           // int32, by parameter
  c10::intrusive_ptr<c10d::Work> used_work_;
  bool used_known_ = false;
  std::vector<bool> with_nans_;
  bool callback_queued_ = false;
  bool seen_elsewhere_ = false;  // since prepare(), a pass of another engine ran the hooks
  bool rebuilt_ = false;
  size_t unused_count_ = 0;
  uint64_t passes_ = 0;
  std::string failure_;              // of the last pass
  std::atomic<bool> broken_{false};  // the ranks must begin again with set_group

  Times times_;
  Clock::time_point forward_began_, backward_began_, reduction_began_, gradients_complete_;
};

}  // namespace weft::ddp_internal
