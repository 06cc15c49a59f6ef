// The book of verdicts: what the list holds, whether each entry is explained by a fault, and, once
// all is mended, whether everybody knows it.
//
// Thread safety: none.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/rendezvous/verdict_list.h"
#include "weft/tests/sim/schedule.h"

namespace weft::sim {

class World;

class MembershipBook {
 public:
  explicit MembershipBook(World& world) : world_(world) {}

  // An entry was appended. `trusted`: whom it condemns relies on the writer still.
  void append(const Verdict& verdict, Nanoseconds patience, Nanoseconds interval, bool trusted);
  // Somebody has read these: from now on everybody has to hear of them.
  void read(const std::vector<Verdict>& verdicts);
  // For `at`, `gone` is gone.
  void part(WorkerId at, WorkerId gone);

  // How long, since `since`, `about` could not be heard by `by`.
  Nanoseconds cut_off(WorkerId by, WorkerId about, TimePoint since) const;
  bool condemned(WorkerId worker) const { return dead_.contains(worker); }
  // The two hold each other for gone without a verdict.
  bool severed(WorkerId worker) const { return severed_.contains(worker); }
  bool any_severed() const { return !severed_.empty(); }
  // What everybody has had time to hear of.
  bool must_be_known(WorkerId dead) const;
  const std::vector<Verdict>& list() const { return list_; }

 private:
  World& world_;
  std::vector<Verdict> list_;
  std::set<WorkerId> dead_;
  std::map<WorkerId, TimePoint> read_;
  std::set<WorkerId> severed_;
};

}  // namespace weft::sim
