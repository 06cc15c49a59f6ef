// The optimizers and the parameter owner of one simulated worker. This is the part of StepCaller
// around the library's StepCallerCore. step_owner.h has the owner's half.
//
// A worker with a step sequence makes an optimizer over the live owners and steps. When it hears
// that an owner came back, it goes back with all of them.
//
// Thread safety: none.
// Protocol: docs/durable_steps.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/dist_optim/steps/step_caller_core.h"
#include "weft/tests/sim/report.h"
#include "weft/tests/sim/rooms/step_messages.h"
#include "weft/tests/sim/rooms/step_owner.h"
#include "weft/tests/sim/world/room.h"

namespace weft::sim {

class Worker;
class World;

class Steps final : public Room {
 public:
  using Then = std::function<void(const absl::Status& failure, const StepReply& reply)>;

  explicit Steps(Worker& worker);

  // Takes the program's next step, if this worker has a step sequence and no step is under way.
  void step();
  bool stepping() const;

  // ---- for the two halves
  // `then` gets the answer once. A failure says whether the call ran. Without a deadline, the
  // message is sent again while the queue is full.
  void send(WorkerId to, StepRequest request, TimePoint deadline, Then then);
  void after(Nanoseconds delay, std::function<void()> then);

  // ---- for calls
  void serve(uint64_t incoming, WorkerId from, const StepRequest& request) {
    owner_.serve(incoming, from, request);
  }
  void on_end(uint64_t ticket, const absl::Status& failure, const StepReply* reply);

  // Room.
  void on_post(WorkerId, const std::shared_ptr<void>&) override {}
  void on_peer_dead(WorkerId dead) override { owner_.on_peer_dead(dead); }
  void on_event(const Event& event) override;
  void let_go() override {}
  std::string leftovers() const override;

  const StepOwner& owner() const { return owner_; }

 private:
  // One optimizer. The answers that it waits for keep it alive.
  struct Optimizer {
    OptimizerId id;
    std::vector<WorkerId> owners;
    std::unique_ptr<dist_optim_internal::StepCallerCore> core;
    size_t open = 0;  // open meetings or resumes
    bool ready = false, failed = false;
    bool lost = false;  // a step returned DataLoss: resume before the next
    int resumes = 0;
    uint64_t steps = 0;  // the number begun; tells which step a timer is for
    bool told = true;
    double max_norm = 0;
    Nanoseconds timeout{};  // 0: none
    TimePoint deadline = kNever;
  };
  using OptimizerPtr = std::shared_ptr<Optimizer>;  // shared by the answers to come
  struct Ticket {
    WorkerId to;
    StepRequest request;
    TimePoint deadline = kNever;
    Then then;
  };

  bool owners_now(std::vector<WorkerId>* owners) const;
  void make_optimizer(std::vector<WorkerId> owners);
  void part(const Optimizer& optimizer);
  void begin(const OptimizerPtr& optimizer);
  void resume(const OptimizerPtr& optimizer);
  void bring(const OptimizerPtr& optimizer, StepRequest::Kind kind, uint64_t number);
  void carry_out(const OptimizerPtr& optimizer, dist_optim_internal::CallerActions actions);
  void carry_out(const OptimizerPtr& optimizer, const dist_optim_internal::CallerAction& action);
  template <class Event>
  void event(const OptimizerPtr& optimizer, Event event);
  StepRequest request(const Optimizer& optimizer, StepRequest::Kind kind) const;
  void dispatch(uint64_t ticket);

  Worker& worker_;
  World& world_;
  StepOwner owner_;
  OptimizerPtr current_;
  uint64_t next_optimizer_ = 1;
  uint64_t next_ticket_ = 1;
  uint64_t next_timer_ = 1;
  std::map<uint64_t, Ticket> tickets_;
  std::map<uint64_t, std::function<void()>> timers_;
};

}  // namespace weft::sim
