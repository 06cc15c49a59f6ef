// What many runs did: operations and how they ended, faults and what they led to.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace weft::sim {

enum class Fault : uint8_t {
  kCut,        // a connection ends, what is in flight is lost
  kDuplicate,  // a frame arrives twice
  kOvertake,   // a frame is late and others overtake it
  kPartition,  // two sides hear nothing of each other
  kOneWay,     // one direction between two workers is silent
  kFlapping,   // a link goes silent and comes back several times
  kCrash,
  kRestart,  // as a new incarnation
  kPause,    // as SIGSTOP
  kNodeFailure,
  kSlowStore,
  kSilentStore,  // what it is asked, or what it answers, is lost
  kSlow,         // a worker that has to wait for a processor
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
  kProbe,  // at the end: all credit must have come home
  kStep,   // of an optimizer: applied, not applied, or data loss
  kStepMessage,
};
inline constexpr size_t kOperations = static_cast<size_t>(Operation::kStepMessage) + 1;
std::string_view name_of(Operation operation);

// How an operation ended for who asked for it.
enum class Outcome : uint8_t { kValue, kNotRun, kRan, kMaybeRun, kUnresolved };
inline constexpr size_t kOutcomes = static_cast<size_t>(Outcome::kUnresolved) + 1;
std::string_view name_of(Outcome outcome);

// What faults led to, and rare paths that must not stay unvisited.
enum class Effect : uint8_t {
  kFramesLost,
  kFramesResent,
  kDuplicatesDropped,
  kArrivedAhead,   // a frame before one that was sent earlier
  kFramesStalled,  // by a partition
  kCallsQueued,    // for credit
  kCallsHeld,      // for trust
  kQueueFull,
  kResultsLost,    // ran, but the result was too large to keep for resending
  kUnknownMet,     // a message named a life that was not known yet
  kRefusedAsDead,  // a connection, because the dialler was declared dead
  kDeathRecords,
  kFalseDeathRecords,  // of workers that lived
  kFenced,
  kHeartbeats,
  kTold,            // death records that others posted
  kSevered,         // pairs that are over without a death record
  kJoined,          // joiners whom all know
  kSuspectReports,  // joiners told of a member that does not answer them
  kNotJoined,       // joiners that were refused, or had no store
  kUnknownEnded,    // lives that ended, known from references and contexts alone
  kStaleMessages,   // of ended incarnations, offered to the cores
  kReferencesLost,
  kValuesFreed,
  kCreationsCancelled,
  kPassesCommitted,
  kPassesAborted,
  kPassesDropped,  // a part of a pass given up without knowing the decision
  kDiscoveries,
  kContextsRefused,  // calls for released contexts
  kStepsApplied,     // by one owner
  kOwnersAsked,      // by others that were left with an undecided step
  kSecondDeaths,     // of them: the question names an owner that is dead as well
  kOwnersRestored,   // from a checkpoint
  kResumes,          // of a line, on all its owners
  kHeldCommits,      // gradients that a worker of a committed pass merged
  kClaims,           // to have replaced a live worker, compared with the records
  kShutdowns,        // workers that left a quiet group
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
