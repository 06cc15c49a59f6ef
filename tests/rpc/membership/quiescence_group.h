// The quiescence cores of a group, and the wires between them.
//
// Thread safety: none; messages and time move only when the test says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/membership/internal/quiescence_core.h"

namespace weft::testing {

// The first incarnation of this worker.
inline WorkerId id(uint32_t index) { return {index, 1}; }

// The wires keep the order of messages. The test moves the counters.
class QuiescenceGroup {
 public:
  using MembershipMessages = rpc_internal::MembershipMessages;
  using PeerTraffic = rpc_internal::PeerTraffic;
  using QuiescenceCore = rpc_internal::QuiescenceCore;
  using Stage = QuiescenceCore::Stage;

  explicit QuiescenceGroup(uint32_t workers) {
    std::vector<WorkerId> members;
    for (uint32_t i = 0; i < workers; ++i) members.push_back(id(i));
    for (uint32_t i = 0; i < workers; ++i) add(id(i), members);
  }

  QuiescenceCore& operator[](uint32_t i) { return nodes_[i].core; }
  Stage stage(uint32_t i) const { return nodes_[i].core.stage(); }
  void advance(Nanoseconds step) { now_ += step; }

  // Adds a second incarnation of this worker, which knows the first ones of the others. Returns its
  // index.
  uint32_t revive(uint32_t worker) {
    std::vector<WorkerId> members;
    for (const Node& node : nodes_) {
      if (node.live && node.self.index != worker) members.push_back(node.self);
    }
    members.push_back({worker, 2});
    add({worker, 2}, members);
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  void hold(uint32_t i, uint32_t joiner) {
    nodes_[i].holds[nodes_[joiner].self].peer = nodes_[joiner].self;
  }
  void meet(uint32_t i, uint32_t joiner) {
    hold(i, joiner);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.joined(nodes_[joiner].self, out);
    });
  }
  // Worker i hears that this one has died.
  void lose(uint32_t i, uint32_t dead) {
    nodes_[i].holds.erase(nodes_[dead].self);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.gone(nodes_[dead].self, now_, out);
    });
  }

  void enter(uint32_t i, Timeout timeout = {}) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.enter(timeout, now_, out); });
  }
  void drop(uint32_t i) {
    act(i,
        [&](QuiescenceCore& core, MembershipMessages& out) { core.references_dropped(now_, out); });
  }
  void idle(uint32_t i) {
    std::vector<PeerTraffic> traffic;
    for (const auto& [peer, counters] : nodes_[i].holds) traffic.push_back(counters);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.idle(std::move(traffic), now_, out);
    });
  }
  void busy(uint32_t i, const std::string& work) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.busy(work, now_, out); });
  }
  // The workers that were named when the shutdown completed, and their work.
  std::map<WorkerId, std::string> at_work(uint32_t i) {
    std::map<WorkerId, std::string> named;
    for (const auto& each : nodes_[i].core.at_work()) named[each.worker] = each.work;
    return named;
  }
  void tick(uint32_t i) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.tick(now_, out); });
  }
  void count_sent(uint32_t from, uint32_t to) { ++nodes_[from].holds.at(nodes_[to].self).sent; }
  void count_received(uint32_t from, uint32_t to) {
    ++nodes_[to].holds.at(nodes_[from].self).received;
  }
  void stop(uint32_t dead, bool loses_messages = true) {
    nodes_[dead].live = false;
    const WorkerId self = nodes_[dead].self;
    if (loses_messages) std::erase_if(wire_, [&](const Sent& s) { return s.from == self; });
  }
  // Stops a worker. Its messages in flight are lost, and all others hear of its death.
  void kill(uint32_t dead, bool loses_messages = true) {
    stop(dead, loses_messages);
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].live) lose(i, dead);
    }
  }

  void deliver_all() {
    while (deliver_one()) {
    }
  }
  bool deliver_one() {
    if (wire_.empty()) return false;
    Sent sent = std::move(wire_.front());
    wire_.pop_front();
    for (uint32_t to = 0; to < nodes_.size(); ++to) {
      if (nodes_[to].self != sent.to || !nodes_[to].live) continue;
      act(to, [&](QuiescenceCore& core, MembershipMessages& out) {
        core.receive(sent.from, sent.post, now_, out);
      });
    }
    return true;
  }
  // Delivers messages and reports idle workers until nothing changes any more.
  void settle(const std::vector<uint32_t>& idle_workers) {
    for (int round = 0; round < 6; ++round) {
      deliver_all();
      for (uint32_t i : idle_workers) idle(i);
    }
    deliver_all();
  }

 private:
  struct Node {
    WorkerId self;
    QuiescenceCore core;
    std::map<WorkerId, PeerTraffic> holds;  // peers that it thinks alive, and itself
    bool live = true;
  };
  struct Sent {
    WorkerId from, to;
    wire::MembershipPost post;
  };

  void add(WorkerId self, const std::vector<WorkerId>& members) {
    Node node{self, QuiescenceCore(self, members), {}};
    for (const WorkerId member : members) node.holds[member].peer = member;
    nodes_.push_back(std::move(node));
  }
  template <class Event>
  void act(uint32_t i, const Event& event) {
    MembershipMessages out;
    event(nodes_[i].core, out);
    for (const auto& message : out) wire_.push_back({nodes_[i].self, message.to, message.post});
  }

  std::deque<Node> nodes_;
  std::deque<Sent> wire_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
};

}  // namespace weft::testing
