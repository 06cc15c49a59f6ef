#include "weft/ddp/reducer/gradient_buckets.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/ddp/reducer/scaled_copy.h"

namespace weft::ddp_internal {
namespace {

using c10::intrusive_ptr;
using Tensors = std::vector<at::Tensor>;

constexpr size_t kMostNames = 5;

// A tensor on the same memory. Autograd does not take it for a view, so the program may detach_()
// it.
at::Tensor slice_like(const at::Tensor& flat, int64_t begin, const at::Tensor& variable) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor part = flat.narrow(0, begin, variable.numel());
  return variable.is_non_overlapping_and_dense()
             ? part.as_strided(variable.sizes(), variable.strides(), part.storage_offset())
             : part.view(variable.sizes());
}

bool same_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.data_ptr() == other.data_ptr() && one.strides() == other.strides();
}

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<ReducerParameter>& parameters,
                                 std::shared_ptr<ProcessGroup> group, bool check_nans)
    : parameters_(parameters),
      check_nans_(check_nans),
      group_(std::move(group)),
      divisor_(group_->size()),
      kept_(parameters.size()),
      with_nans_(parameters.size(), false) {}

void GradientBuckets::allocate(const Buckets& assignment) {
  std::vector<Bucket> buckets;
  std::vector<std::pair<size_t, size_t>> place(parameters_.size());
  for (const auto& indices : assignment) {
    for (size_t i = 0; i < indices.size(); ++i) place[indices[i]] = {buckets.size(), i};
    buckets.push_back(make_bucket(indices));
  }
  buckets_ = std::move(buckets);
  place_ = std::move(place);
}

GradientBuckets::Bucket GradientBuckets::make_bucket(const std::vector<size_t>& indices) const {
  Bucket bucket;
  bucket.parameters = indices;
  bucket.sparse = parameters_[indices.front()].sparse;
  int64_t count = 0;
  for (const size_t parameter : indices) {
    const at::Tensor& variable = parameters_[parameter].variable;
    bucket.offsets.push_back(static_cast<size_t>(count));
    bucket.lengths.push_back(static_cast<size_t>(variable.numel()));
    bucket.sizes.push_back(variable.sizes());
    count += variable.numel();
  }
  if (bucket.sparse) return bucket;
  const at::Tensor& first = parameters_[indices.front()].variable;
  const auto how = first.options().requires_grad(false);
  const auto& backend = group_->backend();
  if (count > 0 && backend->supportsTensorAlloc(first.device().index())) {
    bucket.buffer = backend->allocateTensor(count, how);
  } else {
    bucket.buffer = at::empty({count}, how);
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    bucket.slices.push_back(slice_like(bucket.buffer, static_cast<int64_t>(bucket.offsets[i]),
                                       parameters_[indices[i]].variable));
  }
  return bucket;
}

void GradientBuckets::set_group(std::shared_ptr<ProcessGroup> group) {
  leave_buckets();
  group_ = std::move(group);
  divisor_ = group_->size();
}

void GradientBuckets::begin_pass() { std::fill(with_nans_.begin(), with_nans_.end(), false); }

// A rank that was given up may still write into a bucket. So gradients in buckets are copied out.
void GradientBuckets::leave_buckets() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.sparse) continue;
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      at::Tensor& gradient = parameters_[bucket.parameters[i]].variable.mutable_grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;
      if (same_memory(gradient, bucket.slices[i])) gradient = gradient.clone();
    }
  }
}

void GradientBuckets::write(size_t parameter, bool used, GradientHome& home) {
  const auto [index, at] = place_[parameter];
  Bucket& bucket = buckets_[index];
  at::Tensor& gradient = home.gradient(parameter);
  if (bucket.sparse) return write_sparse(parameter, gradient, bucket);
  const at::Tensor& slice = bucket.slices[at];
  if (!gradient.defined()) {
    slice.zero_();
    return;
  }
  if (gradient.is_sparse()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the gradient of '",
                                        parameters_[parameter].name,
                                        "' is sparse: name it in sparse_parameters"));
  }
  if (check_nans_ && !at::isfinite(gradient).all().item<bool>()) {
    with_nans_[parameter] = true;
  }
  const double factor = hook_ == nullptr ? 1.0 / divisor_ : 1.0;
  const bool in_place = same_memory(gradient, slice);
  // If no rank used this parameter, its gradient must come out unchanged.
  if (in_place && !used) kept_[parameter] = gradient.clone();
  if (!in_place) {
    scaled_copy(slice, gradient, factor);
  } else if (factor != 1) {
    slice.mul_(factor);
  }
  if (home.views() && !in_place && used) gradient = slice;
}

void GradientBuckets::write_zeros(size_t index) {
  Bucket& bucket = buckets_[index];
  if (bucket.sparse) {
    write_sparse(bucket.parameters.front(), at::Tensor(), bucket);
  } else {
    bucket.buffer.zero_();
  }
}

void GradientBuckets::write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket) {
  const at::Tensor& variable = parameters_[parameter].variable;
  if (gradient.defined() && !gradient.is_sparse()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the gradient of '",
                                        parameters_[parameter].name,
                                        "' is not sparse, which its layer said it would be"));
  }
  if (gradient.defined()) {
    bucket.buffer = gradient.coalesce();
    if (check_nans_ && !at::isfinite(bucket.buffer._values()).all().item<bool>()) {
      with_nans_[parameter] = true;
    }
  } else {
    // A gradient without rows. Only embeddings have sparse gradients, and these are sparse by rows.
    std::vector<int64_t> rows = variable.sizes().vec();
    rows[0] = 0;
    const auto how = variable.options().requires_grad(false);
    bucket.buffer = at::sparse_coo_tensor(at::empty({1, 0}, how.dtype(at::kLong)),
                                          at::empty(rows, how), variable.sizes())
                        .coalesce();
  }
  if (hook_ == nullptr && divisor_ != 1) bucket.buffer = bucket.buffer.div(divisor_).coalesce();
}

void GradientBuckets::start(size_t index) {
  Bucket& bucket = buckets_[index];
  if (hook_ == nullptr) {
    bucket.work = group_->all_reduce_async(bucket.buffer);
    return;
  }
  Tensors variables;
  for (const size_t parameter : bucket.parameters) {
    variables.push_back(parameters_[parameter].variable);
  }
  c10d::GradBucket given(index, buckets_.size(), bucket.buffer, bucket.offsets, bucket.lengths,
                         bucket.sizes, std::move(variables), std::nullopt);
  bucket.future = hook_->runHook(given);
  TORCH_CHECK(bucket.future != nullptr, "it returned no future");
}

void GradientBuckets::wait(size_t index) {
  Bucket& bucket = buckets_[index];
  if (bucket.work != nullptr) {
    const intrusive_ptr<c10d::Work> work = std::exchange(bucket.work, nullptr);
    work->wait();
    if (bucket.sparse) {
      const Tensors results = work->result();
      if (!results.empty()) bucket.buffer = results[0];
    }
  } else if (bucket.future != nullptr) {
    const auto future = std::exchange(bucket.future, nullptr);
    future->wait();
    if (future->hasError()) future->value();  // throws the error
    const at::Tensor result = hook_->parseHookResult(future->value());
    TORCH_CHECK(result.defined() && result.numel() == bucket.buffer.numel(),
                "the communication hook's result is not of the size of the bucket");
    if (bucket.sparse) {
      bucket.buffer = result;
    } else if (!same_memory(result.view({-1}), bucket.buffer)) {
      bucket.buffer.copy_(result.view({-1}));
    }
  }
}

std::string GradientBuckets::not_finite() const {
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const at::Tensor& slice = bucket.sparse ? bucket.buffer._values() : bucket.slices[i];
      if (at::isfinite(slice).all().item<bool>()) continue;
      const size_t parameter = bucket.parameters[i];
      return absl::StrCat("the averaged gradient of '", parameters_[parameter].name,
                          "' is not finite; this rank's own was ",
                          with_nans_[parameter] ? "not either" : "finite");
    }
  }
  return "";
}

void GradientBuckets::put(size_t parameter, bool nowhere, GradientHome& home) {
  const at::Tensor kept = std::exchange(kept_[parameter], at::Tensor());
  if (nowhere) {
    if (kept.defined()) home.gradient(parameter).copy_(kept);
    return;
  }
  const auto [index, at] = place_[parameter];
  const Bucket& bucket = buckets_[index];
  const at::Tensor& average = bucket.sparse ? bucket.buffer : bucket.slices[at];
  if (!home.views()) return home.put(parameter, average);
  at::Tensor& gradient = home.gradient(parameter);
  if (average.is_sparse() || !gradient.defined() || !same_memory(gradient, average)) {
    gradient = average;
  }
}

void GradientBuckets::drop() {
  std::fill(kept_.begin(), kept_.end(), at::Tensor());
  for (Bucket& bucket : buckets_) {
    bucket.work.reset();
    bucket.future.reset();
  }
}

const std::vector<size_t>& GradientBuckets::parameters_in(size_t bucket) const {
  return buckets_[bucket].parameters;
}

Buckets GradientBuckets::assignment() const {
  Buckets assignment;
  for (const Bucket& bucket : buckets_) assignment.push_back(bucket.parameters);
  return assignment;
}

std::vector<uint64_t> GradientBuckets::bytes() const {
  std::vector<uint64_t> bytes;
  for (const Bucket& bucket : buckets_) {
    uint64_t sum = 0;
    for (const size_t parameter : bucket.parameters)
      sum += parameters_[parameter].variable.nbytes();
    bytes.push_back(sum);
  }
  return bytes;
}

std::string GradientBuckets::names_in(size_t index) const {
  const std::vector<size_t>& parameters = buckets_[index].parameters;
  std::vector<std::string> names;
  for (const size_t parameter : parameters) {
    if (names.size() == kMostNames) {
      names.push_back(absl::StrCat(parameters.size() - kMostNames, " more"));
      break;
    }
    names.push_back(parameters_[parameter].name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace weft::ddp_internal
