// The calls that a worker makes and runs: the part of WorkerRuntime between the agent and user
// code.
//
// A handler makes random calls, may keep the references that it received, and may return some of
// its own. The book of calls in the checker records every step.
//
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/tests/sim/report.h"
#include "weft/tests/sim/rooms/references.h"
#include "weft/tests/sim/world/messages.h"

namespace weft::sim {

class Worker;
class World;

struct CallPlan {
  CallKind kind = CallKind::kPlain;
  Operation operation = Operation::kCall;
  WorkerId to;
  std::vector<HandlePtr> arguments;
  HandlePtr target;     // method, fetch
  ContextId context;    // a valid context: the call is made under it
  uint64_t parent = 0;  // the handler that makes the call; 0: the program
  TimePoint deadline = kNever;
  size_t bytes = 0;
  bool waited_for = false;
  std::shared_ptr<StepRequest> step;  // shared with the message
  uint64_t ticket = 0;                // number of the step's message
};

class Calls {
 public:
  // Where a failure was found: only a call that never left takes its references back.
  enum class Where { kHere, kPeerGone, kReply };

  explicit Calls(Worker& worker);

  void start(CallPlan plan);
  // Cancels some call of the program, if there is one.
  void cancel_one();
  // Call it when the program is over: it shows whether credit was lost.
  void probe(WorkerId to);
  bool any_open() const { return !outgoing_.empty(); }

  // Called by the sessions.
  void on_call(WorkerId from, const Frame& frame);
  void on_reply(WorkerId from, const Frame& frame, bool pending);
  // Returns false if no such call has arrived, or if it is complete.
  bool on_cancel(WorkerId from, uint64_t call);
  void on_failed(uint64_t call, Ran ran, Where where);
  void cancel_all_from(WorkerId gone);

  // Called by the owner of parameters.
  void answer_step(uint64_t incoming, StepReply reply);

  // Called by the references.
  void on_confirmed(uint64_t incoming, bool ok);
  void on_target(uint64_t incoming, bool ok);

  void on_event(const Event& event);
  // Appends the callers of all calls that are here.
  void append_callers(std::vector<WorkerId>& workers) const;
  size_t running() const { return incoming_.size(); }
  std::string leftovers() const;

 private:
  struct Outgoing {
    CallPlan plan;
    std::shared_ptr<CallBody> body;
    HandlePtr created;
    std::shared_ptr<StepReply> step;  // shared with the message that brought it
  };
  struct Incoming {
    std::shared_ptr<CallBody> body;
    WorkerId from;
    FrameHeader header;
    size_t cost = 0;
    TimePoint deadline = kNever;
    bool taken = false, parked = false;
    bool cancelled = false, gone = false;
    std::vector<HandlePtr> references;
    uint64_t ticket = 0;  // of a target that does not exist yet
    size_t open = 0;      // nested calls that it waits for
    bool worked = false;  // its own work is done
    std::vector<std::pair<WorkerId, uint64_t>> nested;
    std::vector<int> values;  // made by this call in the recorded program of its context

    bool creates() const { return body->kind == CallKind::kCreate; }
  };

  bool pack(const CallPlan& plan, CallBody& body, HandlePtr& created);
  void resolve(uint64_t call, Outgoing out, Outcome outcome, Where where);
  void refuse(uint64_t number);
  void refuse_unread(Incoming& incoming);
  void find_target(uint64_t number);
  void schedule(uint64_t number);
  void run(uint64_t number);
  void make_nested(uint64_t number);
  void nested_done(uint64_t number);
  void finish_if_done(uint64_t number);
  void finish(uint64_t number);
  void answer(Incoming& incoming, std::shared_ptr<ReplyBody> body, size_t bytes);
  void take(Incoming& incoming);
  void park(Incoming& incoming);
  void unpark(Incoming& incoming);

  Worker& worker_;
  World& world_;
  uint64_t next_call_ = 1;
  uint64_t next_incoming_ = 1;
  size_t parked_ = 0;
  std::map<uint64_t, Outgoing> outgoing_;
  std::map<uint64_t, Incoming> incoming_;
};

}  // namespace weft::sim
