// A member of a group that sends frames without running Weft, for what no honest caller sends.
//
// Thread safety: all methods may be called from any thread.
// Blocking: the constructor until the worker has joined and dialled; reply_to() and wait_for_end()
// 20 s.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/tests/support/worker_world.h"

namespace weft::testing {

// It is rank 0 of a group of two; rank 1 is a Worker.
class RawPeer final : public TransportSink {
 public:
  explicit RawPeer(const WorkerWorld::Customize& customize = nullptr) {
    WorkerOptions mine = world_.options_of(0, 2), its = world_.options_of(1, 2);
    its.lease.suspect_after = std::chrono::seconds(60);  // on a busy machine answers come late
    if (customize) customize(1, its);
    transport_ = mine.transport(clock_);
    EXPECT_TRUE(transport_->listen().ok());
    std::thread joining([&] { worker_ = std::make_unique<Worker>(Worker::join(its)); });
    JoinRequest request;
    request.group = mine.place.run_id;
    request.name = "raw";
    request.world_size = 2;
    request.address = transport_->address();
    const absl::StatusOr<JoinResult> joined = join_static_group(*mine.store, request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    self_ = joined->self;
    const std::string group = request.group + "/" + std::to_string(mine.place.group_epoch);
    // A worker dials members with a lower id, so this one is dialled.
    EXPECT_TRUE(transport_->start({group, "raw", self_}, this).ok());
    joining.join();
    MutexLock lock(mutex_);
    while (connection_ == nullptr) changed_.wait(mutex_);
  }
  ~RawPeer() override { transport_->stop(); }

  Worker& worker() { return *worker_; }

  // Sends the frame. If it has no source, destination or number, it gets this peer, the worker, or
  // the next number of the session.
  void send(Frame frame) {
    MutexLock lock(mutex_);
    if (!frame.header.source.valid()) frame.header.source = self_;
    if (!frame.header.destination.valid()) frame.header.destination = worker_->id();
    if (frame.header.sequence == 0) frame.header.sequence = ++sequence_;
    connection_->send(std::make_shared<const Frame>(std::move(frame)));
  }
  // Makes a call of one of this program's functions, without arguments. Its reply has the same
  // `number`.
  static Frame call_of(uint64_t number, const FunctionKey& function) {
    Frame frame;
    frame.header.kind = FrameKind::kCall;
    frame.header.call = number;
    frame.header.function = function.id;
    frame.header.fingerprint = function.fingerprint;
    return frame;
  }
  void call(uint64_t number, const FunctionKey& function, uint64_t budget_us = 0) {
    Frame frame = call_of(number, function);
    frame.header.budget_us = budget_us;
    send(std::move(frame));
  }
  void cancel(uint64_t number) {
    Frame frame;
    frame.header.kind = FrameKind::kCancel;
    frame.header.call = number;
    send(std::move(frame));
  }
  // Returns the status in the reply to a call; OK for a value. Cancelled: the worker closed the
  // connection instead. DeadlineExceeded: no reply came within 20 s.
  absl::Status reply_to(uint64_t number) {
    const TimePoint end = clock_.now() + std::chrono::seconds(20);
    MutexLock lock(mutex_);
    while (true) {
      for (const Frame& frame : replies_) {
        if (frame.header.call != number) continue;
        if ((frame.header.flags & kFlagError) == 0) return absl::OkStatus();
        wire::Meta meta;
        EXPECT_TRUE(meta.ParseFromString(frame.meta));
        return rpc_internal::decode_status(meta.status());
      }
      if (ended_) return absl::CancelledError("the worker ended the connection");
      if (!changed_.wait_until(mutex_, end)) return absl::DeadlineExceededError("no reply");
    }
  }
  // Waits until the worker has closed the connection; returns false after 20 s.
  bool wait_for_end() {
    const TimePoint end = clock_.now() + std::chrono::seconds(20);
    MutexLock lock(mutex_);
    while (!ended_) {
      if (!changed_.wait_until(mutex_, end)) return ended_;
    }
    return true;
  }

  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const ConnectionPtr& connection) override {
    MutexLock lock(mutex_);
    connection_ = connection;
    changed_.notify_all();
  }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    MutexLock lock(mutex_);
    for (Frame& frame : frames) {
      if (frame.header.kind == FrameKind::kHeartbeat && (frame.header.flags & kFlagAnswer) == 0) {
        Frame answer;
        answer.header.kind = FrameKind::kHeartbeat;
        answer.header.flags = kFlagAnswer;
        answer.header.source = frame.header.destination;
        answer.header.destination = frame.header.source;
        answer.header.call = frame.header.call;
        connection->send(std::make_shared<const Frame>(std::move(answer)));
      }
      if (frame.header.kind == FrameKind::kReply) replies_.push_back(std::move(frame));
    }
    changed_.notify_all();
  }
  void on_closed(const ConnectionPtr&, absl::Status) override {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  SystemClock clock_;
  WorkerWorld world_{0};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Worker> worker_;
  WorkerId self_;
  Mutex mutex_;
  CondVar changed_;
  ConnectionPtr connection_ ABSL_GUARDED_BY(mutex_);
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Frame> replies_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::testing
