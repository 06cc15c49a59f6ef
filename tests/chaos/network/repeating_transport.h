// A gRPC transport that delivers arriving frames twice: at once, or after later frames.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: that of a Transport. Frames that wait for their repetition are dropped with it, or when
// their connection closes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/rpc/transport/grpc_transport.h"

namespace weft::chaos {

class RepeatingTransport final : public Transport, private TransportSink {
 public:
  // `repeated` counts the calls that were delivered twice. It must outlive this object.
  RepeatingTransport(Clock& clock, uint64_t seed, std::atomic<uint64_t>& repeated)
      : repeated_(repeated), random_(seed), inner_(clock) {}

  absl::Status listen() override { return inner_.listen(); }
  std::string address() const override { return inner_.address(); }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    sink_ = sink;
    return inner_.start(std::move(self), this);
  }
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override {
    inner_.connect(address, expected, deadline, std::move(callback));
  }
  void stop() override { inner_.stop(); }

 private:
  // The number of frames that may arrive before a frame is repeated.
  static constexpr size_t kMostHeld = 16;
  struct Held {
    ConnectionPtr connection;
    Frame frame;
  };

  absl::Status on_accept(const PeerIdentity& peer) override { return sink_->on_accept(peer); }
  void on_open(const ConnectionPtr& connection) override { sink_->on_open(connection); }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    std::vector<Frame> again;
    {
      MutexLock lock(mutex_);
      for (const Frame& frame : frames) held_.push_back({connection, frame});
      // Repeat all frames that are older than the allowed lag. Sometimes that is all, so the newest
      // are repeated at once.
      const size_t keep = random_() % 4 == 0 ? 0 : random_() % kMostHeld;
      for (size_t i = 0; i + keep < held_.size();) {
        if (held_[i].connection != connection) {
          ++i;
          continue;
        }
        if (held_[i].frame.header.kind == FrameKind::kCall) repeated_.fetch_add(1);
        again.push_back(std::move(held_[i].frame));
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    sink_->on_frames(connection, std::move(frames));
    if (!again.empty()) sink_->on_frames(connection, std::move(again));
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override {
    {
      MutexLock lock(mutex_);
      std::erase_if(held_, [&](const Held& held) { return held.connection == connection; });
    }
    sink_->on_closed(connection, std::move(reason));
  }

  std::atomic<uint64_t>& repeated_;
  TransportSink* sink_ = nullptr;  // set by start, before any callback
  Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  GrpcTransport inner_;  // last: it calls the above
};

}  // namespace weft::chaos
