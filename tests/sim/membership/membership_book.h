// The book of death records: what the list holds, whether each entry is explained by a fault, and,
// once all is mended, whether everybody knows it.
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

  // An entry was appended. `trusted`: whom it declares dead relies on the writer still.
  void append(const DeathRecord& death_record, Nanoseconds patience, Nanoseconds interval,
              bool lease_valid);
  // Somebody has read these: from now on everybody has to hear of them.
  void read(const std::vector<DeathRecord>& death_records);
  // For `at`, `gone` is gone.
  void part(WorkerId at, WorkerId gone);

  // How long, since `since`, `about` could not be heard by `by`.
  Nanoseconds cut_off(WorkerId by, WorkerId about, TimePoint since) const;
  bool declared_dead(WorkerId worker) const { return dead_.contains(worker); }
  // The two hold each other for gone without a death record.
  bool severed(WorkerId worker) const { return severed_.contains(worker); }
  bool any_severed() const { return !severed_.empty(); }
  // What everybody has had time to hear of.
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
