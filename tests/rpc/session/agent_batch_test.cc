// An agent that gets frames one batch at a time: how a session orders them.

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/rpc/session/agent.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using rpc_internal::IncomingCall;
using rpc_internal::Topic;
using testing::frame_of;

// One connection. The test delivers its frames.
class HandTransport final : public Transport {
 public:
  using Batch = std::vector<FramePtr>;
  static size_t count(const Batch& batch, FrameKind kind) {
    return std::count_if(batch.begin(), batch.end(),
                         [&](const FramePtr& frame) { return frame->header.kind == kind; });
  }

  class HandConnection final : public Connection {
   public:
    bool send(FrameBatch frames) override {
      MutexLock lock(mutex_);
      sent_.emplace_back(frames.begin(), frames.end());
      changed_.notify_all();
      return true;
    }
    void close() override { closed_.store(true); }
    void abort(absl::Status) override { closed_.store(true); }
    const PeerIdentity& peer() const override { return peer_; }
    StreamsBytes streams_of(const Frame&) const override { return {}; }
    bool read_reply(uint64_t, async_internal::FutureCore&, AcceptReply accept) override {
      return read_ != nullptr && read_(accept);
    }

    std::function<bool(AcceptReply)> read_ = nullptr;  // what a caller that reads finds
    bool closed() const { return closed_.load(); }
    std::vector<Batch> sent() {
      MutexLock lock(mutex_);
      return sent_;
    }
    // Waits until this many frames of this kind were sent, and returns all that was sent so far.
    std::vector<Batch> wait_for(FrameKind kind, size_t frames) {
      MutexLock lock(mutex_);
      while (true) {
        size_t there = 0;
        for (const Batch& batch : sent_) there += count(batch, kind);
        if (there >= frames) return sent_;
        changed_.wait(mutex_);
      }
    }

   private:
    const PeerIdentity peer_{"test", "w0", {0, 1}};
    std::atomic<bool> closed_{false};
    Mutex mutex_;
    CondVar changed_;
    std::vector<Batch> sent_ ABSL_GUARDED_BY(mutex_);
  };

  absl::Status listen() override { return absl::OkStatus(); }
  std::string address() const override { return "by hand"; }
  absl::Status start(PeerIdentity, TransportSink* sink) override {
    sink_ = sink;
    return absl::OkStatus();
  }
  void connect(const std::string&, const PeerIdentity&, TimePoint, ConnectCallback) override {}
  void stop() override {}

  TransportSink* sink_ = nullptr;
  const std::shared_ptr<HandConnection> connection_ = std::make_shared<HandConnection>();
};

// Worker 1, for whose peer 0 the test speaks.
class AgentBatchTest : public ::testing::Test {
 protected:
  AgentBatchTest() {
    rpc_internal::AgentOptions options;
    options.group = "test";
    options.self = {kSelf, "w1", transport_.address()};
    agent_.emplace(options, transport_, clock_, executor_);
    agent_->set_call_handler([this](const std::shared_ptr<IncomingCall>& call) {
      seen_ += absl::StrCat("c", call->header().call, call->context()->cancelled() ? "x" : "", " ");
      calls_.push_back(call);
    });
    agent_->set_post_handler(Topic::kRRef, [this](WorkerId, Frame frame) {
      absl::StrAppend(&seen_, "p", frame.header.sequence, " ");
    });
    agent_->set_post_handler(Topic::kAutograd, [this](WorkerId from, const Frame&) {
      agent_->declare_dead(from, absl::UnavailableError("is told to be dead"));
    });
    agent_->add_gone_listener([this](WorkerId, const absl::Status&, bool) { seen_ += "gone "; });
    EXPECT_TRUE(agent_->start({{kPeer, "w0", "there"}, {kSelf, "w1", "by hand"}}).ok());
    transport_.sink_->on_open(transport_.connection_);
  }
  ~AgentBatchTest() override {
    calls_.clear();
    agent_->stop();
    executor_.stop();
  }

  // The next frame of the session.
  Frame frame(FrameKind kind, uint64_t call = 0) {
    Frame frame;
    frame.header.kind = kind;
    frame.header.source = kPeer;
    frame.header.destination = kSelf;
    frame.header.sequence = ++sequence_;
    frame.header.call = call;
    if (kind == FrameKind::kPost) frame.header.function = static_cast<uint64_t>(Topic::kRRef);
    return frame;
  }
  void deliver(std::initializer_list<Frame> frames) {
    transport_.sink_->on_frames(transport_.connection_, frames);
  }
  // Makes a call of worker 1, whose result goes into `seen_`. Returns its number.
  uint64_t call_out() {
    const CallId id = agent_->call(
        kPeer, frame_of("x"), "f", kNever,
        [this](absl::StatusOr<Frame> reply) { seen_ += reply.ok() ? "reply " : "failed "; });
    return id.number;
  }

  static constexpr WorkerId kPeer{0, 1}, kSelf{1, 1};
  SystemClock clock_;
  ThreadExecutor executor_{clock_, {}};
  HandTransport transport_;
  std::optional<rpc_internal::Agent> agent_;
  uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<IncomingCall>> calls_;
  std::string seen_;
};

TEST_F(AgentBatchTest, ACancelFindsItsCallOnEitherSideOfIt) {
  deliver({frame(FrameKind::kCall, 1), frame(FrameKind::kCancel, 1), frame(FrameKind::kCancel, 2),
           frame(FrameKind::kCall, 2), frame(FrameKind::kCall, 3)});
  EXPECT_EQ(seen_, "c1 c2x c3 ");
  ASSERT_EQ(calls_.size(), 3u);
  EXPECT_TRUE(calls_[0]->context()->cancelled());
  EXPECT_FALSE(calls_[2]->context()->cancelled());
}

TEST_F(AgentBatchTest, WhatComesTwiceInItRunsOnce) {
  const Frame call = frame(FrameKind::kCall, 1), post = frame(FrameKind::kPost);
  deliver({call, post, call, post});
  deliver({post, call});
  EXPECT_EQ(seen_, "c1 p2 ");
}

TEST_F(AgentBatchTest, TheEndOfThePeerEndsItButRepliesAreKept) {
  const uint64_t answered = call_out(), unanswered = call_out();
  EXPECT_NE(answered, unanswered);
  const Frame first = frame(FrameKind::kPost);
  Frame death = frame(FrameKind::kPost);
  death.header.function = static_cast<uint64_t>(Topic::kAutograd);
  deliver({first, death, frame(FrameKind::kReply, answered), frame(FrameKind::kPost),
           frame(FrameKind::kCall, 1)});
  EXPECT_EQ(seen_, "p1 failed gone reply c1x ");
  calls_[0]->reply(Frame());
  EXPECT_TRUE(agent_->quiescent());
  deliver({frame(FrameKind::kPost), frame(FrameKind::kCall, 2)});
  EXPECT_EQ(seen_, "p1 failed gone reply c1x ");
}

TEST_F(AgentBatchTest, ACallerGetsTheReplyThatItHasReadAlthoughThePeerLeavesMeanwhile) {
  const uint64_t call = call_out();
  transport_.connection_->read_ = [&](Connection::AcceptReply accept) {
    EXPECT_TRUE(accept(transport_.connection_, frame(FrameKind::kReply, call)) == nullptr);
    deliver({frame(FrameKind::kGoodbye)});  // as the serving thread does before this one goes on
    transport_.sink_->on_closed(transport_.connection_, absl::OkStatus());
    return true;
  };
  Promise<int> result;
  agent_->read_reply(kPeer, CallId{call}, *result.state());
  EXPECT_EQ(seen_, "gone reply ");
  EXPECT_TRUE(agent_->quiescent());
}

// No call is open then, but the references that the late reply carries are still to be released.
TEST_F(AgentBatchTest, TheWorkerIsNotQuiescentBeforeALateReplyThatWasReadIsHandled) {
  const uint64_t call = call_out();
  agent_->cancel(kPeer, CallId{call});
  bool handled = false;
  agent_->set_late_reply_handler([&](WorkerId, const Frame&) { handled = true; });
  transport_.connection_->read_ = [&](Connection::AcceptReply accept) {
    EXPECT_TRUE(agent_->quiescent());
    EXPECT_TRUE(accept(transport_.connection_, frame(FrameKind::kReply, call)) == nullptr);
    EXPECT_FALSE(agent_->quiescent());
    return true;
  };
  Promise<int> result;
  agent_->read_reply(kPeer, CallId{call}, *result.state());
  EXPECT_TRUE(handled);
  EXPECT_TRUE(agent_->quiescent());
}

// Else its end would be reported on the thread of a caller, which may hold locks.
TEST_F(AgentBatchTest, AReplyThatBreaksTheProtocolLeavesTheEndOfThePeerToTheTransport) {
  const uint64_t call = call_out();
  // Both ends had dialled, and the peer replies on its own connection.
  const auto other = std::make_shared<HandTransport::HandConnection>();
  Connection::Task rest;
  transport_.connection_->read_ = [&](Connection::AcceptReply accept) {
    Frame liar = frame(FrameKind::kReply, call);
    liar.header.acknowledged = 1000;
    rest = accept(other, liar);
    return true;
  };
  Promise<int> result;
  agent_->read_reply(kPeer, CallId{call}, *result.state());
  EXPECT_EQ(seen_, "");
  ASSERT_TRUE(rest != nullptr);
  rest();
  EXPECT_EQ(seen_, "failed gone ");
  EXPECT_TRUE(other->closed());
}

// The first reply's handler may be a user's decoder that waits for the caller of the second one.
TEST_F(AgentBatchTest, TheDeadlineOfACallHoldsWhileEarlierRepliesAreHandled) {
  Promise<absl::StatusCode> second;
  bool waited = false;
  const CallId first_id =
      agent_->call(kPeer, frame_of("x"), "f", kNever, [&](const absl::StatusOr<Frame>&) {
        waited = second.future().wait_for(std::chrono::seconds(20));
      });
  const CallId second_id =
      agent_->call(kPeer, frame_of("x"), "f", clock_.now() + std::chrono::milliseconds(50),
                   [&](const absl::StatusOr<Frame>& reply) { second.set(reply.status().code()); });
  deliver({frame(FrameKind::kReply, first_id.number), frame(FrameKind::kReply, second_id.number)});
  EXPECT_TRUE(waited);
  EXPECT_EQ(second.future().wait(), absl::StatusCode::kDeadlineExceeded);
  // The timer's thread may still be inside the agent.
  EXPECT_TRUE(testing::eventually([&] { return agent_->quiescent(); }));
}

// A cancel would be retained for the next connection of a peer that is dead, so for ever.
TEST_F(AgentBatchTest, ACallThatIsLateWhenItsPeerIsGoneLeavesNoCancelBehind) {
  Promise<absl::StatusCode> second;
  const CallId first_id =
      agent_->call(kPeer, frame_of("x"), "f", kNever, [&](const absl::StatusOr<Frame>&) {
        agent_->declare_dead(kPeer, absl::UnavailableError("is told to be dead"));
        EXPECT_TRUE(second.future().wait_for(std::chrono::seconds(20)));
      });
  const CallId second_id =
      agent_->call(kPeer, frame_of("x"), "f", clock_.now() + std::chrono::seconds(1),
                   [&](const absl::StatusOr<Frame>& reply) { second.set(reply.status().code()); });
  deliver({frame(FrameKind::kReply, first_id.number), frame(FrameKind::kReply, second_id.number)});
  EXPECT_EQ(second.future().wait(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(testing::eventually([&] { return agent_->quiescent(); }));
  EXPECT_EQ(agent_->info().retained_frames, 0u);
}

TEST_F(AgentBatchTest, AFrameInAnothersNameEndsItThere) {
  Frame foreign = frame(FrameKind::kPost);
  foreign.header.source = {7, 1};
  --sequence_;
  const Frame after = frame(FrameKind::kPost);
  deliver({frame(FrameKind::kPost), foreign, after});
  EXPECT_EQ(seen_, absl::StrCat("p", after.header.sequence + 1, " "));
  EXPECT_TRUE(transport_.connection_->closed());
  EXPECT_TRUE(agent_->is_live(kPeer)) << "a new connection brings the rest";
}

TEST_F(AgentBatchTest, ALyingAcknowledgementIsTheEndOfThePeer) {
  Frame liar = frame(FrameKind::kPost);
  liar.header.acknowledged = 1000;
  const Frame after = frame(FrameKind::kPost);
  deliver({frame(FrameKind::kPost), liar, after});
  EXPECT_EQ(seen_, "p3 gone ");
  EXPECT_FALSE(agent_->is_live(kPeer));
}

TEST_F(AgentBatchTest, ACallWithoutANumberIsTheEndOfThePeer) {
  for (const FrameKind kind :
       {FrameKind::kAck, FrameKind::kCall, FrameKind::kHeartbeat, FrameKind::kCall}) {
    Frame bare = frame(kind, 1);
    bare.header.sequence = 0;
    deliver({bare});
  }
  EXPECT_EQ(seen_, "gone ");
  EXPECT_FALSE(agent_->is_live(kPeer));
}

TEST_F(AgentBatchTest, RepliesToCallsThatCameTogetherLeaveTogether) {
  constexpr uint64_t kCalls = 10;
  deliver({frame(FrameKind::kCall, 1)});  // a frame alone, before the test's own handler
  calls_[0]->reply(Frame());
  const size_t before = transport_.connection_->sent().size();
  std::vector<Frame> calls;
  for (uint64_t i = 2; i < 2 + kCalls; ++i) calls.push_back(frame(FrameKind::kCall, i));
  std::promise<void> end;
  bool delivered = false;
  {
    const auto serve_one = [&] {
      if (std::exchange(delivered, true)) {
        end.get_future().wait();
        return false;
      }
      const ServingThreads::Work work;
      transport_.sink_->on_frames(transport_.connection_, std::move(calls));
      for (const auto& call : calls_) {
        executor_.schedule_inline([call] { call->reply(Frame()); }, std::chrono::microseconds(1));
      }
      return true;
    };
    ServingThreads threads(serve_one, std::chrono::seconds(10), std::chrono::hours(1));
    auto batches = transport_.connection_->wait_for(FrameKind::kReply, 1 + kCalls);
    batches.erase(batches.begin(), batches.begin() + static_cast<ptrdiff_t>(before));
    EXPECT_EQ(std::count_if(batches.begin(), batches.end(),
                            [](const auto& batch) {
                              return HandTransport::count(batch, FrameKind::kReply) > 0;
                            }),
              1);
    end.set_value();
  }
}

}  // namespace
}  // namespace weft
