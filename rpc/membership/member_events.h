// A stream of the other members of a worker's group, and of their changes.
//
//   const weft::MemberEvents events = worker.member_events();
//   while (!events.closed()) {
//     if (const auto event = events.next(std::chrono::seconds(1))) ...
//   }
//
// The stream begins with a kJoined event for each member that is present, in order of their ids.
// The changes follow, so a reader misses no member, whenever the stream was made. For each
// incarnation there is at most one kJoined, and after it at most one kLeft or kDied. A restarted
// worker is another incarnation. Its kJoined may come before the kDied of the earlier one, so
// readers tell members apart by id.
//
// A worker that has joined and is gone again before the reader took its kJoined is not reported. So
// a stream that no thread reads holds at most one event for each member that is present and for
// each member whose kJoined was read.
//
// Thread safety: all methods may be called from any thread. Copies read the same stream, and each
// event goes to one reader.
// Lifetime: a stream may outlive its worker.
// Blocking: only `next`.
// Errors: none. The stream closes when its worker's shutdown ends. A handler that reads without a
// limit delays that. If the worker itself was declared dead, all others are reported as dead first:
// see Worker::standing.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft {

namespace rpc_internal {
class MemberEventQueue;
}  // namespace rpc_internal

struct MemberEvent {
  WorkerInfo worker;
  MemberChange change;
  absl::Status reason = {};  // of a death, without the worker's name; otherwise OK
};

class MemberEvents {
 public:
  // For Worker::member_events. Shared with the worker, which adds the events.
  explicit MemberEvents(std::shared_ptr<rpc_internal::MemberEventQueue> queue)
      : queue_(std::move(queue)) {}

  // Returns the next event. Nullopt: none came in time, `wake` was called, or the stream is closed.
  // A timeout of zero means no limit.
  std::optional<MemberEvent> next(Timeout timeout) const;
  // Makes one call of `next` return without an event: a call that waits, or else the next one that
  // would wait. For a reader that must notice something else too, such as a future that completes.
  void wake() const;
  // True: all events were read, and none will come.
  bool closed() const;

 private:
  std::shared_ptr<rpc_internal::MemberEventQueue> queue_;
};

}  // namespace weft
