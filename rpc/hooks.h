// The hooks through which rref/ and dist_autograd/ take part in each message: the first forks and
// adopts references, the second records transfers of tensors for the backward pass.
//
// A worker without these rooms has neither hook.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the hooks must outlive the runtime that uses them.
// Blocking: no method may block or run user code.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/base/ids.h"
#include "weft/rpc/codec/message.h"
#include "weft/rpc/codec/object.h"

namespace weft {

// A reference inside a message that is on its way. If it is destroyed without `delivered`, the
// message never left this worker.
class CarriedReference {
 public:
  virtual ~CarriedReference() = default;
  virtual const std::string& wire() const = 0;  // RRefReference of rref.proto
  // The message has reached the receiver or will reach it, or the receiver is dead.
  virtual void delivered() = 0;
};
using CarriedReferencePtr = std::unique_ptr<CarriedReference>;

// The slot for the result of a `remote` call on its owner. One `set` or one `fail` completes it.
class ObjectSlot {
 public:
  virtual ~ObjectSlot() = default;
  virtual void set(Object object) = 0;
  virtual void fail(absl::Status status) = 0;
};

// Sends and receives the references of messages. The runtime gives all references of an arrived
// message to exactly one call of `receive`, `receive_confirmed` or `discard`. Callbacks run inside
// the method or later on any thread, without locks.
class ReferenceHook {
 public:
  using References = std::vector<AnyReferencePtr>;

  virtual ~ReferenceHook() = default;
  virtual absl::StatusOr<CarriedReferencePtr> carry(const AnyReferencePtr& reference,
                                                    WorkerId to) = 0;
  // For a reply: the references can be used at once, even before their owners confirm them.
  virtual absl::StatusOr<References> receive(WorkerId from,
                                             const std::vector<std::string>& wires) = 0;
  // For a call: `then` gets the references when their owners have confirmed all of them, or the
  // reason why one will never be confirmed.
  virtual void receive_confirmed(WorkerId from, const std::vector<std::string>& wires,
                                 absl::AnyInvocable<void(absl::StatusOr<References>)> then) = 0;
  // Gives up the references of a refused call, of a late reply or of a lost result.
  virtual void discard(WorkerId from, const std::vector<std::string>& wires) = 0;

  // A `remote` call has arrived. Its reference exists from now on, before its function runs.
  virtual absl::StatusOr<std::shared_ptr<ObjectSlot>> accept_creation(
      WorkerId from, std::string_view creation) = 0;
  // Calls `then` with the object of a method call as soon as the object exists. Returns a number
  // for `forget_target`, which stops the wait.
  virtual uint64_t resolve_target(WorkerId from, std::string_view target,
                                  absl::AnyInvocable<void(absl::StatusOr<Object>)> then) = 0;
  // Runs `then` of that wait with Cancelled, unless it has run.
  virtual void forget_target(uint64_t number) = 0;
  // A call of this worker on the object of `target` has failed with `status`. Returns the status
  // for its caller. If the creation of the reference was refused, this worker may know the reason
  // when the owner does not.
  virtual absl::Status explain_failure(const AnyReferencePtr& target, absl::Status status) = 0;
};

class AutogradHook {
 public:
  virtual ~AutogradHook() = default;
  // `tensors` are about to leave for `to` under `context` (invalid: no context). Returns the record
  // to attach to the message; empty: none.
  virtual absl::StatusOr<std::string> record_send(ContextId context, WorkerId to,
                                                  const std::vector<at::Tensor>& tensors) = 0;
  // `tensors` have arrived with the record `attachment`. Returns the context for the handler.
  virtual absl::StatusOr<ContextId> record_receive(WorkerId from, std::string_view attachment,
                                                   std::vector<at::Tensor>& tensors) = 0;
};

}  // namespace weft
