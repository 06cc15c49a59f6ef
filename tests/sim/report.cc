#include "weft/tests/sim/report.h"

#include <iomanip>

namespace weft::sim {
namespace {

constexpr std::string_view kFaultNames[] = {
    "cut connection", "duplicate frame", "frame overtaken", "partition", "one-way silence",
    "flapping link",  "crash",           "restart",         "pause",     "failing node",
    "slow store",     "silent store",    "slow worker"};
static_assert(std::size(kFaultNames) == kFaults);

constexpr std::string_view kOperationNames[] = {
    "call", "nested call", "forward call", "remote",   "method call", "to_here",         "cancel",
    "own",  "drop",        "open context", "backward", "cancel pass", "release context", "probe",
    "step", "step message"};
static_assert(std::size(kOperationNames) == kOperations);

constexpr std::string_view kOutcomeNames[] = {"value", "not run", "ran", "maybe", "unresolved"};
static_assert(std::size(kOutcomeNames) == kOutcomes);

constexpr std::string_view kEffectNames[] = {
    "frames lost",         "frames resent",    "duplicates dropped", "arrived ahead",
    "frames stalled",      "calls queued",     "calls held",         "queue full",
    "results lost",        "unknown met",      "refused as dead",    "death records",
    "of them false",       "fenced",           "heartbeats",         "death records told",
    "pairs severed",       "joiners joined",   "suspect reports",    "not joined",
    "unknown ended",       "stale messages",   "references lost",    "values freed",
    "creations cancelled", "passes committed", "passes aborted",     "parts dropped",
    "discoveries",         "contexts refused", "steps applied",      "owners asked",
    "of a second death",   "owners restored",  "sequences resumed",  "parts merged",
    "claims compared",     "left in quiet"};
static_assert(std::size(kEffectNames) == kEffects);

}  // namespace

std::string_view name_of(Fault fault) { return kFaultNames[static_cast<size_t>(fault)]; }
std::string_view name_of(Operation operation) {
  return kOperationNames[static_cast<size_t>(operation)];
}
std::string_view name_of(Outcome outcome) { return kOutcomeNames[static_cast<size_t>(outcome)]; }
std::string_view name_of(Effect effect) { return kEffectNames[static_cast<size_t>(effect)]; }

void Report::print(std::ostream& out, double seconds) const {
  const auto number = [&](uint64_t value) { out << std::setw(12) << value; };
  out << "runs " << runs << ", events " << events << ", " << std::fixed << std::setprecision(2)
      << seconds << " s, " << std::setprecision(0)
      << (seconds > 0 ? static_cast<double>(runs) / seconds : 0) << " runs/s, "
      << (runs > 0 ? static_cast<double>(events) / static_cast<double>(runs) : 0)
      << " events/run\n\n"
      << std::left << std::setw(20) << "fault" << std::right << std::setw(12) << "injected"
      << std::setw(12) << "effective"
      << "\n";
  for (size_t i = 0; i < kFaults; ++i) {
    out << std::left << std::setw(20) << kFaultNames[i] << std::right;
    number(injected[i]);
    number(effective[i]);
    out << "\n";
  }
  out << "\n" << std::left << std::setw(20) << "operation" << std::right;
  for (std::string_view name : kOutcomeNames) out << std::setw(12) << name;
  out << "\n";
  for (size_t i = 0; i < kOperations; ++i) {
    out << std::left << std::setw(20) << kOperationNames[i] << std::right;
    for (uint64_t value : operations[i]) number(value);
    out << "\n";
  }
  out << "\n" << std::left << std::setw(20) << "effect" << std::right << "\n";
  for (size_t i = 0; i < kEffects; ++i) {
    out << std::left << std::setw(20) << kEffectNames[i] << std::right;
    number(effects[i]);
    out << "\n";
  }
}

}  // namespace weft::sim
