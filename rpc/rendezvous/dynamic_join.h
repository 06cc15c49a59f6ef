// Joins a group without a size: at any time, under a name.
//
// Blocking: some round trips to the store per member.
// Protocol: docs/membership.md, "Joining"; docs/launch.md has the keys.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/static_join.h"

namespace weft {

// `request.rank` and `world_size` do not count. The members are those that this worker is to meet,
// itself included; who is in `death records` (the whole list so far) or has left is not among them.
// Errors: InvalidArgument (name, or the group has a fixed size), AlreadyExists (a worker of this
// name is in the group: it has neither left nor been declared dead, and `request.attempt` is not
// above its own), and whatever the store returns.
absl::StatusOr<JoinResult> join_dynamic_group(RendezvousStore& store, const JoinRequest& request,
                                              const std::vector<DeathRecord>& death_records);

// Later workers need not look for this incarnation.
absl::Status mark_left(RendezvousStore& store, const std::string& group, uint32_t epoch,
                       WorkerId self);

}  // namespace weft
