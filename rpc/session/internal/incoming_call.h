// Represents one call that has arrived, until it is answered.
//
// The call waits in this worker's queue, then runs, and is answered exactly once.
//
// Thread safety: `taken`, `accept` and `reply` may be called from any thread.
// Lifetime: the link's table, the queued task and the running handler's result share it. The agent
// answers or drops all calls before it stops.
#pragma once

#include <atomic>
#include <memory>

#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/transport/frame.h"

namespace weft::rpc_internal {

class PeerLink;

class IncomingCall {
 public:
  IncomingCall(std::shared_ptr<PeerLink> link, WorkerId from, Frame frame,
               std::shared_ptr<CallContext> context)
      : link_(std::move(link)),
        from_(from),
        frame_(std::move(frame)),
        context_(std::move(context)),
        header_(frame_.header),
        cost_(frame_.cost()) {}
  IncomingCall(const IncomingCall&) = delete;
  IncomingCall& operator=(const IncomingCall&) = delete;

  WorkerId from() const { return from_; }
  const FrameHeader& header() const { return header_; }
  // The frame as it came. The code that runs the call may move parts out of it.
  Frame& frame() { return frame_; }
  const std::shared_ptr<CallContext>& context() const { return context_; }
  size_t cost() const { return cost_; }  // in bytes, as its caller charged it

  // The call leaves the queue, and its credit returns to the caller. Idempotent.
  void taken();
  // Answers with an empty reply before the call runs; no other answer follows. The call stays in
  // the queue until taken().
  void accept();
  // Sends the result. Only the first answer is sent. The status of a failure says whether the
  // function ran.
  void reply(absl::StatusOr<Frame> result);

 private:
  const std::shared_ptr<PeerLink> link_;  // shared: the peer may be forgotten while the call runs
  const WorkerId from_;
  Frame frame_;
  const std::shared_ptr<CallContext> context_;
  const FrameHeader header_;
  const size_t cost_;
  std::atomic<bool> taken_{false};
  std::atomic<bool> replied_{false};
};

}  // namespace weft::rpc_internal
