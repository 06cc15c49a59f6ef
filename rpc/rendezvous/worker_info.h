// Describes one worker of a group: its id, its name and its address.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft {

struct WorkerInfo {
  WorkerId id;
  std::string name;     // unique in the group
  std::string address;  // at which its transport listens

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

// A name has 1 to 127 characters: letters, digits and _ : - . For other names it returns
// InvalidArgument, whose message shows the name.
absl::Status check_worker_name(std::string_view name);

enum class MemberChange {
  kJoined,
  kLeft,  // it said goodbye
  // It is gone for this worker, and that is final. A death record names it, or this pair has parted
  // without the store, or this worker was fenced.
  kDied,
};

// Counts of one worker's agent, for people and for tests that check for leaks.
struct AgentInfo {
  size_t pending_calls = 0;    // calls of this worker without an answer, with those in the queue
  size_t queued_calls = 0;     // those of them that wait for credit
  size_t running_calls = 0;    // calls that arrived here and are not answered
  size_t retained_frames = 0;  // frames that are sent and not acknowledged
  size_t retained_bytes = 0;
  size_t live_peers = 0;
  size_t connections = 0;
};

}  // namespace weft
