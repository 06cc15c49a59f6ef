// GrpcConnection joins up to three streams into one connection between two workers.
//
// The control stream carries small frames and is open first. The bulk stream carries large frames
// once it is open. The heartbeat stream is dialled when one of the two ends sends a heartbeat.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the transport, its connections and its streams share one GrpcShared.
// Protocol: proto/weft.proto, section "Streams".
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/links/grpc_sockets.h"
#include "weft/links/grpc_tls.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/transport/internal/grpc_stream.h"
#include "weft/security/certificates.h"

namespace weft::rpc_internal {

// The state that a transport shares with its connections and streams, dialled and accepted ones.
struct GrpcShared {
  GrpcShared(Clock& clock_in, GrpcTransportOptions options_in)
      : clock(clock_in), options(std::move(options_in)) {
    renew_sockets();
  }

  Clock& clock;
  const GrpcTransportOptions options;
  std::unique_ptr<GrpcTls> tls;        // of all connections; `listen` sets it
  std::optional<GrpcSockets> sockets;  // never empty
  BufferPool pool;
  // The queue of all streams, dialled and accepted ones; `listen` sets it. There is only one, and
  // one thread at a time serves it. In gRPC 1.51, one thread of the process waits in epoll for all
  // queues. With a second queue, that thread would have to wake another one to pass events on.
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  Mutex mutex;
  CondVar changed;
  PeerIdentity self ABSL_GUARDED_BY(mutex);
  TransportSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::map<GrpcStream*, std::weak_ptr<GrpcStream>> streams ABSL_GUARDED_BY(mutex);  // not done yet
  int callbacks ABSL_GUARDED_BY(mutex) = 0;
  int accepting ABSL_GUARDED_BY(mutex) = 0;  // streams that gRPC may still accept
  // Streams whose hello came before `start`, each with the function that answers it.
  std::vector<std::pair<const GrpcStream*, std::function<void()>>> waiting ABSL_GUARDED_BY(mutex);
  WarningLimit refusals;  // of workers
  uint64_t next_connection ABSL_GUARDED_BY(mutex) = std::random_device()() | 1;

  // Sockets that have listened in vain cannot listen again.
  void renew_sockets() {
    sockets.emplace(clock, options.listen_address, options.most_unproven, options.tls != nullptr);
  }
  void add(const std::shared_ptr<GrpcStream>& stream) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    streams.emplace(stream.get(), stream);
  }
  void remove(GrpcStream* stream) ABSL_LOCKS_EXCLUDED(mutex) {
    std::function<void()> unanswered;  // destroyed outside the lock
    MutexLock lock(mutex);
    streams.erase(stream);
    const auto found = std::find_if(waiting.begin(), waiting.end(),
                                    [stream](const auto& one) { return one.first == stream; });
    if (found != waiting.end()) {
      unanswered = std::move(found->second);
      waiting.erase(found);
    }
    changed.notify_all();
  }
  void count_accepting(int more) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    accepting += more;
    changed.notify_all();
  }
  // Runs `f(sink)`. Does nothing if the transport has not started or has stopped, or, unless
  // `even_stopped`, if `stop` has begun.
  template <class F>
  void with_sink(F f, bool even_stopped = true) ABSL_LOCKS_EXCLUDED(mutex) {
    TransportSink* target = nullptr;
    {
      MutexLock lock(mutex);
      if (sink == nullptr || (stopped && !even_stopped)) return;
      target = sink;
      ++callbacks;
    }
    const absl::Cleanup done = [this] {  // also if `f` throws: stop waits for it
      MutexLock lock(mutex);
      --callbacks;
      changed.notify_all();
    };
    f(*target);
  }
};
using GrpcSharedPtr = std::shared_ptr<GrpcShared>;

// One end of a connection, dialled or accepted. Until the bulk stream or the heartbeat stream is
// open, the control stream carries its frames.
class GrpcConnection final : public Connection,
                             public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(GrpcSharedPtr shared, PeerIdentity peer, uint64_t number)
      : shared_(std::move(shared)), peer_(std::move(peer)), number_(number) {}

  bool send(FrameBatch frames) override ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<GrpcStream> streams[kStreams];
    FrameBatch parts[kStreams];
    const auto heartbeats = [](const FramePtr& frame) { return is_heartbeat(frame->header); };
    const bool has_heartbeats = std::any_of(frames.begin(), frames.end(), heartbeats);
    {
      MutexLock lock(mutex_);
      if (streams_[kControlStream] == nullptr) return false;
      std::copy(std::begin(streams_), std::end(streams_), streams);
      if (has_heartbeats) {
        for (const FramePtr& heartbeat : take_if(frames, heartbeats)) {
          const StreamSet route = heartbeat_routes_.route(heartbeat->header, standing());
          for (size_t kind = 0; kind < kStreams; ++kind) {
            if (route[kind]) parts[kind].push_back(heartbeat);
          }
        }
      }
    }
    if (has_heartbeats) dial_heartbeats();
    if (streams[kBulkStream] != nullptr) {
      const FrameBatch bulk =
          take_if(frames, [&](const FramePtr& frame) { return is_large(*frame); });
      parts[kBulkStream].insert(parts[kBulkStream].end(), bulk.begin(), bulk.end());
    }
    bool taken = frames.empty() || streams[kControlStream]->send(std::move(frames));
    // Each stream is given its frames even if another one refuses. A refusal of the heartbeat
    // stream does not count, because that stream may close without the connection.
    for (size_t kind = 0; kind < kStreams; ++kind) {
      if (parts[kind].empty()) continue;
      taken = (streams[kind]->send(std::move(parts[kind])) || kind == kHeartbeatStream) && taken;
    }
    return taken;
  }
  // At the dialling end: sets the function that dials the heartbeat stream. It runs when either end
  // sends a heartbeat while there is no such stream. `heartbeats_dialled` follows each dial.
  void set_heartbeat_dialler(std::function<void()> dial) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    heartbeat_dialler_ = std::move(dial);
  }
  void heartbeats_dialled() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    dialling_heartbeats_ = false;
  }
  void close() override ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    for (const auto& stream : streams()) stream->end();
  }
  void abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      closing_ = false;
    }
    finish(std::move(reason));
  }
  const PeerIdentity& peer() const override { return peer_; }
  // At the dialling end, before anybody else knows the connection: the far end has told its role.
  void set_peer_role(std::string role) { peer_.role = std::move(role); }
  StreamsBytes streams_of(const Frame& frame) const override ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<GrpcStream> small, bulk;
    {
      MutexLock lock(mutex_);
      small = streams_[kControlStream];
      bulk = streams_[kBulkStream];
    }
    StreamsBytes streams;
    if (small != nullptr) streams.push_back(small->bytes());
    // A large frame travels on the control stream if the bulk stream was not open yet.
    if (bulk != nullptr && is_large(frame)) streams.push_back(bulk->bytes());
    return streams;
  }

  uint64_t number() const { return number_; }
  void set_stream(StreamKind kind, std::shared_ptr<GrpcStream> stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<GrpcStream> earlier;
    bool cut = false;
    {
      MutexLock lock(mutex_);
      cut = cut_;
      if (!closed_) {
        earlier = std::exchange(streams_[kind], std::exchange(stream, nullptr));
        if (kind == kHeartbeatStream) heartbeat_routes_.restart();
      }
    }
    if (earlier != nullptr) earlier->cut();  // the far end has given it up
    if (stream == nullptr) return;
    // The connection has closed meanwhile, so this stream is closed as its others were.
    cut ? stream->cut() : stream->end();
  }
  void received(StreamKind kind, std::vector<Frame> frames) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<GrpcStream> hung;
    bool has_heartbeats = false;
    TimePoint now;
    {
      MutexLock lock(mutex_);
      if (closed_) return;  // the bulk stream may read on after the connection closed
      ++delivering_;
      for (const Frame& frame : frames) {
        if (!is_heartbeat(frame.header)) continue;
        if (!std::exchange(has_heartbeats, true)) now = shared_->clock.now();
        if (!heartbeat_routes_.on_read(frame.header, kind, standing(), now)) continue;
        hung = std::exchange(streams_[kHeartbeatStream], nullptr);
        heartbeat_routes_.restart();
      }
    }
    if (hung != nullptr) {
      log_warning("heartbeats of worker '", peer_.name, "' (", peer_.id.to_string(),
                  ") come on other streams than their own, which is cut");
      hung->cut();
    }
    if (has_heartbeats) dial_heartbeats();
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_frames(shared_from_this(), std::move(frames)); });
    {
      MutexLock lock(mutex_);
      if (--delivering_ > 0 || !closed_) return;
    }
    report_closed();
  }
  // Called when a stream has closed. Whether the connection closes with it depends on the stream:
  //
  // - The control stream: the connection closes.
  //
  // - The bulk stream: the connection closes if the stream was cut, because frames on it are lost.
  //   A bulk stream that closes in order has delivered everything.
  //
  // - The heartbeat stream: the connection stays, because nothing on this stream has to arrive. The
  //   next heartbeat makes the dialling end dial it again.
  void stream_ended(StreamKind kind, const GrpcStream& ended, absl::Status reason)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (kind == kControlStream || (kind == kBulkStream && !reason.ok())) {
      finish(std::move(reason));
      return;
    }
    MutexLock lock(mutex_);
    if (streams_[kind].get() != &ended) return;  // it was replaced, or the connection has closed
    streams_[kind] = nullptr;
    if (kind == kHeartbeatStream) heartbeat_routes_.restart();
  }

 private:
  bool is_large(const Frame& frame) const {
    return frame.payload_bytes() + frame.body.size() > shared_->options.bulk_from;
  }
  StreamSet standing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    StreamSet set;
    for (size_t kind = 0; kind < kStreams; ++kind) set[kind] = streams_[kind] != nullptr;
    return set;
  }

  // Closes the connection and the streams that are left. After an error it does not wait for the
  // far end, because that may hang.
  void finish(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::shared_ptr<GrpcStream>> rest;
    bool report = false, cut = false;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      closed_ = true;
      // If close() was called at this end, queued frames are still written.
      cut = cut_ = !reason.ok() && !closing_;
      for (auto& stream : streams_) {
        if (stream != nullptr) rest.push_back(std::move(stream));
        stream = nullptr;
      }
      // After an error on one stream, the far end may close another stream in order. Then the error
      // is the reason.
      for (const auto& stream : rest) {
        if (reason.ok()) reason = stream->reason();
      }
      reason_ = std::move(reason);
      report = delivering_ == 0;
    }
    for (const auto& stream : rest) cut ? stream->cut() : stream->end();
    if (report) report_closed();
  }
  std::vector<std::shared_ptr<GrpcStream>> streams() const ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::shared_ptr<GrpcStream>> all;
    MutexLock lock(mutex_);
    for (const auto& stream : streams_) {
      if (stream != nullptr) all.push_back(stream);
    }
    return all;
  }

  // Removes and returns the frames for which `is_taken` is true; both parts keep their order.
  template <class IsTaken>
  static FrameBatch take_if(FrameBatch& frames, IsTaken is_taken) {
    FrameBatch taken;
    const auto rest = std::stable_partition(
        frames.begin(), frames.end(), [&](const FramePtr& frame) { return !is_taken(frame); });
    std::move(rest, frames.end(), std::back_inserter(taken));
    frames.erase(rest, frames.end());
    return taken;
  }
  // Dials the heartbeat stream if there is none. The accepting end cannot dial: its heartbeat on
  // another stream makes the dialling end do it.
  void dial_heartbeats() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::function<void()> dial;
    {
      MutexLock lock(mutex_);
      if (closed_ || dialling_heartbeats_ || heartbeat_dialler_ == nullptr ||
          streams_[kHeartbeatStream] != nullptr) {
        return;
      }
      dialling_heartbeats_ = true;
      dial = heartbeat_dialler_;
    }
    dial();
  }

  // Runs once: when the connection closes, or after the last of the deliveries that run then.
  void report_closed() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      reason = reason_;
    }
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_closed(shared_from_this(), std::move(reason)); });
  }

  const GrpcSharedPtr shared_;
  PeerIdentity peer_;  // does not change once the connection is in use
  const uint64_t number_;
  mutable Mutex mutex_;
  std::shared_ptr<GrpcStream> streams_[kStreams] ABSL_GUARDED_BY(mutex_);
  HeartbeatRoutes heartbeat_routes_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> heartbeat_dialler_ ABSL_GUARDED_BY(mutex_);
  bool dialling_heartbeats_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // close() was called
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;     // the streams were cut; set with closed_
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // why it closed
  int delivering_ ABSL_GUARDED_BY(mutex_) = 0;   // calls of on_frames that run
};
using GrpcConnectionPtr = std::shared_ptr<GrpcConnection>;

}  // namespace weft::rpc_internal
