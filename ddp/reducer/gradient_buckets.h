// Keeps gradients in buckets, and averages one bucket over the ranks of a group.
//
// A bucket is one flat tensor. Each of its parameters has a slice of it. A parameter with sparse
// gradients has a bucket of its own, whose tensor is the gradient of the pass.
//
// Thread safety: none. The reducer calls the methods "in a pass" in a turn (ReductionOrder) or
// after the last turn, and the others when no pass runs.
// Lifetime: `parameters` must outlive this object.
// Blocking: wait() waits for the other ranks, no longer than the group's timeout. start() waits
// for a hook. write() waits for sparse gradients.
// Errors: c10::Error, and those of the group and the hook, thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "weft/comm/process_group.h"
#include "weft/ddp/reducer/bucket_assignment.h"

namespace weft::ddp_internal {

struct ReducerParameter {
  std::string name;
  at::Tensor variable;
  bool sparse = false;  // its gradient is a sparse tensor
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

class GradientBuckets {
 public:
  // Call allocate() before the first pass. `check_nans`: write() looks for NaN and infinity.
  GradientBuckets(const std::vector<ReducerParameter>& parameters,
                  std::shared_ptr<ProcessGroup> group, bool check_nans);

  // When no pass runs.
  void allocate(const Buckets& assignment);
  // Exchanges over `group` from now on, with buckets that allocate() makes next. The divisor is the
  // size of the group.
  void set_group(std::shared_ptr<ProcessGroup> group);
  void set_divisor(int divisor) { divisor_ = divisor; }  // sums are divided by it
  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook) { hook_ = std::move(hook); }
  void begin_pass();

  // In a pass.
  // Copies the gradient into its slice. A `used` gradient may become the slice (see GradientHome).
  void write(size_t parameter, bool used, GradientHome& home);
  void write_zeros(size_t bucket);
  // Starts the exchange of a bucket.
  void start(size_t bucket);
  // Waits until the bucket has the averages.
  void wait(size_t bucket);
  // The first parameter whose average is not finite, in words; "" if there is none.
  std::string not_finite() const;
  // Puts the average where the gradient was. If no rank used the parameter (`nowhere`), it keeps
  // the gradient that it had.
  void put(size_t parameter, bool nowhere, GradientHome& home);
  // Gives up all exchanges of the pass.
  void drop();

  size_t size() const { return buckets_.size(); }
  const std::vector<size_t>& parameters_in(size_t bucket) const;
  Buckets assignment() const;
  std::vector<uint64_t> bytes() const;        // by bucket
  std::string names_in(size_t bucket) const;  // of the parameters, for an error
  bool has_hook() const { return hook_ != nullptr; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    bool sparse = false;
    at::Tensor buffer;  // flat; of a sparse bucket, the gradient of the pass
    std::vector<at::Tensor> slices;
    std::vector<size_t> offsets, lengths;
    std::vector<c10::IntArrayRef> sizes;
    c10::intrusive_ptr<c10d::Work> work;  // the exchange of this pass is either `work` or `future`
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };

  Bucket make_bucket(const std::vector<size_t>& indices) const;
  void leave_buckets();
  void write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket);

  const std::vector<ReducerParameter>& parameters_;
  const bool check_nans_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<c10d::CommHookInterface> hook_;  // null: all_reduce
  int divisor_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_;  // by parameter: bucket, index in it
  std::vector<at::Tensor> kept_;  // by parameter: gradients of parameters that count as unused
  std::vector<bool> with_nans_;   // by parameter: this rank's gradient was not finite
};

}  // namespace weft::ddp_internal
