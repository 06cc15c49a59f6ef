// What the rooms above rpc do to every message: references are forked and adopted, transfers of
// tensors are recorded for the backward pass. A worker without these rooms has neither hook.
//
// Thread safety: all methods may be called from any thread; none may block or run user code.
// Lifetime: hooks outlive the runtime that was given them.
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

// A reference on its way inside a message. Destroyed unsettled, the message never left.
class CarriedReference {
 public:
  virtual ~CarriedReference() = default;
  virtual const std::string& wire() const = 0;  // RRefReference of rref.proto
  // The message reached the receiver's worker, or that worker is dead.
  virtual void delivered() = 0;
};
using CarriedReferencePtr = std::unique_ptr<CarriedReference>;

// Where the result of a `remote` call will live. Completed once.
class ObjectSlot {
 public:
  virtual ~ObjectSlot() = default;
  virtual void set(Object object) = 0;
  virtual void fail(absl::Status status) = 0;
};

// The references of an arrived message are given, all together and once, to one of `receive`,
// `receive_confirmed` and `discard`. Callbacks run inside the method or later on any thread,
// outside all locks.
class ReferenceHook {
 public:
  using References = std::vector<AnyReferencePtr>;

  virtual ~ReferenceHook() = default;
  virtual absl::StatusOr<CarriedReferencePtr> carry(const AnyReferencePtr& reference,
                                                    WorkerId to) = 0;
  // Of a reply: usable at once, confirmed or not.
  virtual absl::StatusOr<References> receive(WorkerId from,
                                             const std::vector<std::string>& wires) = 0;
  // Of a call: `then` gets them once their owners have confirmed all, or why one never will be.
  virtual void receive_confirmed(WorkerId from, const std::vector<std::string>& wires,
                                 absl::AnyInvocable<void(absl::StatusOr<References>)> then) = 0;
  // Of a call that is refused, or a reply that nobody waits for: dropped unread.
  virtual void discard(WorkerId from, const std::vector<std::string>& wires) = 0;

  // A `remote` call has arrived: its reference exists from now on, before the function runs.
  virtual absl::StatusOr<std::shared_ptr<ObjectSlot>> accept_creation(
      WorkerId from, std::string_view creation) = 0;
  // Calls `then` with the object that a method is called on, once it exists. Returns a number to
  // stop waiting by.
  virtual uint64_t resolve_target(WorkerId from, std::string_view target,
                                  absl::AnyInvocable<void(absl::StatusOr<Object>)> then) = 0;
  // `then` runs with Cancelled, unless it has run.
  virtual void forget_target(uint64_t number) = 0;
  // A call from here on the object of `target` has failed: what its caller is told. A reference
  // that never was good for anything knows why better than its owner may.
  virtual absl::Status explain_failure(const AnyReferencePtr& target, absl::Status status) = 0;
};

class AutogradHook {
 public:
  virtual ~AutogradHook() = default;
  // Tensors leave for `to` under `context` (invalid: none). Returns what to attach (empty:
  // nothing).
  virtual absl::StatusOr<std::string> record_send(ContextId context, WorkerId to,
                                                  const std::vector<at::Tensor>& tensors) = 0;
  // Tensors have arrived with this attachment. Returns the context to work in.
  virtual absl::StatusOr<ContextId> record_receive(WorkerId from, std::string_view attachment,
                                                   std::vector<at::Tensor>& tensors) = 0;
};

}  // namespace weft
