// Gives short names to ids in a scenario's log: w1 (w1.2 for its second incarnation), r1, and f1 in
// order of appearance.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft::rref_internal {

class ScenarioNames {
 public:
  // Turns "w3" into 3.
  static uint32_t index(const std::string& worker) { return std::stoul(worker.substr(1)); }
  // The gauge that "expect owners w1 2" names.
  static uint64_t gauge(const OwnershipGauges& gauges, const std::string& name);
  // Splits "r1,r2" into r1 and r2.
  static std::vector<std::string> split(const std::string& list);

  void set_workers(size_t workers) { workers_ = workers; }
  void set(const std::string& name, RRefId rref) { rrefs_[name] = rref; }
  RRefId rref(const std::string& name) const { return rrefs_.at(name); }

  std::string name(WorkerId worker) const;
  std::string name(RRefId rref) const;
  std::string name(ForkId fork);
  std::string name(const Handle& handle);
  // Replaces the ids in a text by their short names.
  std::string rename(std::string text) const;
  std::string text(const absl::Status& status) const;

 private:
  size_t workers_ = 0;
  std::map<std::string, RRefId> rrefs_;
  std::map<ForkId, size_t> forks_;
};

}  // namespace weft::rref_internal
