// One worker's engine under the typed verbs: makes calls, runs the functions that peers call.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the Worker, running handlers and scopes; handles hold it weakly.
// Errors: every failure carries code, Ran, worker and trail (docs/errors.md).
// Protocol: proto/weft.proto.
#pragma once

#include <memory>
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

namespace weft {

class Registry;

// What a caller knows of the function it calls.
struct FunctionKey {
  uint64_t id = 0;           // hash of the wire name
  uint64_t fingerprint = 0;  // hash of the structural signature
  std::string_view name;     // for messages; outlives the call
};

// Where the result of an invoked function goes. Completes exactly once; dropped = Cancelled.
//
// Thread safety: none; one owner at a time, on any thread.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  // True: the result is to stay here as an object (`remote`); finish with an Object.
  virtual bool wants_object() const = 0;
  // The value to come is in a future, too, which nobody else reads.
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

  // Sends a call. `on_reply` runs exactly once, on a transport thread or inside this call, must be
  // short and must not run user code: it decodes and completes a promise.
  // `target`: wire form of the reference whose object is called (empty for functions).
  // `creation`: wire form of the reference that the result is to become (empty unless `remote`).
  struct CallRequest {
    WorkerId to;
    FunctionKey function;
    Writer arguments;
    CallOptions options;
    std::string target;
    std::string creation;
    // Kept until the reply: the target must not die because its caller let go of it meanwhile.
    AnyReferencePtr target_holder;
    // A thread waits for the reply: the call waits with it where others would be refused because
    // too many wait for credit.
    bool waited_for = false;
  };
  virtual CallId call(CallRequest request, ReplyHandler on_reply) = 0;
  // The caller gave up: the callee is told. `on_reply` runs with Cancelled unless it already ran.
  virtual void cancel(WorkerId to, CallId call) = 0;
};

}  // namespace weft
