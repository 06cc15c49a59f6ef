// The RpcRuntime of a real worker: turns typed messages into frames of the agent, and back.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the Worker, running handlers, scopes and pending replies. Agent, executor,
// clock and hooks must outlive the last call (docs/threading.md has the order of a shutdown).
// Blocking: read_reply(). No other method waits.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "weft/async/run_lengths.h"
#include "weft/base/log.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/hooks.h"
#include "weft/rpc/internal/parking.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/agent.h"

namespace weft::wire {
class Meta;
}

namespace weft::rpc_internal {

struct RuntimeOptions {
  Timeout default_timeout = std::chrono::seconds(60);
  TensorSendOptions tensors;
  ParkingLimits parking = {};
};

class WorkerRuntime final : public RpcRuntime, public std::enable_shared_from_this<WorkerRuntime> {
 public:
  WorkerRuntime(Agent& agent, Executor& executor, Clock& clock,
                std::shared_ptr<const Registry> registry, RuntimeOptions options);

  // Call it before the agent starts. Both may be null.
  void set_hooks(ReferenceHook* references, AutogradHook* autograd);
  // Installs this runtime's handlers in the agent. Call it once, before the agent starts.
  void attach();

  WorkerId id() const override { return agent_.self().id; }
  const std::string& name() const override { return agent_.self().name; }
  absl::StatusOr<WorkerId> resolve(std::string_view worker_name) const override {
    return agent_.resolve(worker_name);
  }
  std::string name_of(WorkerId worker) const override { return agent_.name_of(worker); }
  Executor& executor() override { return executor_; }
  Clock& clock() override { return clock_; }
  const Registry& registry() const override { return *registry_; }
  Agent& agent() { return agent_; }
  ReferenceHook* references() const { return references_; }
  AutogradHook* autograd() const { return autograd_; }

  CallId call(CallRequest request, ReplyHandler on_reply) override;
  void read_reply(WorkerId to, CallId call, async_internal::FutureCore& result) override {
    agent_.read_reply(to, call, result);
  }
  void cancel(WorkerId to, CallId call) override { agent_.cancel(to, call); }

  std::optional<Payload> shared_memory(size_t bytes) override {
    return agent_.shared_memory(bytes);
  }
  Timeout default_timeout() const;
  void set_default_timeout(Timeout timeout);

 private:
  class Sink;
  struct Arrival;

  // The wire forms of the references that a message carries.
  static std::vector<std::string> wires_of(const wire::Meta& meta);
  static absl::Status no_references();
  // The deadline of a call with `options`. `handler` is the deadline of the handler that makes the
  // call; kNever: no deadline, or no handler.
  TimePoint deadline_of(const CallOptions& options, TimePoint handler) const;
  // Moves `message` into `frame`, and adds its references, its autograd record and its tensors.
  absl::Status pack(Writer message, WorkerId to, ContextId context,
                    const TensorSendOptions& tensors, wire::Meta& meta, bool& has_meta,
                    Frame& frame, std::vector<CarriedReferencePtr>& carried);
  // The opposite of `pack`. `context` gets the autograd context of the message; may be null.
  absl::StatusOr<Reader> unpack(WorkerId from, const wire::Meta& meta, Frame& frame,
                                std::vector<AnyReferencePtr> references, ContextId* context);
  // Gives up the references of a message that is not read.
  void discard_references(WorkerId from, const wire::Meta& meta);
  void on_call(const std::shared_ptr<IncomingCall>& call);
  // The value of the reply, or the error that it carries.
  absl::StatusOr<Reader> open_reply(WorkerId from, Frame frame);
  void on_late_reply(WorkerId from, Frame frame);
  // The way of a call to its handler: wait for the references, wait for the target, queue, run. The
  // waits need no thread.
  void confirm(std::shared_ptr<Arrival> arrival);
  void find_target(std::shared_ptr<Arrival> arrival);
  void schedule(std::shared_ptr<Arrival> arrival);
  void run(const std::shared_ptr<Arrival>& arrival);
  void leave(const std::shared_ptr<SerialGate>& gate);
  void run_inside_gate(const std::shared_ptr<Arrival>& arrival);
  void leave_when_cancelled(const std::shared_ptr<SerialGate>& gate,
                            const std::shared_ptr<Arrival>& arrival);
  void park(Arrival& arrival);
  void unpark(Arrival& arrival);
  void refuse(Arrival& arrival, absl::Status status);
  absl::Status no_thread_for(const Arrival& arrival) const;
  void refuse_ended(Arrival& arrival);

  Agent& agent_;
  Executor& executor_;
  Clock& clock_;
  const std::shared_ptr<const Registry> registry_;
  // One for each function of the registry. The set of keys never changes, so it needs no lock.
  std::unordered_map<const FunctionEntry*, async_internal::RunLengths> run_lengths_;
  const RuntimeOptions options_;
  ReferenceHook* references_ = nullptr;
  AutogradHook* autograd_ = nullptr;
  Parking parking_;
  WarningLimit denials_;
  std::atomic<int64_t> default_timeout_ns_;
};

}  // namespace weft::rpc_internal
