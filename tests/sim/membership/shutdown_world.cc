#include "weft/tests/sim/membership/shutdown_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::sim {

using rpc_internal::MembershipMessage;
using rpc_internal::MembershipMessages;
using rpc_internal::PeerTraffic;
using rpc_internal::QuiescenceCore;

namespace {

constexpr Nanoseconds kTimeLimit = std::chrono::seconds(2);
// Long enough for a shutdown whose shutdown leader hangs.
constexpr Nanoseconds kLongest = kTimeLimit + std::chrono::seconds(1);

}  // namespace

ShutdownWorld::ShutdownWorld(uint64_t seed, Report& report, Trace& trace)
    : report_(report), trace_(trace), dice_(seed) {
  const uint32_t workers = static_cast<uint32_t>(dice_.between(1, 5));
  std::vector<WorkerId> members;
  for (uint32_t index = 0; index < workers; ++index) members.push_back({index, 1});
  for (const WorkerId member : members) add_node(member, members);
  begun_ = dice_.between(0, 8);
  sends_left_ = dice_.between(5, 40);
  deaths_left_ = dice_.chance(70) ? dice_.below(4) : 0;
  joins_left_ = dice_.below(3);
  limited_ = dice_.chance(10);
  if (limited_) nodes_[dice_.below(workers)].hangs = true;
}

void ShutdownWorld::violate(const char* invariant, const std::string& text) {
  if (violation_.invariant.empty()) violation_ = {invariant, text, events_};
}

void ShutdownWorld::say(const std::string& what) {
  if (trace_.on()) trace_.add(absl::StrCat("  ", what));
}

ShutdownWorld::Node* ShutdownWorld::find(WorkerId id) {
  const auto found =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.id == id; });
  return found == nodes_.end() ? nullptr : &*found;
}

void ShutdownWorld::add_node(WorkerId id, const std::vector<WorkerId>& members) {
  Node& node = nodes_.emplace_back(id, members);
  for (const WorkerId member : members) node.live[member].peer = member;
}

// ---- a run

Violation ShutdownWorld::run() {
  for (uint64_t left = dice_.between(20, 250); left > 0 && violation_.invariant.empty(); --left) {
    const std::vector<Choice> possible = choices();
    if (possible.empty()) break;
    happen(possible[dice_.below(possible.size())]);
  }
  calm_ = true;
  const TimePoint last = now_ + kLongest;
  while (violation_.invariant.empty()) {
    std::vector<Choice> possible = moves();
    if (possible.empty()) {
      // Nothing moves any more, so each worker now reports that it is idle.
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].up) happen({Event::kIdle, i});
      }
      possible = moves();
    }
    if (!possible.empty()) {
      happen(possible[dice_.below(possible.size())]);
    } else if (limited_ && now_ < last) {
      now_ += std::chrono::milliseconds(100);
    } else {
      break;
    }
    if (events_ > 20'000) violate("liveness", "the group does not come to rest");
  }
  if (violation_.invariant.empty()) check_all_ended();
  return violation_;
}

// Returns all choices except the check for idleness, which is always possible.
std::vector<ShutdownWorld::Choice> ShutdownWorld::moves() {
  std::vector<Choice> all = choices();
  std::erase_if(all, [](const Choice& choice) { return choice.event == Event::kIdle; });
  return all;
}

std::vector<ShutdownWorld::Choice> ShutdownWorld::choices() {
  std::vector<Choice> all;
  for (size_t i = 0; i < wire_.size(); ++i) all.push_back({Event::kArrive, i});
  size_t counting = 0;
  for (const Node& node : nodes_) counting += counts(node) ? 1 : 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (!node.up) continue;
    const Stage stage = node.core.stage();
    if (node.calls + node.drops > 0) all.push_back({Event::kWork, i});
    if (stage == Stage::kOpen && node.unmet.empty()) {
      if (begun_ > 0 && !calm_) all.push_back({Event::kBegin, i});
      if (calm_ || dice_.chance(30)) all.push_back({Event::kEnter, i});
    }
    if (stage == Stage::kCalls || stage == Stage::kMessages) all.push_back({Event::kIdle, i});
    if (stage == Stage::kDropping) all.push_back({Event::kDropReferences, i});
    const auto of_node = [&](const Message& message) { return message.from == node.id; };
    if (stage == Stage::kEnded && std::none_of(wire_.begin(), wire_.end(), of_node)) {
      all.push_back({Event::kLeave, i});
    }
    for (size_t other = 0; other < nodes_.size(); ++other) {
      const WorkerId id = nodes_[other].id;
      if (ended_.contains(id) && !node.gone.contains(id)) all.push_back({Event::kHear, i, other});
      const bool apart = node.gone.contains(id) || nodes_[other].gone.contains(node.id);
      if (node.unmet.contains(id) && nodes_[other].up && !apart) {
        all.push_back({Event::kMeet, i, other});
      }
    }
    if (calm_ || deaths_left_ == 0 || !counts(node) || counting < 2) continue;
    if (dice_.chance(10)) all.push_back({Event::kKill, i});
    if (dice_.chance(5)) all.push_back({Event::kDeclareDead, i});
  }
  if (!calm_ && joins_left_ > 0 && !vacant().empty()) all.push_back({Event::kJoin});
  return all;
}

void ShutdownWorld::happen(const Choice& choice) {
  ++events_;
  now_ += dice_.micros(0, 1000);
  for (const uint64_t part : {static_cast<uint64_t>(choice.event), uint64_t{choice.which},
                              uint64_t{choice.other}, uint64_t{wire_.size()}}) {
    hash_ = (hash_ ^ part) * 1099511628211ull;
  }
  constexpr const char* kNames[] = {"arrive",          "work",  "begin", "enter", "idle",
                                    "drop references", "leave", "hear",  "meet",  "kill",
                                    "declare dead",    "join"};
  if (choice.event == Event::kArrive) return arrive(choice.which);
  if (trace_.on()) {
    const bool about = choice.event == Event::kHear || choice.event == Event::kMeet;
    trace_.begin(absl::StrCat(events_, " ", kNames[static_cast<size_t>(choice.event)], " ",
                              nodes_[choice.which].id.to_string(), " ",
                              about ? nodes_[choice.other].id.to_string() : ""));
  }
  Node& node = nodes_[choice.which];
  switch (choice.event) {
    case Event::kWork:
      return work(node);
    case Event::kBegin:
      --begun_;
      ++node.calls;
      return;
    case Event::kEnter:
      return step(node, [&](QuiescenceCore& core, MembershipMessages& out) {
        core.enter(limited_ ? Timeout(absl::FromChrono(kTimeLimit)) : Timeout(), now_, out);
      });
    case Event::kIdle:
      return idle(node);
    case Event::kDropReferences:
      node.dropped = true;
      send_some(node, Kind::kDrop, 2);
      return step(node, [&](QuiescenceCore& core, MembershipMessages& out) {
        core.references_dropped(now_, out);
      });
    case Event::kLeave:
    case Event::kKill:
      if (choice.event == Event::kKill) {
        --deaths_left_;
        report_.inject(Fault::kCrash);
        report_.effect(Fault::kCrash);
      }
      return end(node);
    case Event::kDeclareDead:
      --deaths_left_;
      report_.count(Effect::kFalseDeathRecords);
      ended_.insert(node.id);
      return;
    case Event::kHear:
      return hear(node, nodes_[choice.other].id);
    case Event::kMeet:
      return meet(node, nodes_[choice.other]);
    case Event::kJoin:
      return join();
    case Event::kArrive:
      return;
  }
}

// ---- messages

template <class Step>
void ShutdownWorld::step(Node& node, const Step& step) {
  const Stage before = node.core.stage();
  MembershipMessages out;
  step(node.core, out);
  for (MembershipMessage& message : out) {
    if (node.gone.contains(message.to)) continue;
    wire_.push_back({node.id, message.to, Kind::kPost, std::move(message.post)});
  }
  const Stage after = node.core.stage();
  if (after == before) return;
  say(absl::StrCat(node.id.to_string(), " is in stage ", static_cast<int>(after)));
  if (after == Stage::kEnded && !node.core.timed_out()) {
    check_end(node);
    report_.count(Effect::kShutdowns);
  } else if (before == Stage::kCalls && after != Stage::kEnded) {
    check_phase_one(node);
  }
}

void ShutdownWorld::send(Node& from, WorkerId to, Kind kind) {
  --sends_left_;
  ++from.live.at(to).sent;
  wire_.push_back({from.id, to, kind, {}});
  say(absl::StrCat(from.id.to_string(), kind == Kind::kDrop ? " drops at " : " calls ",
                   to.to_string()));
}

// Sends to members and to itself. No worker calls a joiner that not all members have met.
void ShutdownWorld::send_some(Node& from, Kind kind, uint64_t at_most) {
  std::vector<WorkerId> peers;
  for (const auto& [peer, traffic] : from.live) {
    const Node* node = find(peer);
    if (node->unmet.empty()) peers.push_back(peer);
  }
  for (uint64_t left = dice_.below(at_most + 1); left > 0 && sends_left_ > 0; --left) {
    if (!peers.empty()) send(from, peers[dice_.below(peers.size())], kind);
  }
}

bool ShutdownWorld::passes(const Message& message) {
  const Node* to = find(message.to);
  return to->up && !to->gone.contains(message.from);
}

void ShutdownWorld::arrive(size_t which) {
  std::swap(wire_[which], wire_.back());
  const Message message = std::move(wire_.back());
  wire_.pop_back();
  constexpr const char* kKinds[] = {" gets a call of ", " gets a drop of ", " gets a post of "};
  if (trace_.on()) {
    trace_.begin(absl::StrCat(events_, " ", message.to.to_string(),
                              kKinds[static_cast<size_t>(message.kind)], message.from.to_string(),
                              " ", message.post.ShortDebugString()));
  }
  if (!passes(message)) return;
  Node& node = *find(message.to);
  if (message.kind == Kind::kPost) {
    return step(node, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.receive(message.from, message.post, now_, out);
    });
  }
  ++node.live.at(message.from).received;
  ++(message.kind == Kind::kCall ? node.calls : node.drops);
}

// ---- a worker

// Completes one call, or one message about references. It may cause others of its kind.
void ShutdownWorld::work(Node& node) {
  const bool call = node.calls > 0 && (node.drops == 0 || dice_.chance(50));
  send_some(node, call ? Kind::kCall : Kind::kDrop, 2);
  --(call ? node.calls : node.drops);
}

void ShutdownWorld::idle(Node& node) {
  if (node.calls + node.drops > 0 || node.hangs) {
    return step(node, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.busy("is at work", now_, out);
    });
  }
  std::vector<PeerTraffic> traffic;
  for (const auto& [peer, counters] : node.live) traffic.push_back(counters);
  step(node, [&](QuiescenceCore& core, MembershipMessages& out) {
    core.idle(std::move(traffic), now_, out);
  });
}

// The agent knows of joins and deaths a moment before the core.
void ShutdownWorld::look_first(Node& node) {
  if (dice_.chance(30)) idle(node);
}

void ShutdownWorld::end(Node& node) {
  node.up = false;
  ended_.insert(node.id);
}

void ShutdownWorld::hear(Node& node, WorkerId ended) {
  node.gone.insert(ended);
  if (ended == node.id) return end(node);  // it was declared dead while it ran
  node.live.erase(ended);
  node.unmet.erase(ended);
  look_first(node);
  std::erase_if(wire_, [&](const Message& message) {
    return (message.from == ended && message.to == node.id) ||
           (message.from == node.id && message.to == ended);
  });
  step(node, [&](QuiescenceCore& core, MembershipMessages& out) { core.gone(ended, now_, out); });
}

// ---- joiners

// Returns the newest incarnations of slots that a joiner may take.
std::vector<WorkerId> ShutdownWorld::vacant() {
  std::vector<WorkerId> places;
  for (const auto& [index, id] : newest()) {
    const Node& node = *find(id);
    if (!node.up && node.core.stage() != Stage::kEnded) places.push_back(id);
  }
  return places;
}

std::map<uint32_t, WorkerId> ShutdownWorld::newest() const {
  std::map<uint32_t, WorkerId> newest;
  for (const Node& node : nodes_) newest[node.id.index] = node.id;
  return newest;
}

// The earlier incarnation is dead or gets a death record. The joiner knows the others from records.
void ShutdownWorld::join() {
  --joins_left_;
  const std::vector<WorkerId> places = vacant();
  const WorkerId earlier = places[dice_.below(places.size())];
  const WorkerId self{earlier.index, earlier.incarnation + 1};
  std::vector<WorkerId> members{self};
  for (const auto& [index, id] : newest()) {
    if (index != self.index && (!ended_.contains(id) || dice_.chance(50))) members.push_back(id);
  }
  add_node(self, members);
  Node& node = nodes_.back();
  for (const Node& other : nodes_) {
    const bool member = std::find(members.begin(), members.end(), other.id) != members.end();
    if (!member) node.gone.insert(other.id);
  }
  node.unmet.insert(members.begin() + 1, members.end());
  report_.inject(Fault::kRestart);
  report_.effect(Fault::kRestart);
  say(self.to_string() + " joins");
}

void ShutdownWorld::meet(Node& joiner, Node& member) {
  if (!member.core.admits()) {
    say(member.id.to_string() + " refuses " + joiner.id.to_string());
    report_.count(Effect::kNotJoined);
    return end(joiner);
  }
  member.live[joiner.id].peer = joiner.id;
  look_first(member);
  joiner.unmet.erase(member.id);
  if (joiner.unmet.empty()) report_.count(Effect::kJoined);
  step(member, [&](QuiescenceCore& core, MembershipMessages& out) { core.joined(joiner.id, out); });
}

// ---- what must hold

// Checks that no call is in flight and that no worker will begin one.
void ShutdownWorld::check_phase_one(const Node& node) {
  if (!counts(node)) return;
  for (const Node& other : nodes_) {
    if (!counts(other) || !other.unmet.empty()) continue;
    if (other.core.stage() == Stage::kOpen) {
      violate("quiet", absl::StrCat(node.id.to_string(), " ends phase 1, and ",
                                    other.id.to_string(), " has not entered"));
    }
    if (other.calls > 0) {
      violate("quiet", absl::StrCat(node.id.to_string(), " ends phase 1, and ",
                                    other.id.to_string(), " works"));
    }
  }
  for (const Message& message : wire_) {
    if (message.kind != Kind::kCall || !passes(message) || !counts(*find(message.to))) continue;
    violate("quiet",
            absl::StrCat(node.id.to_string(), " ends phase 1, and a call of ",
                         message.from.to_string(), " is on its way to ", message.to.to_string()));
  }
}

void ShutdownWorld::check_end(const Node& node) {
  if (!counts(node)) return;
  for (const Node& other : nodes_) {
    if (!counts(other) || !other.unmet.empty()) continue;
    if (!other.dropped || other.calls + other.drops > 0) {
      violate("nobody leaves early", absl::StrCat(node.id.to_string(), " ends, and ",
                                                  other.id.to_string(), " is not done"));
    }
  }
  for (const Message& message : wire_) {
    if (message.kind == Kind::kPost || !passes(message) || !counts(*find(message.to))) continue;
    violate("nobody leaves early",
            absl::StrCat(node.id.to_string(), " ends, and a message of ", message.from.to_string(),
                         " is on its way to ", message.to.to_string()));
  }
}

void ShutdownWorld::check_all_ended() {
  for (const Node& node : nodes_) {
    if (!node.up) continue;
    if (node.core.stage() != Stage::kEnded) {
      violate("everybody leaves",
              absl::StrCat(node.id.to_string(), " stays in stage ",
                           static_cast<int>(node.core.stage()), " of shutdown"));
    }
  }
  for (const Node& node : nodes_) {
    if (node.core.stage() != Stage::kEnded || !node.core.timed_out()) continue;
    if (!limited_) {
      violate("everybody leaves", node.id.to_string() + " gave up without a time limit");
    } else if (node.core.at_work().empty()) {
      violate("everybody leaves", node.id.to_string() + " gave up and names nobody");
    }
  }
}

}  // namespace weft::sim
