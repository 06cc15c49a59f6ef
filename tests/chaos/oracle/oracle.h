// Checks the ledgers of a chaos run: was each promise kept?
//
// Thread safety: none; call it once, after every worker has exited.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/tests/chaos/oracle/ledger.h"
#include "weft/tests/chaos/plan.h"

namespace weft::chaos {

// Times are CLOCK_MONOTONIC in ns.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// One process (incarnation) of the run.
struct Incarnation {
  enum class End {
    kKilled,   // by a signal that the run sent
    kInOrder,  // by itself, after all its calls were told
    kRefused,  // it never joined
    kBad,      // in any other way; the arena has reported it
  };
  uint32_t spawn = 0;
  size_t slot = 0;
  uint64_t id = 0;  // WorkerId; 0: it never joined
  uint64_t joined = 0;
  uint64_t ended = 0;
  End end = End::kBad;
  bool fenced = false;         // it found itself alone and left
  bool until_the_end = false;  // it ran when the arena stopped all workers
  std::vector<Span> stopped;
  std::vector<Record> records;
};

struct Injection {
  FaultKind kind = FaultKind::kKill;
  size_t slot = 0;
  uint32_t spawn = 0;  // of the victim
  Span span;
  // For faults that do not depend on the victim's traffic: whether they had an effect.
  enum class Effect { kByTraffic, kYes, kNo } effect = Effect::kByTraffic;
};

struct Findings {
  // Figures of the run.
  uint64_t calls = 0, ok = 0, failed = 0;  // failed: told of an error, as promised
  std::chrono::nanoseconds longest{0};     // a call, from its start until it was told
  uint64_t joins = 0, fenced = 0;
  std::array<uint64_t, kFaultKinds> injected{}, effective{};
  std::vector<double> crash_ms, hang_ms;  // until another worker noticed; sorted

  // Broken promises; each must be 0.
  uint64_t hanging = 0;       // calls not told within their limit and the slack
  uint64_t twice = 0;         // functions executed more than once
  uint64_t wrong_told = 0;    // executed though told not, not executed though told so, told twice
  uint64_t broken = 0;        // other promises (Broken)
  uint64_t leaked = 0;        // references, values, contexts, calls of a worker at rest
  uint64_t counters = 0;      // servers whose counter differs from what trainers were told
  uint64_t unnoticed = 0;     // deaths that a worker in touch with the dead one never saw
  uint64_t false_deaths = 0;  // workers that were declared dead without a reason
  uint64_t threads = 0, descriptors = 0, files = 0;  // left behind by workers
  std::vector<std::string> violations;               // in words; at most kMostViolations

  static constexpr size_t kMostViolations = 40;
  void violate(std::string what);
};

struct OracleOptions {
  // The time that a call may take beyond its limit, because the workers share few processors.
  std::chrono::nanoseconds slack = std::chrono::seconds(2);
  // False after bits were flipped: large tensors have no checksum, so only crashes and hangs count.
  bool exact = true;
};

Findings judge(const std::vector<Incarnation>& incarnations,
               const std::vector<Injection>& injections, const OracleOptions& options = {});

// Returns the quantile p (0 to 1) of sorted samples; 0 without samples.
double percentile(const std::vector<double>& sorted, double p);

}  // namespace weft::chaos
