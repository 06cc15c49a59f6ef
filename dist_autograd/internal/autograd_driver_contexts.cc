// The part of AutogradDriver that callers use: recording of transfers, contexts and gradients.
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/dist_autograd/graph/caller_executor.h"
#include "weft/dist_autograd/graph/recv_node.h"
#include "weft/dist_autograd/internal/message_memory.h"
#include "weft/dist_autograd/passes/autograd_wire.h"

namespace weft::dist_autograd_internal {
namespace {

absl::Status ended() {
  return with_ran(absl::FailedPreconditionError("this worker has shut down"), Ran::kNo);
}

std::string serialize(const AutogradMetadata& metadata) {
  MessageMemory memory;
  auto& message = *memory.make<wire::AutogradMetadata>();
  to_wire(metadata, message);
  return message.SerializeAsString();
}

}  // namespace

// ---- AutogradHook

absl::StatusOr<std::string> AutogradDriver::record_send(ContextId context, WorkerId to,
                                                        const std::vector<at::Tensor>& tensors) {
  // The metadata always names the context: the reply may carry tensors of it even if this message
  // carries none.
  SendRecord record = dist_autograd_internal::record_send(SendId(), to, tensors);
  std::vector<uint32_t> requires_grad;
  for (uint32_t slot = 0; slot < record.edges.size(); ++slot) {
    if (record.edges[slot].is_valid()) requires_grad.push_back(slot);
  }
  AutogradMetadata metadata;
  {
    MutexLock lock(mutex_);
    if (stopped_) return here(ended());
    if (requires_grad.empty()) {
      WEFT_RETURN_IF_ERROR(here(core_.note_peer(context, to)));
    } else {
      record.id = {agent_.self().id, ++last_send_};
      WEFT_RETURN_IF_ERROR(here(core_.note_send(context, record.id, to)));
    }
    auto known = core_.metadata(context);
    if (!known.ok()) return here(known.status());
    metadata = *std::move(known);
    metadata.send = record.id;
    metadata.requires_grad = std::move(requires_grad);
    if (record.id.valid()) contexts_[context].sends.emplace(record.id, std::move(record));
  }
  return serialize(metadata);
}

absl::StatusOr<ContextId> AutogradDriver::record_receive(WorkerId from, std::string_view attachment,
                                                         std::vector<at::Tensor>& tensors) {
  MessageMemory memory;
  auto& message = *memory.make<wire::AutogradMetadata>();
  if (!message.ParseFromArray(attachment.data(), static_cast<int>(attachment.size()))) {
    return absl::InvalidArgumentError("the autograd metadata of a message cannot be parsed");
  }
  WEFT_ASSIGN_OR_RETURN(AutogradMetadata metadata,
                        from_wire(message, static_cast<uint32_t>(tensors.size())));
  absl::Status noted;
  const bool alive = step(
      [&](ContextCore& core, AutogradActions& out) { noted = core.on_call(from, metadata, out); });
  WEFT_RETURN_IF_ERROR(here(alive ? noted : ended()));
  if (metadata.send.valid()) {
    std::vector<bool> mask(tensors.size());
    for (const uint32_t slot : metadata.requires_grad) mask[slot] = true;
    WEFT_RETURN_IF_ERROR(attach_recv(metadata.send, tensors, mask));
  }
  return metadata.context;
}

// ---- contexts

absl::StatusOr<ContextId> AutogradDriver::create_context() {
  MutexLock lock(mutex_);
  if (stopped_) return here(ended());
  return core_.create();
}

void AutogradDriver::release(const ContextId& context) {
  step(
      [&](ContextCore& core, AutogradActions& out) {
        core.release(context, out)
            .IgnoreError();  // it may be gone, or belong to another incarnation
      },
      On::kUserThread);
}

Future<void> AutogradDriver::start(const ContextId& context, Start start,
                                   const PassOptions& options, absl::StatusOr<PassId>& pass) {
  const auto refuse = [this](absl::Status status) {
    return Future<void>::ready(here(with_ran(std::move(status), Ran::kNo)));
  };
  pass = ended();
  if (start.roots.empty()) return refuse(absl::InvalidArgumentError("backward() without roots"));
  auto runtime = runtime_.lock();
  if (runtime == nullptr) return refuse(ended());
  const CallScope& scope = CallScope::current();
  const TimePoint now = clock_.now();
  TimePoint deadline = options.timeout.or_else(runtime->default_timeout()).deadline_from(now);
  if (scope.runtime == runtime) deadline = std::min(deadline, scope.deadline);

  ContextCore::StartOptions start_options;
  start_options.mode = options.mode;
  start_options.retain_graph = options.retain_graph;
  if (deadline != kNever) {
    start_options.budget = std::max(absl::FromChrono(deadline - now), absl::Microseconds(1));
  }
  Promise<void> promise(&executor_);
  Future<void> future = promise.future();
  step(
      [&](ContextCore& core, AutogradActions& out) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        pass = core.start(context, start_options, out);
        if (pass.ok()) waiting_.emplace(*pass, std::move(promise));
      },
      On::kUserThread, &start);
  return pass.ok() ? future : refuse(pass.status());
}

Future<void> AutogradDriver::backward(const ContextId& context, std::vector<at::Tensor> roots,
                                      const PassOptions& options) {
  absl::StatusOr<PassId> pass;
  Future<void> future =
      start(context, {std::move(roots), at::ThreadLocalState(), pass_executor_}, options, pass);
  if (!pass.ok()) return future;
  future.state()->set_on_cancel([weak = weak_from_this(), pass = *pass] {
    if (auto self = weak.lock()) {
      self->fail_pass(pass, absl::CancelledError("backward was cancelled by its caller"));
    }
  });
  return future;
}

absl::Status AutogradDriver::backward_here(const ContextId& context, std::vector<at::Tensor> roots,
                                           const PassOptions& options) {
  const auto executor = std::make_shared<CallerExecutor>(executor_);
  absl::StatusOr<PassId> pass;
  const Future<void> future =
      start(context, {std::move(roots), std::nullopt, executor}, options, pass);
  // The executor closes when the pass has ended, so that run() returns.
  future.state()->on_complete_inline([executor] { executor->close(); });
  executor->run();
  return future.result().status();
}

absl::StatusOr<std::vector<LeafGradient>> AutogradDriver::gradients(const ContextId& context) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<CommittedGradients> gradients, committed(context));
  return gradients->all();
}

absl::StatusOr<at::Tensor> AutogradDriver::gradient(const ContextId& context,
                                                    const at::Tensor& variable) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<CommittedGradients> gradients, committed(context));
  return gradients->find(variable);
}

absl::StatusOr<std::shared_ptr<CommittedGradients>> AutogradDriver::committed(
    const ContextId& context) {
  MutexLock lock(mutex_);
  if (stopped_) return here(ended());
  WEFT_RETURN_IF_ERROR(here(core_.check(context)));
  return contexts_[context].gradients;
}

absl::Status AutogradDriver::keep_with(const ContextId& context, std::shared_ptr<void> resource) {
  MutexLock lock(mutex_);
  if (stopped_) return here(ended());
  WEFT_RETURN_IF_ERROR(here(core_.check(context)));
  contexts_[context].kept.push_back(std::move(resource));
  return absl::OkStatus();
}

ContextCore::PassStanding AutogradDriver::standing(const PassId& pass) const {
  MutexLock lock(mutex_);
  return core_.standing(pass);
}

absl::Status AutogradDriver::check_settled(const ContextId& context) const {
  MutexLock lock(mutex_);
  return here(core_.check_settled(context));
}

void AutogradDriver::append_ties(std::vector<WorkerId>& workers) const {
  MutexLock lock(mutex_);
  if (!stopped_) core_.append_ties(workers);
}

AutogradDriver::Gauges AutogradDriver::gauges() const {
  MutexLock lock(mutex_);
  if (stopped_) return {};
  Gauges gauges{core_.size(), passes_.size(), 0, timers_.size()};
  for (const auto& [id, context] : contexts_) gauges.sends += context.sends.size();
  return gauges;
}

}  // namespace weft::dist_autograd_internal
