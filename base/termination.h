// Decides from message counters whether a group of workers is quiescent: no worker works, and no
// message is in flight.
//
// Each worker counts, per peer, the messages that can wake another worker. Whenever it is idle, it
// sends its counters in a report. The group is quiescent if all workers have reported and the
// newest reports agree. They agree if, for each pair (v, w), v has sent to w as many messages as w
// has received from v.
//
// The rule is sound although the reports are from different instants. Proof: suppose that the
// counters agree and that some worker becomes active after its report. Take the first such worker.
// A message woke it, and its report did not count this message as received. The sender was not
// active after its own report, because then the sender would have been first. So the sender sent
// the message before its report and counted it. Then the two counters of the pair differ, which is
// a contradiction. The proof does not need recent reports, so they may travel slowly and by any
// route.
//
// If a worker is dead, the detector leaves out its row and its column. The others must then accept
// no more messages of it. So the detector does not find the group quiescent until the reports of
// all others say that they have left the dead worker out too.
//
// Thread safety: none. These are plain values for pure cores.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "weft/base/ids.h"

namespace weft {

// The number of messages to, or from, `worker`.
struct PeerCount {
  WorkerId worker{};
  uint64_t count = 0;
  friend bool operator==(const PeerCount&, const PeerCount&) = default;
};

// The counters of one worker at a moment at which it was idle.
struct TerminationReport {
  WorkerId worker{};
  uint64_t version = 0;               // from 1; grows with each report of this worker
  std::vector<PeerCount> sent{};      // ascending by worker, without zeros
  std::vector<PeerCount> received{};  // ascending by worker, without zeros
  std::vector<WorkerId> left_out{};   // ascending; it no longer accepts their messages
  friend bool operator==(const TerminationReport&, const TerminationReport&) = default;
};

// The counters of one worker.
class MessageCounts {
 public:
  // Returns the number of this message among those to `to`, from 1, or 0 if `to` is left out.
  uint64_t count_sent(WorkerId to);

  // For messages that arrive exactly once.
  void count_received(WorkerId from);

  // For messages that may arrive repeatedly. `number` is what count_sent returned to the sender.
  // Returns false, and counts nothing, if the message is a repetition, if its number is 0, or if
  // `from` is left out.
  bool count_received(WorkerId from, uint64_t number);

  // Drops the counters of this worker. Later messages to and from it are not counted.
  void leave_out(WorkerId dead);

  bool exchanged_with(WorkerId peer) const;
  std::vector<WorkerId> receivers() const;  // workers to which a message was sent, ascending
  std::vector<WorkerId> peers() const;      // senders and receivers of messages, ascending

  // Makes the next report; call it only while this worker is idle. Each report has a greater
  // version than the one before.
  TerminationReport report(WorkerId self);

 private:
  struct Received {
    uint64_t count = 0;           // messages, each counted once
    uint64_t all_until = 0;       // all numbers up to this one have arrived
    std::set<uint64_t> beyond{};  // numbers above it that have arrived
  };

  uint64_t version_ = 0;
  std::map<WorkerId, uint64_t> sent_;
  std::map<WorkerId, Received> received_;
  std::set<WorkerId> left_out_;
};

// Holds the newest report of each worker and compares them.
class TerminationDetector {
 public:
  // From now on the group is not quiescent without a report of this worker. `update` also expects
  // the workers that a report names.
  void expect(WorkerId worker);

  // Returns false if the report is no newer than the known one, or if its worker was left out.
  bool update(TerminationReport report);

  void leave_out(WorkerId dead);

  bool quiescent() const;

  // All workers that are expected or have reported, ascending.
  std::vector<WorkerId> workers() const;
  bool knows(WorkerId worker) const { return rows_.contains(worker); }

  // The workers for which quiescence waits, for texts that people read. They have no report, their
  // counters differ from those of a peer, or they have not left out a dead worker.
  std::vector<WorkerId> unsettled() const;

 private:
  bool settled(const TerminationReport& row) const;

  std::map<WorkerId, TerminationReport> rows_;  // version 0: expected, not reported
  std::set<WorkerId> left_out_;
};

}  // namespace weft
