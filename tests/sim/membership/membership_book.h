// The book of death records. It knows what the list holds, checks that a fault explains each entry,
// and tells which entries all workers must know by now.
//
// Thread safety: none.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/rendezvous/death_records.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class World;

class MembershipBook {
 public:
  explicit MembershipBook(World& world) : world_(world) {}

  // An entry was appended. `trusted`: the worker that it declares dead still has a valid lease with
  // the writer.
  void append(const DeathRecord& death_record, Nanoseconds patience, Nanoseconds interval,
              bool lease_valid);
  // A worker has read these entries. From now on all workers must hear of them.
  void read(const std::vector<DeathRecord>& death_records);
  // The worker `at` has given up `gone`.
  void part(WorkerId at, WorkerId gone);

  // Returns for how long, since `since`, `by` could not hear `about`.
  Nanoseconds cut_off(WorkerId by, WorkerId about, TimePoint since) const;
  bool declared_dead(WorkerId worker) const { return dead_.contains(worker); }
  // True if it and another worker have given up each other without a death record.
  bool severed(WorkerId worker) const { return severed_.contains(worker); }
  bool any_severed() const { return !severed_.empty(); }
  // True if all workers have had time to hear of this death.
  bool must_be_known(WorkerId dead) const;
  const std::vector<DeathRecord>& list() const { return list_; }

 private:
  World& world_;
  std::vector<DeathRecord> list_;
  std::set<WorkerId> dead_;
  std::map<WorkerId, TimePoint> read_;
  std::set<WorkerId> severed_;
};

}  // namespace weft::sim
