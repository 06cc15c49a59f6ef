// Keeps the claims of diallers to have replaced a worker, while the group's records decide them.
//
// Any process may make such a claim. A contradicted claim is refused once, when a process with the
// same name and address asks again. So it cannot be held against a later process that really gets
// that incarnation. At most 64 claims are compared at a time.
//
// Thread safety: none; MembershipCore owns it. It is pure: the same calls give the same answers.
// Protocol: docs/membership.md, "Claims to have replaced a worker".
#pragma once

#include <deque>
#include <map>

#include "weft/base/ids.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

class ReplacementClaims {
 public:
  // True: the claim is open now, and the caller must have it compared. False: a claim to this
  // incarnation is open already, or too many are.
  bool open(const WorkerInfo& claimant);
  // The record for the claim was read, or could not be read. False: the claim is not open.
  bool close(const WorkerInfo& claimant);
  // The record names another incarnation than this claimant.
  void contradict(const WorkerInfo& claimant);
  // True: the records have contradicted this claim. They are forgotten then.
  bool take_contradicted(const WorkerInfo& claimant);

  void drop(WorkerId claimant) { open_.erase(claimant); }
  void drop_all() { open_.clear(); }

 private:
  std::map<WorkerId, WorkerInfo> open_;  // by claimant
  std::deque<WorkerInfo> contradicted_;  // oldest first
};

}  // namespace weft::rpc_internal
