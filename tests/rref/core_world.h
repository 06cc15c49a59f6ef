// Runs several ownership cores and the messages between them in one thread, for scenarios and
// schedules.
//
// This class plays the drivers: it keeps handles and values, and sends carriers. The test decides
// when each packet arrives, and whether it arrives twice or not at all.
//
// Thread safety: none.
// Protocol: docs/rref_protocol.md.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "weft/rref/internal/ownership_core.h"

namespace weft::rref_internal {

// The key of each RRef in these tests. No two RRefs of a test share one.
inline RRefKey key_for(RRefId rref) { return rref.number << 8 | rref.creator.index << 4 | 7; }

class CoreWorld {
 public:
  using CreationCall = Creation;
  struct CreationRefused {
    ForkId fork;
  };
  struct Carrier {
    std::vector<Reference> references;
    bool reply = false;
  };
  struct Fetch {
    RRefId rref;
    RRefKey key = 0;
    FetchTicket ticket = 0;
  };
  struct FetchReply {
    RRefId rref;
    FetchTicket ticket = 0;
    absl::Status status;
  };
  using Body = std::variant<Message, CreationCall, CreationRefused, Carrier, Fetch, FetchReply>;

  // A message in flight. Scenarios name it by its number.
  struct Packet {
    uint64_t number = 0;
    WorkerId from;
    WorkerId to;
    Body body;
    int copies = 0;          // how often it was duplicated
    bool timed_out = false;  // the sender has given up on it

    bool repeatable() const {
      return std::holds_alternative<Message>(body) || std::holds_alternative<CreationCall>(body);
    }
  };

  struct Worker {
    WorkerId id;
    std::unique_ptr<OwnershipCore> core;  // null: the worker was killed
    std::vector<Handle> handles;
    std::map<RRefId, std::vector<Handle>> values;  // values here that hold references themselves
    std::set<RRefId> unfinished;                   // accepted; their functions run
    std::set<WorkerId> known_dead;
  };

  virtual ~CoreWorld() = default;

  Worker& add_worker(uint32_t index, OwnershipLimits limits = {});
  Worker& worker(uint32_t index) { return workers_.at(index); }
  std::map<uint32_t, Worker>& workers() { return workers_; }
  std::vector<Packet>& network() { return network_; }

  // ---- What a program on a worker does. These return the core's errors. ----
  absl::StatusOr<Handle> own(uint32_t at, const TypeTag& type);
  absl::StatusOr<Handle> remote(uint32_t at, uint32_t owner, const TypeTag& type);
  void finish(uint32_t at, RRefId rref, absl::Status result, std::vector<Handle> holding = {});
  absl::Status send(uint32_t at, const std::vector<Handle>& handles, uint32_t to, bool reply);
  absl::Status fetch(uint32_t at, const Handle& handle, WorkerId owner);
  // True if a fetch of `rref` waits at its owner.
  bool is_waited_for(RRefId rref) const {
    return std::any_of(waiting_fetches_.begin(), waiting_fetches_.end(),
                       [&](const auto& fetch) { return fetch.second == rref; });
  }
  void drop(uint32_t at, const Handle& handle);

  // ---- What the network does. ----
  void deliver(size_t position);
  void duplicate(size_t position);
  // The carrier is withdrawn before it is sent.
  void withdraw(size_t position);
  // The carrier arrives and is dropped unread.
  void discard(size_t position);
  // The sender gives up on the carrier, which may still arrive.
  void time_out(size_t position);

  // ---- Starts and deaths of workers. ----
  void kill(uint32_t at);
  void restart(uint32_t at);
  void announce_death(uint32_t at, WorkerId dead);
  void begin_shutdown(uint32_t at);
  void close(uint32_t at);

 protected:
  // on_action is called for each action before it is carried out, and on_arrival for each packet
  // before the core gets it.
  virtual void on_action(Worker& /*at*/, const Action& /*action*/) {}
  virtual void on_arrival(const Packet& /*packet*/) {}
  virtual void on_receive(Worker& /*at*/, WaiterId /*waiter*/, const Carrier& /*carrier*/,
                          const std::vector<Received>& /*results*/) {}
  virtual void on_accept(Worker& /*at*/, const CreationCall& /*call*/, Acceptance /*result*/) {}
  virtual void on_failed_send(Worker& /*at*/, const Reference& /*ref*/, Delivery /*delivery*/) {}

  void perform(Worker& at, const Actions& actions);
  void end_fetch(WorkerId owner, FetchReply reply);

 private:
  void post(WorkerId from, WorkerId to, Body body);
  Packet take(size_t position);
  void give_up(const Packet& packet, Delivery delivery);
  void forget_handle(Worker& at, const Handle& handle);

  std::map<uint32_t, Worker> workers_;
  std::vector<Packet> network_;
  uint64_t next_packet_ = 1;
  uint64_t next_waiter_ = 1;
  uint64_t next_ticket_ = 1;
  std::map<FetchTicket, WorkerId> fetchers_;       // fetches that were handed to an owner
  std::map<FetchTicket, RRefId> waiting_fetches_;  // those of them that it has not answered
};

}  // namespace weft::rref_internal
