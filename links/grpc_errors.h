// Tells what an error of a gRPC connection means. gRPC distinguishes the cases only in its error
// texts.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "weft/links/grpc_tls.h"

namespace weft {

// Whether the far end's machine answered: nobody listens there, or the connection was open and
// closed. An error of this end's network, resolver or proxy is no sign of a death.
bool was_heard(const absl::Status& status);
// Whether the far end's machine answered that nobody listens there.
bool was_refused(const absl::Status& status);
// Returns the error of a dial if it has to do with TLS, otherwise OK. FailedPrecondition: another
// worker of the job answers. Unauthenticated: one end does not accept the certificate of the other,
// or the far end does not use TLS.
absl::Status tls_failure(const FarEnd& far_end, const absl::Status& reason);
// Whether such an error would come again: a certificate or the handshake was refused. Otherwise the
// far end has only closed the connection, perhaps for another reason.
bool is_sure_tls_failure(const FarEnd& far_end, const absl::Status& reason);

}  // namespace weft
