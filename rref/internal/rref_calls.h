// What RRef<T> does that does not depend on T: calls to the owner, creations, plain facts.
//
// Thread safety: all functions may be called from any thread. A null handle is an empty RRef.
// Errors: an Outgoing carries them; functions without one throw RpcError.
#pragma once

#include <memory>
#include <string>

#include "weft/async/future.h"
#include "weft/rpc/codec/type_info.h"
#include "weft/rpc/typed_call.h"
#include "weft/rref/internal/rref_handle.h"

namespace weft::rref_internal {

// A method call on the object: target and destination are set.
rpc_internal::Outgoing open_call_on(const RRefHandlePtr& handle, const CallOptions& options);
// Asks the owner for the value.
rpc_internal::Outgoing open_to_here(const RRefHandlePtr& handle, const CallOptions& options);
// Answered, with nothing, once the value is there.
rpc_internal::Outgoing open_wait(const RRefHandlePtr& handle, const CallOptions& options);

// Sends the call as a creation of an object of this type on the called worker.
RRefHandlePtr start_remote(rpc_internal::Outgoing call, const TypeInfo& type);
// Gives an object to the current worker.
RRefHandlePtr own(Object object);

// On the owner: the object if it is there already. Without a type if not, if this is no owner, and
// if the reference cannot be used: a call then says why.
Object object_here(const RRefHandlePtr& handle);
// Throws FailedPrecondition unless this worker is the owner.
void check_owner(const RRefHandlePtr& handle);

// The worker's, for futures that are complete from the beginning.
Executor& executor_of(const RRefHandlePtr& handle);
bool confirmed(const RRefHandlePtr& handle);
Future<void> accepted(const RRefHandlePtr& handle);
std::string describe(const RRefHandle* handle);

// The handle in a message, if it is of this type; else `reader` fails and this is null.
RRefHandlePtr read_handle(Reader& reader, const TypeInfo& type);
void write_handle(Writer& writer, const RRefHandlePtr& handle);

[[noreturn]] void throw_empty();

}  // namespace weft::rref_internal
