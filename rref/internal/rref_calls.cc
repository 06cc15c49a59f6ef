#include "weft/rref/internal/rref_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/user_call.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/rref/rref_driver.h"

namespace weft::rref_internal {
namespace {

absl::Status empty_rref() {
  return with_ran(absl::FailedPreconditionError("this RRef is empty: it refers to nothing"),
                  Ran::kNo);
}

// ---- The two functions that every worker has ----

// If the call cannot be served, answers it with an error and returns false.
bool check_call(Reader& arguments, const Object* target, ResultSinkPtr& sink) {
  absl::Status status = arguments.finish();
  if (target == nullptr || target->type == nullptr) {
    status.Update(absl::InvalidArgumentError("the call names no object"));
  }
  if (sink->wants_object()) status.Update(absl::InvalidArgumentError("not to be called by remote"));
  if (status.ok()) return true;
  sink->fail(with_ran(std::move(status), Ran::kNo));
  return false;
}

void describe_to_here(SchemaBuilder& schema) { schema.text("(object) -> value"); }
void invoke_to_here(const FunctionEntry&, Reader& arguments, const Object* target, CallContext&,
                    ResultSinkPtr sink) {
  if (!check_call(arguments, target, sink)) return;
  Writer writer;
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("a ", target->type->name, " cannot be sent: it stays with its owner"));
  if (target->type->encode != nullptr) {
    status =
        rpc_internal::run_user_code([&] { target->type->encode(writer, target->value.get()); });
    if (status.ok()) status = writer.status();
  }
  if (status.ok()) {
    sink->finish(std::move(writer));
  } else {
    sink->fail(with_ran(std::move(status), Ran::kYes));
  }
}

void describe_wait(SchemaBuilder& schema) { schema.text("(object) -> void"); }
void invoke_wait(const FunctionEntry&, Reader& arguments, const Object* target, CallContext&,
                 ResultSinkPtr sink) {
  if (check_call(arguments, target, sink)) sink->finish(Writer());
}

constexpr rpc_internal::CallableType kToHereType{rpc_internal::FunctionKind::kFunction,
                                                 &describe_to_here, &invoke_to_here};
constexpr rpc_internal::CallableType kWaitType{rpc_internal::FunctionKind::kFunction,
                                               &describe_wait, &invoke_wait};
constexpr std::string_view kToHereName = "weft.to_here";
constexpr std::string_view kWaitName = "weft.wait";

// Every registry has these two. The function pointers only serve to tell them apart.
const rpc_internal::Registration to_here_registration(kToHereName,
                                                      reinterpret_cast<void (*)()>(&invoke_to_here),
                                                      kToHereType, {}, __FILE__, __LINE__);
const rpc_internal::Registration wait_registration(kWaitName,
                                                   reinterpret_cast<void (*)()>(&invoke_wait),
                                                   kWaitType,
                                                   rpc_internal::function_options(run_inline),
                                                   __FILE__, __LINE__);

rpc_internal::Outgoing open_builtin(const RRefHandlePtr& handle, const CallOptions& options,
                                    std::string_view name, const Signature& signature) {
  rpc_internal::Outgoing call = open_call_on(handle, options);
  rpc_internal::choose(call, FunctionKey{hash64(name), signature.fingerprint, name}, signature);
  return call;
}

absl::StatusOr<std::shared_ptr<RRefDriver>> driver_of(RpcRuntime& runtime) {
  auto* worker = dynamic_cast<rpc_internal::WorkerRuntime*>(&runtime);
  auto* driver = worker == nullptr ? nullptr : dynamic_cast<RRefDriver*>(worker->references());
  if (driver == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", runtime.name(), "' keeps no references"));
  }
  return driver->shared_from_this();
}

template <class T>
T value_or_throw(absl::StatusOr<T> value) {
  if (!value.ok()) throw RpcError(with_ran(std::move(value).status(), Ran::kNo));
  return *std::move(value);
}

std::shared_ptr<RRefDriver> driver_or_throw(const RRefHandlePtr& handle) {
  if (handle == nullptr) throw_empty();
  absl::StatusOr<std::shared_ptr<RRefDriver>> driver = handle->driver();
  if (!driver.ok()) throw RpcError(std::move(driver).status());
  return *std::move(driver);
}

// An RRefLost says that the failed use did not run. The function that creates the value, however,
// may have run at the owner.
absl::Status of_creation(absl::Status status) {
  return is_rref_lost(status) ? with_ran(std::move(status), Ran::kMaybe) : status;
}

}  // namespace

void throw_empty() { throw RpcError(empty_rref()); }

rpc_internal::Outgoing open_call_on(const RRefHandlePtr& handle, const CallOptions& options) {
  rpc_internal::Outgoing call;
  if (handle == nullptr) {
    call.fail(empty_rref());
    return call;
  }
  const absl::StatusOr<std::shared_ptr<RRefDriver>> driver = handle->driver();
  if (!driver.ok()) {
    call.status = driver.status();
    call.runtime = handle->runtime();  // the future's continuations still run there
    return call;
  }
  call = rpc_internal::open_call((*driver)->runtime(), handle->owner(), options);
  call.request.target = encode(handle->target());
  call.request.target_holder = handle;
  return call;
}

rpc_internal::Outgoing open_to_here(const RRefHandlePtr& handle, const CallOptions& options) {
  static const Signature signature = rpc_internal::make_signature(&describe_to_here);
  return open_builtin(handle, options, kToHereName, signature);
}

rpc_internal::Outgoing open_wait(const RRefHandlePtr& handle, const CallOptions& options) {
  static const Signature signature = rpc_internal::make_signature(&describe_wait);
  return open_builtin(handle, options, kWaitName, signature);
}

RRefHandlePtr start_remote(rpc_internal::Outgoing call, const TypeInfo& type) {
  if (!call.status.ok()) throw RpcError(std::move(call.status));
  const std::shared_ptr<RRefDriver> driver = value_or_throw(driver_of(*call.runtime));
  RRefDriver::Created created = value_or_throw(driver->create(call.request.to, type));
  call.request.creation = std::move(created.creation);
  const rpc_internal::ReplyContext context{call.runtime.get(), call.request.to,
                                           call.request.function.name, call.signature};
  // Weak: the reply may come after the driver is destroyed; then nobody waits for it.
  call.runtime->call(std::move(call.request), [weak = std::weak_ptr<RRefDriver>(driver),
                                               handle = created.handle->handle(),
                                               context](absl::StatusOr<Reader> reply) {
    if (reply.ok()) return;
    if (const auto alive = weak.lock()) {
      alive->creation_failed(handle, context.to,
                             rpc_internal::explain_failure(context, std::move(reply).status()));
    }
  });
  return std::move(created.handle);
}

RRefHandlePtr own(Object object) {
  const std::shared_ptr<RpcRuntime> runtime = value_or_throw(rpc_internal::current_runtime());
  return value_or_throw(value_or_throw(driver_of(*runtime))->own(std::move(object)));
}

Object object_here(const RRefHandlePtr& handle) {
  if (handle == nullptr || !handle->is_owner()) return {};
  const absl::StatusOr<std::shared_ptr<RRefDriver>> driver = handle->driver();
  return driver.ok() ? (*driver)->owned_object(handle->rref()) : Object();
}

void check_owner(const RRefHandlePtr& handle) {
  const std::shared_ptr<RRefDriver> driver = driver_or_throw(handle);
  if (handle->is_owner()) return;
  throw RpcError(
      with_ran(absl::FailedPreconditionError(absl::StrCat(
                   "local_value() of ", handle->rref().to_string(), " on worker '", driver->name(),
                   "', which is not its owner, '", driver->name_of(handle->owner()),
                   "': use to_here() or call a method there")),
               Ran::kNo));
}

Executor& executor_of(const RRefHandlePtr& handle) { return driver_or_throw(handle)->executor(); }

bool confirmed(const RRefHandlePtr& handle) {
  return driver_or_throw(handle)->confirmed(handle->handle());
}

Future<void> accepted(const RRefHandlePtr& handle) {
  if (handle == nullptr) return Future<void>::ready(empty_rref());
  const std::shared_ptr<RpcRuntime> runtime = handle->runtime();
  Promise<void> promise(runtime == nullptr ? nullptr : &runtime->executor());
  Future<void> future = promise.future();
  const absl::StatusOr<std::shared_ptr<RRefDriver>> open = handle->driver();
  if (!open.ok()) {
    promise.set_error(of_creation(open.status()));  // if it is lost, the status says why
    return future;
  }
  const std::shared_ptr<RRefDriver>& driver = *open;
  // The callback keeps the handle, so that the future completes even if every RRef is dropped.
  driver->when_decided(handle->handle(),
                       [handle, promise = std::move(promise)](absl::Status status) mutable {
                         if (status.ok()) {
                           promise.set_value();
                         } else {
                           promise.set_error(of_creation(std::move(status)));
                         }
                       });
  return future;
}

std::string describe(const RRefHandle* handle) {
  if (handle == nullptr) return "RRef(empty)";
  return absl::StrCat("RRef<", handle->type().name, ">(", handle->rref().to_string(), " of ",
                      handle->owner().to_string(), handle->is_owner() ? ", owned here" : "", ")");
}

void write_handle(Writer& writer, const RRefHandlePtr& handle) {
  if (handle == nullptr) writer.fail(empty_rref());
  writer.reference(handle);
}

RRefHandlePtr read_handle(Reader& reader, const TypeInfo& type) {
  RRefHandlePtr handle = std::dynamic_pointer_cast<RRefHandle>(reader.reference());
  if (handle == nullptr) {
    reader.fail("a reference is missing from the message");
  } else if (handle->type() != TypeTag{type.hash, type.name}) {
    reader.fail(
        absl::StrCat("the reference is to a ", handle->type().name, ", not to a ", type.name));
    handle = nullptr;
  }
  return handle;
}

}  // namespace weft::rref_internal
