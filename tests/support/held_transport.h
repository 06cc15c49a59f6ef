// An inproc transport that offers each arriving frame to the test before the worker gets it.
//
// The test may take a frame away and let it through later, in another order, twice, or never.
//
// Thread safety: none; for test clusters that run on one thread (ManualExecutor).
// Lifetime: the network and what `keep` captures outlive this object.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/transport/inproc_transport.h"

namespace weft::testing {

class HeldTransport final : public Transport, private TransportSink {
 public:
  // Returns true if the test took the frame. The worker gets it only by let_through().
  using Keep = std::function<bool(const ConnectionPtr& connection, Frame& frame)>;

  HeldTransport(InprocNetwork& network, Keep keep) : inner_(network), keep_(std::move(keep)) {}

  void let_through(const ConnectionPtr& connection, Frame frame) {
    if (frozen_) return;
    std::vector<Frame> frames;
    frames.push_back(std::move(frame));
    sink_->on_frames(connection, std::move(frames));
  }
  // From now on nothing reaches the worker, and nobody is told. It looks like a process that was
  // killed and whose death has not been noticed yet.
  void freeze() { frozen_ = true; }

  absl::Status listen() override { return inner_.listen(); }
  std::string address() const override { return inner_.address(); }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    sink_ = sink;
    return inner_.start(std::move(self), this);
  }
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override {
    inner_.connect(address, expected, deadline,
                   [this, callback = std::move(callback)](auto connection) mutable {
                     if (!frozen_) callback(std::move(connection));
                   });
  }
  void stop() override { inner_.stop(); }

 private:
  absl::Status on_accept(const PeerIdentity& peer) override {
    return frozen_ ? absl::UnavailableError("it was killed") : sink_->on_accept(peer);
  }
  void on_open(const ConnectionPtr& connection) override {
    if (!frozen_) sink_->on_open(connection);
  }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    for (Frame& frame : frames) {
      if (!keep_(connection, frame)) let_through(connection, std::move(frame));
    }
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override {
    if (!frozen_) sink_->on_closed(connection, std::move(reason));
  }

  InprocTransport inner_;
  const Keep keep_;
  TransportSink* sink_ = nullptr;
  bool frozen_ = false;
};

}  // namespace weft::testing
