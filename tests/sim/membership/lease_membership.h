// The library's membership at every simulated worker: heartbeats, leases, suspicion, death records,
// fencing and joiners. It connects them as rpc/membership/membership.cc and worker/worker.cc do.
//
// Each worker has a MembershipCore, a list of death records over one store that may be slow or
// silent, and a clock with a rate of its own.
//
// Thread safety: none.
// Protocol: docs/membership.md.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/tests/sim/membership/membership.h"
#include "weft/tests/sim/membership/membership_book.h"
#include "weft/tests/sim/world/local_clock.h"
#include "weft/tests/sim/world/virtual_store.h"

namespace weft::sim {

class LeaseMembership final : public Membership {
 public:
  explicit LeaseMembership(World& world);

  void on_start() override;
  void on_static_join() override;
  void on_join(Worker& worker) override;
  Door accepts(Worker& at, WorkerId dialler) override;
  void opened(Worker& at, WorkerId peer) override;
  void on_heartbeat_answer(Worker& at, WorkerId from, uint64_t number) override;
  void suspect(Worker& by, WorkerId whom) override;
  void unanswered(Worker& by, WorkerId whom) override;
  void refused(Worker& by, WorkerId whom) override;
  void on_post(Worker& at, WorkerId from, const std::shared_ptr<void>& body) override;
  void on_event(const Event& event) override;
  void meet(Worker& at, WorkerId unknown) override;
  bool takes_part(const Worker& worker) const override;
  void check_ended() override;
  void call_sent(const Worker& by, WorkerId to) override;
  bool declared_dead(WorkerId worker) const override { return book_.declared_dead(worker); }
  bool severed(WorkerId worker) const override { return book_.severed(worker); }
  bool any_severed() const override { return book_.any_severed(); }

 private:
  struct Member {
    Member(WorkerId id, const LeaseOptions& limits, LocalClock clock_in, TimePoint now,
           std::shared_ptr<RendezvousStore> store);
    rpc_internal::MembershipCore core;
    DeathRecords list;
    const LocalClock clock;
    std::set<WorkerId> leased;              // peers that got a heartbeat at the last look
    std::map<WorkerId, TimePoint> leases;   // when each began, by this clock
    std::map<WorkerId, Nanoseconds> waits;  // for a processor, of watched workers, at the last look
    bool met_anybody = false;               // otherwise it fences itself when no worker answers
    TimePoint store_free{};                 // when its store thread is free for the next question
    // For a joiner only.
    std::vector<DeathRecord> read;  // death records that it read when it joined
    bool joiner = false;
    bool announced = false;
    bool joined = true;
    bool failed = false;
    std::set<WorkerId> unmet, unwelcome;
  };
  struct Question {
    Slot by = kNobody;
    rpc_internal::MembershipActions::Question what;
    absl::StatusOr<std::vector<DeathRecord>> answer;
  };
  // The stages of a question to the store, and of a joiner.
  enum class Phase : uint64_t {
    kReaches,
    kAnswered,
    kLate,
    kSpread,
    kPublish,
    kLeave,
    kFound,
    kCompared,
    kDial
  };
  // A death record that was announced, and the workers that must have heard of it.
  struct Spread {
    WorkerId dead, teller;
    std::vector<WorkerId> told;
    TimePoint since;
  };
  struct MessageBatch {  // a post
    enum class Kind { kDeath, kJoined, kWelcome, kSuspectReport } kind = Kind::kDeath;
    DeathRecord death_record;
  };

  Member& at(const Worker& worker) const;
  TimePoint now(const Member& member) const;
  WorkerInfo info(WorkerId worker) const;
  void add_member(Slot slot);
  template <class Event>
  void step(Worker& worker, Event event);
  void act(Worker& worker, rpc_internal::MembershipActions& actions);
  void post(Worker& from, WorkerId to, MessageBatch batch);
  void lose(Worker& worker, WorkerId gone);
  void ask(Worker& worker, const rpc_internal::MembershipActions::Question& question);
  void reach(Question& question);
  void look_up(Worker& worker, WorkerId unknown);
  void read_record(Worker& worker, WorkerId incarnation, Phase then);
  absl::StatusOr<std::optional<WorkerInfo>> record_of(WorkerId incarnation) const;
  void on_found(Worker& worker, WorkerId unknown);
  void on_compared(Worker& worker, WorkerId claimant);
  void greet(Worker& worker, WorkerId joiner);
  void note_appended();
  void on_answer(const Question& question, bool late);
  void watch_spread(WorkerId teller, std::vector<WorkerId> told, WorkerId dead);
  void check_spread(const Spread& spread);
  void look(Worker& worker);
  void ask_kernel(Worker& worker);
  void arm(const Worker& worker, Nanoseconds within);
  void publish(Worker& worker);
  void met(Worker& worker, WorkerId peer);
  void welcomed(Worker& worker, WorkerId by);
  void fail_to_join(Worker& worker);

  World& world_;
  MembershipBook book_;
  LeaseOptions limits_;
  std::shared_ptr<VirtualStore> store_ = std::make_shared<VirtualStore>();
  DeathRecords all_;                              // the checker's own view of the store
  std::vector<std::unique_ptr<Member>> members_;  // by slot
  std::vector<Question> questions_;
  std::vector<Spread> spreads_;
  std::map<uint32_t, WorkerId> records_;  // member records in the store, by slot
  std::vector<WorkerId> tied_;
  std::vector<rpc_internal::MembershipCore::Look> looks_;
};

}  // namespace weft::sim
