// A worker's agent in the simulator: PeerCores and their connections, acknowledgements, deadlines
// of calls, and lost peers. Everything happens in the order of rpc/session/internal/peer_link.cc.
//
// Thread safety: none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/rpc/session/internal/peer.h"
#include "weft/tests/sim/world/local_clock.h"
#include "weft/tests/sim/world/network.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class Worker;
class World;

class Sessions {
 public:
  explicit Sessions(Worker& worker);

  // Adds an incarnation as a peer. With `dial`, this side opens the connection.
  void add_peer(Slot slot, bool dial);
  // Adds a peer with a connection that exists from the beginning.
  void meet(Slot slot, int connection);

  enum class Sent { kYes, kQueueFull, kGone };
  // `frame` holds flags and payloads.
  Sent call(uint64_t call, WorkerId to, Frame frame, TimePoint deadline, bool waited_for);
  // Returns true if the call was still open. `*sent` says whether it had left.
  bool cancel(WorkerId to, uint64_t call, bool* sent);
  bool post(WorkerId to, rpc_internal::Topic topic, std::shared_ptr<void> body, size_t bytes);
  void reply(WorkerId to, Frame frame);
  void call_taken(WorkerId from, const FrameHeader& header, size_t cost);
  // See PeerCore.
  bool admitted(WorkerId from, uint64_t call);

  bool is_live(WorkerId worker) const;
  bool knows(WorkerId worker) const { return find(worker) != nullptr; }
  bool is_gone(WorkerId worker) const;
  // In order of arrival, without this worker and without joiners that have no name yet.
  std::vector<WorkerId> live_peers() const;
  // When anything was last heard of it.
  TimePoint heard(WorkerId peer) const;
  void set_heard(WorkerId peer, TimePoint when);

  // ---- for the library's membership
  // A worker that dials becomes a member. Others do not learn its name before `name`.
  void admit(WorkerId joiner);
  bool name(WorkerId joiner);  // false: it has one already
  // Adds an unknown incarnation. Messages for it wait until `reach`, or until it dials.
  void add_unknown(Slot slot);
  void reach(WorkerId peer);  // dials
  void heartbeat(WorkerId to, uint64_t number);
  // Sets the lag that all later heartbeats and answers report.
  void say_in_heartbeats(Nanoseconds lag) { lag_ = lag; }
  // Calls that begin after `until` wait.
  void set_valid_until(WorkerId peer, TimePoint until);
  // `peer` is suspected: an answer would renew its lease.
  void answer_no_heartbeats_of(WorkerId peer);
  void append_looks(const std::vector<WorkerId>& tied,
                    std::vector<rpc_internal::MembershipCore::Look>& looks,
                    const LocalClock& clock);
  std::vector<WorkerId> all_live() const;  // joiners too

  // The peer is dead: its calls fail, then the worker's rooms are told.
  void end_peer(WorkerId peer);

  void on_event(const Event& event);
  void on_frame(uint64_t flight);

  // Totals over the sessions with live peers. All are 0 if nothing is in flight.
  struct Left {
    size_t calls = 0, queued = 0, frames = 0, gaps = 0, most_frames = 0;
  };
  Left left() const;
  std::string leftovers() const;

 private:
  struct Peer {
    Peer(WorkerId self, WorkerId id_in, Slot slot_in, const rpc_internal::CreditWindow& window)
        : id(id_in), slot(slot_in), core(self, id_in, window) {}
    const WorkerId id;
    const Slot slot;
    rpc_internal::PeerCore core;
    bool gone = false;
    int connection = -1;
    bool dialling = false;
    int redials = 0;
    TimePoint dial_until{};
    bool ack_armed = false;
    TimePoint deadline_armed = kNever;
    TimePoint heard{};
    TimePoint valid_until = kNever;
    TimePoint read{};    // when the last frame or heartbeat arrived
    Nanoseconds lag{0};  // as its last heartbeat said
    uint64_t looked_at = 0;
    bool nameless = false;
    bool met = false;        // there has been a connection
    TimePoint met_at{};      // when the first one opened
    bool looked_up = false;  // a question about it is under way
    bool suspected = false;
  };

  Peer* find(WorkerId worker) const;
  Peer* find_or_meet(WorkerId worker);
  Peer* at(Slot slot) const;
  void flush(Peer& peer);
  void dial(Peer& peer);
  void on_dialled(Peer& peer);
  void adopt(Peer& peer, int connection);
  void on_closed(int connection);
  void arm_ack(Peer& peer);
  void arm_deadline(Peer& peer);
  void expire_calls(Peer& peer);
  void handle(Peer& peer, const FramePtr& frame);
  void on_heartbeat(const Network::Arrived& arrived);

  Worker& worker_;
  World& world_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Nanoseconds lag_{0};
};

}  // namespace weft::sim
