// The launchers of several machines (nodes) that start one group together. They meet at the job's
// store, which the launcher of node 0 hosts, and tell each other of failures.
//
// Protocol: docs/launch.md, "Several hosts". The keys stand under weft/launch/.
//
// Thread safety: all methods may be called from any thread.
// Blocking: only join() and the destructor block, the destructor for a few calls of the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/sockets/file_descriptor.h"
#include "weft/worker/launch/node_joining.h"
#include "weft/worker/launch/node_place.h"

namespace weft::launch {

class NodeGroup {
 public:
  // Whether the user wants the launcher to end.
  using Interrupted = std::function<bool()>;

  // Registers this node and waits for all others. `store` must outlive the result.
  // Errors: those of join_nodes.
  static absl::StatusOr<std::unique_ptr<NodeGroup>> join(RendezvousStore& store, NodeRecord self,
                                                         const NodeGroupOptions& options,
                                                         const Interrupted& interrupted);
  ~NodeGroup();

  const NodePlace& place() const { return place_; }
  std::string run_id() const { return run_id_of(records_); }
  const std::string& host_of(uint32_t node) const { return records_[node].host; }

  // Becomes readable when failure() or all_finished() may have changed. The caller reads it empty.
  int descriptor() const { return changed_.get(); }

  // Ends the group, unless it fails for another reason already.
  void fail(int code, const std::string& text) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first failure on any node. nullopt: none so far.
  std::optional<NodeFailure> failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // All processes of this node have ended; `code` is its own exit code.
  void finish(int code) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this launcher may exit: its finish() is known to the others. Node 0, which hosts the
  // store, also waits until the others have finished or are lost.
  bool may_leave() const ABSL_LOCKS_EXCLUDED(mutex_);
  // 0, or the code of the failure, or else of the first node that has finished with another code.
  // Nodes other than 0 know only their own.
  int exit_code() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  NodeGroup(RendezvousStore& store, std::vector<NodeRecord> records,
            const NodeGroupOptions& options, FileDescriptor changed);

  // ---- on the thread
  void run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status exchange() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status look_at_others(bool interval_over) ABSL_LOCKS_EXCLUDED(mutex_);
  // As it stands in the store; an error: it cannot be read.
  void note_failure(const absl::StatusOr<NodeFailure>& read) ABSL_LOCKS_EXCLUDED(mutex_);
  void set_failure(const NodeFailure& failure) ABSL_LOCKS_EXCLUDED(mutex_);
  void lose_store(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void tell() const;

  RendezvousStore& store_;
  const std::vector<NodeRecord> records_;
  const NodeGroupOptions options_;
  const NodePlace place_;
  const FileDescriptor changed_;  // an eventfd

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<NodeFailure> own_failure_ ABSL_GUARDED_BY(mutex_);  // to be written
  std::optional<NodeFailure> failure_ ABSL_GUARDED_BY(mutex_);      // of the group
  std::optional<int> own_code_ ABSL_GUARDED_BY(mutex_);
  bool told_code_ ABSL_GUARDED_BY(mutex_) = false;
  // By node: its exit code. Only node 0 knows those of others.
  std::vector<std::optional<int>> finished_ ABSL_GUARDED_BY(mutex_);
  bool store_lost_ ABSL_GUARDED_BY(mutex_) = false;

  NodeHeartbeats heartbeats_;  // used only by the thread
  std::thread thread_;         // last: it uses all of the above
};

}  // namespace weft::launch
