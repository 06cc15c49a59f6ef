// One worker of the kill test: an agent over shared memory that calls its peers and checks all
// bytes that come back.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the destructor stops the agent and its threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "weft/async/executor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/session/agent.h"

namespace weft::testing {

class KillTestWorker {
 public:
  // `on_fault` gets a text for each wrong byte and each error that nobody expects.
  KillTestWorker(WorkerId id, std::string name, uint64_t seed,
                 std::function<void(const std::string&)> on_fault);
  ~KillTestWorker();

  WorkerInfo info() const { return {id_, name_, transport_.address()}; }
  // Begins to work. Further workers join when they dial this one.
  absl::Status start(std::vector<WorkerInfo> others);
  bool knows(WorkerId peer) const { return agent_->knows(peer); }

  // Keeps some calls to a peer under way until it is gone.
  void begin_traffic(const WorkerInfo& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls that have no reply yet, and replies that came.
  size_t open_calls(WorkerId peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t replies(WorkerId peer) const ABSL_LOCKS_EXCLUDED(mutex_);

  BlockArena::Statistics arena() const { return transport_.arena_statistics(); }
  AgentInfo agent() const { return agent_->info(); }

 private:
  using IncomingCallPtr = std::shared_ptr<rpc_internal::IncomingCall>;
  enum Function : uint64_t { kEcho = 1, kOverwrite = 2, kCallBack = 3 };
  struct Peer {
    std::string name;
    size_t open = 0;
    uint64_t replies = 0;
  };

  void start_call(WorkerId peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void end_call(WorkerId peer, uint64_t seed, absl::StatusOr<Frame> reply)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void serve(const IncomingCallPtr& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void answer(const IncomingCallPtr& call);
  // A frame whose content follows from `seed`; its memory is of a random kind.
  Frame make_frame(WorkerId to, uint64_t seed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports what differs from the frame that make_frame(seed) makes.
  void check(const Frame& frame, const std::string& where);
  uint64_t random() ABSL_LOCKS_EXCLUDED(mutex_);
  void fault(const std::string& what) { on_fault_(name_ + ": " + what); }

  const WorkerId id_;
  const std::string name_;
  const std::function<void(const std::string&)> on_fault_;
  SystemClock clock_;
  ThreadExecutor executor_;
  SameHostTransport transport_;
  std::unique_ptr<rpc_internal::Agent> agent_;

  mutable Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::map<WorkerId, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::testing
