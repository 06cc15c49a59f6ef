// The membership core under arbitrary notices, joiners and death records. A worker must go once and
// not come back. Other workers must be able to read what the core tells them. The input is a
// sequence of events.
#include <set>

#include "weft/proto/weft.pb.h"
#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;

constexpr WorkerId kSelf{0, 2};

class Run {
 public:
  explicit Run(Bytes input)
      : input_(input), core_({kSelf, "self", "here"}, LeaseOptions(), TimePoint()) {
    for (uint32_t index = 1; index < 4; ++index) {
      core_.add({{index, 2}, "w" + std::to_string(index), ""});
    }
  }

  void play() {
    while (!input_.empty()) {
      event();
      check();
    }
  }

 private:
  WorkerId worker() {
    return {static_cast<uint32_t>(input_.below(5)), static_cast<uint32_t>(input_.below(4))};
  }
  std::string text() { return std::string(input_.take(input_.below(8))); }
  DeathRecord death_record() {
    const WorkerId dead = worker();
    const WorkerId by = worker();
    return {dead, by, text()};
  }

  void event() {
    now_ += std::chrono::milliseconds(100);
    if (input_.flag()) core_.established();
    switch (input_.below(10)) {
      case 0: {
        const WorkerInfo joiner{worker(), text(), "there"};
        if (!joiner.id.valid()) break;
        const absl::Status admitted = core_.admit(joiner, out_);
        if (admitted.ok() || (absl::IsAborted(admitted) && compared(joiner))) {
          require(!gone_.contains(joiner.id), "a worker comes back");
        }
        break;
      }
      case 1: {
        const WorkerId left = worker();
        if (core_.is_live(left)) gone_.insert(left);
        core_.left(left);
        break;
      }
      case 2:
        core_.learn({death_record()}, out_);
        break;
      case 3:
        tick();
        break;
      case 4: {
        const WorkerId from = worker();
        core_.on_heartbeat_answer(from, input_.number<uint8_t>(), now_, out_);
        break;
      }
      case 5: {
        const WorkerId of = worker();
        const std::string why = text();
        if (input_.flag()) {
          core_.unanswered(of, absl::DeadlineExceededError(why), out_);
        } else {
          core_.suspect(of, absl::UnavailableError(why), out_);
        }
        break;
      }
      case 6: {
        const WorkerId by = worker();
        core_.refused(by, absl::PermissionDeniedError(text()), out_);
        break;
      }
      case 7:
        answer();
        break;
      default:
        notice();
    }
  }

  bool compared(const WorkerInfo& claimant) {
    require(out_.questions.empty(), "somebody is suspected for a claim");
    switch (input_.below(3)) {
      case 0:
        return core_.compared(claimant, absl::UnavailableError("no store"), out_);
      case 1:
        return core_.compared(claimant, std::optional<WorkerInfo>(), out_);
      default:
        return core_.compared(claimant, claimant, out_);
    }
  }

  void tick() {
    std::vector<rpc_internal::MembershipCore::Look> looks;
    for (uint32_t index = 1; index < 4; ++index) {
      looks.push_back({{index, 2}, input_.flag(), input_.flag() ? now_ : TimePoint()});
    }
    now_ += std::chrono::milliseconds(10 * input_.below(256));
    core_.tick(now_, looks, out_);
  }
  void answer() {
    if (asked_.empty()) return;
    const auto question = asked_.back();
    asked_.pop_back();
    if (input_.flag()) {
      core_.answer(question.suspect, question.number, absl::UnavailableError("no store"), out_);
    } else {
      std::vector<DeathRecord> death_records{death_record()};
      if (question.declare_dead)
        death_records.push_back({question.suspect, kSelf, question.reason});
      core_.answer(question.suspect, question.number, death_records, out_);
    }
  }
  // A notice as it arrives from a peer.
  void notice() {
    wire::MembershipPost post;
    const DeathRecord said = death_record();
    post.mutable_death()->set_worker(said.dead.bits());
    post.mutable_death()->set_by(said.by.bits());
    post.mutable_death()->set_reason(said.reason);
    core_.on_notice(said, out_);
  }

  void check() {
    for (const rpc_internal::MembershipActions::Gone& gone : out_.gone) {
      require(gone_.insert(gone.worker).second, "a worker goes twice");
      require(!core_.is_live(gone.worker), "a worker is gone and live");
      require(!gone.reason.ok(), "a worker goes without a reason");
    }
    for (const rpc_internal::MembershipActions::Notice& notice : out_.notices) {
      require(notice.to != kSelf, "a notice to itself");
      wire::MembershipPost post, parsed;
      post.mutable_death()->set_worker(notice.death_record.dead.bits());
      post.mutable_death()->set_by(notice.death_record.by.bits());
      post.mutable_death()->set_reason(notice.death_record.reason);
      require(parsed.ParseFromString(post.SerializeAsString()), "a notice that cannot be read");
      require(parsed.death().reason() == notice.death_record.reason, "a reason that changes");
    }
    for (const rpc_internal::MembershipActions::Question& question : out_.questions)
      asked_.push_back(question);
    if (!core_.standing().ok()) {
      for (uint32_t index = 1; index < 4; ++index) {
        require(!core_.is_live({index, 2}), "fenced, but with a live peer");
      }
    }
    out_ = {};
  }

  Bytes input_;
  rpc_internal::MembershipCore core_;
  rpc_internal::MembershipActions out_;
  TimePoint now_;
  std::vector<rpc_internal::MembershipActions::Question> asked_;
  std::set<WorkerId> gone_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
