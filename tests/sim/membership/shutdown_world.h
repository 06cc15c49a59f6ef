// Simulates one shutdown of a group. Every worker has a QuiescenceCore. There are messages that
// cause further ones, deaths, live workers that are declared dead, and joiners. One seed determines
// the order.
//
// A worker works, sends, and is idle. When it has entered the shutdown, it begins nothing by
// itself. A message that arrives still makes it work. After phase 1 it drops its references, which
// sends messages too. After phase 2 it leaves. Every order that sessions allow is possible: a
// message arrives exactly once, in any order, or one side has given up the other.
//
// Thread safety: none.
// Protocol: MembershipPost of proto/weft.proto.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "weft/rpc/membership/internal/quiescence_core.h"
#include "weft/tests/sim/report.h"
#include "weft/tests/sim/world/dice.h"
#include "weft/tests/sim/world/trace.h"
#include "weft/tests/sim/world/violation.h"

namespace weft::sim {

class ShutdownWorld {
 public:
  ShutdownWorld(uint64_t seed, Report& report, Trace& trace);

  // Returns the first violation, if there is one.
  Violation run();
  uint64_t events() const { return events_; }
  uint64_t hash() const { return hash_; }

 private:
  using Stage = rpc_internal::QuiescenceCore::Stage;

  struct Node {
    Node(WorkerId id_in, const std::vector<WorkerId>& members) : id(id_in), core(id_in, members) {}
    WorkerId id;
    rpc_internal::QuiescenceCore core;
    bool up = true;
    bool hangs = false;             // it is never idle
    bool dropped = false;           // it has dropped its references
    uint32_t calls = 0, drops = 0;  // that it must still work on
    // The workers that it takes for live, itself included.
    std::map<WorkerId, rpc_internal::PeerTraffic> live{};
    std::set<WorkerId> gone{};
    std::set<WorkerId> unmet{};  // of a joiner: members that have not met it yet
  };
  enum class Kind : uint8_t { kCall, kDrop, kPost };
  struct Message {
    WorkerId from, to;
    Kind kind = Kind::kCall;
    wire::MembershipPost post{};
  };
  // A possible next event.
  enum class Event : uint8_t {
    kArrive,
    kWork,
    kBegin,
    kEnter,
    kIdle,
    kDropReferences,
    kLeave,
    kHear,
    kMeet,
    kKill,
    kDeclareDead,
    kJoin,
  };
  struct Choice {
    Event event;
    size_t which = 0;  // message or node
    size_t other = 0;  // the node that it hears of, or meets
  };

  Node* find(WorkerId id);
  void add_node(WorkerId id, const std::vector<WorkerId>& members);
  std::vector<Choice> choices();
  std::vector<Choice> moves();
  void happen(const Choice& choice);
  void say(const std::string& what);

  template <class Step>
  void step(Node& node, const Step& step);
  void send(Node& from, WorkerId to, Kind kind);
  void send_some(Node& from, Kind kind, uint64_t at_most);
  void arrive(size_t which);
  void work(Node& node);
  void idle(Node& node);
  void look_first(Node& node);
  void end(Node& node);
  void hear(Node& node, WorkerId ended);
  void meet(Node& joiner, Node& member);
  std::vector<WorkerId> vacant();
  std::map<uint32_t, WorkerId> newest() const;
  void join();

  // True if the worker is alive and no worker has the right to take it for dead.
  bool counts(const Node& node) const { return node.up && !ended_.contains(node.id); }
  bool passes(const Message& message);
  void check_phase_one(const Node& node);
  void check_end(const Node& node);
  void check_all_ended();
  void violate(const char* invariant, const std::string& text);

  Report& report_;
  Trace& trace_;
  Dice dice_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::deque<Node> nodes_;
  std::vector<Message> wire_;
  std::set<WorkerId> ended_;  // died, were declared dead, or left
  Violation violation_;
  uint64_t events_ = 0;
  uint64_t hash_ = 1469598103934665603ull;
  uint64_t begun_ = 0;  // the program may begin this many more
  uint64_t sends_left_ = 0;
  uint64_t deaths_left_ = 0, joins_left_ = 0;
  bool limited_ = false;  // a worker hangs, and shutdown has a time limit
  bool calm_ = false;     // no more faults; all workers enter the shutdown
};

}  // namespace weft::sim
