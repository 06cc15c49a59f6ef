#include "weft/ddp/dist_autograd_bridge.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/ids.h"
#include "weft/base/log.h"
#include "weft/ddp/reducer/reducer.h"

namespace weft {
namespace {

ThreadExecutorOptions finisher_options() {
  ThreadExecutorOptions options;
  options.name = "weft-ddp";
  options.threads = 1;
  return options;
}

absl::Status status_of(std::exception_ptr failure, absl::StatusCode code) {
  try {
    std::rethrow_exception(std::move(failure));
  } catch (const c10::DistBackendError& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return absl::Status(code, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::Status(code, error.what());
  }
}

}  // namespace

// One reducer, and the pass that it reduces now.
//
// A pass is open from its first leaf on. With its last leaf it is complete, and a task finishes it.
// If it fails, a task clears it away. That task first aborts the group, because a leaf or the
// finisher may wait for it.
class DdpGradients::Entry : public std::enable_shared_from_this<Entry> {
 public:
  explicit Entry(const std::shared_ptr<ddp_internal::Reducer>& reducer) : reducer_(reducer) {}

  // `gradient` is undefined if the pass brings none for this parameter.
  absl::Status leaf(ObservedPass& observed, size_t parameter, const at::Tensor& gradient,
                    Executor& finishers) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::StatusOr<std::shared_ptr<Pass>> opened = enter(observed);
    if (!opened.ok()) return std::move(opened).status();
    const std::shared_ptr<Pass> pass = *std::move(opened);
    if (pass == nullptr) return absl::OkStatus();
    bool last = false;
    absl::Status status;
    try {
      pass->gradients[parameter] = gradient;
      last = pass->reducer->gradient_ready(parameter, *pass);
      pass->gradients[parameter].reset();  // copied into its bucket, so the pass drops it
    } catch (...) {
      status = status_of(std::current_exception(), absl::StatusCode::kFailedPrecondition);
    }
    const MutexLock lock(mutex_);
    pass->in_leaf = false;
    settled_.notify_all();
    if (last && status.ok() && !pass->failed) {
      pass->finishing = true;
      finishers.schedule([self = shared_from_this(), pass] { self->finish(*pass); });
    }
    return status;  // an error that fails the pass comes back as pass_failed
  }

  // Called under the lock of distributed autograd.
  void pass_failed(const ContextId& context, Executor& finishers) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    if (current_ == nullptr || current_->context != context || current_->failed) return;
    current_->failed = true;
    finishers.schedule([self = shared_from_this(), pass = current_] { self->clear_away(*pass); });
  }

  void settle() ABSL_LOCKS_EXCLUDED(mutex_) {
    const BlockingSection blocking;
    const MutexLock lock(mutex_);
    while (current_ != nullptr && current_->failed) settled_.wait(mutex_);
  }

  bool is_of(const ddp_internal::Reducer& reducer) const {
    return reducer_.lock().get() == &reducer;
  }

 private:
  struct Pass final : ddp_internal::GradientHome {
    Pass(std::shared_ptr<ddp_internal::Reducer> its_reducer, ContextId its_context)
        : reducer(std::move(its_reducer)),
          group(reducer->group()),
          context(its_context),
          gradients(reducer->parameters().size()) {}

    at::Tensor& gradient(size_t parameter) override { return gradients[parameter]; }
    void put(size_t parameter, const at::Tensor& average) override {
      hold.give(reducer->parameters()[parameter].variable, average.clone());
    }

    const std::shared_ptr<ddp_internal::Reducer> reducer;
    const std::shared_ptr<ProcessGroup> group;  // to be aborted, even if the reducer has another
    const ContextId context;
    PassHold hold;
    std::vector<at::Tensor> gradients;
    // Guarded by the entry's mutex_.
    bool in_leaf = true;     // a thread is in leaf()
    bool finishing = false;  // complete, and not finished
    bool failed = false;     // to be cleared away
  };

  // Returns the pass, and opens it if necessary. Null: its gradients stay this worker's own.
  absl::StatusOr<std::shared_ptr<Pass>> enter(ObservedPass& observed) ABSL_LOCKS_EXCLUDED(mutex_) {
    auto reducer = reducer_.lock();
    if (reducer == nullptr) return nullptr;
    std::shared_ptr<Pass> pass;
    {
      const MutexLock lock(mutex_);
      if (current_ != nullptr) {
        if (current_->context != observed.context()) return refuse(*current_, observed);
        if (current_->failed) {
          // One more leaf of the failed pass, or a new pass in the same context.
          if (observed.failed()) return nullptr;
          return broken();
        }
        current_->in_leaf = true;
        return current_;
      }
      if (reducer->broken()) {
        if (observed.failed()) return nullptr;
        return broken();
      }
      // The forward ran under no_sync, or there was none.
      if (!reducer->in_pass()) return nullptr;
      current_ = pass = std::make_shared<Pass>(std::move(reducer), observed.context());
    }
    // `current_` is set before this check. So a failure is either seen here or told to pass_failed.
    if (!observed.failed()) {
      pass->hold = observed.hold();  // takes a lock under which pass_failed is called
      return pass;
    }
    const MutexLock lock(mutex_);
    pass->in_leaf = false;
    if (!pass->failed) current_ = nullptr;  // pass_failed will not come; nothing has been reduced
    settled_.notify_all();
    return nullptr;
  }

  static absl::Status refuse(const Pass& running, const ObservedPass& other) {
    return absl::FailedPreconditionError(absl::StrCat(
        "DistributedDataParallel: a pass of ", running.context.to_string(),
        " is being reduced; one of ", other.context().to_string(), " cannot be at the same time"));
  }

  static absl::Status broken() {
    return absl::FailedPreconditionError(
        "DistributedDataParallel: a pass failed before, and the ranks no longer agree on where "
        "they "
        "are: update_process_group begins anew");
  }

  void finish(Pass& pass) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status status;
    try {
      pass.reducer->finish(pass);
    } catch (...) {
      status = status_of(std::current_exception(), absl::StatusCode::kUnknown);
    }
    // The next pass may begin as soon as this one is complete, so clear `current_` before the hold
    // goes.
    {
      const MutexLock lock(mutex_);
      pass.finishing = false;
      if (status.ok() && !pass.failed) current_ = nullptr;
      settled_.notify_all();
    }
    if (status.ok()) {
      pass.hold.release();
    } else {
      pass.hold.fail(std::move(status));
    }
  }

  void clear_away(Pass& pass) ABSL_LOCKS_EXCLUDED(mutex_) {
    pass.group->backend()->abort();
    {
      const MutexLock lock(mutex_);
      while (pass.in_leaf || pass.finishing) settled_.wait(mutex_);
    }
    const auto missing = pass.reducer->missing();
    if (!missing.empty()) {
      log_warning("DistributedDataParallel: a pass of ", pass.context.to_string(),
                  " failed before ", missing.size(), " gradients came, '", missing.front(),
                  "' the first; the group is aborted");
    }
    pass.reducer->give_up(absl::StrCat(
        "a pass of ", pass.context.to_string(), " failed",
        missing.empty() ? ""
                        : absl::StrCat(" before the gradient of '", missing.front(), "' came")));
    const MutexLock lock(mutex_);
    current_ = nullptr;  // the caller keeps the pass alive
    settled_.notify_all();
  }

  const std::weak_ptr<ddp_internal::Reducer> reducer_;
  Mutex mutex_;  // taken under distributed autograd's lock, so never take that lock under it
  CondVar settled_;
  std::shared_ptr<Pass> current_ ABSL_GUARDED_BY(mutex_);  // null: no pass is open
};

DdpGradients::DdpGradients() : finishers_(clock_, finisher_options()) {}

DdpGradients::~DdpGradients() {
  std::vector<std::shared_ptr<Entry>> entries;
  {
    const MutexLock lock(mutex_);
    for (const auto& [variable, place] : places_) entries.push_back(place.entry);
  }
  for (const auto& entry : entries) entry->settle();
  finishers_.stop();
}

void DdpGradients::attach(const std::shared_ptr<ddp_internal::Reducer>& reducer) {
  const auto entry = std::make_shared<Entry>(reducer);
  const MutexLock lock(mutex_);
  const auto& parameters = reducer->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    places_[parameters[i].variable.unsafeGetTensorImpl()] = {entry, i};
  }
}

void DdpGradients::detach(const std::shared_ptr<ddp_internal::Reducer>& reducer) {
  settle(reducer);
  const MutexLock lock(mutex_);
  std::erase_if(places_, [&](const auto& one) { return one.second.entry->is_of(*reducer); });
}

void DdpGradients::settle(const std::shared_ptr<ddp_internal::Reducer>& reducer) {
  if (const auto entry = entry_of(*reducer)) entry->settle();
}

std::shared_ptr<DdpGradients::Entry> DdpGradients::entry_of(const ddp_internal::Reducer& reducer) {
  const MutexLock lock(mutex_);
  const auto found = places_.find(reducer.parameters().front().variable.unsafeGetTensorImpl());
  return found == places_.end() ? nullptr : found->second.entry;
}

absl::Status DdpGradients::show(ObservedPass& pass, const at::Tensor& variable,
                                const at::Tensor& gradient) {
  Place place;
  {
    const MutexLock lock(mutex_);
    const auto found = places_.find(variable.unsafeGetTensorImpl());
    if (found == places_.end()) return absl::OkStatus();
    place = found->second;
  }
  return place.entry->leaf(pass, place.parameter, gradient, finishers_);
}

absl::Status DdpGradients::leaf_final(ObservedPass& pass, const at::Tensor& variable,
                                      at::Tensor& gradient) {
  return show(pass, variable, gradient);
}

absl::Status DdpGradients::leaf_without_gradient(ObservedPass& pass, const at::Tensor& variable) {
  return show(pass, variable, at::Tensor());
}

void DdpGradients::pass_failed(const ContextId& context) {
  const MutexLock lock(mutex_);
  for (const auto& [variable, place] : places_) place.entry->pass_failed(context, finishers_);
}

}  // namespace weft
