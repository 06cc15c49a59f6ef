// Joins a group whose size is known: every rank publishes itself and learns all others.
//
// Blocking: join_static_group blocks until every rank is there, at most `timeout`.
// Protocol: a process takes its rank for its attempt, its name, and the next incarnation of its
// rank, publishes them, and waits for the others. Mistakes that no waiting can mend (two workers
// with one name, two ideas of the world size) are written to the store, so that every rank fails at
// once and with the same text. A group that has ended in good order may be joined again with the
// same request: that is its next round, and nothing in the store of an earlier one counts.
// docs/launch.md has the keys.
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
  std::string group = "weft";  // one job on this store, up to 1 KiB; it counts the incarnations
  uint32_t epoch = 0;          // counts restarts of the whole group: only equal epochs meet
  uint32_t attempt = 0;        // counts restarts of this rank within the epoch
  std::string name;            // of the worker, see check_worker_name
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string address;  // where the others reach this worker; its transport's words
  absl::Duration timeout = absl::Seconds(60);  // zero: without limit
};

struct MemberInfo {
  WorkerId id;  // index = rank
  std::string name;
  uint32_t rank = 0;
  std::string address;
};

struct JoinResult {
  WorkerId self;
  std::vector<MemberInfo>
      members;         // members[r] is rank r, the newest incarnation known at this moment
  uint32_t round = 0;  // how often this group has ended before
};

// Errors: InvalidArgument (name, rank, world size out of range, a group or address that is too long
// or not printable ASCII, or another process of the group has another world size), AlreadyExists
// (the name, or the rank in this attempt, is taken), DeadlineExceeded (lists the ranks that are
// missing), and whatever the store returns.
absl::StatusOr<JoinResult> join_static_group(RendezvousStore& store, const JoinRequest& request);

// This round of the group ends: whoever joins from now on joins the next one. Each member says so
// before it leaves, so that it does not meet its own record when it joins again.
absl::Status mark_ended(RendezvousStore& store, const std::string& group, uint32_t epoch,
                        uint32_t round);

}  // namespace weft
