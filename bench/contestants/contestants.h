// The systems that weft_bench knows, one factory each.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "weft/bench/contestants/contestant.h"

namespace weft::bench {

// torch's own C++ RPC stack (TensorPipe agent, RRefs, distributed autograd) over `transport`: "uv"
// is TCP on loopback, "shm" shared memory with cross-memory attach for tensors. Named "torch uv"
// and so on.
Contestant torch_contestant(const std::string& transport);

// Plain unary gRPC over TCP on loopback, tensors as bare bytes without LibTorch. Named "grpc
// unary".
Contestant grpc_contestant();

// Weft over gRPC on loopback. Named "weft"; "weft blocking" never spins before it sleeps.
enum class Waiting { kSpinning, kBlocking };
Contestant weft_contestant(Waiting waiting);

}  // namespace weft::bench
