// The part of the runtime that handles incoming calls: from the agent to the handler and back.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/internal/serial_gate.h"
#include "weft/rpc/user_call.h"
#include "weft/rpc/worker_runtime.h"

namespace weft::rpc_internal {

std::shared_ptr<SerialGate> make_serial_gate() { return std::make_shared<SerialGate>(); }

// An incoming call, from its arrival until its result is delivered.
struct WorkerRuntime::Arrival {
  std::shared_ptr<IncomingCall> call;
  const FunctionEntry* entry = nullptr;
  wire::Meta meta;
  std::vector<AnyReferencePtr> references;
  std::shared_ptr<ObjectSlot> slot;  // of a `remote` call
  Object target;                     // of a method call
  ChainId chain;
  std::vector<ChainId> held;  // calls above this one that are inside serial objects

  // The bytes that this call occupies in parking_. kUnparked: it must not enter any more.
  static constexpr size_t kUnparked = SIZE_MAX;
  std::atomic<size_t> parked{0};

  // The call's caller and number.
  ChainId identity() const { return {call->from(), call->header().call}; }
};

// Replies to a call, or completes the slot of the object that it creates.
class WorkerRuntime::Sink final : public ResultSink {
 public:
  Sink(std::shared_ptr<WorkerRuntime> runtime, std::shared_ptr<Arrival> arrival, ContextId context)
      : runtime_(std::move(runtime)), arrival_(std::move(arrival)), context_(context) {}
  ~Sink() override {
    if (arrival_ != nullptr) {
      fail(with_ran(absl::CancelledError("the function's result was dropped"), Ran::kMaybe));
    }
  }

  bool wants_object() const override { return arrival_->slot != nullptr; }

  void finish(Writer value) override {
    WEFT_FAIL_POINT("runtime.function.ended");
    const std::shared_ptr<Arrival> arrival = std::move(arrival_);
    wire::Meta meta;
    bool has_meta = false;
    Frame frame;
    std::vector<CarriedReferencePtr> carried;
    absl::Status packed = value.status();
    // Packing makes torch calls for a peer, so it needs the same guard as user code.
    absl::Status status = run_user_code([&] {
      if (packed.ok()) {
        // Tensors that the worker still holds are copied, because another task may write to them as
        // soon as this one has finished.
        const TensorSendOptions tensors{.copy_up_to = SIZE_MAX,
                                        .holders = in_future_ ? size_t{2} : 1};
        packed = runtime_->pack(std::move(value), arrival->call->from(), context_, tensors, meta,
                                has_meta, frame, carried);
      }
    });
    if (!status.ok()) packed = status;
    if (!packed.ok()) {
      arrival->call->reply(with_ran(std::move(packed), Ran::kYes));
      return;
    }
    if (has_meta) meta.SerializeToString(&frame.meta);
    if (absl::Status size = runtime_->agent_.check_size(frame); !size.ok()) {
      arrival->call->reply(with_ran(prepend("the result cannot be sent: ", size), Ran::kYes));
      return;
    }
    arrival->call->reply(std::move(frame));
    // The session delivers the reply exactly once, or the caller is dead.
    for (const CarriedReferencePtr& reference : carried) reference->delivered();
  }

  void held_by_future() override { in_future_ = true; }
  void finish(Object object) override {
    const std::shared_ptr<Arrival> arrival = std::move(arrival_);
    arrival->slot->set(std::move(object));
    runtime_->agent_.release_work();
  }

  void fail(absl::Status status) override {
    const std::shared_ptr<Arrival> arrival = std::move(arrival_);
    status = raised_at(std::move(status), runtime_->name());
    if (arrival->slot != nullptr) {
      arrival->slot->fail(std::move(status));
      runtime_->agent_.release_work();
    } else {
      arrival->call->reply(std::move(status));
    }
  }

 private:
  const std::shared_ptr<WorkerRuntime> runtime_;
  std::shared_ptr<Arrival> arrival_;  // null once answered
  const ContextId context_;
  bool in_future_ = false;
};

void WorkerRuntime::refuse(Arrival& arrival, absl::Status status) {
  unpark(arrival);
  status = raised_at(with_ran(std::move(status), Ran::kNo), name());
  if (arrival.slot != nullptr) {
    arrival.call->taken();
    arrival.slot->fail(std::move(status));
    agent_.release_work();
  } else {
    arrival.call->reply(std::move(status));
  }
}

// Refuses a call whose deadline has passed or that was cancelled before it began.
void WorkerRuntime::refuse_ended(Arrival& arrival) {
  const TimePoint deadline = arrival.call->context()->deadline();
  const bool late = deadline != kNever && clock_.now() >= deadline;
  const std::string text =
      absl::StrCat("call to '", arrival.entry->name, "' on worker '", name(), "' ",
                   late ? "reached its deadline before it began" : "was cancelled");
  refuse(arrival, late ? absl::DeadlineExceededError(text) : absl::CancelledError(text));
}

absl::Status WorkerRuntime::no_thread_for(const Arrival& arrival) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "worker '", name(), "' has no thread left for '", arrival.entry->name, "', called at depth ",
      arrival.meta.chain_depth(), " of ", arrival.chain.to_string()));
}

void WorkerRuntime::on_call(const std::shared_ptr<IncomingCall>& call) {
  auto arrival = std::make_shared<Arrival>();
  arrival->call = call;
  const FrameHeader& header = call->header();
  if (!call->frame().meta.empty() && !arrival->meta.ParseFromString(call->frame().meta)) {
    refuse(*arrival, absl::InvalidArgumentError("the call's meta cannot be parsed"));
    return;
  }
  const wire::Meta& meta = arrival->meta;
  arrival->chain = meta.chain_number() != 0
                       ? ChainId{WorkerId::from_bits(meta.chain_creator()), meta.chain_number()}
                       : arrival->identity();
  // A peer may send any number of them; the newest kMostHeld count.
  const int held = std::min(meta.held_sources_size(), meta.held_calls_size());
  for (int i = std::max(held - static_cast<int>(CallScope::kMostHeld), 0); i < held; ++i) {
    arrival->held.push_back({WorkerId::from_bits(meta.held_sources(i)), meta.held_calls(i)});
  }
  const auto refuse_unread = [&](absl::Status status) {
    discard_references(call->from(), meta);
    refuse(*arrival, std::move(status));
  };
  auto entry = registry_->find_for_call({header.function, header.fingerprint, {}}, name());
  if (!entry.ok()) {
    refuse_unread(entry.status());
    return;
  }
  arrival->entry = *entry;
  if (absl::Status allowed = arrival->entry->check_caller(*call->context(), *this); !allowed.ok()) {
    denials_.warn({allowed.message().data(), allowed.message().size()});
    refuse_unread(std::move(allowed));
    return;
  }
  // A function that runs inline needs a thread only if it uses an object or makes one.
  const bool needs_thread =
      !arrival->entry->run_inline || !meta.target().empty() || (header.flags & kFlagObject) != 0;
  if (needs_thread && executor_.saturated()) {
    refuse_unread(no_thread_for(*arrival));
    return;
  }
  const bool makes_object = (header.flags & kFlagObject) != 0;
  if (references_ == nullptr &&
      (makes_object || meta.references_size() > 0 || !meta.target().empty())) {
    refuse(*arrival, no_references());
    return;
  }
  if (makes_object) {
    auto slot = references_->accept_creation(call->from(), meta.creation());
    if (!slot.ok()) {
      refuse_unread(slot.status());
      return;
    }
    arrival->slot = *std::move(slot);
    WEFT_FAIL_POINT("runtime.creation.accepted");
    // Before `accept`, which closes the call: the group is not quiescent until the run is over.
    agent_.hold_work();
    call->accept();  // the caller does not wait for the run
  }
  confirm(std::move(arrival));
}

void WorkerRuntime::confirm(std::shared_ptr<Arrival> arrival) {
  if (arrival->meta.references_size() == 0) {
    find_target(std::move(arrival));
    return;
  }
  const WorkerId from = arrival->call->from();
  const std::vector<std::string> wires = wires_of(arrival->meta);
  references_->receive_confirmed(from, wires,
                                 [self = shared_from_this(), arrival = std::move(arrival)](
                                     absl::StatusOr<ReferenceHook::References> references) {
                                   if (!references.ok()) {
                                     self->refuse(*arrival, std::move(references).status());
                                     return;
                                   }
                                   arrival->references = *std::move(references);
                                   self->find_target(arrival);
                                 });
}

void WorkerRuntime::find_target(std::shared_ptr<Arrival> arrival) {
  if (arrival->meta.target().empty()) {
    schedule(std::move(arrival));
    return;
  }
  auto found = std::make_shared<std::atomic<bool>>(false);
  const uint64_t number = references_->resolve_target(
      arrival->call->from(), arrival->meta.target(),
      [self = shared_from_this(), arrival, found](absl::StatusOr<Object> object) {
        found->store(true);
        if (!object.ok()) {
          self->refuse(*arrival, std::move(object).status());
          return;
        }
        arrival->target = *std::move(object);
        self->schedule(arrival);
      });
  if (found->load()) return;
  park(*arrival);
  if (arrival->slot != nullptr) return;
  // The object may never exist, but the caller waits only until its deadline or its cancellation.
  arrival->call->context()->on_cancel([weak = weak_from_this(), number] {
    if (const auto self = weak.lock()) self->references_->forget_target(number);
  });
}

void WorkerRuntime::schedule(std::shared_ptr<Arrival> arrival) {
  if (arrival->entry->run_inline && arrival->slot == nullptr && arrival->target.gate == nullptr) {
    run_inside_gate(arrival);
    return;
  }
  const async_internal::RunLengths& lengths = run_lengths_.at(arrival->entry);
  Executor::Call call;
  call.run = [self = shared_from_this(), arrival] { self->run(arrival); };
  call.refuse = [self = shared_from_this(), arrival] {
    self->refuse(*arrival, self->no_thread_for(*arrival));
  };
  if (lengths.short_lately()) call.expected = lengths.usual();
  executor_.schedule_call(std::move(call));
}

void WorkerRuntime::run(const std::shared_ptr<Arrival>& arrival) {
  const std::shared_ptr<SerialGate> gate = arrival->target.gate;
  if (gate == nullptr) {
    run_inside_gate(arrival);
    return;
  }
  // The gate owns the calls in its queue, so a queued call must not own the gate. The gate's object
  // owns it.
  arrival->target.gate = nullptr;
  Executor::Call queued;
  queued.run = [self = shared_from_this(), weak_gate = std::weak_ptr(gate), arrival] {
    const std::shared_ptr<SerialGate> gate = weak_gate.lock();
    self->run_inside_gate(arrival);
    if (gate != nullptr) self->leave(gate);
  };
  queued.refuse = [self = shared_from_this(), arrival] {
    self->refuse(*arrival, self->no_thread_for(*arrival));
  };
  const std::vector<ChainId> above = arrival->held;
  if (arrival->held.size() >= CallScope::kMostHeld) arrival->held.erase(arrival->held.begin());
  arrival->held.push_back(arrival->identity());
  switch (gate->enter(arrival->identity(), above, queued)) {
    case SerialGate::Entry::kRun:
      queued.run();
      return;
    case SerialGate::Entry::kQueued:
      park(*arrival);
      if (arrival->slot == nullptr) leave_when_cancelled(gate, arrival);
      return;
    case SerialGate::Entry::kReentrant:
      refuse(*arrival, absl::FailedPreconditionError(absl::StrCat(
                           "'", arrival->entry->name, "' on worker '", name(),
                           "' was called from inside another method of the same serial object")));
      return;
  }
}

// If the caller cancels or dies, the call leaves the gate's queue at once and frees its resources.
void WorkerRuntime::leave_when_cancelled(const std::shared_ptr<SerialGate>& gate,
                                         const std::shared_ptr<Arrival>& arrival) {
  arrival->call->context()->on_explicit_cancel([weak = weak_from_this(),
                                                weak_gate = std::weak_ptr(gate),
                                                weak_arrival = std::weak_ptr(arrival)] {
    const auto self = weak.lock();
    const auto gate = weak_gate.lock();
    const auto arrival = weak_arrival.lock();
    if (self == nullptr || gate == nullptr || arrival == nullptr) return;
    if (gate->withdraw(arrival->identity()).run) self->refuse_ended(*arrival);
  });
}

void WorkerRuntime::park(Arrival& arrival) {
  const size_t cost = arrival.call->cost();
  if (!parking_.enter(cost)) return;
  size_t expected = 0;
  if (arrival.parked.compare_exchange_strong(expected, cost)) {
    arrival.call->taken();
  } else {
    parking_.leave(cost);  // it is parked already, or it runs by now
  }
}

void WorkerRuntime::unpark(Arrival& arrival) {
  const size_t cost = arrival.parked.exchange(Arrival::kUnparked);
  if (cost != 0 && cost != Arrival::kUnparked) parking_.leave(cost);
}

// The task owns the gate until it has run. If no thread is left for the next call, there is none
// for the calls behind it either, so all of them are refused together.
void WorkerRuntime::leave(const std::shared_ptr<SerialGate>& gate) {
  Executor::Call next = gate->leave();
  if (!next.run) return;
  Executor::Call call;
  call.run = [gate, run = std::move(next.run)]() mutable { run(); };
  call.refuse = [gate, first = std::move(next.refuse)]() mutable {
    for (Executor::Task refuse = std::move(first); refuse; refuse = gate->leave().refuse) refuse();
  };
  executor_.schedule_call(std::move(call));
}

void WorkerRuntime::run_inside_gate(const std::shared_ptr<Arrival>& arrival) {
  IncomingCall& call = *arrival->call;
  unpark(*arrival);
  call.taken();
  const bool detached = arrival->slot != nullptr;  // `remote`: no deadline and no cancellation
  CallContext& context = *call.context();
  if (!detached && context.cancelled()) {
    refuse_ended(*arrival);
    return;
  }
  CallScope scope;
  scope.runtime = shared_from_this();
  scope.chain = arrival->chain;
  scope.depth = arrival->meta.chain_depth() + 1;
  scope.deadline = detached ? kNever : context.deadline();
  scope.call_context = call.context();
  if (!arrival->held.empty()) {
    scope.held = std::make_shared<const std::vector<ChainId>>(std::move(arrival->held));
  }
  auto reader = unpack(call.from(), arrival->meta, call.frame(), std::move(arrival->references),
                       &scope.context);
  if (!reader.ok()) {
    refuse(*arrival,
           prepend(absl::StrCat("call to '", arrival->entry->name, "': "), reader.status()));
    return;
  }
  const ContextId autograd_context = scope.context;
  CallScopeGuard guard(std::move(scope));
  const async_internal::RunLengths::Measure measure(run_lengths_.at(arrival->entry));
  WEFT_FAIL_POINT("runtime.function.begins");
  arrival->entry->invoke(*arrival->entry, *reader,
                         arrival->target.type == nullptr ? nullptr : &arrival->target, context,
                         std::make_unique<Sink>(shared_from_this(), arrival, autograd_context));
}

}  // namespace weft::rpc_internal
