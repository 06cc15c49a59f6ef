// The systems that weft_bench can measure, one factory each.
//
// Thread safety: free functions.
#pragma once

#include <chrono>
#include <string>

#include "weft/bench/contestants/contestant.h"
#include "weft/bench/contestants/crowd.h"
#include "weft/bench/contestants/rank.h"

namespace weft::bench {

// torch's own C++ RPC stack (TensorPipe agent, RRefs, distributed autograd) over `transport`. "uv"
// is TCP on loopback, "shm" is shared memory with cross-memory attach for tensors. Its name is
// "torch uv" or "torch shm".
Contestant torch_contestant(const std::string& transport);

// Plain unary gRPC over TCP on loopback, with tensors as bare bytes and without LibTorch. Its name
// is "grpc unary".
Contestant grpc_contestant();

// One gRPC stream over TCP on loopback, with many small calls per message. Its name is "grpc
// stream".
Contestant grpc_stream_contestant();

// Weft over gRPC on loopback. Its name is "weft", or "weft blocking" if it never spins before it
// sleeps.
enum class Waiting { kSpinning, kBlocking };
Contestant weft_contestant(Waiting waiting);

// Weft's same-host backend. A waiting rank polls for `spin` before it sleeps. The tensors lie in
// the backend's own memory (kResident) or elsewhere (kCopied).
enum class Memory { kResident, kCopied };
RankContestant weft_ranks(const std::string& name, std::chrono::microseconds spin, Memory memory);

// torch's ProcessGroupGloo over TCP on loopback, with c10d::Reducer. Its name is "gloo".
RankContestant gloo_ranks();

// Weft's example of an agent and its observers. Its name is "weft".
CrowdContestant weft_rl();

// Weft's example of ResNet50 in shards. Its child is called "weft pipeline", its rows show "weft".
CrowdContestant weft_pipeline();

}  // namespace weft::bench
