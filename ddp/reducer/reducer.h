// Averages gradients over the ranks of a group while a backward pass still runs.
//
// Copies each gradient into its bucket as it comes, starts the bucket's all_reduce (or hook) when
// it is full and its predecessors are under way, and at the end of the pass puts the averages where
// the gradients were. ReducerCore says when; this holds the tensors.
//
// A pass of LibTorch's engine announces its gradients through hooks on the AccumulateGrad nodes,
// and they live in `.grad`. Another engine calls gradient_ready and finish itself, with a
// GradientHome.
//
// Thread safety: forward-side methods from one thread at a time; gradient_ready from any. What
// gradient_ready does with buckets is done in the order in which ReducerCore gave it out, by one
// thread at a time (Turns), with no lock held: hooks and waits may take long.
// Lifetime: hooks are removed with it; a pass must not run then.
// Blocking: rebuild_buckets, shadow_pass and finish, until the other ranks are there too, no longer
// than the group's timeout; gradient_ready for sparse gradients, for what a hook waits for, and for
// another thread that is in it.
// Errors: c10::Error; what the group throws is thrown again with the names of the parameters.
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
  bool whole_gradients = false;                     // ReducerCore
  std::vector<uint64_t> first_limits = {kNoLimit};  // bytes: before the order is known
  std::vector<uint64_t> limits = {kNoLimit};        // and after
};

// Where one pass keeps its gradients.
class GradientHome {
 public:
  // Undefined: none (yet). The reducer may point it at a bucket if views() says so.
  virtual at::Tensor& gradient(size_t parameter) = 0;
  // The average; a slice of a bucket, to be copied. Not called for views.
  virtual void put(size_t parameter, const at::Tensor& average) = 0;
  virtual bool views() const { return false; }

 protected:
  ~GradientHome() = default;
};

class Reducer {
 public:
  // Where time went in the last pass, since prepare(); zero: it did not come to that.
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

  // Collective, and true, the first time that the order of arrival is known.
  bool rebuild_buckets() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass is reduced; `outputs` are what it may start from.
  void prepare(const std::vector<at::Tensor>& outputs) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next pass only accumulates.
  void prepare_to_accumulate() ABSL_LOCKS_EXCLUDED(mutex_);
  void forward_begins() { forward_began_ = std::chrono::steady_clock::now(); }
  // c10::Error: the pass before failed, and nobody has given it up.
  void check_whole() const;

  // A gradient of a pass that is not LibTorch's is final. True: it was the last, call finish().
  bool gradient_ready(size_t parameter, GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the buckets and puts the averages into their home.
  void finish(GradientHome& home) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up the pass under way, and with it the group: ranks no longer agree on where they are.
  // Nothing goes on until set_group.
  void give_up(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  bool broken() const { return broken_; }
  // A pass of LibTorch's engine begins, the outermost one.
  void backward_begins() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  // Takes part in the others' pass with zeros, for a rank that has no more inputs.
  void shadow_pass() ABSL_LOCKS_EXCLUDED(mutex_);

  // By what sums are divided; the group's size unless set.
  void set_divisor(int divisor) { divisor_ = divisor; }
  // From now on over another group, with the buckets of the start; gives up a pass under way.
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
    c10::intrusive_ptr<c10d::Work> work;  // of the pass: one of these two
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };
  // What one call of gradient_ready is to do, as it was decided under the lock.
  struct Step {
    ReducerCore::Actions actions;
    std::vector<bool> used;         // by actions.write
    std::vector<int32_t> used_map;  // by parameter, if it is to be shared; else empty
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
  Turns turns_;       // of who touches buckets in a pass
  ReducerCore core_;  // under mutex_ in a pass; by the forward's thread between passes
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_;  // by parameter: bucket, index in it
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<uintptr_t> hooks_;

  std::vector<at::Tensor> kept_;  // by parameter: the gradient of one that counts as unused
  at::Tensor used_map_;           // int32, by parameter
  c10::intrusive_ptr<c10d::Work> used_work_;
  bool used_known_ = false;
  std::vector<bool> with_nans_;
  bool callback_queued_ = false;
  bool seen_elsewhere_ = false;  // a gradient of a pass that is not LibTorch's, since prepare()
  bool rebuilt_ = false;
  size_t unused_count_ = 0;
  uint64_t passes_ = 0;
  std::string failure_;              // of the last pass
  std::atomic<bool> broken_{false};  // it can neither go on nor end

  Times times_;
  Clock::time_point forward_began_, backward_began_, reduction_began_, gradients_complete_;
};

}  // namespace weft::ddp_internal
