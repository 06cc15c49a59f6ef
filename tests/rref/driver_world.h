// Runs several RRefDrivers with real agents over inproc in one thread, for scenarios.
//
// Every frame that matters waits until the scenario lets it through. This class also plays the
// layer between a driver and a program, as WorkerRuntime does (rpc/hooks.h has the contract). It
// makes the calls that carry references, serves them, and tells the driver the result of each.
//
// Thread safety: none.
// Protocol: docs/rref_protocol.md.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/transport/inproc_transport.h"
#include "weft/rref/rref_driver.h"
#include "weft/tests/support/held_transport.h"

namespace weft::wire {
class Meta;
}

namespace weft::rref_internal {

class DriverWorld {
 public:
  enum class Kind { kControl, kCreation, kCreationRefused, kCarrier, kReply, kFetch, kValue };

  // A message in flight.
  struct Packet {
    uint64_t order = 0;  // in the order of sending
    WorkerId from;
    WorkerId to;
    Kind kind = Kind::kControl;
    // The frame that has arrived. If a worker sends to itself there is no wire, and `call` is set
    // instead.
    ConnectionPtr connection;
    Frame frame;
    std::shared_ptr<rpc_internal::IncomingCall> call;
    // The decoded content.
    std::optional<Message> message;
    std::vector<Reference> references;
    RRefId rref;  // created or fetched
    ForkId fork;
    absl::Status status;
  };

  // A call that was made here and is not answered yet.
  struct Outgoing {
    WorkerId from;
    WorkerId to;
    Kind kind = Kind::kCarrier;
    CallId id;
    std::vector<CarriedReferencePtr> carried;
    std::optional<Handle> created;
    RRefId rref;
    absl::Status failure;  // the error that the scenario gives it
  };
  using OutgoingPtr = std::shared_ptr<Outgoing>;  // of the table and of the reply's handler

  // A received reference, until it is dropped.
  struct Watch {
    Handle handle;
    bool confirmed = false;
  };

  struct Node {
    WorkerId id;
    std::unique_ptr<testing::HeldTransport> transport;
    std::unique_ptr<rpc_internal::Agent> agent;
    std::shared_ptr<RRefDriver> driver;
    std::vector<RRefHandlePtr> handles;
    std::vector<Watch> watched;
    std::map<RRefId, std::shared_ptr<ObjectSlot>> slots;  // of functions that run here
    std::multimap<WorkerId, std::shared_ptr<rpc_internal::IncomingCall>> asked;  // to be answered
    std::map<uint64_t, std::vector<Watch>> waiting;  // carriers whose function has not started
    std::map<uint64_t, std::vector<Watch>> early;    // read, but not all confirmed
    bool started = false;
    bool killed = false;
    bool ended = false;  // in shutdown: its handles refer to nothing
  };

  // Makes the workers 1 to `workers`. `restarts`: how many further incarnations each has.
  // `early_carriers`: the numbers of carriers that are read before their references are confirmed,
  // as replies are.
  DriverWorld(size_t workers, OwnershipLimits limits, const std::map<uint32_t, uint32_t>& restarts,
              std::set<uint64_t> early_carriers);
  virtual ~DriverWorld();

  // The worker's present incarnation.
  Node& node(uint32_t index) { return *nodes_.at({index, incarnations_.at(index)}); }
  std::vector<Node*> live();
  std::vector<Packet>& network() { return network_; }
  std::vector<Node*> killed();

  // ---- What a program on a worker does. These return the driver's errors. ----
  absl::StatusOr<Handle> own(Node& at);
  absl::StatusOr<Handle> remote(Node& at, WorkerId owner);
  void finish(Node& at, RRefId rref, absl::Status result, std::vector<RRefHandlePtr> holding = {});
  absl::StatusOr<std::vector<Reference>> send(Node& at, const std::vector<RRefHandlePtr>& handles,
                                              Node& to, bool reply);
  void fetch(Node& at, RRefId rref, WorkerId owner);
  void drop(Node& at, const RRefHandlePtr& handle);

  // ---- What the network does. ----
  void deliver(size_t position, bool unread = false);
  // The frame comes twice, and its session drops the copy.
  void duplicate(size_t position);
  // Delivers the same message in another frame, as if the peer repeated itself. False: it cannot be
  // repeated.
  bool repeat(size_t position);
  bool withdraw(size_t position);
  bool time_out(size_t position);

  // ---- Starts and deaths of workers. ----
  void kill(Node& at);
  void restart(uint32_t index);
  void announce_death(Node& at, WorkerId dead);
  void begin_shutdown(Node& at);
  void close(Node& at);

  // Runs everything that does not wait for a packet, and checks what became of the references.
  void settle();

  size_t values() const { return values_; }  // alive
  bool had_value(RRefId rref) const { return had_value_.contains(rref); }

  // An event that can be seen from outside a driver.
  struct Happened {
    enum class What {
      kSent,       // packet: a message of the protocol
      kConfirmed,  // handle
      kLost,       // handle, status
      kStarts,     // status: if not OK, why the function must not start
      kRuns,       // handle.rref: a creation was accepted
      kRepeated,   // handle.rref: a creation came again
      kRefuses,    // handle.rref: a creation was not accepted
      kGives,      // handle.rref, status
      kFrees,      // handle.rref: its value was destroyed
    };
    WorkerId at;
    What what = What::kSent;
    Handle handle;
    absl::Status status;
    const Packet* packet = nullptr;
    std::vector<Handle> handles = {};  // kStarts: the references that it got, or never got
  };

 protected:
  virtual void on_event(const Happened& happened) = 0;
  void start_all();  // the derived constructor calls it, since events may follow

 private:
  struct Value;
  // Values of FrameHeader::function in the calls of this class.
  enum Function : uint64_t { kCreate = 1, kCarry = 2, kToHere = 3, kAsk = 4 };

  static wire::Meta meta_of(const Frame& frame);
  static std::vector<std::string> wires_of(const Frame& frame);
  static std::vector<Reference> references_of(const std::vector<std::string>& wires);
  static std::vector<Watch> watches_of(WorkerId at, const std::vector<std::string>& wires);
  static void describe(const Frame& call, Packet& packet);

  void add_node(WorkerId id, const OwnershipLimits& limits);
  void start(Node& at);
  bool keep(Node& at, const ConnectionPtr& connection, Frame& frame);
  void serve(Node& at, const std::shared_ptr<rpc_internal::IncomingCall>& call, bool unread);
  void serve_carrier(Node& at, const std::shared_ptr<rpc_internal::IncomingCall>& call,
                     const std::vector<std::string>& wires);
  void make_call(Node& at, const OutgoingPtr& call, Frame frame);
  void answered(Node& at, Outgoing& call, absl::StatusOr<Frame> reply);
  void take_in(Node& at, ReferenceHook::References references);
  void give_up(Outgoing& call);
  void watch(Node& at);
  void watch_for_confirmation(Node& at, std::vector<Watch>& watched);
  void event(Node& at, Happened::What what, const Handle& handle, const absl::Status& status = {});

  const TypeInfo type_{7, "tensor"};
  ManualClock clock_;
  ManualExecutor executor_;
  InprocNetwork wires_{clock_, executor_};
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Node>> nodes_;  // index, incarnation
  std::map<uint32_t, uint32_t> incarnations_;                             // the present one
  std::vector<Packet> network_;
  std::map<std::pair<WorkerId, uint64_t>, OutgoingPtr> calls_;
  std::map<std::pair<uint64_t, uint64_t>, std::map<uint64_t, uint64_t>> sent_;  // order of frames
  uint64_t next_order_ = 1;
  uint64_t next_carrier_ = 1;
  const std::set<uint64_t> early_carriers_;
  bool unread_ = false;  // the frame that is let through is dropped unread
  bool repeating_ = false;
  bool ending_ = false;
  size_t values_ = 0;
  std::set<RRefId> had_value_;
};

}  // namespace weft::rref_internal
