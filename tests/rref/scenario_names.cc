#include "weft/tests/rref/scenario_names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace weft::rref_internal {

uint64_t ScenarioNames::gauge(const OwnershipGauges& gauges, const std::string& name) {
  const std::map<std::string, uint64_t> all = {{"owners", gauges.owners},
                                               {"forks", gauges.forks},
                                               {"users", gauges.users},
                                               {"pending", gauges.pending_users},
                                               {"children", gauges.pending_children},
                                               {"tombstones", gauges.tombstones},
                                               {"parked_fetches", gauges.parked_fetches},
                                               {"parked_forks", gauges.parked_forks},
                                               {"stale", gauges.stale_messages},
                                               {"refused", gauges.refused_messages}};
  return all.at(name);
}

std::vector<std::string> ScenarioNames::split(const std::string& list) {
  return absl::StrSplit(list, ',');
}

std::string ScenarioNames::name(WorkerId worker) const {
  return worker.incarnation == 1 ? absl::StrCat("w", worker.index) : worker.to_string();
}

std::string ScenarioNames::name(RRefId rref) const {
  for (const auto& [text, id] : rrefs_) {
    if (id == rref) return text;
  }
  return rref.to_string();
}

std::string ScenarioNames::name(ForkId fork) {
  auto [it, inserted] = forks_.emplace(fork, forks_.size() + 1);
  return absl::StrCat("f", it->second);
}

std::string ScenarioNames::name(const Handle& handle) {
  return handle.owned() ? name(handle.rref) : name(handle.rref) + " " + name(handle.fork);
}

std::string ScenarioNames::rename(std::string text) const {
  for (const auto& [name, id] : rrefs_) absl::StrReplaceAll({{id.to_string(), name}}, &text);
  for (const auto& [id, number] : forks_) {
    absl::StrReplaceAll({{id.to_string(), absl::StrCat("f", number)}}, &text);
  }
  for (uint32_t i = 1; i <= workers_; ++i) {
    const std::string id = WorkerId{i, 1}.to_string(), short_name = absl::StrCat("w", i);
    absl::StrReplaceAll({{id + " ", short_name + " "}, {id + ":", short_name + ":"}}, &text);
  }
  return text;
}

std::string ScenarioNames::text(const absl::Status& status) const {
  return rename(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message(), " "));
}

}  // namespace weft::rref_internal
