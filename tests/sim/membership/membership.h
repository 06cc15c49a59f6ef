// The interface through which simulated workers learn who is in the group. It has two
// implementations.
//
// The world tells it what a membership protocol would see (frames, refused connections, time), and
// gets death records back. LeaseMembership (lease_membership.h) runs the library's own core at
// every worker. OracleMembership is cheaper. It knows leases without sending heartbeats, and keeps
// the list of death records of docs/membership.md in a virtual store.
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

  // All workers that exist at the beginning have met.
  virtual void on_start() {}
  // Called after on_start: the workers only know of each other, and dial.
  virtual void on_static_join() {}
  // A call has left for that worker.
  virtual void call_sent(const Worker& /*by*/, WorkerId /*to*/) {}
  // A new incarnation starts: it reads the store, then dials the others.
  virtual void on_join(Worker& worker) = 0;
  // A worker dials `at`. kOpen: both are peers now. kNotYet: it must dial again.
  enum class Door { kOpen, kRefused, kNotYet };
  virtual Door accepts(Worker& at, WorkerId dialler) = 0;
  // The first connection of the two is open on this side.
  virtual void opened(Worker& /*at*/, WorkerId /*peer*/) {}
  virtual void on_heartbeat_answer(Worker& /*at*/, WorkerId /*from*/, uint64_t /*number*/) {}
  // The connections have closed, and no process answers at the address of `whom`.
  virtual void suspect(Worker& by, WorkerId whom) = 0;
  // A dial has used its whole time, and nothing was heard.
  virtual void unanswered(Worker& by, WorkerId whom) = 0;
  // `whom` refuses connections.
  virtual void refused(Worker& by, WorkerId whom) = 0;
  virtual void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) = 0;
  // Handles kStore and kLease.
  virtual void on_event(const Event& event) = 0;
  // Something happened that leases may have to detect.
  virtual void disturb() {}
  virtual void on_resume(Worker& /*worker*/) {}
  // A message names an incarnation that is not known here, and something must be sent to it.
  virtual void meet(Worker& at, WorkerId unknown) = 0;
  // True while its program runs: it has joined, and is not known to be dead.
  virtual bool takes_part(const Worker& worker) const = 0;
  // When programs have stopped and everything is repaired: death records are known, joiners have
  // joined.
  virtual void check_ended() {}
  // True if a death record of this incarnation exists, whether others have heard of it or not.
  virtual bool declared_dead(WorkerId worker) const = 0;
  // True if this worker and another have given up each other without a death record.
  virtual bool severed(WorkerId /*worker*/) const { return false; }
  // True if any pair has given up each other. A third worker may then wait for the pair.
  virtual bool any_severed() const { return false; }
};

class OracleMembership final : public Membership {
 public:
  explicit OracleMembership(World& world) : world_(world) {}

  void on_join(Worker& worker) override;
  Door accepts(Worker& at, WorkerId dialler) override;
  void meet(Worker& at, WorkerId unknown) override;
  void suspect(Worker& by, WorkerId whom) override;
  void unanswered(Worker& by, WorkerId whom) override;  // the death record comes with time
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
  std::vector<WorkerId> list_;  // in the order of their entries
  std::vector<Question> questions_;
  std::set<std::pair<WorkerId, WorkerId>> asked_;
  bool looking_ = false;
};

}  // namespace weft::sim
