// Implements the parts of RRef<T> that do not depend on T: calls to the owner, creations and plain
// facts.
//
// Thread safety: all functions may be called from any thread. A null handle is an empty RRef.
// Errors: open_* put them into the Outgoing, `accepted` into its future, read_handle and
// write_handle into the reader or writer. object_here and describe have none. All others throw
// RpcError.
#pragma once

#include <memory>
#include <string>

#include "weft/async/future.h"
#include "weft/rpc/codec/type_info.h"
#include "weft/rpc/typed_call.h"
#include "weft/rref/internal/rref_handle.h"

namespace weft::rref_internal {

// Opens a method call on the object; its target and destination are set.
rpc_internal::Outgoing open_call_on(const RRefHandlePtr& handle, const CallOptions& options);
// Opens a call that asks the owner for the value (weft.to_here).
rpc_internal::Outgoing open_to_here(const RRefHandlePtr& handle, const CallOptions& options);
// Opens a call that the owner answers, without a result, once the value is there (weft.wait).
rpc_internal::Outgoing open_wait(const RRefHandlePtr& handle, const CallOptions& options);

// Sends the call as a creation: its result, an object of `type`, stays on the called worker. Throws
// the error of `call`, if it has one.
RRefHandlePtr start_remote(rpc_internal::Outgoing call, const TypeInfo& type);
// Makes the current worker the owner of `object`.
RRefHandlePtr own(Object object);

// On the owner: the object, if it is there already. The result has no type if the object is not
// there, if this worker is not the owner, or if the reference may not be used. A call then gives
// the reason.
Object object_here(const RRefHandlePtr& handle);
// Throws FailedPrecondition unless this worker is the owner.
void check_owner(const RRefHandlePtr& handle);

// The executor of the handle's worker, for futures that are complete from the beginning.
Executor& executor_of(const RRefHandlePtr& handle);
// RRef::confirmed_by_owner.
bool confirmed(const RRefHandlePtr& handle);
// RRef::creation.
Future<void> accepted(const RRefHandlePtr& handle);
std::string describe(const RRefHandle* handle);

// Reads the next handle of a message. If it is missing or of another type, `reader` fails and the
// result is null.
RRefHandlePtr read_handle(Reader& reader, const TypeInfo& type);
void write_handle(Writer& writer, const RRefHandlePtr& handle);

[[noreturn]] void throw_empty();

}  // namespace weft::rref_internal
