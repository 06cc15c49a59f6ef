// The plan of a chaos run: which faults it injects into which workers, and when. One seed
// determines it.
//
// Thread safety: plain values and functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::chaos {

enum class FaultKind {
  kKill = 0,       // SIGKILL at a random moment
  kFailPoint,      // SIGKILL, SIGSTOP or a delay at a named point in the code
  kStop,           // SIGSTOP for `length`
  kPartition,      // no packets between the victim and some others
  kOneWay,         // the same in one direction
  kIsolate,        // no packets between the victim and all others, and the store
  kStoreCut,       // no packets between the victim and the store
  kLoss,           // `number` of 1000 packets are dropped
  kReset,          // TCP connections of the victim are reset again and again
  kProxyDelay,     // its proxy delays pieces by 1 to `number` ms
  kProxyTruncate,  // its proxy closes connections in the middle of a piece
  kProxyHang,      // its proxy stops one connection and tells neither end
  kProxyFlip,      // its proxy flips single bits
  kFullDisk,       // no space is left for any worker's checkpoints
  kFileLimit,      // the victim can open `number` descriptors more
  kMemoryLimit,    // the victim can map `number` MiB more
  kThreadLimit,    // the victim gets `number` threads more
  kLeave,          // no fault: it leaves in good order and joins again
};
inline constexpr int kFaultKinds = 18;
std::string_view to_string(FaultKind kind);
// Parses one name of `--only kill,stop`. Nullopt if it names no kind.
std::optional<FaultKind> named_fault(std::string_view name);
// The names that --only takes, in the order of the kinds. Fail points are not among them, because
// processes are started with them. Flipped bits are not either, because they have a run of their
// own.
std::vector<std::string> fault_names();
// True if no packets pass between the victim and the store.
bool cuts_store(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  size_t slot = 0;  // of the victim
  std::chrono::milliseconds at{0};
  std::chrono::milliseconds length{0};
  std::vector<size_t> others;  // the other side of a partition, by slot
  uint64_t number = 0;         // its meaning depends on the kind
};

struct PlanOptions {
  uint64_t seed = 1;
  std::chrono::milliseconds length{60'000};
  size_t workers = 5;
  std::vector<FaultKind> kinds;  // allowed ones
  std::vector<size_t> proxied;   // slots that are reached through a proxy
  // Time between the end of a fault and the next one. Nullopt: they overlap.
  std::optional<std::chrono::milliseconds> apart;
};

// The faults in order of time. A victim gets no new fault until it can have recovered from its last
// one. At any time at most half of the workers have a fault. No fault is active in the last fifth
// of a run, or in the last 12 s of a run of more than a minute.
std::vector<Fault> make_plan(const PlanOptions& options);

// The name of every WEFT_FAIL_POINT in the tree.
const std::vector<std::string>& fail_points();

// The WEFT_FAIL_POINT variable with which process number `spawn` of a run is started. A third of
// the processes have none.
std::optional<std::string> fail_point_for(uint64_t seed, uint64_t spawn);

}  // namespace weft::chaos
