// Knows which incarnations are live and which are gone, and which joiner may become a member.
//
// At most one incarnation of an index is expected to live. Between the join of a later one and the
// end of the earlier one there are two.
//
// Thread safety: none; MembershipCore owns it. It is pure: the same calls give the same answers.
// Lifetime: a `Peer` is valid until it ends.
// Protocol: docs/membership.md, "Joining".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/ids.h"
#include "weft/rpc/membership/internal/ended_incarnations.h"
#include "weft/rpc/membership/internal/lease.h"
#include "weft/rpc/membership/internal/suspicion.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

class Roster {
 public:
  struct Peer {
    std::string name;
    Lease lease;
    Suspicion suspicion;
  };

  // `world_size`: of a static group; 0: a dynamic group.
  Roster(WorkerInfo self, LeaseOptions limits, uint32_t world_size)
      : self_(std::move(self)), limits_(limits), world_size_(world_size) {}

  WorkerId self() const { return self_.id; }
  // The live ones, without this worker.
  const std::map<WorkerId, Peer>& peers() const { return peers_; }
  // Null: the worker is not a live peer.
  const Peer* find(WorkerId worker) const;
  Peer* find(WorkerId worker) { return const_cast<Peer*>(std::as_const(*this).find(worker)); }
  EndedIncarnations& ended() { return ended_; }
  const EndedIncarnations& ended() const { return ended_; }

  // Makes it a live peer, or renames it.
  void put(const WorkerInfo& member);
  // The worker is gone. False: it was not a live peer.
  bool end(WorkerId worker);
  // All peers are gone, for this worker is fenced. They are not remembered as ended.
  void drop_peers() { peers_.clear(); }

  // PermissionDenied: this process cannot be a member.
  absl::Status refusal_of(const WorkerInfo& joiner) const;
  // Returns the earlier incarnation of the joiner's index that is known here. If there is one, the
  // joiner's claim must be compared with the record. nullopt: there is none.
  std::optional<WorkerId> replaced_by(WorkerId joiner) const;
  // Returns the other live incarnations of its index.
  std::vector<WorkerId> others_of_index(WorkerId worker) const;
  // True: a later incarnation of its index is known, live or gone.
  bool is_outlived(WorkerId worker) const;

  // Returns a text with the worker's name, if that is known, and its id.
  std::string named(WorkerId worker) const;
  static std::string named(const WorkerInfo& worker);

 private:
  const WorkerInfo self_;
  const LeaseOptions limits_;
  const uint32_t world_size_;
  std::map<WorkerId, Peer> peers_;
  EndedIncarnations ended_;
};

}  // namespace weft::rpc_internal
