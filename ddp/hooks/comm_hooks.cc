#include "weft/ddp/hooks/comm_hooks.h"

#include <exception>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "weft/ddp/hooks/internal/hook_reduce.h"

namespace weft {
namespace {

using ddp_internal::HookFuture;

HookFuture ready(const at::Tensor& buffer) {
  HookFuture future = ddp_internal::tensor_future(buffer.device());
  future->markCompleted(buffer);
  return future;
}

HookFuture average(ProcessGroup& group, const at::Tensor& buffer, at::ScalarType type) {
  const ddp_internal::QueuedWork gradients(buffer.device());
  const ddp_internal::QueuedWork::Follow follow(gradients);
  return ddp_internal::average_in_place(group, buffer, type);
}

class Hook : public c10d::CommHookInterface {
 public:
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }
};

class AverageHook : public Hook {
 public:
  // Without `type`, it averages in the bucket's own type.
  AverageHook(std::shared_ptr<ProcessGroup> group, std::optional<at::ScalarType> type)
      : group_(std::move(group)), type_(type) {
    if (group_ == nullptr) C10_THROW_ERROR(ValueError, "communication hook: the group is null");
  }

  HookFuture runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBufferRef();
    return average(*group_, buffer, type_.value_or(buffer.scalar_type()));
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  const std::optional<at::ScalarType> type_;
};

class CompressWrapper : public Hook {
 public:
  CompressWrapper(CommHook inner, at::ScalarType type) : inner_(std::move(inner)), type_(type) {
    if (inner_ == nullptr) {
      C10_THROW_ERROR(ValueError, "communication hook: the hook to be wrapped is null");
    }
  }

  HookFuture runHook(c10d::GradBucket& bucket) override {
    at::Tensor buffer = bucket.getBuffer();
    try {
      const at::NoGradGuard no_grad;
      at::Tensor compressed = buffer.to(type_);
      bucket.setBuffer(compressed);
      const HookFuture inner = inner_->runHook(bucket);
      bucket.setBuffer(buffer);
      HookFuture result = ddp_internal::tensor_future(buffer.device());
      ddp_internal::complete_after(inner, result,
                                   [hook = inner_, buffer](c10::ivalue::Future& done) {
                                     return buffer.copy_(hook->parseHookResult(done.constValue()));
                                   });
      return result;
    } catch (...) {
      bucket.setBuffer(buffer);
      return ddp_internal::failed_future(std::current_exception());
    }
  }

 private:
  const CommHook inner_;
  const at::ScalarType type_;
};

class NoopHook : public Hook {
 public:
  HookFuture runHook(c10d::GradBucket& bucket) override { return ready(bucket.getBuffer()); }
};

class PostLocalSgdHook : public Hook {
 public:
  explicit PostLocalSgdHook(PostLocalSgdOptions options) : options_(std::move(options)) {
    options_.validate();
  }

  HookFuture runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBufferRef();
    const bool global = iteration_ < options_.start_local_sgd_iter;
    if (global && bucket.isLast()) ++iteration_;
    if (!global && !options_.post_local_gradient_allreduce) return ready(buffer);
    return average(global ? *options_.group : *options_.subgroup, buffer, buffer.scalar_type());
  }

 private:
  const PostLocalSgdOptions options_;
  int64_t iteration_ = 0;
};

}  // namespace

CommHook allreduce_hook(std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<AverageHook>(std::move(group), std::nullopt);
}

CommHook fp16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<AverageHook>(std::move(group), at::kHalf);
}

CommHook bf16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<AverageHook>(std::move(group), at::kBFloat16);
}

CommHook fp16_compress_wrapper(CommHook inner) {
  return std::make_shared<CompressWrapper>(std::move(inner), at::kHalf);
}

CommHook bf16_compress_wrapper(CommHook inner) {
  return std::make_shared<CompressWrapper>(std::move(inner), at::kBFloat16);
}

CommHook noop_hook() { return std::make_shared<NoopHook>(); }

void PostLocalSgdOptions::validate() const {
  if (group == nullptr) C10_THROW_ERROR(ValueError, "post-local SGD: the group is null");
  if (subgroup == nullptr && post_local_gradient_allreduce) {
    C10_THROW_ERROR(ValueError,
                    "post-local SGD: the subgroup is null, but post_local_gradient_allreduce is "
                    "on: give the group of this rank's host");
  }
  if (start_local_sgd_iter < 0) {
    C10_THROW_ERROR(ValueError, absl::StrCat("post-local SGD: start_local_sgd_iter is ",
                                             start_local_sgd_iter, "; it must not be negative"));
  }
}

CommHook post_local_sgd_hook(PostLocalSgdOptions options) {
  return std::make_shared<PostLocalSgdHook>(std::move(options));
}

}  // namespace weft
