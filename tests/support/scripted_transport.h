// A transport without a network: the test answers each dial, and speaks for the far ends.
//
// Thread safety: none; for agents on a ManualClock and a ManualExecutor.
// Lifetime: deliver() and sink() need an earlier start().
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/transport/transport.h"

namespace weft::testing {

class ScriptedConnection final : public Connection {
 public:
  explicit ScriptedConnection(PeerIdentity peer) : peer_(std::move(peer)) {}

  std::vector<FramePtr> sent;
  std::function<void()> on_first_send;  // runs once, inside send()
  int closed = 0;                       // times close() was called; the test calls `on_closed`
  absl::Status aborted;                 // the reason given to abort(); the test calls `on_closed`
  bool refuses = false;                 // true: send() takes nothing and returns false
  StreamsBytes streams;                 // what streams_of() says of every frame
  std::optional<Payload> copy;          // what copy_payload() returns

  bool send(FrameBatch frames) override {
    if (refuses) return false;
    for (FramePtr& frame : frames) sent.push_back(std::move(frame));
    if (on_first_send) std::exchange(on_first_send, nullptr)();
    return true;
  }
  void close() override { ++closed; }
  void abort(absl::Status reason) override { aborted = std::move(reason); }
  const PeerIdentity& peer() const override { return peer_; }
  StreamsBytes streams_of(const Frame&) const override { return streams; }
  std::optional<Payload> copy_payload(const std::byte*, size_t) override { return copy; }

 private:
  const PeerIdentity peer_;
};
using ScriptedConnectionPtr = std::shared_ptr<ScriptedConnection>;

class ScriptedTransport final : public Transport {
 public:
  // Dials that are not answered yet.
  size_t dials() const { return dials_.size(); }
  // Answers the oldest dial with a connection, which it returns. fail_dial() answers it with an
  // error.
  ScriptedConnectionPtr answer_dial() {
    Dial dial = take();
    auto connection = std::make_shared<ScriptedConnection>(std::move(dial.expected));
    dial.callback(ConnectionPtr(connection));
    return connection;
  }
  void fail_dial(absl::Status why) { take().callback(std::move(why)); }
  TransportSink& sink() { return *sink_; }
  void deliver(const ConnectionPtr& connection, Frame frame) {
    std::vector<Frame> frames;
    frames.push_back(std::move(frame));
    sink_->on_frames(connection, std::move(frames));
  }

  absl::Status listen() override { return absl::OkStatus(); }
  std::string address() const override { return "script:0"; }
  absl::Status start(PeerIdentity, TransportSink* sink) override {
    sink_ = sink;
    return absl::OkStatus();
  }
  void connect(const std::string&, const PeerIdentity& expected, TimePoint,
               ConnectCallback callback) override {
    dials_.push_back({expected, std::move(callback)});
  }
  void stop() override { dials_.clear(); }

 private:
  struct Dial {
    PeerIdentity expected;
    ConnectCallback callback;
  };
  Dial take() {
    Dial dial = std::move(dials_.front());
    dials_.pop_front();
    return dial;
  }

  TransportSink* sink_ = nullptr;
  std::deque<Dial> dials_;
};

}  // namespace weft::testing
