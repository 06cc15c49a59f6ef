// One worker of a group that Weft forms for a contestant: finds or hosts the rendezvous store, and
// joins.
//
// Thread safety: one thread at a time.
// Lifetime: the worker leaves the group when this object is destroyed, if it has not left before.
// Blocking: join() waits for all workers of the group.
// Errors: those of Worker::join, as a status.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/worker/worker.h"

namespace weft::bench {

class WeftMember {
 public:
  // Hosts the store of the group, and returns its address.
  absl::StatusOr<std::string> listen();

  // Joins through the store that this object hosts, else through the one at `address`. Rank, world
  // size and store of the options are set here.
  absl::Status join(const std::string& address, int rank, int workers, WorkerOptions options);

  Worker& worker() { return *worker_; }

  // Does nothing if it has not joined.
  void leave(ShutdownOptions options);

 private:
  std::shared_ptr<RendezvousStore> store_;  // shared with the worker
  std::optional<Worker> worker_;
};

// Runs an operation of the API, and returns what it throws as a status.
absl::Status guarded(const std::function<absl::Status()>& operation);

}  // namespace weft::bench
