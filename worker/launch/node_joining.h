// How the launchers of several machines (nodes) meet at the job's store, and what they write there.
//
// Node 0 collects the records of all nodes, and gives them to the others. Each launcher shows in
// each interval that it lives, so that one that dies is missed.
//
// Protocol: docs/launch.md, "Several hosts". The keys stand under weft/launch/.
//
// Thread safety: free functions, and none for NodeHeartbeats.
// Blocking: join_nodes, until all have come; calls of the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/worker/launch/node_place.h"

namespace weft::launch {

struct NodeGroupOptions {
  uint32_t node = 0;
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(5);
  // A launcher shows in each interval that it lives. It is lost after so many intervals, at least
  // 2, in which the observer has looked and seen nothing. An observer that was stopped itself, and
  // so did not look, takes nobody for lost.
  std::chrono::nanoseconds interval = std::chrono::seconds(1);
  uint32_t lost_after = 10;
  // Called when all have come: on node 0 before it tells the others so, on the others after that.
  // Only node 0 gets the public keys. After DeadlineExceeded it is called again. Another error ends
  // the group.
  std::function<absl::Status(const std::vector<NodeRecord>&)> on_all_met = nullptr;
};

// How often a launcher looks for others that join, or for a failure.
inline constexpr std::chrono::milliseconds kLookAtNodes(100);
inline constexpr int kCouldNotLaunch = 1;  // exit code

inline constexpr char kNodesKey[] = "weft/launch/nodes";
inline constexpr char kFailureKey[] = "weft/launch/failure";           // of a group that runs
inline constexpr char kJoinFailureKey[] = "weft/launch/join_failure";  // of one that forms
std::string node_key(uint32_t node);
std::string heartbeats_key(uint32_t node);
std::string finished_key(uint32_t node);

// nullopt: there is none.
absl::StatusOr<std::optional<NodeFailure>> read_node_failure(RendezvousStore& store,
                                                             const char* key, uint32_t nodes);

// Counts the intervals without a heartbeat, as one observer sees them.
class NodeHeartbeats {
 public:
  // Looks at a node, once in each interval. Returns whether it is lost.
  absl::StatusOr<bool> look(RendezvousStore& store, uint32_t node, uint32_t lost_after);

 private:
  struct Seen {
    int64_t heartbeats = -1;
    uint32_t missed = 0;
  };
  std::map<uint32_t, Seen> seen_;
};

// Registers this node and waits for all others. Returns their records, by node.
// Errors: AlreadyExists (another launcher is this node), DeadlineExceeded (names the nodes that did
// not come), Cancelled (interrupted), and those of the store. FailedPrecondition: a node has
// another
// --nnodes or run id, or could not join. Unavailable: a node was there and is lost.
absl::StatusOr<std::vector<NodeRecord>> join_nodes(RendezvousStore& store, const NodeRecord& self,
                                                   const NodeGroupOptions& options,
                                                   const std::function<bool()>& interrupted);

}  // namespace weft::launch
