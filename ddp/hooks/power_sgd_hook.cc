#include "weft/ddp/hooks/power_sgd_hook.h"

#include <exception>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "weft/async/serial_thread.h"
#include "weft/ddp/hooks/internal/hook_reduce.h"
#include "weft/ddp/hooks/internal/power_sgd.h"

namespace weft {
namespace {

using ddp_internal::HookedBucket;
using ddp_internal::HookFuture;

std::shared_ptr<ProcessGroup> group_of_its_own(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) C10_THROW_ERROR(ValueError, "PowerSGD: the group is null");
  std::vector<int> all(group->size());
  std::iota(all.begin(), all.end(), 0);
  return group->new_group(all);
}

// Completes a future with an error if its owner is destroyed before it has completed it.
class Promise {
 public:
  explicit Promise(HookFuture future) : future_(std::move(future)) {}
  Promise(Promise&&) = default;
  ~Promise() {
    if (future_ == nullptr || future_->completed()) return;
    future_->setError(std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                              "PowerSGD: the hook ended before this bucket's turn")));
  }
  HookFuture take() { return std::move(future_); }

 private:
  HookFuture future_;
};

void reduce(ddp_internal::PowerSgd& power_sgd, const HookedBucket& bucket,
            const ddp_internal::QueuedWork& gradients, const HookFuture& result) {
  try {
    const ddp_internal::QueuedWork::Follow follow(gradients);
    if (power_sgd.started()) {
      power_sgd.reduce(bucket);
      return result->markCompleted(bucket.buffer);
    }
    // The thread does not wait for this: on every rank the next bucket's collective still comes
    // after it.
    power_sgd.count(bucket);
    ddp_internal::complete_after(ddp_internal::average_in_place(power_sgd.group(), bucket.buffer,
                                                                bucket.buffer.scalar_type()),
                                 result,
                                 [buffer = bucket.buffer](c10::ivalue::Future&) { return buffer; });
  } catch (...) {
    result->setError(std::current_exception());
  }
}

}  // namespace

void PowerSgdOptions::validate() const {
  const auto refuse = [](const std::string& why) {
    C10_THROW_ERROR(ValueError, absl::StrCat("PowerSGD: ", why));
  };
  if (matrix_approximation_rank < 1) {
    refuse(absl::StrCat("matrix_approximation_rank is ", matrix_approximation_rank,
                        "; it must be at least 1"));
  }
  if (start_power_sgd_iter < 0) {
    refuse(absl::StrCat("start_power_sgd_iter is ", start_power_sgd_iter,
                        "; it must not be negative"));
  }
  if ((use_error_feedback || warm_start) && start_power_sgd_iter <= 1) {
    refuse(absl::StrCat("start_power_sgd_iter is ", start_power_sgd_iter,
                        "; with error feedback or a warm start it must be more than 1, since DDP "
                        "rebuilds its buckets after the first iteration"));
  }
  if (!(min_compression_rate >= 0)) {
    refuse(absl::StrCat("min_compression_rate is ", min_compression_rate,
                        "; it must not be negative"));
  }
  if (!(orthogonalization_epsilon >= 0)) {
    refuse(absl::StrCat("orthogonalization_epsilon is ", orthogonalization_epsilon,
                        "; it must not be negative"));
  }
}

PowerSgdHook::PowerSgdHook(const std::shared_ptr<ProcessGroup>& group,
                           const PowerSgdOptions& options)
    : power_sgd_((options.validate(),
                  std::make_shared<ddp_internal::PowerSgd>(group_of_its_own(group), options))),
      thread_(std::make_unique<SerialThread>(SerialThread::AtEnd::kDrop, "a PowerSGD hook")) {}

PowerSgdHook::~PowerSgdHook() = default;

HookFuture PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBufferRef();
  HookFuture result = ddp_internal::tensor_future(buffer.device());
  thread_->run([power_sgd = power_sgd_, promise = Promise(result),
                gradients = ddp_internal::QueuedWork(buffer.device()),
                taken = HookedBucket{bucket.getIndex(), bucket.isLast(), buffer,
                                     bucket.getGradients()}]() mutable {
    reduce(*power_sgd, taken, gradients, promise.take());
  });
  return result;
}

at::Tensor PowerSgdHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

void PowerSgdHook::on_thread(const std::function<void(ddp_internal::PowerSgd&)>& call) const {
  std::promise<void> done;
  thread_->run([&] {
    try {
      call(*power_sgd_);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

PowerSgdStats PowerSgdHook::stats() const {
  PowerSgdStats result;
  on_thread([&](ddp_internal::PowerSgd& power_sgd) { result = power_sgd.stats(); });
  return result;
}

void PowerSgdHook::save(torch::serialize::OutputArchive& archive) const {
  on_thread([&](ddp_internal::PowerSgd& power_sgd) { power_sgd.save(archive); });
}

void PowerSgdHook::load(torch::serialize::InputArchive& archive) {
  on_thread([&](ddp_internal::PowerSgd& power_sgd) { power_sgd.load(archive); });
}

std::shared_ptr<PowerSgdHook> power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                             const PowerSgdOptions& options) {
  return std::make_shared<PowerSgdHook>(group, options);
}

std::shared_ptr<PowerSgdHook> batched_power_sgd_hook(const std::shared_ptr<ProcessGroup>& group,
                                                     PowerSgdOptions options) {
  options.flatten_bucket = true;
  return power_sgd_hook(group, options);
}

}  // namespace weft
