#include "weft/rpc/worker_runtime.h"

#include <algorithm>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/rpc/user_call.h"

namespace weft::rpc_internal {
namespace {

// For a call inside a handler: adds the handler's call chain, and its calls that are inside serial
// objects.
void add_chain(const CallScope& scope, wire::Meta& meta) {
  meta.set_chain_creator(scope.chain.creator.bits());
  meta.set_chain_number(scope.chain.number);
  meta.set_chain_depth(scope.depth);
  if (scope.held == nullptr) return;
  for (const ChainId& held : *scope.held) {
    meta.add_held_sources(held.creator.bits());
    meta.add_held_calls(held.number);
  }
}

// Connects a call that a handler makes to the handler's own call: if the handler's call is
// cancelled, so is the nested one, until it is answered. Shared by `call` and the reply callback,
// which may run before `on_cancel`.
class Upstream {
 public:
  explicit Upstream(const std::shared_ptr<CallContext>& context) : context_(context) {}

  template <class Cancel>
  void on_cancel(Cancel cancel) {
    const std::shared_ptr<CallContext> context = context_.lock();
    if (context == nullptr) return;
    const uint64_t hook = context->on_explicit_cancel(std::move(cancel));
    hook_.store(hook);
    if (answered_.load()) context->forget(hook);  // `answered` may have run before the store
  }
  void answered() {
    answered_.store(true);
    if (const auto context = context_.lock()) context->forget(hook_.load());
  }

 private:
  const std::weak_ptr<CallContext> context_;
  std::atomic<uint64_t> hook_{0};
  std::atomic<bool> answered_{false};
};

}  // namespace

std::vector<std::string> WorkerRuntime::wires_of(const wire::Meta& meta) {
  return {meta.references().begin(), meta.references().end()};
}

absl::Status WorkerRuntime::no_references() {
  return absl::FailedPreconditionError("this worker keeps no objects for others");
}

WorkerRuntime::WorkerRuntime(Agent& agent, Executor& executor, Clock& clock,
                             std::shared_ptr<const Registry> registry, RuntimeOptions options)
    : agent_(agent),
      executor_(executor),
      clock_(clock),
      registry_(std::move(registry)),
      options_(options),
      parking_(options.parking),
      default_timeout_ns_(options.default_timeout.limit().count()) {
  for (const auto& entry : registry_->entries()) run_lengths_.try_emplace(entry.get());
}

void WorkerRuntime::set_hooks(ReferenceHook* references, AutogradHook* autograd) {
  references_ = references;
  autograd_ = autograd;
}

void WorkerRuntime::attach() {
  let_futures_carry_scopes();
  // `this` is safe here: the owner stops the agent before it drops the runtime.
  agent_.set_call_handler([this](const std::shared_ptr<IncomingCall>& call) { on_call(call); });
  agent_.set_function_names([registry = registry_](uint64_t id) {
    const FunctionEntry* entry = registry->find(id);
    return entry != nullptr ? entry->name : std::string("an unknown function");
  });
  agent_.set_late_reply_handler(
      [this](WorkerId from, Frame frame) { on_late_reply(from, std::move(frame)); });
}

Timeout WorkerRuntime::default_timeout() const {
  return Timeout(Nanoseconds(default_timeout_ns_.load()));
}

void WorkerRuntime::set_default_timeout(Timeout timeout) {
  default_timeout_ns_.store(timeout.limit().count());
}

absl::Status WorkerRuntime::pack(Writer message, WorkerId to, ContextId context,
                                 const TensorSendOptions& tensors, wire::Meta& meta, bool& has_meta,
                                 Frame& frame, std::vector<CarriedReferencePtr>& carried) {
  for (const AnyReferencePtr& reference : message.references()) {
    if (references_ == nullptr) {
      return absl::FailedPreconditionError("this worker has no references to send");
    }
    WEFT_ASSIGN_OR_RETURN(CarriedReferencePtr next, references_->carry(reference, to));
    meta.add_references(next->wire());
    carried.push_back(std::move(next));
    has_meta = true;
  }
  if (autograd_ != nullptr && context.valid()) {
    WEFT_ASSIGN_OR_RETURN(std::string record,
                          autograd_->record_send(context, to, message.tensors()));
    if (!record.empty()) {
      meta.set_autograd(std::move(record));
      has_meta = true;
    }
  }
  frame.body = std::move(message.body());
  if (message.tensors().empty()) return encode_tensors({}, tensors, frame);
  TensorSendOptions with_copy = tensors;
  with_copy.copy = [this, to](const std::byte* data, size_t size) {
    return agent_.copy_payload(to, data, size);
  };
  return encode_tensors(std::move(message.tensors()), with_copy, frame);
}

void WorkerRuntime::discard_references(WorkerId from, const wire::Meta& meta) {
  if (references_ != nullptr && meta.references_size() > 0) {
    references_->discard(from, wires_of(meta));
  }
}

absl::StatusOr<Reader> WorkerRuntime::unpack(WorkerId from, const wire::Meta& meta, Frame& frame,
                                             std::vector<AnyReferencePtr> references,
                                             ContextId* context) {
  absl::StatusOr<std::vector<at::Tensor>> tensors = std::vector<at::Tensor>();
  absl::Status status = run_user_code([&] {
    if (frame.body.size() > frame.header.value_bytes || !frame.payloads.empty()) {
      tensors = decode_tensors(frame);
    }
    if (tensors.ok() && autograd_ != nullptr && !meta.autograd().empty()) {
      auto in = autograd_->record_receive(from, meta.autograd(), *tensors);
      if (in.ok()) {
        if (context != nullptr) *context = *in;
      } else {
        tensors = in.status();
      }
    }
  });
  if (!status.ok()) return status;
  if (!tensors.ok()) return tensors.status();
  frame.body.resize(frame.header.value_bytes);
  return Reader(std::move(frame.body), *std::move(tensors), std::move(references));
}

TimePoint WorkerRuntime::deadline_of(const CallOptions& options, TimePoint handler) const {
  TimePoint deadline = kNever;
  if (options.timeout.is_set()) {
    deadline = options.timeout.deadline_from(clock_.now());
  } else if (handler == kNever) {
    deadline = default_timeout().deadline_from(clock_.now());
  }
  return std::min(deadline, handler);
}

CallId WorkerRuntime::call(CallRequest request, ReplyHandler on_reply) {
  const CallScope& scope = CallScope::current();
  const bool own_scope = scope.runtime.get() == this;  // the handler may be another worker's
  wire::Meta meta;
  bool has_meta = false;
  Frame frame;
  std::vector<CarriedReferencePtr> carried;
  absl::Status packed = request.arguments.status();
  if (packed.ok() && request.options.snapshot && request.options.give) {
    packed = absl::InvalidArgumentError("CallOptions has both snapshot and give");
  }
  if (packed.ok()) {
    TensorSendOptions tensors = options_.tensors;
    if (request.options.snapshot) tensors.copy_up_to = SIZE_MAX;
    tensors.give = request.options.give;
    absl::Status status = run_user_code([&] {
      packed =
          pack(std::move(request.arguments), request.to, own_scope ? scope.context : ContextId(),
               tensors, meta, has_meta, frame, carried);
    });
    if (!status.ok()) packed = status;
  }
  if (!packed.ok()) {
    on_reply(raised_at(with_ran(std::move(packed), Ran::kNo), name()));
    return {};
  }
  if (own_scope && scope.chain.valid()) {
    frame.header.flags |= kFlagNested;
    add_chain(scope, meta);
    has_meta = true;
  }
  if (!request.target.empty() || !request.creation.empty()) {
    meta.set_target(std::move(request.target));
    meta.set_creation(std::move(request.creation));
    if (!meta.creation().empty()) frame.header.flags |= kFlagObject;
    has_meta = true;
  }
  if (has_meta) meta.SerializeToString(&frame.meta);
  if (absl::Status size = agent_.check_size(frame); !size.ok()) {
    on_reply(raised_at(with_ran(std::move(size), Ran::kNo), name()));
    return {};
  }
  frame.header.function = request.function.id;
  frame.header.fingerprint = request.function.fingerprint;
  WEFT_FAIL_POINT("runtime.call.packed");

  const TimePoint deadline = deadline_of(request.options, own_scope ? scope.deadline : kNever);
  std::shared_ptr<Upstream> upstream;
  if (own_scope && scope.call_context != nullptr) {
    upstream = std::make_shared<Upstream>(scope.call_context);
  }
  const CallId id = agent_.call(
      request.to, std::move(frame), request.function.name, deadline,
      [self = shared_from_this(), to = request.to, upstream, carried = std::move(carried),
       target = std::move(request.target_holder),
       on_reply = std::move(on_reply)](absl::StatusOr<Frame> reply) mutable {
        // The caller itself may run this. Its settings of LibTorch and its scope must not change
        // what a decoder makes.
        const c10::InferenceMode no_inference_mode(false);  // sets grad mode too
        const CallScopeGuard no_scope({});
        if (upstream != nullptr) upstream->answered();
        // A sent message arrives exactly once, or its receiver is dead. So only a call that never
        // left this worker takes its references back.
        if (reply.ok() || ran_of(reply.status()) != Ran::kNo ||
            !worker_of(reply.status()).empty()) {
          for (const CarriedReferencePtr& reference : carried) reference->delivered();
        }
        absl::StatusOr<Reader> result =
            reply.ok() ? self->open_reply(to, *std::move(reply)) : std::move(reply).status();
        if (!result.ok() && target != nullptr && self->references_ != nullptr) {
          result = self->references_->explain_failure(target, std::move(result).status());
        }
        on_reply(std::move(result));
      },
      request.waited_for);
  if (upstream != nullptr) {
    upstream->on_cancel([weak = weak_from_this(), to = request.to, id] {
      if (auto self = weak.lock()) self->cancel(to, id);
    });
  }
  return id;
}

absl::StatusOr<Reader> WorkerRuntime::open_reply(WorkerId from, Frame frame) {
  wire::Meta meta;
  if (!frame.meta.empty() && !meta.ParseFromString(frame.meta)) {
    return with_ran(absl::DataLossError("the reply's meta cannot be parsed"), Ran::kYes);
  }
  if ((frame.header.flags & kFlagError) != 0) {
    discard_references(from, meta);       // a result that was lost may have left references
    return decode_status(meta.status());  // explain_failure (typed_call.h) adds the hop
  }
  absl::StatusOr<ReferenceHook::References> references = ReferenceHook::References();
  if (meta.references_size() > 0) {
    references = references_ != nullptr
                     ? references_->receive(from, wires_of(meta))
                     : absl::StatusOr<ReferenceHook::References>(no_references());
  }
  if (!references.ok()) return with_ran(references.status(), Ran::kYes);
  auto reader = unpack(from, meta, frame, *std::move(references), nullptr);
  if (!reader.ok()) return with_ran(reader.status(), Ran::kYes);
  return reader;
}

void WorkerRuntime::on_late_reply(WorkerId from, Frame frame) {
  wire::Meta meta;
  if (frame.meta.empty() || !meta.ParseFromString(frame.meta)) return;
  discard_references(from, meta);
}

}  // namespace weft::rpc_internal
