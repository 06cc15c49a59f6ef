// Counts of many runs: operations and their outcomes, faults and their effects.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace weft::sim {

enum class Fault : uint8_t {
  kCut,        // a connection closes, frames in flight are lost
  kDuplicate,  // a frame arrives twice
  kOvertake,   // a frame is late and others overtake it
  kPartition,  // two sides cannot hear each other
  kOneWay,     // one direction between two workers is silent
  kFlapping,   // a link goes silent and comes back several times
  kCrash,
  kRestart,  // as a new incarnation
  kPause,    // as SIGSTOP
  kNodeFailure,
  kSlowStore,
  kSilentStore,  // questions to it, or its answers, are lost
  kSlow,         // a worker that must wait for a processor
};
inline constexpr size_t kFaults = static_cast<size_t>(Fault::kSlow) + 1;
std::string_view name_of(Fault fault);

enum class Operation : uint8_t {
  kCall,
  kNestedCall,
  kForward,  // a call under a context
  kRemote,
  kMethod,
  kToHere,
  kCancel,
  kOwn,
  kDrop,
  kOpenContext,
  kBackward,
  kCancelPass,
  kReleaseContext,
  kProbe,  // at the end: all credit must have been returned
  kStep,   // of an optimizer: applied, not applied, or data loss
  kStepMessage,
};
inline constexpr size_t kOperations = static_cast<size_t>(Operation::kStepMessage) + 1;
std::string_view name_of(Operation operation);

// The outcome of an operation for its caller.
enum class Outcome : uint8_t { kValue, kNotRun, kRan, kMaybeRun, kUnresolved };
inline constexpr size_t kOutcomes = static_cast<size_t>(Outcome::kUnresolved) + 1;
std::string_view name_of(Outcome outcome);

// Effects of faults, and rare paths that must be visited.
enum class Effect : uint8_t {
  kFramesLost,
  kFramesResent,
  kDuplicatesDropped,
  kArrivedAhead,   // a frame arrived before an earlier one
  kFramesStalled,  // by a partition
  kCallsQueued,    // for credit
  kCallsHeld,      // because no lease was valid
  kQueueFull,
  kResultsLost,    // ran, but the result was too large to keep
  kUnknownMet,     // a message named an unknown incarnation
  kRefusedAsDead,  // a connection, because the dialler was declared dead
  kDeathRecords,
  kFalseDeathRecords,  // of live workers
  kFenced,
  kHeartbeats,
  kTold,            // death records that others posted
  kSevered,         // pairs that gave up each other without a death record
  kJoined,          // joiners that all members know
  kSuspectReports,  // joiners told that a member does not answer
  kNotJoined,       // joiners that were refused, or had no store
  kUnknownEnded,    // dead incarnations known only from references and contexts
  kStaleMessages,   // of dead incarnations, offered to the cores
  kReferencesLost,
  kValuesFreed,
  kCreationsCancelled,
  kPassesCommitted,
  kPassesAborted,
  kPassesDropped,  // parts of passes dropped without knowing the decision
  kDiscoveries,
  kContextsRefused,  // calls for released contexts
  kStepsApplied,     // by one owner
  kOwnersAsked,      // by owners that were left with an undecided step
  kSecondDeaths,     // questions that name another dead owner
  kOwnersRestored,   // from a checkpoint
  kResumes,          // of a step sequence, on all its owners
  kHeldCommits,      // merges of a committed pass, one per worker
  kClaims,           // claims to replace a live worker, compared with records
  kShutdowns,        // workers that left a quiescent group
};
inline constexpr size_t kEffects = static_cast<size_t>(Effect::kShutdowns) + 1;
std::string_view name_of(Effect effect);

struct Report {
  uint64_t runs = 0;
  uint64_t events = 0;
  std::array<uint64_t, kFaults> injected{};
  std::array<uint64_t, kFaults> effective{};
  std::array<std::array<uint64_t, kOutcomes>, kOperations> operations{};
  std::array<uint64_t, kEffects> effects{};

  void inject(Fault fault) { ++injected[static_cast<size_t>(fault)]; }
  void effect(Fault fault) { ++effective[static_cast<size_t>(fault)]; }
  void count(Effect effect, uint64_t by = 1) { effects[static_cast<size_t>(effect)] += by; }
  void end(Operation operation, Outcome outcome) {
    ++operations[static_cast<size_t>(operation)][static_cast<size_t>(outcome)];
  }
  void print(std::ostream& out, double seconds) const;
};

}  // namespace weft::sim
