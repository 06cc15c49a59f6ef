// Keeps the messages for which nobody waits until another message goes to the same worker.
//
// Thread safety: none; the driver's lock guards it.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "weft/base/ids.h"
#include "weft/dist_autograd/internal/gradient_frame.h"
#include "weft/dist_autograd/passes/pass_messages.h"

namespace weft::dist_autograd_internal {

class PiggybackQueue {
 public:
  // The messages that one frame carries to a worker.
  struct Batch {
    WorkerId to;
    AutogradMessage message;
    Piggybacked piggybacked;
  };

  void defer(WorkerId to, AutogradMessage message) { deferred_[to].push_back(std::move(message)); }
  // Removes the messages that are deferred for this worker. They travel on `message`.
  Batch batch(WorkerId to, AutogradMessage message) {
    return {to, std::move(message), std::exchange(deferred_[to], {})};
  }
  // Removes all deferred messages. Each worker gets one batch, in which they travel on the last
  // one.
  std::vector<Batch> take_all() {
    std::vector<Batch> all;
    for (auto& [to, messages] : std::exchange(deferred_, {})) {
      if (messages.empty()) continue;
      AutogradMessage last = std::move(messages.back());
      messages.pop_back();
      all.push_back({to, std::move(last), std::move(messages)});
    }
    return all;
  }

 private:
  std::map<WorkerId, Piggybacked> deferred_;
};

}  // namespace weft::dist_autograd_internal
