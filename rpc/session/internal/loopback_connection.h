// Frames from a worker to itself.
//
// Thread safety: all methods may be called from any thread; frames are delivered by the executor.
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

// Payloads are copied as a wire would copy them.
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
      // Where no thread is left: a call must arrive to be refused, and a reply to be heard.
      delivery.refuse = [self = shared_from_this(), frame] { self->deliver(*frame); };
      executor_.schedule_call(std::move(delivery));
    }
    return true;
  }
  // Nobody is told: its only user is the agent, which ends it when it stops.
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
