#include "weft/links/grpc_errors.h"

#include <cerrno>
#include <string_view>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

bool names_error(const absl::Status& status, int error) {
  return absl::StrContains(status.message(), std::generic_category().message(error));
}

}  // namespace

bool was_heard(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return true;
  for (const int error : {ECONNREFUSED, ECONNRESET, EPIPE}) {
    if (names_error(status, error)) return true;
  }
  return absl::StrContains(status.message(), "Socket closed") ||
         absl::StrContains(status.message(), "GOAWAY");
}

bool was_refused(const absl::Status& status) {
  return absl::IsUnavailable(status) && names_error(status, ECONNREFUSED);
}

absl::Status tls_failure(const FarEnd& far_end, const absl::Status& reason) {
  const absl::Status refused = far_end.refusal();
  if (absl::IsFailedPrecondition(refused)) return refused;
  if (!refused.ok()) return absl::UnauthenticatedError(refused.message());
  if (!absl::IsUnavailable(reason)) return absl::OkStatus();
  const auto told = [&reason](std::string_view why) {
    return absl::UnauthenticatedError(absl::StrCat(absl_view(why), ": ", reason.message()));
  };
  if (absl::StrContains(reason.message(), "wrong version number")) {
    return told("the far end does not use TLS (WEFT_SECURITY=none)");
  }
  if (absl::StrContains(reason.message(), "Tls handshake failed: SSL_ERROR_SSL")) {
    return told(
        "the far end's certificate is refused: its process must have the same secret or "
        "authorities, and the certificate's times must fit this machine's clock");
  }
  if (was_refused(reason) || absl::StrContains(reason.message(), "GOAWAY") || !was_heard(reason)) {
    return absl::OkStatus();
  }
  return told(
      "the far end ended the connection before its hello: perhaps it does not accept this worker's "
      "certificate (then its log says so), or it does not use TLS (WEFT_SECURITY=none)");
}

bool is_sure_tls_failure(const FarEnd& far_end, const absl::Status& reason) {
  return !far_end.refusal().ok() || absl::StrContains(reason.message(), "SSL_ERROR_SSL");
}

}  // namespace weft
