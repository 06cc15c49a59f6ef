// Who is in the group, as the simulated workers learn of it: a plug point.
//
// The world tells what a membership protocol would see (frames, refused connections, time), and
// is told of death records. LeaseMembership (lease_membership.h) runs the library's own core at
// every worker. OracleMembership, which is cheaper, knows leases without sending heartbeats, and
// keeps the list of death records of docs/membership.md in a virtual store.
//
// Thread safety: none.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "weft/base/ids.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class Worker;
class World;

class Membership {
 public:
  virtual ~Membership() = default;

  // All that are there from the beginning have met.
  virtual void on_start() {}
  // After on_start: they only know of each other, and dial.
  virtual void on_static_join() {}
  // A call has left for that worker.
  virtual void call_sent(const Worker& /*by*/, WorkerId /*to*/) {}
  // A new incarnation starts: it reads what the store says, then dials the others.
  virtual void on_join(Worker& worker) = 0;
  // Somebody dials `at`. kOpen: both are peers now. kNotYet: it is to dial again.
  enum class Door { kOpen, kRefused, kNotYet };
  virtual Door accepts(Worker& at, WorkerId dialler) = 0;
  // The first connection of two is there, at this end.
  virtual void opened(Worker& /*at*/, WorkerId /*peer*/) {}
  virtual void on_heartbeat_answer(Worker& /*at*/, WorkerId /*from*/, uint64_t /*number*/) {}
  // Its connections have ended and nobody answers at its address.
  virtual void suspect(Worker& by, WorkerId whom) = 0;
  // A dial has taken its whole time, and nothing was heard.
  virtual void unanswered(Worker& by, WorkerId whom) = 0;
  // It refuses connections.
  virtual void refused(Worker& by, WorkerId whom) = 0;
  virtual void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) = 0;
  // kStore and kLease.
  virtual void on_event(const Event& event) = 0;
  // Something happened that leases may have to find out about.
  virtual void disturb() {}
  virtual void on_resume(Worker& /*worker*/) {}
  // Something is meant for a life that a message has named and that is not known.
  virtual void meet(Worker& at, WorkerId unknown) = 0;
  // Its program runs: it has joined, and is not known to be dead.
  virtual bool takes_part(const Worker& worker) const = 0;
  // When programs have stopped and all has been mended: death records are known, joiners have
  // joined.
  virtual void check_ended() {}
  // A death record about this incarnation stands, whoever has heard of it.
  virtual bool declared_dead(WorkerId worker) const = 0;
  // This life and another hold each other for gone, and no death record says which is right.
  virtual bool severed(WorkerId /*worker*/) const { return false; }
  // Two that are over for each other alone may leave a third waiting for them.
  virtual bool any_severed() const { return false; }
};

class OracleMembership final : public Membership {
 public:
  explicit OracleMembership(World& world) : world_(world) {}

  void on_join(Worker& worker) override;
  Door accepts(Worker& at, WorkerId dialler) override;
  void meet(Worker& at, WorkerId unknown) override;
  void suspect(Worker& by, WorkerId whom) override;
  void unanswered(Worker& by, WorkerId whom) override;  // time brings the death record
  void refused(Worker& by, WorkerId whom) override { suspect(by, whom); }
  void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) override;
  void on_event(const Event& event) override;
  void disturb() override;
  void on_resume(Worker& worker) override;
  bool takes_part(const Worker& worker) const override;
  bool declared_dead(WorkerId worker) const override { return death_records_.contains(worker); }

 private:
  struct Question {
    WorkerId by, about;
  };
  void greet(Worker& at, WorkerId joiner);
  void fence(Worker& worker);
  void on_answer(Worker& by, const Question& question);
  void look();
  void learn(Worker& at, WorkerId dead);

  World& world_;
  std::set<WorkerId> death_records_;
  std::vector<WorkerId> list_;  // in order
  std::vector<Question> questions_;
  std::set<std::pair<WorkerId, WorkerId>> asked_;
  bool looking_ = false;
};

}  // namespace weft::sim
