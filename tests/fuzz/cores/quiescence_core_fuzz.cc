// The shutdown of a group, under arbitrary reports of members. The core must go through its stages
// in their order, and others must be able to read what it sends. The input is a sequence of events.
#include "weft/rpc/membership/internal/quiescence_core.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;

class Run {
 public:
  explicit Run(Bytes input)
      : input_(input),
        self_{static_cast<uint32_t>(input_.below(3)), 1},
        core_(self_, {{0, 1}, {1, 1}, {2, 1}}) {}

  void play() {
    while (!input_.empty()) {
      now_ += std::chrono::milliseconds(100);
      event();
      check();
    }
  }

 private:
  using Stage = rpc_internal::QuiescenceCore::Stage;
  WorkerId worker() { return {static_cast<uint32_t>(input_.below(4)), 1}; }

  void event() {
    switch (input_.below(11)) {
      case 0: {
        const size_t seconds = input_.below(4);
        core_.enter(seconds == 0 ? Timeout() : Timeout(std::chrono::seconds(seconds)), now_, out_);
        break;
      }
      case 1:
        core_.references_dropped(now_, out_);
        break;
      case 2:
        core_.idle(traffic(), now_, out_);
        break;
      case 3:
        core_.joined(worker(), out_);
        break;
      case 4:
        if (const WorkerId gone = worker(); gone != self_) core_.gone(gone, now_, out_);
        break;
      case 5:
        core_.tick(now_, out_);
        break;
      case 6:
        bytes();
        break;
      case 7:
        core_.busy(std::string(input_.chunk()), now_, out_);
        break;
      default:
        post();
    }
  }

  std::vector<rpc_internal::PeerTraffic> traffic() {
    std::vector<rpc_internal::PeerTraffic> traffic;
    for (size_t left = input_.below(4); left > 0; --left) {
      traffic.push_back({worker(), input_.below(3), input_.below(3)});
    }
    return traffic;
  }
  void bytes() {
    wire::MembershipPost post;
    const WorkerId from = worker();
    const std::string_view text = input_.chunk();
    if (post.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
      core_.receive(from, post, now_, out_);
    }
  }
  void post() {
    wire::MembershipPost post;
    const WorkerId from = worker();
    if (input_.below(4) == 0) {
      auto& phase_end = *post.mutable_phase_end();
      phase_end.set_phase(static_cast<uint32_t>(input_.below(4)));
      phase_end.set_timed_out(input_.flag());
      if (phase_end.timed_out()) phase_end.add_not_quiescent(worker().bits());
    } else {
      auto& report = *post.mutable_report();
      report.set_phase(static_cast<uint32_t>(input_.below(4)));
      report.set_version(input_.below(8));
      report.set_round(report.version());
      report.set_timeout_us(input_.number<uint8_t>());
      for (const rpc_internal::PeerTraffic& peer : traffic()) {
        auto& counter = *report.add_counters();
        counter.set_worker(peer.peer.bits());
        counter.set_sent(peer.sent);
        counter.set_received(peer.received);
      }
    }
    core_.receive(from, post, now_, out_);
  }

  void check() {
    require(core_.stage() >= stage_, "a stage comes back");
    stage_ = core_.stage();
    require(stage_ == Stage::kEnded || !core_.timed_out(), "timed out, but goes on");
    for (const rpc_internal::MembershipMessage& message : out_) {
      require(message.to != self_, "a post to itself");
      wire::MembershipPost parsed;
      require(parsed.ParseFromString(message.post.SerializeAsString()), "an unreadable post");
    }
    out_.clear();
  }

  Bytes input_;
  const WorkerId self_;
  rpc_internal::QuiescenceCore core_;
  TimePoint now_;
  Stage stage_ = Stage::kOpen;
  rpc_internal::MembershipMessages out_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
