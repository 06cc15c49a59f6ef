// What an agent keeps of each peer, and what lets its timers in.
//
// Thread safety: the fields say what guards them.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "weft/rpc/internal/agent.h"

namespace weft::internal {

struct Agent::Peer {
  Peer(WorkerInfo info_in, WorkerId self, const CreditWindow& window)
      : info(std::move(info_in)), core(self, info.id, window) {}

  const WorkerInfo info;
  std::atomic<bool> gone{false};
  Mutex mutex;
  PeerCore core ABSL_GUARDED_BY(mutex);
  ConnectionPtr connection ABSL_GUARDED_BY(mutex);           // the one that is written to
  std::vector<ConnectionPtr> others ABSL_GUARDED_BY(mutex);  // both ends dialled at once
  bool dialling ABSL_GUARDED_BY(mutex) = false;
  bool said_goodbye ABSL_GUARDED_BY(mutex) = false;
  absl::Status fate ABSL_GUARDED_BY(mutex);  // why it is gone
  TimePoint deadline_armed ABSL_GUARDED_BY(mutex) = kNever;
  bool ack_armed ABSL_GUARDED_BY(mutex) = false;
};

// Lets timers in while the agent lives; `stop` waits for the one that is inside.
struct Agent::Gate {
  Mutex mutex;
  Agent* agent ABSL_GUARDED_BY(mutex) = nullptr;

  template <class F>
  void enter(F f) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    if (agent != nullptr) f(*agent);
  }
};

}  // namespace weft::internal
