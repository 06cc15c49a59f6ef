// The transports that tests are run over.
#pragma once

#include <string>

namespace weft::testing {

enum class TransportKind { kInproc, kGrpc };
inline std::string to_string(TransportKind kind) {
  return kind == TransportKind::kInproc ? "Inproc" : "Grpc";
}

}  // namespace weft::testing
