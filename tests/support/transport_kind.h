// Names the transports over which tests run, as test parameters.
//
// Thread safety: free functions.
#pragma once

#include <string>

namespace weft::testing {

// kGrpcSpinning is gRPC whose reading threads hardly ever sleep. A fixture that does not know it
// runs plain gRPC.
enum class TransportKind { kInproc, kGrpc, kGrpcSpinning };
inline std::string to_string(TransportKind kind) {
  switch (kind) {
    case TransportKind::kInproc:
      return "Inproc";
    case TransportKind::kGrpc:
      return "Grpc";
    case TransportKind::kGrpcSpinning:
      return "GrpcSpinning";
  }
  return "";
}

}  // namespace weft::testing
