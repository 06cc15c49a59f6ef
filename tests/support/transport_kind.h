// The transports that tests are run over.
#pragma once

#include <string>

namespace weft::testing {

// kGrpcSpinning: the reading threads hardly ever sleep.
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
