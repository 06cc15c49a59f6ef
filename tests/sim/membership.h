// Who is in the group, as the simulated workers learn of it: a plug point.
//
// The world tells what a membership protocol would see (frames, refused connections, time), and
// is told of verdicts. OracleMembership is the first implementation: it knows leases without
// sending beats, and keeps the list of verdicts of docs/membership.md in a virtual store.
//
// Thread safety: none.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "weft/base/ids.h"
#include "weft/tests/sim/schedule.h"

namespace weft::sim {

class Worker;
class World;

class Membership {
 public:
  virtual ~Membership() = default;

  // A new life starts and reads what the store says; before it talks to anybody.
  virtual void on_join(Worker& worker) = 0;
  // A connection with a later life of a known place was made.
  virtual void on_newcomer(Worker& at, WorkerId newcomer) = 0;
  // Its connections have ended and it refuses new ones.
  virtual void suspect(Worker& by, WorkerId whom) = 0;
  virtual void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) = 0;
  // kStore and kLease.
  virtual void on_event(const Event& event) = 0;
  // Something happened that leases may have to find out about.
  virtual void disturb() = 0;
  virtual void on_resume(Worker& worker) = 0;
  // A verdict about this life stands, whoever has heard of it.
  virtual bool condemned(WorkerId worker) const = 0;
};

class OracleMembership final : public Membership {
 public:
  explicit OracleMembership(World& world) : world_(world) {}

  void on_join(Worker& worker) override;
  void on_newcomer(Worker& at, WorkerId newcomer) override;
  void suspect(Worker& by, WorkerId whom) override;
  void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) override;
  void on_event(const Event& event) override;
  void disturb() override;
  void on_resume(Worker& worker) override;
  bool condemned(WorkerId worker) const override { return verdicts_.contains(worker); }

 private:
  struct Question {
    WorkerId by, about;
  };
  void on_answer(Worker& by, const Question& question);
  void look();
  void learn(Worker& at, WorkerId dead);

  World& world_;
  std::set<WorkerId> verdicts_;
  std::vector<WorkerId> list_;  // in order
  std::vector<Question> questions_;
  std::set<std::pair<WorkerId, WorkerId>> asked_;
  bool looking_ = false;
};

}  // namespace weft::sim
