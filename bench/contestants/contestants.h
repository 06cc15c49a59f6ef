// The systems that weft_bench knows, one factory each.
//
// Thread safety: free functions.
#pragma once

#include <chrono>
#include <string>

#include "weft/bench/contestants/contestant.h"
#include "weft/bench/contestants/crowd.h"
#include "weft/bench/contestants/rank.h"

namespace weft::bench {

// torch's own C++ RPC stack (TensorPipe agent, RRefs, distributed autograd) over `transport`: "uv"
// is TCP on loopback, "shm" shared memory with cross-memory attach for tensors. Named "torch uv"
// and so on.
Contestant torch_contestant(const std::string& transport);

// Plain unary gRPC over TCP on loopback, tensors as bare bytes without LibTorch. Named "grpc
// unary".
Contestant grpc_contestant();

// One gRPC stream over TCP on loopback, with many small calls in each message. Named "grpc stream".
Contestant grpc_stream_contestant();

// Weft over gRPC on loopback. Named "weft"; "weft blocking" never spins before it sleeps.
enum class Waiting { kSpinning, kBlocking };
Contestant weft_contestant(Waiting waiting);

// Weft's same-host backend. Who waits looks for the others for `spin` before it sleeps; the tensors
// lie in the backend's own memory, or elsewhere.
enum class Memory { kResident, kCopied };
RankContestant weft_ranks(const std::string& name, std::chrono::microseconds spin, Memory memory);

// torch's ProcessGroupGloo over TCP on loopback, and c10d::Reducer on it. Named "gloo".
RankContestant gloo_ranks();

// Weft's example of an agent and its observers. Named "weft".
CrowdContestant weft_rl();

// Weft's example of ResNet50 in shards. Named "weft pipeline" as a child, "weft" in its rows.
CrowdContestant weft_pipeline();

}  // namespace weft::bench
