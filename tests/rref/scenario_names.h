// Short names for what a scenario's log mentions: w1 (w1.2 in its second life), r1, f1 in order of
// appearance.
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
  // "w3" -> 3.
  static uint32_t index(const std::string& worker) { return std::stoul(worker.substr(1)); }
  // The gauge that "expect owners w1 2" is about.
  static uint64_t gauge(const OwnershipGauges& gauges, const std::string& name);
  // "r1,r2" -> r1 r2.
  static std::vector<std::string> split(const std::string& list);

  void set_workers(size_t workers) { workers_ = workers; }
  void set(const std::string& name, RRefId rref) { rrefs_[name] = rref; }
  RRefId rref(const std::string& name) const { return rrefs_.at(name); }

  std::string name(WorkerId worker) const;
  std::string name(RRefId rref) const;
  std::string name(ForkId fork);
  std::string name(const Handle& handle);
  // Puts short names for the ids in a text.
  std::string rename(std::string text) const;
  std::string text(const absl::Status& status) const;

 private:
  size_t workers_ = 0;
  std::map<std::string, RRefId> rrefs_;
  std::map<ForkId, size_t> forks_;
};

}  // namespace weft::rref_internal
