// What a chaos run does to its workers, and when: all drawn from one seed.
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
  kFailPoint,      // SIGKILL, SIGSTOP or a delay at a named place in the code
  kStop,           // SIGSTOP for `length`
  kPartition,      // nothing passes between the victim and some others
  kOneWay,         // in one direction
  kIsolate,        // nor between the victim and anybody, the store included
  kStoreCut,       // between the victim and the store only
  kLoss,           // `number` of 1000 packets are dropped
  kReset,          // TCP connections of the victim are reset again and again
  kProxyDelay,     // its proxy holds back what passes, 1 to `number` ms
  kProxyTruncate,  // its proxy ends connections amidst what passes
  kProxyHang,      // its proxy lets one connection hang: nothing passes, neither end is told
  kProxyFlip,      // its proxy flips single bits
  kFullDisk,       // no space is left for checkpoints, anywhere
  kFileLimit,      // the victim can open `number` descriptors more
  kMemoryLimit,    // the victim can map `number` MiB more
  kThreadLimit,    // the victim gets `number` threads more
  kLeave,          // no fault: it leaves in good order and joins again
};
inline constexpr int kFaultKinds = 18;
std::string_view to_string(FaultKind kind);
// Of `--only kill,stop`; none if it names no kind.
std::optional<FaultKind> named_fault(std::string_view name);
// What --only takes, in the order of the kinds: all but fail points, which come with processes, and
// flipped bits, which have a run of their own.
std::vector<std::string> fault_names();
// Whether nothing passes between the victim and the store.
bool cuts_store(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  size_t slot = 0;  // of the victim
  std::chrono::milliseconds at{0};
  std::chrono::milliseconds length{0};
  std::vector<size_t> others;  // the other side of a partition, by slot
  uint64_t number = 0;         // of the kind
};

struct PlanOptions {
  uint64_t seed = 1;
  std::chrono::milliseconds length{60'000};
  size_t workers = 5;
  std::vector<FaultKind> kinds;  // allowed ones
  std::vector<size_t> proxied;   // slots that are reached through a proxy
  // Between the end of a fault and the next one; none: they overlap.
  std::optional<std::chrono::milliseconds> apart;
};

// In order of time. A victim is left alone until it can have recovered from its last fault, and at
// any time at most half of the workers suffer. Nothing begins in the last fifth of a run, but for
// runs of more than a minute in the last 12 s.
std::vector<Fault> make_plan(const PlanOptions& options);

// Every WEFT_FAIL_POINT of the tree.
const std::vector<std::string>& fail_points();

// The WEFT_FAIL_POINT variable that a run's process number `spawn` is started with; a third of them
// have none.
std::optional<std::string> fail_point_for(uint64_t seed, uint64_t spawn);

}  // namespace weft::chaos
