// Passes a text between the processes of a job over the c10d TCPStore that their launcher serves
// (torchrun). The store authenticates nobody, so the text proves nothing.
//
// Thread safety: free functions.
// Blocking: at most for the timeout. A thread that hangs in c10d cannot be interrupted and is left
// behind.
// Errors: DeadlineExceeded (no store there, no answer, or no text), Unavailable (no TCPStore
// there). Texts name host and port.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft {

struct TcpStoreNotice {
  std::string host;
  uint16_t port = 0;
  std::string key;
};

absl::Status post_notice(const TcpStoreNotice& notice, const std::string& text,
                         absl::Duration timeout);
// Waits until the text is there.
absl::StatusOr<std::string> read_notice(const TcpStoreNotice& notice, absl::Duration timeout);

}  // namespace weft
