// The systems that weft_bench can measure: the lists of them, and one factory each. The Python
// programs of torch are in bench/suites.cc.
//
// Thread safety: free functions.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "weft/bench/contestants/contestant.h"
#include "weft/bench/contestants/crowd.h"
#include "weft/bench/contestants/floors/floors.h"
#include "weft/bench/contestants/rank.h"
#include "weft/bench/contestants/rpc/weft_mode.h"
#include "weft/bench/report/ratios.h"

namespace weft::bench {

// Remote calls, references and autograd between two processes: Weft's modes, its peers, and the
// floors of the machine.
std::vector<Contestant> call_contestants();
// The modes of Weft among them, each with the contestants that it is compared with.
std::vector<Mode> call_modes();

// Remote calls over plain TCP, unix sockets and mutual TLS, and their modes. "weft tcp" is the
// peer.
inline constexpr char kSecuritySubject[] = "weft mtls";
std::vector<Contestant> security_contestants();
std::vector<Mode> security_modes();

// Collectives. A rank of "weft" polls for `spin` before it sleeps.
std::vector<RankContestant> collective_contestants(std::chrono::microseconds spin);

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

// Weft between two workers of this host. Its name is that of the mode.
Contestant weft_contestant(WeftMode mode);

// Weft with many workers on this host, each of which calls all the others. Its name is that of the
// mode.
RankContestant weft_workers(WeftMode mode);

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
