#include "weft/bench/contestants/contestants.h"

namespace weft::bench {

std::vector<Contestant> call_contestants() {
  return {weft_contestant(WeftMode::kDefault),
          weft_contestant(WeftMode::kBlocking),
          weft_contestant(WeftMode::kTcp),
          torch_contestant("uv"),
          torch_contestant("shm"),
          grpc_contestant(),
          grpc_stream_contestant(),
          memcpy_floor(),
          futex_floor(),
          raw_tcp_blocking_floor(),
          raw_tcp_spinning_floor()};
}

std::vector<Mode> call_modes() {
  return {{name_of(WeftMode::kDefault), {"torch shm", "memcpy"}},
          {name_of(WeftMode::kBlocking), {"futex"}},
          {name_of(WeftMode::kTcp), {"torch uv", "grpc unary", "grpc stream", "raw tcp"}}};
}

std::vector<Contestant> security_contestants() {
  return {weft_contestant(WeftMode::kTcp), weft_contestant(WeftMode::kUnix),
          weft_contestant(WeftMode::kMtls)};
}

std::vector<Mode> security_modes() {
  const std::vector<std::string> peers = {name_of(WeftMode::kTcp)};
  return {{name_of(WeftMode::kUnix), peers}, {name_of(WeftMode::kMtls), peers}};
}

std::vector<RankContestant> collective_contestants(std::chrono::microseconds spin) {
  return {weft_ranks("weft", spin, Memory::kResident),
          weft_ranks("weft blocking", std::chrono::microseconds(0), Memory::kResident),
          weft_ranks("weft copied", spin, Memory::kCopied), gloo_ranks()};
}

}  // namespace weft::bench
