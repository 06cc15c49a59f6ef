#include "weft/worker/launch/node_place.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace weft::launch {
namespace {

using Json = nlohmann::json;

// nlohmann::json refuses what is no UTF-8, and a host's name may be anything.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const NodeRecord& record) {
  Json roles = Json::array();
  for (const Role& role : record.roles) roles.push_back({role.name, role.count});
  return {{"host", record.host},     {"nodes", record.nodes}, {"roles", roles},
          {"run_id", record.run_id}, {"token", record.token}, {"public_keys", record.public_keys}};
}

NodeRecord record_of(const Json& json) {
  NodeRecord record;
  json.at("host").get_to(record.host);
  json.at("nodes").get_to(record.nodes);
  for (const Json& role : json.at("roles")) {
    record.roles.push_back({role.at(0).get<std::string>(), role.at(1).get<uint32_t>()});
  }
  json.at("run_id").get_to(record.run_id);
  json.at("token").get_to(record.token);
  json.at("public_keys").get_to(record.public_keys);
  return record;
}

template <class T>
absl::StatusOr<T> parse(const std::string& text, T (*read)(const Json& json)) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& problem) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", problem.what()));
  }
}

}  // namespace

std::string run_id_of(const std::vector<NodeRecord>& records) {
  for (const NodeRecord& record : records) {
    if (!record.run_id.empty()) return record.run_id;
  }
  return "weft";
}

NodePlace place_of_node(const std::vector<NodeRecord>& records, uint32_t node) {
  NodePlace place;
  place.node = node;
  place.nodes = static_cast<uint32_t>(records.size());
  place.world_size = 0;
  for (const Role& role : records[node].roles) place.roles.push_back({role.name, role.count, 0, 0});
  for (uint32_t i = 0; i < records.size(); ++i) {
    for (const Role& role : records[i].roles) {
      if (i < node) place.first_rank += role.count;
      place.world_size += role.count;
      for (RoleShare& share : place.roles) {
        if (share.name != role.name) continue;
        if (i < node) share.first += role.count;
        share.total += role.count;
      }
    }
  }
  return place;
}

std::string to_text(const NodeRecord& record) { return dump(json_of(record)); }

std::string to_text(const std::vector<NodeRecord>& records) {
  Json json = Json::array();
  for (const NodeRecord& record : records) json.push_back(json_of(record));
  return dump(json);
}

std::string to_text(const NodeFailure& failure) {
  return dump({{"node", failure.node}, {"code", failure.code}, {"text", failure.text}});
}

absl::StatusOr<NodeRecord> parse_node_record(const std::string& text) {
  return parse<NodeRecord>(text, record_of);
}

absl::StatusOr<std::vector<NodeRecord>> parse_node_records(const std::string& text) {
  auto records = parse<std::vector<NodeRecord>>(text, [](const Json& json) {
    std::vector<NodeRecord> read;
    for (const Json& record : json) read.push_back(record_of(record));
    return read;
  });
  if (records.ok() && records->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' has no record"));
  }
  return records;
}

absl::StatusOr<NodeFailure> parse_node_failure(const std::string& text, uint32_t nodes) {
  absl::StatusOr<NodeFailure> failure = parse<NodeFailure>(text, [](const Json& json) {
    NodeFailure read;
    json.at("node").get_to(read.node);
    json.at("code").get_to(read.code);
    json.at("text").get_to(read.text);
    return read;
  });
  if (failure.ok() && (failure->node >= nodes || failure->code < 1 || failure->code > 255)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has no node below ", nodes, " or no exit code"));
  }
  return failure;
}

}  // namespace weft::launch
