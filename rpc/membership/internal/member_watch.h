// Knows which members are present, and tells those that wait for a change: streams of events, and
// futures of one member.
//
// A member is present once it has its name and until it is gone. The worker of this process counts
// for `when_live` alone.
//
// Thread safety: all methods may be called from any thread. Futures complete without a lock.
// Lifetime: the agent must outlive this object, and the clock must too.
// Bounds: it remembers the last 1,024 members that are gone.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/membership/internal/member_event_queue.h"
#include "weft/rpc/membership/member_events.h"
#include "weft/rpc/session/agent.h"

namespace weft::rpc_internal {

class MemberWatch {
 public:
  MemberWatch(Agent& agent, Clock& clock) : agent_(agent), clock_(clock) {}

  // The members with which the agent starts; all of them have their names.
  void begin_with(const std::vector<WorkerInfo>& members) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives a joiner its name. False: it has a name already, is gone, or is not known.
  bool joined(WorkerId joiner) ABSL_LOCKS_EXCLUDED(mutex_);
  // The agent has reported this worker as gone. False: it was not present, so it is announced
  // neither as joined nor as gone.
  bool gone(WorkerId worker, MemberChange change, const absl::Status& reason)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing is known of the group from now on: streams close, and futures fail with `why`. Only the
  // first call has an effect.
  void close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Worker::wait_for_async, wait_until_gone_async and member_events. The futures have no executor
  // of their own.
  Future<WorkerInfo> when_live(std::string_view name, Timeout timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  Future<void> when_gone(std::string_view name, Timeout timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  MemberEvents events() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Live {
    std::string name;
    std::shared_ptr<Future<WorkerInfo>::State> answer;
  };
  struct Gone {
    WorkerId worker;
    std::shared_ptr<Future<void>::State> answer;
  };

  void publish(const MemberEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The newest member of this name that is present. Null: there is none.
  const WorkerInfo* present(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<WorkerInfo> live_member(std::string_view name) const;
  void answer_live() ABSL_LOCKS_EXCLUDED(mutex_);
  template <class T>
  void limit(const std::shared_ptr<async_internal::FutureState<T>>& answer, Timeout timeout,
             std::string_view late);

  Agent& agent_;
  Clock& clock_;
  mutable Mutex mutex_;
  std::map<WorkerId, WorkerInfo> present_ ABSL_GUARDED_BY(mutex_);  // without this worker
  std::deque<MemberEvent> gone_ ABSL_GUARDED_BY(mutex_);            // oldest first
  // Shared with their readers.
  std::vector<std::weak_ptr<MemberEventQueue>> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<Live> until_live_ ABSL_GUARDED_BY(mutex_);
  std::vector<Gone> until_gone_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // OK: it is open
};

}  // namespace weft::rpc_internal
