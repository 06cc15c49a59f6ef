// Joins a static group: each rank publishes its record and reads the records of all other ranks.
//
// Thread safety: the functions may be called from any thread.
// Blocking: join_static_group waits for all ranks, and perhaps before for the end of the process
// that has the rank; at most for `timeout` in all.
// Protocol: a process claims its rank for its attempt, then its name, then the next incarnation of
// its rank. It publishes its record and waits for the others. Some mistakes cannot be repaired by
// waiting: two workers with one name, or two different world sizes. A process writes such a failure
// to the store, so that all ranks fail at once and with the same text. A group that has completed a
// `shutdown` may be joined again with the same request. This is its next round, for which the keys
// of earlier rounds do not count. docs/launch.md has the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/ids.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft {

struct JoinRequest {
  std::string group = "weft";  // the name of the job on this store; at most 1 KiB
  uint32_t epoch = 0;          // restarts of the whole group; only workers of one epoch meet
  uint32_t attempt = 0;        // restarts of this rank within the epoch
  // Static groups only. Nobody counts restarts, so `attempt` is a lower bound. If another process
  // has the rank, join_static_group waits until that one has left or is declared dead, and claims
  // the next attempt.
  bool replaces_the_dead = false;
  std::string name;  // of the worker; check_worker_name has the rules
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string address;  // of this worker, in the form of its transport; at most 4 KiB
  absl::Duration timeout = absl::Seconds(60);  // zero: no limit
};

struct MemberInfo {
  WorkerId id;  // index = rank
  std::string name;
  uint32_t rank = 0;
  std::string address;
};

struct JoinResult {
  WorkerId self;
  std::vector<MemberInfo> members;  // newest incarnations; static group: members[r] is rank r
  uint32_t round = 0;               // static group: how often it has completed a `shutdown`
  uint32_t attempt = 0;  // static group: that of the request, or a later one (replaces_the_dead)
};

// Errors, besides those of the store:
// InvalidArgument: the name is bad, or the rank or the world size is out of range. Or the group or
// the address is empty, too long or not printable ASCII. Or another process has another world size.
// AlreadyExists: the name is taken, the rank is taken in this attempt, or a later incarnation has
// the rank. With `replaces_the_dead`, a rank that is taken is an error only after `timeout`.
// DeadlineExceeded: not all ranks joined in time; the message lists the missing ones.
absl::StatusOr<JoinResult> join_static_group(RendezvousStore& store, const JoinRequest& request);

// Completes this round of the group: workers that join from now on join the next round. Each member
// calls it before it leaves, so that it does not find its own record when it joins again.
absl::Status mark_ended(RendezvousStore& store, const std::string& group, uint32_t epoch,
                        uint32_t round);

}  // namespace weft
