// Which ranks belong to which machine, if the launchers of several machines (nodes) start one group
// together.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/worker/launch/launch_options.h"

namespace weft::launch {

// A launcher tells the others this about its node.
struct NodeRecord {
  std::string host = {};    // for people
  uint32_t nodes = 1;       // how many nodes it was told to expect
  std::vector<Role> roles;  // of its processes, in order
  std::string run_id = {};  // as the user or a scheduler gave it; "": it takes the others'
  std::string token = {};   // differs between any two launchers
  // Of its processes, if they get certificates of their own. Only node 0 reads them.
  std::vector<std::string> public_keys = {};

  friend bool operator==(const NodeRecord&, const NodeRecord&) = default;
};

// The run id of the group: that of the first node that has one, otherwise "weft".
std::string run_id_of(const std::vector<NodeRecord>& records);

// The ranks of one role on one node.
struct RoleShare {
  std::string name;
  uint32_t count = 0;  // here
  uint32_t first = 0;  // ROLE_RANK of the first one here
  uint32_t total = 0;  // on all nodes

  friend bool operator==(const RoleShare&, const RoleShare&) = default;
};

struct NodePlace {
  uint32_t node = 0;
  uint32_t nodes = 1;
  uint32_t first_rank = 0;
  uint32_t world_size = 1;
  std::vector<RoleShare> roles;  // here
};

// `records` has one record per node. The ranks of a node follow those of the node before.
NodePlace place_of_node(const std::vector<NodeRecord>& records, uint32_t node);

// Why the whole group ends.
struct NodeFailure {
  uint32_t node = 0;  // where it happened
  int code = 0;       // exit code of all launchers
  std::string text;   // for people

  friend bool operator==(const NodeFailure&, const NodeFailure&) = default;
};

// As JSON, for the store.
std::string to_text(const NodeRecord& record);
std::string to_text(const std::vector<NodeRecord>& records);
std::string to_text(const NodeFailure& failure);
// Errors: InvalidArgument for every other text, and for a failure of none of the `nodes` nodes or
// with a code that is not from 1 to 255.
absl::StatusOr<NodeRecord> parse_node_record(const std::string& text);
absl::StatusOr<std::vector<NodeRecord>> parse_node_records(const std::string& text);  // at least 1
absl::StatusOr<NodeFailure> parse_node_failure(const std::string& text, uint32_t nodes);

}  // namespace weft::launch
