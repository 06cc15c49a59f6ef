// The interface of one worker for the typed verbs: it sends calls, and gives the worker's names,
// its executor, its clock and its registry.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the Worker, running handlers and scopes. Handles hold it weakly.
// Errors: each failure has code, Ran, worker and error trail (docs/errors.md).
// Protocol: proto/weft.proto.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/async/executor.h"
#include "weft/base/ids.h"
#include "weft/rpc/call_options.h"
#include "weft/rpc/codec/message.h"
#include "weft/rpc/codec/object.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/transport/frame.h"

namespace weft {

class Registry;

namespace async_internal {
class FutureCore;
}

// Identifies a function for its caller.
struct FunctionKey {
  uint64_t id = 0;           // hash of the wire name
  uint64_t fingerprint = 0;  // hash of the structural signature
  std::string_view name;     // for texts; outlives the call
};

// Receives the result of a function that ran for a peer. It is completed exactly once; if it is
// destroyed first, the result is Cancelled.
//
// Thread safety: none. It has one owner at a time, on any thread.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  // True: the result stays on this worker as an object (`remote`), so finish with an Object.
  virtual bool wants_object() const = 0;
  // The coming value is also held by its future, which has no other reader. So its tensors have one
  // holder more than usual.
  virtual void held_by_future() {}
  virtual void finish(Writer value) = 0;
  virtual void finish(Object value) = 0;
  virtual void fail(absl::Status status) = 0;
};
using ResultSinkPtr = std::unique_ptr<ResultSink>;

class RpcRuntime {
 public:
  using ReplyHandler = absl::AnyInvocable<void(absl::StatusOr<Reader>)>;

  virtual ~RpcRuntime() = default;

  virtual WorkerId id() const = 0;
  virtual const std::string& name() const = 0;
  virtual absl::StatusOr<WorkerId> resolve(std::string_view worker_name) const = 0;
  virtual std::string name_of(WorkerId worker) const = 0;
  virtual Executor& executor() = 0;
  virtual Clock& clock() = 0;
  virtual const Registry& registry() const = 0;
  // Memory that workers of this host can get without a copy; see Transport::shared_memory.
  virtual std::optional<Payload> shared_memory(size_t /*bytes*/) { return std::nullopt; }

  // Sends a call. `on_reply` runs exactly once, on any thread (of the transport, the clock, or a
  // caller of `cancel`) or inside this call. It must be short and must not block: it decodes the
  // reply and completes a promise.
  // `target`: wire form of the reference whose object is called (empty for functions).
  // `creation`: wire form of the reference to the future result (empty unless `remote`).
  struct CallRequest {
    WorkerId to;
    FunctionKey function;
    Writer arguments;
    CallOptions options;
    std::string target;
    std::string creation;
    // Held until the reply, so that the target stays alive although its caller drops the RRef.
    AnyReferencePtr target_holder;
    // True: a thread waits for the reply. If too many calls wait for credit, this call waits too
    // instead of being refused.
    bool waited_for = false;
  };
  virtual CallId call(CallRequest request, ReplyHandler on_reply) = 0;
  // For a thread that waits for `result`, which the reply to `call` completes: this thread may read
  // the reply itself, and run the call's `on_reply`. It may also return without it.
  virtual void read_reply(WorkerId /*to*/, CallId /*call*/,
                          async_internal::FutureCore& /*result*/) {}
  // The caller gives up. Runs `on_reply` with Cancelled unless it has run, and tells the callee.
  virtual void cancel(WorkerId to, CallId call) = 0;
};

}  // namespace weft
