// Who belongs to the group.
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
  std::string address;  // where its transport listens

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

// A name has 1 to 127 letters, digits and any of _ : - .; otherwise InvalidArgument,
// whose message shows the name.
absl::Status check_worker_name(std::string_view name);

enum class MemberChange {
  kJoined,
  kLeft,  // in good order
  // Is gone here, for good: by a death record, or because this pair has parted without the store,
  // or because this worker was fenced.
  kDied,
};

// Gauges of one worker's agent, for people and for tests that look for leaks.
struct AgentInfo {
  size_t pending_calls = 0;    // made here, not answered yet (queued ones included)
  size_t queued_calls = 0;     // of those, waiting for credit
  size_t running_calls = 0;    // arrived here, not answered yet
  size_t retained_frames = 0;  // sent, not acknowledged
  size_t retained_bytes = 0;
  size_t live_peers = 0;
  size_t connections = 0;
};

}  // namespace weft
