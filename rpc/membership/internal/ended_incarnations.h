// Remembers which incarnations are gone, and which death records say so.
//
// It remembers the last 1,024 of them separately: the name, the writer of the death record and the
// reason. Of members that went earlier it keeps one number per index for good, the last
// incarnation. So it never applies what it knows of one incarnation to a later one.
//
// Thread safety: none; MembershipCore owns it. It is pure: the same calls give the same answers.
// Protocol: docs/membership.md, "Memory of incarnations that are gone" and "Death records".
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/ids.h"
#include "weft/rpc/rendezvous/death_records.h"

namespace weft::rpc_internal {

class EndedIncarnations {
 public:
  // The incarnation is gone. `name` is empty if it was never a member. No effect for an incarnation
  // that is remembered separately.
  void add(WorkerId worker, std::string_view name);
  // Takes the death record of an incarnation that was just added. False: it was known already.
  bool learn(const DeathRecord& death_record);

  // True: the incarnation is known to be gone.
  bool contains(WorkerId worker) const;
  // True: a later incarnation of its index is gone, and it was a member or has a death record.
  bool has_later(WorkerId worker) const;
  // Returns the last incarnation of its index that is gone and earlier. nullopt: none is known.
  std::optional<WorkerId> last_before(WorkerId worker) const;
  // Returns an empty name if the incarnation is not remembered separately or never was a member.
  std::string_view name_of(WorkerId worker) const;

  // Returns the death records of all that are remembered separately.
  std::vector<DeathRecord> death_records() const;
  // Returns the records that `writer` wrote. The workers that it declared dead may have been
  // writers too; the result has their records as well, and so on.
  std::vector<DeathRecord> written_by(WorkerId writer) const;
  // True: `self` is the writer, or has declared it dead, or has declared dead the worker that did
  // so, and so on. Then `self` must tell the others of the records of `writer`.
  bool speaks_for(WorkerId self, WorkerId writer) const;

  // This worker has parted from an incarnation that was just added, and no death record decided it.
  void part_undecided(WorkerId worker) { undecided_.insert(worker); }
  // `later` is a member, so no death record of an earlier incarnation is written any more.
  void settle_before(WorkerId later);
  // True: the list may still decide about an incarnation that this worker has parted from.
  bool has_undecided() const { return !undecided_.empty(); }

 private:
  struct Ended {
    std::string name;    // empty: it was never a member
    WorkerId by;         // the writer of its death record; not valid: no record is known
    std::string reason;  // in the death record
  };

  void forget_oldest();

  std::map<WorkerId, Ended> ended_;
  std::deque<WorkerId> order_;    // the keys of `ended_`, oldest first
  std::set<WorkerId> undecided_;  // keys of `ended_`
  // Of the incarnations that `ended_` no longer holds: the last member of each index, by
  // incarnation.
  std::map<uint32_t, uint32_t> forgotten_;
};

}  // namespace weft::rpc_internal
