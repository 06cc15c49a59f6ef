// A whole agent with one peer that sends arbitrary frames, over a transport that does what the
// input says. Every call of the agent must be answered once. Every call of the peer must be
// answered at most once. The agent must send only frames that others accept. The input is a
// sequence of events.
#include <deque>
#include <set>

#include "weft/base/log.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;

const WorkerInfo kSelf{{1, 1}, "self", "here"};
const WorkerInfo kPeer{{0, 1}, "peer", "there"};
const TransportLimits kLimits{.max_frame_bytes = size_t{1} << 20, .max_payloads = 16};

class FakeConnection final : public Connection {
 public:
  bool send(FrameBatch frames) override {
    for (const FramePtr& frame : frames) {
      require(rpc_internal::check_frame(*frame, kLimits).ok(), "a frame is sent that nobody takes");
      require(rpc_internal::decode_head(rpc_internal::encode_head(*frame), kLimits).ok(),
              "a frame is sent that nobody reads");
      require(frame->header.source == kSelf.id && frame->header.destination == kPeer.id,
              "a frame of somebody else is sent");
      last_sequence = std::max(last_sequence, frame->header.sequence);
    }
    return !closed;
  }
  void close() override { closed = true; }
  void abort(absl::Status) override { closed = true; }
  const PeerIdentity& peer() const override { return peer_; }
  StreamsBytes streams_of(const Frame&) const override { return {}; }

  bool closed = false;
  uint64_t last_sequence = 0;

 private:
  const PeerIdentity peer_{"group", kPeer.name, kPeer.id};
};
using FakeConnectionPtr = std::shared_ptr<FakeConnection>;

class FakeTransport final : public Transport {
 public:
  absl::Status listen() override { return absl::OkStatus(); }
  std::string address() const override { return kSelf.address; }
  absl::Status start(PeerIdentity, TransportSink*) override { return absl::OkStatus(); }
  void connect(const std::string&, const PeerIdentity&, TimePoint, ConnectCallback done) override {
    dials.push_back(std::move(done));
  }
  void stop() override { dials.clear(); }

  std::deque<ConnectCallback> dials;
};

class FakeExecutor final : public Executor {
 public:
  void schedule(Task task) override { tasks.push_back(std::move(task)); }
  bool idle() const override { return tasks.empty(); }
  void run() {
    while (!tasks.empty()) {
      Task task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }
  std::deque<Task> tasks;
};

class Run {
 public:
  explicit Run(Bytes input)
      : input_(input),
        agent_({.group = "group",
                .self = kSelf,
                .credit = {.calls = 2, .bytes = 4096, .max_queued_calls = 4},
                .limits = kLimits},
               transport_, clock_, executor_) {}

  void play() {
    agent_.set_call_handler([this](const std::shared_ptr<rpc_internal::IncomingCall>& call) {
      require(call->from() == kPeer.id, "a call of nobody");
      require(called_.insert(call->header().sequence).second && call->header().sequence != 0,
              "a call that may run twice");
      incoming_.push_back(call);
    });
    for (const rpc_internal::Topic topic :
         {rpc_internal::Topic::kMembership, rpc_internal::Topic::kRRef,
          rpc_internal::Topic::kAutograd}) {
      agent_.set_post_handler(topic, [](WorkerId from, const Frame& frame) {
        require(from == kPeer.id && frame.header.kind == FrameKind::kPost, "a post of nobody");
      });
    }
    agent_.add_gone_listener([this](WorkerId peer, const absl::Status& reason, bool) {
      require(peer == kPeer.id && !std::exchange(gone_, true), "a peer goes twice");
      require_refusal(reason);
    });
    require(agent_.start({kPeer, kSelf}).ok(), "the agent does not start");
    while (!input_.empty()) {
      event();
      executor_.run();
    }
    incoming_.clear();
    agent_.stop();
    executor_.run();
    require(open_ == 0, "a call was never answered");
  }

 private:
  uint64_t about(uint64_t truth) {
    const size_t kind = input_.below(8);
    if (kind == 7) return input_.number<uint64_t>();
    return truth + kind - 3;
  }

  void event() {
    switch (input_.below(12)) {
      case 0:
        open_connection();
        break;
      case 1:
        close_connection();
        break;
      case 2:
        call();
        break;
      case 3:
        agent_.cancel(kPeer.id, CallId{1 + input_.below(8)});
        break;
      case 4:
        answer();
        break;
      case 5:
        agent_.post(kPeer.id, static_cast<rpc_internal::Topic>(1 + input_.below(3)),
                    std::string(3, 'p'));
        break;
      case 6:
        clock_.advance(std::chrono::milliseconds(input_.below(256)));
        (void)agent_.look_at_peers();
        break;
      case 7:
        if (!transport_.dials.empty()) {
          auto done = std::move(transport_.dials.front());
          transport_.dials.pop_front();
          done(absl::UnavailableError("nobody there"));
        }
        break;
      default:
        frames();
    }
  }

  void open_connection() {
    const PeerIdentity peer{"group", kPeer.name, kPeer.id};
    if (connections_.size() == 4 || !agent_.on_accept(peer).ok()) return;
    connections_.push_back(std::make_shared<FakeConnection>());
    agent_.on_open(connections_.back());
  }
  void close_connection() {
    if (connections_.empty()) return;
    const FakeConnectionPtr connection = connections_.back();
    connections_.pop_back();
    agent_.on_closed(connection, absl::UnavailableError("reset"));
  }
  void call() {
    Frame frame;
    frame.body.assign(size_t{8} * input_.number<uint8_t>(), 'b');
    const TimePoint deadline =
        input_.flag() ? kNever : clock_.now() + std::chrono::milliseconds(input_.below(64));
    ++open_;
    auto once = std::make_shared<bool>(false);
    agent_.call(kPeer.id, std::move(frame), "f", deadline,
                [this, once](absl::StatusOr<Frame> reply) {
                  require(!std::exchange(*once, true), "a call is answered twice");
                  if (!reply.ok()) require_refusal(reply.status());
                  --open_;
                });
  }
  void answer() {
    if (incoming_.empty()) return;
    const auto call = incoming_.back();
    incoming_.pop_back();
    call->taken();
    if (input_.flag()) {
      call->reply(Frame());
    } else {
      call->reply(absl::UnknownError("threw"));
    }
  }
  void frames() {
    if (connections_.empty()) return;
    const FakeConnectionPtr connection = connections_[input_.below(256) % connections_.size()];
    std::vector<Frame> frames(1 + input_.below(3));
    for (Frame& frame : frames) fill(frame);
    agent_.on_frames(connection, std::move(frames));
    if (!connection->closed) return;
    std::erase(connections_, connection);
    agent_.on_closed(connection, absl::OkStatus());
  }
  void fill(Frame& frame) {
    FrameHeader& header = frame.header;
    header.kind = static_cast<FrameKind>(kFirstFrameKind + input_.below(kLastFrameKind - 1));
    header.flags = input_.number<uint8_t>();
    header.source = input_.below(32) == 0 ? kSelf.id : kPeer.id;
    header.destination = kSelf.id;
    header.sequence = about(next_);
    if (header.sequence == next_) ++next_;
    uint64_t last = 0;
    for (const FakeConnectionPtr& one : connections_) last = std::max(last, one->last_sequence);
    header.acknowledged = input_.below(4) == 0 ? about(last) : 0;
    header.call = input_.below(8);
    header.function = input_.below(6);
    if (input_.below(4) == 0) header.budget_us = input_.number<uint64_t>();
    if (input_.below(4) == 0) header.credit_calls = input_.below(8);
    if (input_.below(4) == 0) header.credit_bytes = input_.number<uint16_t>();
    frame.meta = std::string(input_.take(input_.below(4)));
  }

  Bytes input_;
  ManualClock clock_;
  FakeExecutor executor_;
  FakeTransport transport_;
  rpc_internal::Agent agent_;
  std::vector<FakeConnectionPtr> connections_;
  std::deque<std::shared_ptr<rpc_internal::IncomingCall>> incoming_;
  std::set<uint64_t> called_;  // by sequence
  uint64_t next_ = 1;
  int open_ = 0;
  bool gone_ = false;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::set_log_sink([](weft::LogLevel, std::string_view) {});
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
