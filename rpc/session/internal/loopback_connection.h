// Carries frames from a worker to itself.
//
// It copies payloads, as a network would.
//
// Thread safety: all methods may be called from any thread. Tasks of the executor deliver the
// frames.
// Lifetime: a delivery under way shares it. After `close`, no delivery begins.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "weft/async/executor.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class LoopbackConnection final : public Connection,
                                 public std::enable_shared_from_this<LoopbackConnection> {
 public:
  LoopbackConnection(PeerIdentity self, TransportSink& sink, Executor& executor)
      : self_(std::move(self)), sink_(sink), executor_(executor) {}

  bool send(FrameBatch frames) override {
    for (FramePtr& frame : frames) {
      if (closed_.load()) return false;
      Executor::Call delivery;
      delivery.run = [self = shared_from_this(), frame] { self->deliver(*frame); };
      // If the executor has no thread left, the frame is still delivered. A call must arrive to be
      // refused, and a reply must reach its caller.
      delivery.refuse = [self = shared_from_this(), frame] { self->deliver(*frame); };
      executor_.schedule_call(std::move(delivery));
    }
    return true;
  }
  // on_closed is not called, because the agent is the only user. It closes this when it stops.
  void close() override { closed_.store(true); }
  void abort(absl::Status) override { close(); }
  const PeerIdentity& peer() const override { return self_; }
  StreamsBytes streams_of(const Frame&) const override { return {}; }

 private:
  void deliver(const Frame& frame) {
    std::vector<Frame> copy{frame};
    for (Payload& payload : copy[0].payloads) {
      auto block = std::shared_ptr<std::byte[]>(new std::byte[payload.size]);
      std::copy_n(payload.data, payload.size, block.get());
      payload = {block.get(), payload.size, block};
    }
    if (!closed_.load()) sink_.on_frames(shared_from_this(), std::move(copy));
  }

  const PeerIdentity self_;
  TransportSink& sink_;
  Executor& executor_;
  std::atomic<bool> closed_{false};
};

}  // namespace weft::rpc_internal
