// Joins a dynamic group: a worker joins it at any time, under a name.
//
// Thread safety: the functions may be called from any thread.
// Blocking: several round trips to the store per member.
// Protocol: docs/membership.md, "Joining"; docs/launch.md has the keys.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/static_join.h"

namespace weft {

// Ignores `request.rank` and `request.world_size`. The result's members are the workers that this
// worker must meet, and itself. It leaves out workers that have left or are in `death records`,
// which is the whole list of death records so far. Errors, besides those of the store:
// InvalidArgument: the name is bad, or the group has a fixed size.
// AlreadyExists: a worker of this name is in the group. It has neither left nor been declared dead,
// and `request.attempt` is not above its own. Or other workers took the name 16 times meanwhile.
absl::StatusOr<JoinResult> join_dynamic_group(RendezvousStore& store, const JoinRequest& request,
                                              const std::vector<DeathRecord>& death_records);

}  // namespace weft
