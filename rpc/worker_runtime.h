// The runtime of a real worker: typed messages in, frames of the agent out, and back.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the Worker, running handlers, scopes and pending replies. Agent, executor,
// clock and hooks outlive the last call (worker/ ends them in that order).
// Blocking: nothing here waits.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>

#include "weft/async/run_lengths.h"
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

  // Both may be null. Before the agent starts.
  void set_hooks(ReferenceHook* references, AutogradHook* autograd);
  // Installs this runtime's handlers in the agent. Once, before the agent starts.
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
  void cancel(WorkerId to, CallId call) override { agent_.cancel(to, call); }

  Timeout default_timeout() const;
  void set_default_timeout(Timeout timeout);

 private:
  class Sink;
  struct Arrival;

  // The references that a message carries, as they travel.
  static std::vector<std::string> wires_of(const wire::Meta& meta);
  static absl::Status no_references();
  // Of a call with these options, made inside a handler with that deadline.
  TimePoint deadline_of(const CallOptions& options, TimePoint handler) const;
  // Adds references, autograd record and tensors to a frame whose body is `message`'s.
  absl::Status pack(Writer message, WorkerId to, ContextId context,
                    const TensorSendOptions& tensors, wire::Meta& meta, bool& has_meta,
                    Frame& frame, std::vector<CarriedReferencePtr>& carried);
  // The opposite, once the frame's sender is known.
  absl::StatusOr<Reader> unpack(WorkerId from, const wire::Meta& meta, Frame& frame,
                                std::vector<AnyReferencePtr> references, ContextId* context);
  // The references of a message that is not read.
  void discard_references(WorkerId from, const wire::Meta& meta);
  void on_call(const std::shared_ptr<IncomingCall>& call);
  // The reply's value, or the error it stands for.
  absl::StatusOr<Reader> read_reply(WorkerId from, Frame frame);
  void on_late_reply(WorkerId from, Frame frame);
  // Waits (without a thread) for references and target, then queues the call.
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
  // Of every function; which ones there are never changes.
  std::unordered_map<const FunctionEntry*, async_internal::RunLengths> run_lengths_;
  const RuntimeOptions options_;
  ReferenceHook* references_ = nullptr;
  AutogradHook* autograd_ = nullptr;
  Parking parking_;
  std::atomic<int64_t> default_timeout_ns_;
};

}  // namespace weft::rpc_internal
