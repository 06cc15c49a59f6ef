// The part of Reducer that handles the buckets: allocates them, fills them, reduces them, and
// copies the averages out.
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/ddp/reducer/reducer.h"
#include "weft/ddp/reducer/scaled_copy.h"

namespace weft::ddp_internal {
namespace {

using c10::intrusive_ptr;
using Tensors = std::vector<at::Tensor>;

constexpr size_t kMostNames = 5;

std::string text_of(const std::exception& failed) {
  const auto* const error = dynamic_cast<const c10::Error*>(&failed);
  return error != nullptr ? error->what_without_backtrace() : failed.what();
}

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

void Reducer::allocate_buckets() {
  std::vector<Bucket> buckets;
  std::vector<std::pair<size_t, size_t>> place(parameters_.size());
  for (const auto& indices : core_.buckets()) {
    Bucket bucket;
    bucket.parameters = indices;
    const at::Tensor& first = parameters_[indices.front()].variable;
    bucket.sparse = parameters_[indices.front()].sparse;
    int64_t count = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const at::Tensor& variable = parameters_[indices[i]].variable;
      place[indices[i]] = {buckets.size(), i};
      bucket.offsets.push_back(static_cast<size_t>(count));
      bucket.lengths.push_back(static_cast<size_t>(variable.numel()));
      bucket.sizes.push_back(variable.sizes());
      count += variable.numel();
    }
    if (!bucket.sparse) {
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
    }
    buckets.push_back(std::move(bucket));
  }
  buckets_ = std::move(buckets);
  place_ = std::move(place);
}

// A rank that was given up may still write into a bucket. So gradients in buckets are copied out.
void Reducer::leave_buckets() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.sparse) continue;
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      at::Tensor& gradient = parameters_[bucket.parameters[i]].variable.mutable_grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;
      if (same_memory(gradient, bucket.slices[i])) gradient = gradient.clone();
    }
  }
}

void Reducer::write(size_t parameter, bool used, GradientHome& home) {
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
  if (options_.check_nans && !at::isfinite(gradient).all().item<bool>()) {
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

void Reducer::write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket) {
  const at::Tensor& variable = parameters_[parameter].variable;
  if (gradient.defined() && !gradient.is_sparse()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the gradient of '",
                                        parameters_[parameter].name,
                                        "' is not sparse, which its layer said it would be"));
  }
  if (gradient.defined()) {
    bucket.buffer = gradient.coalesce();
    if (options_.check_nans && !at::isfinite(bucket.buffer._values()).all().item<bool>()) {
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

void Reducer::reduce(size_t index) {
  Bucket& bucket = buckets_[index];
  if (reduction_began_ == Clock::time_point()) reduction_began_ = Clock::now();
  if (hook_ != nullptr) {
    Tensors variables;
    for (const size_t parameter : bucket.parameters) {
      variables.push_back(parameters_[parameter].variable);
    }
    c10d::GradBucket given(index, buckets_.size(), bucket.buffer, bucket.offsets, bucket.lengths,
                           bucket.sizes, std::move(variables), std::nullopt);
    try {
      bucket.future = hook_->runHook(given);
      TORCH_CHECK(bucket.future != nullptr, "it returned no future");
    } catch (const std::exception& failed) {
      fail_reduction(absl::StrCat("the communication hook failed for bucket ", index, " (",
                                  names_in(bucket), ")"),
                     failed);
    }
    return;
  }
  try {
    bucket.work = group_->all_reduce_async(bucket.buffer);
  } catch (const std::exception& failed) {
    fail_reduction(absl::StrCat("bucket ", index, " (", names_in(bucket), ") could not be reduced"),
                   failed);
  }
}

void Reducer::share_used(const std::vector<int32_t>& used) {
  used_map_ = at::tensor(used, at::kInt);
  const at::Device device = parameters_.front().variable.device();
  if (!device.is_cpu()) used_map_ = used_map_.to(device);
  used_work_ = group_->all_reduce_async(used_map_);
}

void Reducer::wait_for(Bucket& bucket, size_t index) {
  try {
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
  } catch (const std::exception& failed) {
    fail_reduction(absl::StrCat("bucket ", index, " (", names_in(bucket), ") could not be reduced"),
                   failed);
  }
}

void Reducer::wait_for_used() {
  if (used_work_ == nullptr) return;
  try {
    std::exchange(used_work_, nullptr)->wait();
  } catch (const std::exception& failed) {
    fail_reduction("ranks could not tell each other which parameters they used", failed);
  }
  used_map_ = used_map_.to(at::kCPU);
  used_known_ = true;  // stays true in a static graph
}

bool Reducer::used_nowhere(size_t parameter) {
  if (core_.used(parameter)) return false;
  if (!core_.shares_used() && !used_known_) return false;
  wait_for_used();
  return used_map_.data_ptr<int32_t>()[parameter] == 0;
}

void Reducer::put(size_t parameter, const at::Tensor& slice, GradientHome& home) {
  if (used_nowhere(parameter)) {
    if (kept_[parameter].defined()) home.gradient(parameter).copy_(kept_[parameter]);
    return;
  }
  if (!home.views()) return home.put(parameter, slice);
  at::Tensor& gradient = home.gradient(parameter);
  if (slice.is_sparse() || !gradient.defined() || !same_memory(gradient, slice)) gradient = slice;
}

std::string Reducer::not_finite() const {
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

void Reducer::fail_reduction(const std::string& what, const std::exception& why) {
  const std::string failure = absl::StrCat(what, ": ", text_of(why));
  {
    const MutexLock lock(mutex_);
    failure_ = failure;
    broken_ = true;
  }
  C10_THROW_ERROR(DistBackendError, absl::StrCat("DistributedDataParallel: ", failure));
}

void Reducer::fail(const absl::Status& status) {
  failure_ = std::string(status.message());
  C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", failure_));
}

std::string Reducer::names_in(const Bucket& bucket) const {
  std::vector<std::string> names;
  for (const size_t parameter : bucket.parameters) {
    if (names.size() == kMostNames) {
      names.push_back(absl::StrCat(bucket.parameters.size() - kMostNames, " more"));
      break;
    }
    names.push_back(parameters_[parameter].name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace weft::ddp_internal
