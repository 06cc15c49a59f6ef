// Tells, from counters alone, when a group of workers has nothing left to do and no message in
// flight.
//
// Every worker counts the messages that can wake another worker, per peer, and says so in a report
// whenever it is idle. The group is quiet when, in the newest known reports, every worker is known
// and for every pair (v, w) what v sent to w is what w received from v.
//
// Why that is sound, although no two reports are from the same instant: suppose a worker becomes
// active after its report, and take the first one that does. A message woke it, which it had not
// counted as received. Its sender was not active after its own report (it would have been first),
// so it sent the message before, and counted it. Then the two counters of that pair differ.
// Nothing in this needs the reports to be new, so they may travel slowly and by any route.
//
// A dead worker is left out with its row and column. Its messages must then not be accepted any
// more: the detector stays unquiet until the reports of all others say that they left it out too.
//
// Thread safety: none, plain values for pure cores.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "weft/base/ids.h"

namespace weft {

// So many messages to, or from, this worker.
struct PeerCount {
  WorkerId worker{};
  uint64_t count = 0;
  friend bool operator==(const PeerCount&, const PeerCount&) = default;
};

// What one worker had sent and received at a moment at which it was idle.
struct TerminationReport {
  WorkerId worker{};
  uint64_t version = 0;               // grows with every report of this worker; from 1
  std::vector<PeerCount> sent{};      // ascending by worker, zeros left out
  std::vector<PeerCount> received{};  // likewise
  std::vector<WorkerId> left_out{};   // ascending: whose messages it no longer accepts
  friend bool operator==(const TerminationReport&, const TerminationReport&) = default;
};

// The counters of one worker.
class MessageCounts {
 public:
  // Returns the message's number on the way to this peer, from 1.
  uint64_t count_sent(WorkerId to);

  // For messages that arrive exactly once.
  void count_received(WorkerId from);

  // For messages that may be repeated: `number` is what count_sent gave the sender. Returns false
  // for a repetition, which counts nothing. Number 0 counts as a repetition.
  bool count_received(WorkerId from, uint64_t number);

  // From now on messages to and from this worker count nothing.
  void leave_out(WorkerId dead);

  bool exchanged_with(WorkerId peer) const;
  std::vector<WorkerId> receivers() const;  // to whom something was sent, ascending
  std::vector<WorkerId> peers() const;      // to or from whom, ascending

  // The report of an idle worker; each one has a greater version than the last.
  TerminationReport report(WorkerId self);

 private:
  struct Received {
    uint64_t count = 0;           // how many different ones
    uint64_t all_until = 0;       // numbered: all up to here have arrived
    std::set<uint64_t> beyond{};  // numbered: these as well
  };

  uint64_t version_ = 0;
  std::map<WorkerId, uint64_t> sent_;
  std::map<WorkerId, Received> received_;
  std::set<WorkerId> left_out_;
};

// Holds the newest report of every worker and compares them.
class TerminationDetector {
 public:
  // Quiet waits for a report of this worker. Workers named in a report are expected by themselves.
  void expect(WorkerId worker);

  // Returns false if the report is older than what is known, or of a worker that was left out.
  bool update(TerminationReport report);

  void leave_out(WorkerId dead);

  bool quiet() const;

  // Everyone who is expected or has reported, ascending.
  std::vector<WorkerId> workers() const;
  bool knows(WorkerId worker) const { return rows_.contains(worker); }

  // Whom quiet waits for: those without a report, and those whose counters do not meet those of
  // their peers. For messages to people.
  std::vector<WorkerId> unsettled() const;

 private:
  bool settled(const TerminationReport& row) const;

  std::map<WorkerId, TerminationReport> rows_;  // version 0: expected, nothing known
  std::set<WorkerId> left_out_;
};

}  // namespace weft
