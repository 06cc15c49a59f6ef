// Seeded random schedules of the ownership core against a model made of plain sets.
//
// WEFT_SEED=n runs one schedule. WEFT_SCHEDULES=n runs that many, from seed 1. A failure prints its
// seed. With WEFT_SEED every arrival and every action is printed.

#include <cstdlib>
#include <iostream>
#include <random>
#include <variant>

#include "gtest/gtest.h"
#include "weft/base/overloaded.h"
#include "weft/tests/rref/core_world.h"
#include "weft/tests/support/random_test.h"

namespace weft::rref_internal {
namespace {

struct Faults {
  bool cancels = false;  // carriers and creations fail, are discarded, or time out
  bool deaths = false;   // workers are killed and restarted
};

// Watches everything that the cores do, and keeps as sets what must be true.
class CheckedWorld : public CoreWorld {
 public:
  CheckedWorld(uint64_t seed, Faults faults) : random_(seed), faults_(faults) {
    workers_count_ = 3 + pick(3);
    for (uint32_t i = 0; i < workers_count_; ++i) add_worker(i);
  }

  const std::string& error() const { return error_; }
  uint64_t events() const { return events_; }

  void run() {
    const size_t length = 20 + pick(60);
    for (size_t i = 0; i < length && error_.empty(); ++i) {
      if (network().empty() || chance(45)) {
        act();
      } else {
        deliver_one();
      }
      check();
    }
    drain();
  }

 private:
  // The model's knowledge of a fork.
  struct ForkFacts {
    RRefId rref;
    ForkId parent;
    WorkerId owner;
    WorkerId to;
    bool decided = false;  // S4: the owner has answered, or nobody will ever ask
    bool excused = false;  // its carrier or creation failed: it may be lost
    int deletes = 0;
  };
  struct RRefFacts {
    WorkerId owner;
    bool created = false;
    bool excused = false;
    int freed = 0;
    std::set<ForkId> forks;  // forks that the owner must list
    size_t handles = 0;      // the owner's own
    bool value = false;
  };

  // ---- Random choices ----
  size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool chance(int percent) { return static_cast<int>(pick(100)) < percent; }

  std::vector<uint32_t> live() {
    std::vector<uint32_t> indices;
    for (auto& [index, worker] : workers()) {
      if (worker.core) indices.push_back(index);
    }
    return indices;
  }

  void act() {
    const std::vector<uint32_t> indices = live();
    const uint32_t at = indices[pick(indices.size())];
    const uint32_t to = static_cast<uint32_t>(pick(workers_count_));
    Worker& worker = this->worker(at);
    switch (pick(12)) {
      case 0:
      case 1:
        if (at == to) {
          auto handle = own(at, kType);
          if (handle.ok()) own_fact(*handle, worker);
        } else if (this->worker(to).core && !worker.known_dead.contains(this->worker(to).id)) {
          auto handle = remote(at, to, kType);
          if (!handle.ok()) return fail("remote: " + handle.status().ToString());
          rrefs_[handle->rref].owner = this->worker(to).id;
          forks_[handle->fork] = {handle->rref, {}, this->worker(to).id, worker.id};
        }
        break;
      case 2:
      case 3:
      case 4:
        send_some(at, to);
        break;
      case 5:
      case 6:
      case 7:
        if (!worker.handles.empty()) {
          const Handle handle = worker.handles[pick(worker.handles.size())];
          if (handle.owned()) --rrefs_[handle.rref].handles;
          drop(at, handle);
        }
        break;
      case 8:
        if (!worker.handles.empty()) {
          const Handle handle = worker.handles[pick(worker.handles.size())];
          ++fetches_;
          (void)fetch(at, handle, rrefs_[handle.rref].owner);
        }
        break;
      case 9:
        finish_some(worker);
        break;
      case 10:
        if (faults_.cancels && !network().empty()) {
          const size_t position = pick(network().size());
          const Packet& packet = network()[position];
          if (auto* call = std::get_if<CreationCall>(&packet.body)) {
            rrefs_[call->rref].excused = true;
          } else if (!std::holds_alternative<Carrier>(packet.body)) {
            break;
          }
          if (packet.copies > 0 || packet.timed_out || chance(60)) {
            time_out(position);
          } else if (chance(50) || std::holds_alternative<CreationCall>(packet.body)) {
            withdraw(position);
          } else {
            for (const Reference& reference : std::get<Carrier>(packet.body).references) {
              forks_[reference.fork].excused = true;
            }
            discard(position);
          }
        }
        break;
      case 11:
        if (faults_.deaths) death();
        break;
    }
  }

  void own_fact(const Handle& handle, Worker& worker) {
    RRefFacts& facts = rrefs_[handle.rref];
    facts.owner = worker.id;
    facts.created = true;
    facts.handles = 1;
  }

  void send_some(uint32_t at, uint32_t to) {
    Worker& worker = this->worker(at);
    if (worker.handles.empty() || !this->worker(to).core) return;
    std::vector<Handle> handles;
    for (size_t i = 0, n = 1 + pick(2); i < n; ++i) {
      const Handle handle = worker.handles[pick(worker.handles.size())];
      // An owner's handle that still waits for the creation is not in user code's hands (B5).
      if (handle.owned() && !rrefs_[handle.rref].created) return;
      handles.push_back(handle);
    }
    if (!send(at, handles, to, chance(30)).ok()) return;
    for (const Reference& reference : std::get<Carrier>(network().back().body).references) {
      forks_[reference.fork] = {reference.rref, reference.parent, reference.owner,
                                this->worker(to).id};
      if (reference.owner == worker.id) rrefs_[reference.rref].forks.insert(reference.fork);
    }
  }

  void finish_some(Worker& worker) {
    if (worker.unfinished.empty()) return;
    auto it = worker.unfinished.begin();
    std::advance(it, pick(worker.unfinished.size()));
    const RRefId rref = *it;
    std::vector<Handle> holding;
    // A value may hold references to older values only. Otherwise cycles would live for ever.
    for (const Handle& handle : worker.handles) {
      if (holding.empty() && !handle.owned() && handle.rref < rref && chance(30) &&
          handle.rref.creator == rref.creator) {
        holding.push_back(handle);
      }
    }
    rrefs_[rref].value = true;
    finish(worker.id.index, rref,
           chance(80) ? absl::OkStatus() : absl::UnknownError("the function threw"), holding);
  }

  void deliver_one() {
    const size_t position = pick(network().size());
    Packet& packet = network()[position];
    if (packet.repeatable() && !is_recall(packet) && packet.copies < 2 && chance(15)) {
      duplicate(position);
    }
    deliver(position);
  }

  // A repeated recall may leave a tombstone (docs/rref_protocol.md, "Repeats").
  static bool is_recall(const Packet& packet) {
    const auto* message = std::get_if<Message>(&packet.body);
    const auto* cancel = message == nullptr ? nullptr : std::get_if<CancelFork>(message);
    return cancel != nullptr && cancel->owner == packet.from;
  }

  void death() {
    if (chance(40) && live().size() > 1) {
      const std::vector<uint32_t> indices = live();
      const uint32_t victim = indices[pick(indices.size())];
      const WorkerId id = worker(victim).id;
      dead_.insert(id);
      kill(victim);
      for (auto& [index, other] : workers()) {
        if (other.core) unannounced_.push_back({index, id});
      }
      for (auto& [rref, facts] : rrefs_) {
        if (facts.owner == id) facts.forks.clear();
      }
      for (auto& [fork, facts] : forks_) {
        if (facts.to == id) facts.decided = true;
      }
    } else if (chance(70)) {
      announce_one();
    } else {
      for (auto& [index, worker] : workers()) {
        if (worker.core) continue;
        // Membership lets a new incarnation join only once the death of the earlier one is known.
        if (!unannounced_.empty()) break;
        restart(index);
        for (const WorkerId& dead : dead_) announce_death(index, dead);
        break;
      }
    }
  }

  void announce_one() {
    if (unannounced_.empty()) return;
    const size_t position = pick(unannounced_.size());
    const auto [index, id] = unannounced_[position];
    unannounced_.erase(unannounced_.begin() + position);
    if (!worker(index).core) return;
    strike(worker(index).id, id);
    announce_death(index, id);
    if (chance(20)) announce_death(index, id);  // S9: a second notice
  }

  // BN2 in the model: the owner removes the dead worker's forks.
  void strike(WorkerId owner, WorkerId dead) {
    for (auto& [rref, facts] : rrefs_) {
      if (facts.owner != owner) continue;
      std::erase_if(facts.forks, [&](const ForkId& fork) { return forks_[fork].to == dead; });
    }
  }

  // ---- What the cores do ----
  void on_action(Worker& at, const Action& action) override {
    if (trace_) trace(at.id, action);
    if (stale_arrival_) fail("S7: a stale message caused an action");
    std::visit(Overloaded{
                   [&](const Send& send) { on_sent(at, send.message); },
                   [&](const Free& free) {
                     RRefFacts& facts = rrefs_[free.rref];
                     if (++facts.freed > 1) fail("B4: freed twice: " + free.rref.to_string());
                   },
                   [](const Confirmed&) {},
                   [&](const Lost& lost) { on_lost(at, lost); },
                   [&](const FetchReady& ready) {
                     if (rrefs_[ready.rref].freed > 0) fail("S5: a freed value was read");
                     if (!rrefs_[ready.rref].value)
                       fail("S5: a value was read before it was there");
                     resolve(ready.ticket);
                   },
                   [&](const FetchFailed& failed) { resolve(failed.ticket); },
                   [&](const AllConfirmed& all) { on_all_confirmed(at, all); },
               },
               action);
  }

  void on_sent(Worker& at, const Message& message) {
    if (const auto* accept = std::get_if<ForkAccept>(&message)) {
      forks_[accept->fork].decided = true;
      RRefFacts& facts = rrefs_[accept->rref];
      if (facts.freed > 0) fail("S3: a fork of a freed value was accepted");
      facts.forks.insert(accept->fork);
    } else if (const auto* reject = std::get_if<ForkReject>(&message)) {
      forks_[reject->fork].decided = true;
    } else if (const auto* ack = std::get_if<CancelAck>(&message)) {
      if (ack->owner == at.id) forks_[ack->fork].decided = true;
    } else if (const auto* child = std::get_if<ChildAccept>(&message)) {
      forks_[child->fork].decided = true;
    } else if (const auto* end = std::get_if<UserDelete>(&message)) {
      if (++forks_[end->fork].deletes > 1) fail("B2: two USER_DELETE for one fork");
      for (const auto& [fork, facts] : forks_) {
        if (facts.parent == end->fork && !facts.decided) {
          fail("B3/S4: " + end->fork.to_string() + " deleted before its child " + fork.to_string() +
               " was decided");
        }
      }
    }
  }

  void on_all_confirmed(Worker& at, const AllConfirmed& all) {
    auto found = waiting_.find({at.id, all.waiter});
    if (found == waiting_.end()) {
      early_.insert({at.id, all.waiter});
      return;
    }
    if (all.status.ok()) {
      for (const Handle& handle : found->second) {
        const bool held = std::count(at.handles.begin(), at.handles.end(), handle) > 0;
        if (held && !at.core->confirmed(handle)) fail("B5: started before confirmation");
      }
    }
    waiting_.erase(found);
  }

  void on_lost(Worker& at, const Lost& lost) {
    const RRefFacts& rref = rrefs_[lost.handle.rref];
    check_reason(lost.handle.fork, lost.status);
    if (lost.handle.owned()) {
      if (!rref.excused && !faults_.deaths) fail("an owner's handle was lost without a fault");
      return;
    }
    if (faults_.deaths) {
      // The promise under death: a confirmed fork is lost only with its owner.
      if (at.core->confirmed(lost.handle) && !at.known_dead.contains(rref.owner)) {
        fail("S2: a confirmed fork was lost although its owner lives");
      }
      return;
    }
    if (!rref.excused && !carrier_failed(lost.handle.fork)) {
      fail("S1: lost without a fault: " + lost.handle.fork.to_string());
    }
  }

  bool carrier_failed(ForkId fork) {
    bool failed = false;
    for (; fork.valid(); fork = forks_[fork].parent) failed |= forks_[fork].excused;
    return failed;
  }

  // G2: if only the creation failed, everyone is told the creation's error.
  void check_reason(ForkId fork, const absl::Status& status) {
    if (faults_.deaths || carrier_failed(fork) || !is_rref_lost(status)) return;
    fail("G2: nobody told " + fork.to_string() + " why the creation failed: " + status.ToString());
  }

  void resolve(FetchTicket ticket) {
    if (!resolved_.insert(ticket).second) fail("a fetch was answered twice");
  }

  void on_arrival(const Packet& packet) override {
    if (trace_) trace(packet);
    Worker& to = worker(packet.to.index);
    stale_arrival_ = packet.to != to.id || to.known_dead.contains(packet.from);
    if (stale_arrival_) return;
    if (const auto* message = std::get_if<Message>(&packet.body)) {
      if (const auto* end = std::get_if<UserDelete>(message)) {
        rrefs_[end->rref].forks.erase(end->fork);
      } else if (const auto* ack = std::get_if<CancelAck>(message)) {
        if (ack->owner == to.id && !ack->registered) rrefs_[ack->rref].forks.erase(ack->fork);
      }
    } else if (const auto* carrier = std::get_if<Carrier>(&packet.body)) {
      for (const Reference& reference : carrier->references) {
        ForkFacts& fork = forks_[reference.fork];
        if (reference.owner == to.id || fork.excused) fork.decided = true;
        if (reference.owner == to.id) rrefs_[reference.rref].forks.erase(reference.fork);
      }
    }
  }

  void on_receive(Worker& at, WaiterId waiter, const Carrier& carrier,
                  const std::vector<Received>& results) override {
    std::vector<Handle> handles;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].status.ok()) {
        if (!faults_.deaths && !faults_.cancels) fail("refused: " + results[i].status.ToString());
        check_reason(carrier.references[i].fork, results[i].status);
        continue;
      }
      handles.push_back(results[i].handle);
      if (carrier.references[i].owner == at.id) ++rrefs_[results[i].handle.rref].handles;
    }
    waiting_[{at.id, waiter}] = std::move(handles);
  }

  void on_accept(Worker& at, const CreationCall& call, Acceptance result) override {
    RRefFacts& facts = rrefs_[call.rref];
    if (result == Acceptance::kRun) {
      if (facts.created) fail("a creation ran twice");
      facts.created = true;
      facts.forks.insert(call.fork);
      facts.owner = at.id;
    } else if (result == Acceptance::kRefused && !facts.created && !facts.excused &&
               !faults_.deaths) {
      fail("a creation was refused without a fault");
    }
  }

  void on_failed_send(Worker& at, const Reference& reference, Delivery delivery) override {
    if (trace_) {
      std::cout << at.id << " gives up " << reference.fork << " of " << reference.rref
                << (delivery == Delivery::kNeverSent ? " (never sent)\n" : "\n");
    }
    ForkFacts& fork = forks_[reference.fork];
    if (!fork.rref.valid()) return;  // it never entered the network
    fork.excused = true;
    if (delivery == Delivery::kNeverSent) {
      fork.decided = true;
      if (reference.owner == at.id) rrefs_[reference.rref].forks.erase(reference.fork);
    } else if (reference.owner == at.id && fork.to == at.id) {
      rrefs_[reference.rref].forks.erase(reference.fork);  // sent to itself: the owner knows
    }
  }

  // ---- Checks after each event ----
  void check() {
    ++events_;
    stale_arrival_ = false;
    std::map<WorkerId, std::pair<uint64_t, uint64_t>> expected;  // owners, forks
    for (const auto& [rref, facts] : rrefs_) {
      if (!facts.created || dead_.contains(facts.owner)) continue;
      Worker& owner = worker(facts.owner.index);
      const bool wanted = facts.handles > 0 || !facts.forks.empty() || is_waited_for(rref);
      const bool exists = owner.core->confirmed(Handle{rref, {}});
      if (wanted != exists) {
        fail("B4/S8: " + rref.to_string() + (wanted ? " freed while wanted" : " kept unwanted"));
      }
      if (exists && facts.freed > 0) fail("S3: " + rref.to_string() + " came back");
      if (wanted) ++expected[facts.owner].first;
      expected[facts.owner].second += facts.forks.size();
    }
    for (auto& [index, worker] : workers()) {
      if (!worker.core) continue;
      const OwnershipGauges gauges = worker.core->gauges();
      if (gauges.owners != expected[worker.id].first ||
          gauges.forks != expected[worker.id].second) {
        fail("S8: gauges of " + worker.id.to_string() + " differ from the set model");
      }
      if (gauges.refused_messages > 0) fail("an honest message was refused");
      for (const Handle& handle : worker.handles) check_held(worker, handle);
    }
    if (!faults_.cancels && !faults_.deaths) check_unread();
  }

  // S1, S2: a confirmed fork of a live worker protects the value of a live owner.
  void check_held(Worker& holder, const Handle& handle) {
    const RRefFacts& facts = rrefs_[handle.rref];
    if (dead_.contains(facts.owner)) return;
    const bool faultless = !faults_.cancels && !faults_.deaths;
    if (!faultless && !holder.core->confirmed(handle)) return;
    if (facts.freed > 0) fail("S2: " + handle.rref.to_string() + " freed under a held reference");
  }

  void check_unread() {
    for (const Packet& packet : network()) {
      const auto* carrier = std::get_if<Carrier>(&packet.body);
      if (carrier == nullptr) continue;
      for (const Reference& reference : carrier->references) {
        if (rrefs_[reference.rref].freed > 0) fail("S1: freed under a carrier");
      }
    }
  }

  // Liveness: when all faults stop and everything is dropped, no worker has anything left.
  void drain() {
    while (!unannounced_.empty() && error_.empty()) {
      announce_one();
      check();
    }
    const bool shut_down = chance(50);
    for (int round = 0; round < 2000 && error_.empty(); ++round) {
      if (!network().empty()) {
        deliver(pick(network().size()));
        check();
        continue;
      }
      bool quiet = true;
      for (uint32_t index : live()) {
        Worker& worker = this->worker(index);
        if (shut_down && !worker.core->draining()) {
          for (auto& [rref, facts] : rrefs_) {
            if (facts.owner == worker.id) facts.handles = 0;
          }
          begin_shutdown(index);
          quiet = false;
        } else if (!worker.handles.empty()) {
          const Handle handle = worker.handles.back();
          if (handle.owned()) --rrefs_[handle.rref].handles;
          drop(index, handle);
          quiet = false;
        } else if (!worker.unfinished.empty()) {
          finish_some(worker);
          quiet = false;
        }
      }
      check();
      if (quiet && network().empty()) break;
    }
    if (!error_.empty()) return;
    for (uint32_t index : live()) {
      const OwnershipGauges g = worker(index).core->gauges();
      if (g.owners + g.forks + g.users + g.pending_users + g.pending_children + g.tombstones +
              g.parked_fetches + g.parked_forks !=
          0) {
        std::string text = worker(index).id.to_string() + " is not clean:";
        text += " owners " + std::to_string(g.owners) + " forks " + std::to_string(g.forks) +
                " users " + std::to_string(g.users) + " children " +
                std::to_string(g.pending_children) + " tombstones " + std::to_string(g.tombstones) +
                " parked " + std::to_string(g.parked_fetches) + "+" +
                std::to_string(g.parked_forks);
        for (const Leak& leak : worker(index).core->leaks()) text += "\n  " + leak.to_string();
        fail(text);
      }
      if (!worker(index).core->drained()) fail("not drained");
    }
    for (const auto& [key, handles] : waiting_) {
      if (!dead_.contains(key.first) && !early_.contains(key)) fail("B5: a carrier never decided");
    }
  }

  void trace(WorkerId at, const Action& action) {
    std::cout << at;
    if (const auto* send = std::get_if<Send>(&action)) {
      std::cout << "   -> " << send->to << " " << to_string(send->message);
    } else if (const auto* free = std::get_if<Free>(&action)) {
      std::cout << "   frees " << free->rref;
    } else if (const auto* lost = std::get_if<Lost>(&action)) {
      std::cout << "   loses " << lost->handle.fork << " " << lost->status;
    } else {
      std::cout << "   action " << action.index();
    }
    std::cout << "\n";
  }

  void trace(const Packet& packet) {
    std::cout << packet.from << " => " << packet.to << " #" << packet.number << " ";
    if (const auto* message = std::get_if<Message>(&packet.body)) {
      std::cout << to_string(*message);
    } else if (const auto* call = std::get_if<CreationCall>(&packet.body)) {
      std::cout << "creation " << call->rref << " " << call->fork;
    } else if (const auto* carrier = std::get_if<Carrier>(&packet.body)) {
      std::cout << "carrier";
      for (const Reference& r : carrier->references) std::cout << " " << r.fork << "/" << r.rref;
    } else {
      std::cout << "body " << packet.body.index();
    }
    std::cout << "\n";
  }

  void fail(const std::string& text) {
    if (error_.empty()) error_ = text;
  }

  const bool trace_ = std::getenv("WEFT_SEED") != nullptr;
  const TypeTag kType{7, "tensor"};
  std::mt19937_64 random_;
  Faults faults_;
  uint32_t workers_count_ = 0;
  std::string error_;
  uint64_t events_ = 0;
  uint64_t fetches_ = 0;
  bool stale_arrival_ = false;
  std::map<RRefId, RRefFacts> rrefs_;
  std::map<ForkId, ForkFacts> forks_;
  std::set<FetchTicket> resolved_;
  std::set<WorkerId> dead_;
  std::vector<std::pair<uint32_t, WorkerId>> unannounced_;
  std::map<std::pair<WorkerId, WaiterId>, std::vector<Handle>> waiting_;
  std::set<std::pair<WorkerId, WaiterId>> early_;
};

void run_schedules(Faults faults) {
  const uint64_t only = number_from_environment("WEFT_SEED", 0);
  const uint64_t count = number_from_environment("WEFT_SCHEDULES", 1500);
  uint64_t events = 0;
  for (uint64_t seed = only ? only : 1; seed <= (only ? only : count); ++seed) {
    CheckedWorld world(seed, faults);
    world.run();
    events += world.events();
    ASSERT_EQ(world.error(), "") << "WEFT_SEED=" << seed << " reproduces it";
  }
  std::cout << "seeds 1.." << count << ", " << events << " events\n";
}

TEST(OwnershipSchedules, NothingIsLostOrLeftWithoutFaults) { run_schedules({}); }

TEST(OwnershipSchedules, FailedCarriersLeaveNothing) { run_schedules({.cancels = true}); }

TEST(OwnershipSchedules, DeathsLeaveNothing) { run_schedules({.deaths = true}); }

TEST(OwnershipSchedules, DeathsAndFailuresTogether) {
  run_schedules({.cancels = true, .deaths = true});
}

}  // namespace
}  // namespace weft::rref_internal
