// One connection between two workers: a stream for small frames, one for large frames as soon as it
// stands, and one for beats from the first beat on.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: connections and streams share what they have in common with the transport.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/rpc/grpc_transport.h"
#include "weft/rpc/internal/grpc_stream.h"

namespace weft::internal {

// What both ends' connections and streams share with the transport.
struct GrpcShared {
  explicit GrpcShared(GrpcTransportOptions options_in) : options(std::move(options_in)) {}

  const GrpcTransportOptions options;
  BufferPool pool;
  // Of all streams, at both ends; set by listen. One queue, served by one thread at a time:
  // gRPC 1.51 lets one thread of the process wait in epoll for all queues, and a second queue's
  // would be woken to pass events on.
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  Mutex mutex;
  CondVar changed;
  PeerIdentity self ABSL_GUARDED_BY(mutex);
  TransportSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::map<GrpcStream*, std::weak_ptr<GrpcStream>> streams ABSL_GUARDED_BY(mutex);  // not done yet
  int callbacks ABSL_GUARDED_BY(mutex) = 0;
  int accepting ABSL_GUARDED_BY(mutex) = 0;  // streams that gRPC may still accept
  std::vector<std::function<void()>> waiting ABSL_GUARDED_BY(mutex);  // hellos before start
  uint64_t next_connection ABSL_GUARDED_BY(mutex) = std::random_device()() | 1;

  void add(const std::shared_ptr<GrpcStream>& stream) {
    MutexLock lock(mutex);
    streams.emplace(stream.get(), stream);
  }
  void remove(GrpcStream* stream) {
    MutexLock lock(mutex);
    streams.erase(stream);
    changed.notify_all();
  }
  void count_accepting(int more) {
    MutexLock lock(mutex);
    accepting += more;
    changed.notify_all();
  }
  // Runs `f(sink)` unless the transport has not started or has stopped. While it stops, only what
  // ends is still reported.
  template <class F>
  void with_sink(F f, bool even_stopped = true) {
    TransportSink* target = nullptr;
    {
      MutexLock lock(mutex);
      if (sink == nullptr || (stopped && !even_stopped)) return;
      target = sink;
      ++callbacks;
    }
    f(*target);
    MutexLock lock(mutex);
    --callbacks;
    changed.notify_all();
  }
};
using GrpcSharedPtr = std::shared_ptr<GrpcShared>;

// One connection at either end. What a further stream would carry travels on the first one until
// it stands.
class GrpcConnection final : public Connection,
                             public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(GrpcSharedPtr shared, PeerIdentity peer, uint64_t number)
      : shared_(std::move(shared)), peer_(std::move(peer)), number_(number) {}

  bool send(FrameBatch frames) override {
    std::shared_ptr<GrpcStream> lanes[StreamService::kLanes];
    {
      MutexLock lock(mutex_);
      std::copy(std::begin(lanes_), std::end(lanes_), lanes);
    }
    if (lanes[0] == nullptr) return false;
    FrameBatch bulk, beats;
    if (lanes[StreamService::kBulk] != nullptr) {
      bulk = take_if(frames, [&](const FramePtr& frame) {
        return frame->payload_bytes() + frame->body.size() > shared_->options.bulk_from;
      });
    }
    const auto is_beat = [](const FramePtr& frame) {
      return frame->header.kind == FrameKind::kBeat;
    };
    if (lanes[StreamService::kBeats] != nullptr) {
      beats = take_if(frames, is_beat);
    } else if (std::any_of(frames.begin(), frames.end(), is_beat)) {
      dial_beats();
    }
    const bool taken = frames.empty() || lanes[0]->send(std::move(frames));
    return taken && (bulk.empty() || lanes[StreamService::kBulk]->send(std::move(bulk))) &&
           (beats.empty() || lanes[StreamService::kBeats]->send(std::move(beats)));
  }
  // At the dialling end: how the stream for beats is dialled. Runs at most once.
  void set_beats_dialler(std::function<void()> dial) {
    MutexLock lock(mutex_);
    beats_dialler_ = std::move(dial);
  }
  void close() override {
    for (const auto& stream : lanes()) stream->end();
  }
  const PeerIdentity& peer() const override { return peer_; }
  size_t queued_bytes() const override {
    size_t total = 0;
    for (const auto& stream : lanes()) total += stream->queued_bytes();
    return total;
  }

  uint64_t number() const { return number_; }
  void set_lane(size_t lane, std::shared_ptr<GrpcStream> stream) {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        lanes_[lane] = std::move(stream);
        return;
      }
    }
    stream->end();  // the other lane took the connection down
  }
  void received(std::vector<Frame> frames) {
    {
      MutexLock lock(mutex_);
      if (closed_) return;  // the bulk lane may end after the connection
      ++delivering_;
    }
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_frames(shared_from_this(), std::move(frames)); });
    {
      MutexLock lock(mutex_);
      if (--delivering_ > 0 || !closed_) return;
    }
    report_closed();
  }
  // The first lane's end is the connection's; so is another one's that was cut, since what was on
  // it is lost. One that ends in order has delivered everything.
  void lane_ended(GrpcStream& ended, absl::Status reason) {
    std::vector<std::shared_ptr<GrpcStream>> rest;
    bool report = false;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      if (lanes_[0].get() != &ended && reason.ok()) {
        for (auto& stream : lanes_) {
          if (stream.get() == &ended) stream = nullptr;
        }
        return;
      }
      closed_ = true;
      for (auto& stream : lanes_) {
        if (stream != nullptr) rest.push_back(std::move(stream));
        stream = nullptr;
      }
      // The far end answers an error on one lane by ending the other in order.
      for (const auto& stream : rest) {
        if (reason.ok() && stream.get() != &ended) reason = stream->reason();
      }
      reason_ = std::move(reason);
      report = delivering_ == 0;
    }
    for (const auto& stream : rest) stream->end();
    if (report) report_closed();
  }

 private:
  std::vector<std::shared_ptr<GrpcStream>> lanes() const {
    std::vector<std::shared_ptr<GrpcStream>> all;
    MutexLock lock(mutex_);
    for (const auto& stream : lanes_) {
      if (stream != nullptr) all.push_back(stream);
    }
    return all;
  }

  // Moves out what `is_taken`; keeps the order of both parts.
  template <class IsTaken>
  static FrameBatch take_if(FrameBatch& frames, IsTaken is_taken) {
    FrameBatch taken;
    const auto rest = std::stable_partition(
        frames.begin(), frames.end(), [&](const FramePtr& frame) { return !is_taken(frame); });
    std::move(rest, frames.end(), std::back_inserter(taken));
    frames.erase(rest, frames.end());
    return taken;
  }
  void dial_beats() {
    std::function<void()> dial;
    {
      MutexLock lock(mutex_);
      dial.swap(beats_dialler_);
    }
    if (dial) dial();
  }

  // Once: by the lane that ended, or by the last frame that was being delivered then.
  void report_closed() {
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      reason = reason_;
    }
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_closed(shared_from_this(), std::move(reason)); });
  }

  const GrpcSharedPtr shared_;
  const PeerIdentity peer_;
  const uint64_t number_;
  mutable Mutex mutex_;
  std::shared_ptr<GrpcStream> lanes_[StreamService::kLanes] ABSL_GUARDED_BY(mutex_);
  std::function<void()> beats_dialler_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // of the end
  int delivering_ ABSL_GUARDED_BY(mutex_) = 0;   // frames that the sink has and has not returned
};
using GrpcConnectionPtr = std::shared_ptr<GrpcConnection>;

}  // namespace weft::internal
