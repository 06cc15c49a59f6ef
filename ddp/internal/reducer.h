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
// Thread safety: forward-side methods from one thread at a time; gradient_ready from any.
// Lifetime: hooks are removed with it; a pass must not run then.
// Blocking: rebuild_buckets, shadow_pass and finish, until the other ranks are there too, no longer
// than the group's timeout; gradient_ready for sparse gradients.
// Errors: c10::Error; what the group throws is thrown again with the names of the parameters.
#pragma once

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
#include "weft/ddp/internal/reducer_core.h"

namespace weft::internal {

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
  // Gives up the pass under way.
  void reset() ABSL_LOCKS_EXCLUDED(mutex_);
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
  struct Bucket;
  class LocalHome;
  using Clock = std::chrono::steady_clock;

  std::vector<ParameterSize> sizes() const;
  void install_hooks();
  void local_gradient(size_t parameter) ABSL_LOCKS_EXCLUDED(mutex_);
  void allocate_buckets();
  void act(const ReducerCore::Actions& actions, GradientHome& home)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void write(size_t parameter, GradientHome& home) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket);
  void reduce(size_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void share_used() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wait_for(Bucket& bucket, size_t index);
  void wait_for_used();
  bool used_nowhere(size_t parameter);
  void put(size_t parameter, const at::Tensor& slice, GradientHome& home);
  std::string not_finite() const;
  void queue_end() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[noreturn]] void fail(const absl::Status& status);
  [[noreturn]] void fail_reduction(const std::string& what, const std::exception& why);
  std::string names_in(const Bucket& bucket) const;

  const std::vector<ReducerParameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  const ReducerOptions options_;
  std::shared_ptr<c10d::CommHookInterface> hook_;
  int divisor_;
  std::unique_ptr<LocalHome> local_;

  Mutex mutex_;
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
  bool rebuilt_ = false;
  size_t unused_count_ = 0;
  uint64_t passes_ = 0;
  std::string failure_;  // of the last pass
  bool broken_ = false;  // it can neither go on nor end

  Times times_;
  Clock::time_point forward_began_, backward_began_, reduction_began_, gradients_complete_;
};

// Which of the parameters no graph of `outputs` reaches.
std::vector<size_t> find_unused(const std::vector<at::Tensor>& outputs,
                                const std::vector<std::shared_ptr<torch::autograd::Node>>& leaves);

}  // namespace weft::internal
