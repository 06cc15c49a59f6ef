#include "weft/dist_autograd/context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/log.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::dist_autograd_internal {

absl::Status check_options(const dist_autograd::BackwardOptions& options) {
  if (!options.create_graph) return absl::OkStatus();
  return with_ran(
      absl::UnimplementedError("create_graph: gradients of gradients do not cross workers"),
      Ran::kNo);
}

}  // namespace weft::dist_autograd_internal

namespace weft::dist_autograd {
namespace {

using dist_autograd_internal::AutogradDriver;
using DriverPtr = std::shared_ptr<AutogradDriver>;

absl::Status worker_ended() {
  return with_ran(absl::FailedPreconditionError("the context's worker has ended"), Ran::kNo);
}

DriverPtr lock(const std::weak_ptr<AutogradDriver>& driver) {
  DriverPtr locked = driver.lock();
  if (locked == nullptr) throw RpcError(worker_ended());
  return locked;
}

DriverPtr current_driver() {
  const std::shared_ptr<RpcRuntime> runtime = value_or_throw(rpc_internal::current_runtime());
  return value_or_throw(AutogradDriver::of(*runtime));
}

AutogradDriver::PassOptions pass_options(const BackwardOptions& options) {
  return {.mode = static_cast<dist_autograd_internal::BackwardMode>(options.mode),
          .retain_graph = options.retain_graph,
          .timeout = options.timeout};
}

Future<void> start(AutogradDriver& driver, const ContextId& context, std::vector<at::Tensor> roots,
                   const BackwardOptions& options) {
  if (absl::Status refused = dist_autograd_internal::check_options(options); !refused.ok())
    return Future<void>::ready(refused);
  return driver.backward(context, std::move(roots), pass_options(options));
}

void run(AutogradDriver& driver, const ContextId& context, std::vector<at::Tensor> roots,
         const BackwardOptions& options) {
  absl::Status status = dist_autograd_internal::check_options(options);
  if (status.ok()) {
    status = driver.backward_here(context, std::move(roots), pass_options(options));
  }
  if (!status.ok()) throw RpcError(std::move(status));
}

std::vector<Gradient> all_of(AutogradDriver& driver, const ContextId& context) {
  std::vector<Gradient> all;
  for (dist_autograd_internal::LeafGradient& leaf : value_or_throw(driver.gradients(context))) {
    all.push_back({std::move(leaf.variable), std::move(leaf.gradient)});
  }
  return all;
}

}  // namespace

Context::Context() { enter(value_or_throw(rpc_internal::current_runtime())); }

Context::Context(std::shared_ptr<RpcRuntime> worker) {
  if (worker == nullptr) throw RpcError(worker_ended());
  enter(std::move(worker));
}

void Context::enter(std::shared_ptr<RpcRuntime> worker) {
  CallScope& scope = CallScope::current();
  if (scope.context.valid()) {
    throw RpcError(with_ran(
        absl::FailedPreconditionError(absl::StrCat("this thread is in ", scope.context.to_string(),
                                                   " already: contexts do not nest")),
        Ran::kNo));
  }
  const DriverPtr driver = value_or_throw(AutogradDriver::of(*worker));
  id_ = value_or_throw(driver->create_context());
  driver_ = driver;
  outer_ = std::exchange(scope.runtime, std::move(worker));
  scope.context = id_;
}

Context::~Context() {
  CallScope& scope = CallScope::current();
  if (scope.context == id_) {
    scope.context = {};
    scope.runtime = std::move(outer_);
  }
  const DriverPtr driver = driver_.lock();
  if (driver == nullptr) return;
  try {
    driver->release(id_);
  } catch (const std::exception& error) {
    log_warning(id_.to_string(), " was not released: ", error.what());
  }
}

void Context::backward(std::vector<at::Tensor> roots, BackwardOptions options) const {
  run(*lock(driver_), id_, std::move(roots), options);
}

Future<void> Context::backward_async(std::vector<at::Tensor> roots, BackwardOptions options) const {
  const DriverPtr driver = driver_.lock();
  if (driver == nullptr) return Future<void>::ready(worker_ended());
  return start(*driver, id_, std::move(roots), options);
}

std::vector<Gradient> Context::gradients() const { return all_of(*lock(driver_), id_); }

at::Tensor Context::gradient(const at::Tensor& variable) const {
  return value_or_throw(lock(driver_)->gradient(id_, variable));
}

ContextId current_context() { return CallScope::current().context; }

Future<void> backward_async(const ContextId& context, std::vector<at::Tensor> roots,
                            BackwardOptions options) {
  return start(*current_driver(), context, std::move(roots), options);
}

void backward(const ContextId& context, std::vector<at::Tensor> roots, BackwardOptions options) {
  run(*current_driver(), context, std::move(roots), options);
}

std::vector<Gradient> gradients(const ContextId& context) {
  return all_of(*current_driver(), context);
}

at::Tensor gradient(const ContextId& context, const at::Tensor& variable) {
  return value_or_throw(current_driver()->gradient(context, variable));
}

}  // namespace weft::dist_autograd
