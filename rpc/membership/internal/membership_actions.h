// The actions that a MembershipCore asks of its driver after an event.
//
// The members are performed kind by kind, in the order of Membership::act. A driver names all of
// them in one structured binding. So it does not compile until it names a new kind, too.
//
// Thread safety: plain values.
// Protocol: docs/membership.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

struct MembershipActions {
  struct Heartbeat {
    WorkerId to;
    uint64_t number;
  };
  // The driver asks the list of death records, within bounded time, and then calls `answer`. At
  // most one question per peer is open. One more may name this worker itself; it only reads.
  struct Question {
    WorkerId suspect;
    uint64_t number;
    std::string reason;
    bool declare_dead;  // else the list is only read
  };
  // From now on, this worker is gone here.
  struct Gone {
    WorkerId worker;
    absl::Status reason;
  };
  struct Notice {
    WorkerId to;
    DeathRecord death_record;  // to post to `to`
  };
  // Calls to this peer that begin at `until` or later wait until its lease is valid again. kNever:
  // there is no lease, so calls do not wait.
  struct Validity {
    WorkerId peer;
    TimePoint until;
  };
  std::vector<Heartbeat> heartbeats;
  std::vector<Validity> validities;
  std::vector<Question> questions;
  std::vector<Gone> gone;
  std::vector<Notice> notices;
  // Workers that do not answer this one. The driver reports them to the members that it has met.
  std::vector<WorkerId> suspect_reports;
  // Workers that did not answer a dial. The driver dials them again.
  std::vector<WorkerId> redials;
  // The driver looks up the group's record of these, within bounded time, and then calls `found`.
  std::vector<WorkerId> lookups;
  // The same for a dialler that claims to have replaced a worker; the driver calls `compared`.
  std::vector<WorkerInfo> claims;
  // Not OK: a worker refuses this one or does not answer, and the list names neither as dead.
  absl::Status refused;
  // Not OK: this worker is dead to the others. All peers are gone then, and `gone` does not list
  // them.
  absl::Status fenced;
};

}  // namespace weft::rpc_internal
