// The session and the credit of one peer, under arbitrary frame headers. A sequence number must be
// let through once, and a call answered once. No call may be sent without a valid lease. The sums
// must match what the core keeps. The input is a sequence of events.
#include <set>

#include "weft/rpc/session/internal/peer.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;

constexpr WorkerId kSelf{0, 1};
constexpr WorkerId kPeer{1, 1};
constexpr rpc_internal::CreditWindow kWindow{.calls = 4,
                                             .bytes = 4096,
                                             .max_queued_calls = 8,
                                             .max_queued_bytes = 16384,
                                             .max_result_bytes = 16384};

class Run {
 public:
  explicit Run(Bytes input) : input_(input), core_(kSelf, kPeer, kWindow) {}

  void play() {
    while (!input_.empty()) {
      event();
      check();
    }
    (void)core_.take_outgoing();
    const size_t frames = core_.session().unacknowledged().size();
    require(core_.take_all_frames().size() == frames, "a frame to a dead peer is lost or doubled");
    core_.take_all_calls();
    require(core_.pending_calls() == 0 && core_.queued_calls() == 0, "a call is left");
    require(core_.session().retained_bytes() == 0 && core_.session().retained_call_bytes() == 0,
            "bytes are left");
  }

 private:
  // A value near the true one, or any value.
  uint64_t about(uint64_t truth) {
    const size_t kind = input_.below(8);
    if (kind == 7) return input_.number<uint64_t>();
    return truth + kind - 3;
  }

  void event() {
    now_ += std::chrono::milliseconds(1);
    switch (input_.below(12)) {
      case 0:
      case 1:
        add_call();
        break;
      case 2:
        (void)core_.take_call(1 + input_.below(32));
        break;
      case 3:
        reply();
        break;
      case 4:
        core_.cancel(1 + input_.below(32));
        break;
      case 5:
        for (const auto& frame : core_.resend()) require_stamped(*frame);
        break;
      case 6:
        for (const auto& late : core_.take_late(now_)) require(late.first != 0, "no call is late");
        break;
      case 7:
        taken();
        break;
      case 8:
        (void)core_.admitted(input_.below(8));
        break;
      case 9:
        valid_until_ = input_.flag() ? kNever : now_ + std::chrono::milliseconds(input_.below(8));
        core_.set_valid_until(valid_until_, now_);
        break;
      default:
        header();
    }
    for (const auto& frame : core_.take_outgoing()) {
      require_stamped(*frame);
      require(frame->header.kind != FrameKind::kCall || now_ < valid_until_,
              "a call goes out without a valid lease");
    }
    if (core_.ack_due()) core_.send_ack();
    (void)core_.take_released();
  }

  void add_call() {
    Frame frame;
    frame.header.kind = FrameKind::kCall;
    frame.header.call = ++last_call_;
    frame.header.flags = input_.flag() ? kFlagNested : 0;
    frame.body.assign(size_t{16} * input_.number<uint8_t>(), 'x');
    rpc_internal::PendingCall pending;
    if (input_.flag()) pending.deadline = now_ + std::chrono::milliseconds(input_.below(16));
    pending.waited_for = input_.flag();
    (void)core_.add_call(last_call_, frame, std::move(pending), now_);
  }
  void reply() {
    Frame frame;
    frame.header.kind = FrameKind::kReply;
    frame.body.assign(size_t{64} * input_.number<uint8_t>(), 'x');
    core_.post(std::move(frame));
  }
  // A call of the peer leaves the queue. It must be one that has arrived.
  void taken() {
    if (arrived_.empty()) return;
    const auto [header, cost] = arrived_.back();
    arrived_.pop_back();
    core_.call_taken(header, cost);
  }
  void header() {
    Frame frame;
    FrameHeader& header = frame.header;
    header.kind = static_cast<FrameKind>(kFirstFrameKind + input_.below(kLastFrameKind - 1));
    header.flags = input_.number<uint8_t>();
    header.sequence = about(core_.session().acknowledged() + 1);
    header.acknowledged = about(core_.session().last_sequence());
    header.credit_calls = input_.below(32);
    header.credit_bytes = input_.number<uint16_t>();
    const uint64_t last = core_.session().last_sequence();
    const bool honest = core_.on_header(header, now_);
    require(!honest || header.acknowledged <= last, "what was never sent is acknowledged");
    if (!honest || header.sequence == 0) return;
    const bool fresh = core_.accept(frame);
    require(fresh == accepted_.insert(header.sequence).second, "a sequence is let through twice");
    if (fresh && header.kind == FrameKind::kCall) arrived_.emplace_back(header, frame.cost());
    if (fresh && header.kind == FrameKind::kCancel) core_.note_cancel(header);
  }

  void require_stamped(const Frame& frame) {
    require(frame.header.source == kSelf && frame.header.destination == kPeer, "not from this");
    require(frame.header.acknowledged <= core_.session().acknowledged(), "acknowledges too much");
  }
  void check() {
    const rpc_internal::SessionCore& session = core_.session();
    uint64_t dense = 0;
    while (accepted_.contains(dense + 1)) ++dense;
    require(session.acknowledged() == dense, "acknowledges something else than what has come");
    size_t bytes = 0, calls = 0;
    uint64_t before = 0;
    for (const FramePtr& frame : session.unacknowledged()) {
      require(frame->header.sequence > before, "retained frames are out of order");
      before = frame->header.sequence;
      bytes += frame->cost();
      if (frame->header.kind == FrameKind::kCall) calls += frame->cost();
    }
    require(session.retained_bytes() == bytes, "retained bytes are counted wrongly");
    require(session.retained_call_bytes() == calls, "retained calls are counted wrongly");
    require(core_.queued_calls() <= last_call_, "more calls wait than were made");
  }

  Bytes input_;
  TimePoint valid_until_ = kNever;
  rpc_internal::PeerCore core_;
  TimePoint now_;
  uint64_t last_call_ = 0;
  std::set<uint64_t> accepted_;
  std::vector<std::pair<FrameHeader, size_t>> arrived_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
