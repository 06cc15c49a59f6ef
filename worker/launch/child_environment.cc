#include "weft/worker/launch/child_environment.h"

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace weft::launch {
namespace {

struct RolePlace {
  std::string name;
  uint32_t rank = 0;   // among the processes of the role
  uint32_t total = 0;  // of them
};

RolePlace role_of(const NodePlace& nodes, uint32_t local_rank) {
  for (const RoleShare& role : nodes.roles) {
    if (local_rank < role.count) return {role.name, role.first + local_rank, role.total};
    local_rank -= role.count;
  }
  return {};
}

}  // namespace

std::vector<std::string> child_environment(const std::vector<std::string>& inherited,
                                           const GroupPlace& place, uint32_t local_rank,
                                           uint32_t restart_count, const std::string& error_file) {
  std::map<std::string, std::string> variables;
  const auto add = [&](const std::vector<std::string>& entries) {
    for (const std::string& entry : entries) {
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) continue;
      variables[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  };
  add(inherited);
  if (!place.certificates.empty()) {
    add(place.certificates[local_rank]);
    variables.erase("WEFT_SECRET_FILE");
  }
  const LaunchOptions& options = place.options;
  const NodePlace& nodes = place.nodes;
  const RolePlace role = role_of(nodes, local_rank);
  const std::pair<const char*, std::string> settings[] = {
      {"RANK", absl::StrCat(nodes.first_rank + local_rank)},
      {"LOCAL_RANK", absl::StrCat(local_rank)},
      {"WORLD_SIZE", absl::StrCat(nodes.world_size)},
      {"LOCAL_WORLD_SIZE", absl::StrCat(options.processes)},
      {"GROUP_RANK", absl::StrCat(nodes.node)},
      {"GROUP_WORLD_SIZE", absl::StrCat(nodes.nodes)},
      {"ROLE_NAME", role.name},
      {"ROLE_RANK", absl::StrCat(role.rank)},
      {"ROLE_WORLD_SIZE", absl::StrCat(role.total)},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", absl::StrCat(place.master_port)},
      {"WEFT_STORE", place.store},
      {"WEFT_STORE_OF", absl::StrCat(options.master_addr, ":", place.master_port)},
      {"TORCHELASTIC_RUN_ID", options.run_id},
      {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(options.max_restarts)},
      {"TORCHELASTIC_ERROR_FILE", error_file},
      // The group is never restarted as a whole here, so a restarted rank must meet the others
      // again.
      {"WEFT_GROUP_EPOCH", "0"},
  };
  for (const auto& [name, value] : settings) variables[name] = value;
  variables.try_emplace("OMP_NUM_THREADS", "1");
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  if (options.c10d_store) variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables.erase("WEFT_TERMINAL_COLUMNS");
  variables.erase("WEFT_LAUNCHER");  // of the launcher that started this one
  if (place.terminal_columns > 0) {
    variables["WEFT_TERMINAL_COLUMNS"] = absl::StrCat(place.terminal_columns);
  }

  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::string error_file_message(const std::string& json) {
  const nlohmann::json file = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("message")) return "";
  const nlohmann::json& message = file["message"];
  if (message.is_string()) return message.get<std::string>();
  if (!message.is_object() || !message.contains("message")) return "";
  return message["message"].is_string() ? message["message"].get<std::string>() : "";
}

}  // namespace weft::launch
