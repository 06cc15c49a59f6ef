// The core of distributed autograd. Peers send arbitrary messages among the events of an honest
// driver. A backward pass must complete once. A dropped context must not come back. The messages of
// the core must be well formed. The input is a sequence of events.
#include <deque>
#include <set>

#include "weft/dist_autograd/passes/autograd_wire.h"
#include "weft/dist_autograd/passes/context_core.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::dist_autograd_internal;

constexpr WorkerId kSelf{0, 1};
constexpr WorkerId kWorkers[] = {{1, 1}, {2, 1}, {1, 2}, kSelf};

// Encodes and decodes a message. Returns an error if its receiver would refuse it.
template <class M>
absl::StatusOr<dist_autograd_internal::AutogradMessage> over_the_wire(const M& message) {
  wire::AutogradPost post;
  dist_autograd_internal::to_wire(message, post);
  return dist_autograd_internal::from_wire(post);
}

class Run {
 public:
  explicit Run(Bytes input) : input_(input), core_(kSelf) {}

  void play() {
    while (!input_.empty()) {
      event();
      take();
    }
  }

 private:
  WorkerId worker() { return kWorkers[input_.below(4)]; }
  WorkerId peer() { return kWorkers[input_.below(3)]; }
  ContextId context() { return {worker(), 1 + input_.below(4)}; }
  SendId send() { return {worker(), 1 + input_.below(8)}; }
  dist_autograd_internal::PassId pass() {
    if (!passes_.empty() && input_.flag()) return passes_[input_.below(256) % passes_.size()];
    return {context(), worker(), 1 + input_.below(3)};
  }

  void event() {
    switch (input_.below(16)) {
      case 0:
        core_.create();
        break;
      case 1: {
        const ContextId released{kSelf, 1 + input_.below(4)};
        (void)core_.release(released, actions_);
        break;
      }
      case 2: {
        const ContextId id = context();
        (void)core_.note_peer(id, peer());
        break;
      }
      case 3: {
        const ContextId id = context();
        const SendId recorded = send();
        (void)core_.note_send(id, recorded, peer());
        break;
      }
      case 4:
        arrived_call();
        break;
      case 5:
        start();
        break;
      case 6:
      case 7:
        answer();
        break;
      case 8: {
        const dist_autograd_internal::PassId of = pass();
        core_.on_local_failure(of, failure(), actions_);
        break;
      }
      case 9:
        hold();
        break;
      case 10:
        core_.on_deadline(pass(), actions_);
        break;
      case 11:
        if (input_.below(8) == 0) core_.on_peer_dead(peer(), actions_);
        break;
      default:
        message();
    }
  }

  void arrived_call() {
    const WorkerId from = peer();
    dist_autograd_internal::AutogradMetadata metadata{.context = context()};
    if (input_.flag()) {
      metadata.send = send();
      metadata.requires_grad = {0};
    }
    metadata.histories = histories();
    wire::AutogradMetadata wire;
    dist_autograd_internal::to_wire(metadata, wire);
    const auto arrived = dist_autograd_internal::from_wire(wire, 1);
    if (arrived.ok()) (void)core_.on_call(from, *arrived, actions_);
  }
  void start() {
    const ContextId of = context();
    dist_autograd_internal::ContextCore::StartOptions options;
    options.mode = static_cast<dist_autograd_internal::BackwardMode>(input_.below(3));
    options.retain_graph = input_.flag();
    const auto started = core_.start(of, options, actions_);
    if (!started.ok()) return;
    passes_.push_back(*started);
    require(open_.insert(*started).second, "one pass starts twice");
  }
  // Completes a request to the local graph.
  void answer() {
    if (asked_.empty()) return;
    const auto [of, discovers] = asked_.front();
    asked_.pop_front();
    if (discovers) {
      core_.on_discovered(of, {{peer(), {send()}}}, actions_);
      return;
    }
    dist_autograd_internal::LocalProgress progress;
    for (size_t outputs = input_.below(3); outputs > 0; --outputs) {
      dist_autograd_internal::PeerGradients& output = progress.outputs.emplace_back();
      output.peer = worker();
      output.entries.push_back(entry());
    }
    progress.waiting = input_.flag();
    core_.on_local_progress(of, std::move(progress), actions_);
  }
  void hold() {
    if (held_ && input_.flag()) {
      core_.on_hold_released(*held_, actions_);
      held_.reset();
    } else if (!held_) {
      held_ = pass();
      core_.on_hold(*held_);
    }
  }

  dist_autograd_internal::GradEntry entry() {
    dist_autograd_internal::GradEntry entry{.send = send(), .slots = 1};
    if (input_.flag()) entry.present = {0};
    return entry;
  }
  dist_autograd_internal::PassFailure failure() {
    dist_autograd_internal::PassFailure failure{.status = absl::UnknownError("failed"),
                                                .worker = worker()};
    if (input_.flag()) failure.died = peer();
    return failure;
  }
  std::vector<dist_autograd_internal::PassHistory> histories() {
    std::vector<dist_autograd_internal::PassHistory> histories;
    for (size_t left = input_.below(3); left > 0; --left) {
      dist_autograd_internal::PassHistory& history = histories.emplace_back();
      history.initiator = worker();
      history.decided = input_.below(4);
      history.complete_from = input_.below(4);
      if (input_.flag()) history.aborted = {input_.below(4)};
    }
    return histories;
  }
  std::vector<dist_autograd_internal::PassReport> reports() {
    std::vector<dist_autograd_internal::PassReport> reports;
    for (size_t left = input_.below(3); left > 0; --left) {
      dist_autograd_internal::PassReport& report = reports.emplace_back();
      report.counts.worker = worker();
      report.counts.version = input_.below(8);
      if (input_.flag()) report.counts.sent = {{worker(), input_.below(4)}};
      if (input_.flag()) report.counts.received = {{worker(), input_.below(4)}};
      report.waiting = input_.flag();
    }
    return reports;
  }
  dist_autograd_internal::PassHeader header() {
    return {pass(), static_cast<dist_autograd_internal::BackwardMode>(input_.below(3)),
            input_.flag(), absl::Microseconds(1 + input_.below(8)), histories()};
  }
  void message() {
    const WorkerId from = peer();
    auto message = any_message();
    if (message.ok()) core_.on_message(from, *std::move(message), actions_);
  }
  absl::StatusOr<dist_autograd_internal::AutogradMessage> any_message() {
    switch (input_.below(9)) {
      case 0: {
        dist_autograd_internal::GradMessage grad{.header = header(), .number = input_.below(8)};
        grad.entries.push_back(entry());
        grad.reports = reports();
        return over_the_wire(dist_autograd_internal::AutogradMessage(std::move(grad)));
      }
      case 1:
        return over_the_wire(
            dist_autograd_internal::AutogradMessage(dist_autograd_internal::ActivateMessage{
                header(), input_.below(8), {send()}, reports()}));
      case 2:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::SealMessage{pass(), input_.below(8)}));
      case 3:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::ReportMessage{pass(), reports()}));
      case 4:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::PublishMessage{pass(), histories()}));
      case 5:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::FailMessage{pass(), failure()}));
      case 6:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::AbortMessage{pass(), failure()}));
      case 7:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::ReleaseContextMessage{context(), input_.below(6)}));
      default:
        return over_the_wire(dist_autograd_internal::AutogradMessage(
            dist_autograd_internal::HoldsContextMessage{context()}));
    }
  }

  void take() {
    dist_autograd_internal::AutogradActions actions;
    actions.swap(actions_);
    for (const dist_autograd_internal::AutogradAction& action : actions) std::visit(*this, action);
  }
  void ask(const dist_autograd_internal::PassId& of, bool discovers) {
    asked_.emplace_back(of, discovers);
  }
  void forget(const dist_autograd_internal::PassId& of) {
    std::erase_if(asked_, [&](const auto& one) { return one.first == of; });
  }

 public:
  void operator()(const dist_autograd_internal::backward::Send& send) {
    require(send.to != kSelf && send.to.valid(), "a message to nobody else");
    require(over_the_wire(send.message).ok(), "a malformed message is sent");
  }
  void operator()(const dist_autograd_internal::backward::EngageLocal&) {}
  void operator()(const dist_autograd_internal::backward::FeedRoots& action) {
    ask(action.pass, false);
  }
  void operator()(const dist_autograd_internal::backward::Feed& action) { ask(action.pass, false); }
  void operator()(const dist_autograd_internal::backward::CancelSends& action) {
    ask(action.pass, false);
  }
  void operator()(const dist_autograd_internal::backward::Discover& action) {
    ask(action.pass, true);
  }
  void operator()(const dist_autograd_internal::backward::StopLocal& action) {
    forget(action.pass);
  }
  void operator()(const dist_autograd_internal::backward::DropStage& action) {
    forget(action.pass);
  }
  void operator()(const dist_autograd_internal::backward::StageMerge&) {}
  void operator()(const dist_autograd_internal::backward::CompleteBackward& action) {
    require(open_.erase(action.pass) == 1, "a backward ends twice");
  }
  void operator()(const dist_autograd_internal::backward::ArmDeadline& action) {
    passes_.push_back(action.pass);
  }
  void operator()(const dist_autograd_internal::backward::CancelDeadline&) {}
  void operator()(const dist_autograd_internal::backward::DropContext& action) {
    require(dropped_.insert(action.context).second, "a context has come back");
    require(!core_.check(action.context).ok(), "a dropped context is live");
  }

 private:
  Bytes input_;
  dist_autograd_internal::ContextCore core_;
  dist_autograd_internal::AutogradActions actions_;
  std::vector<dist_autograd_internal::PassId> passes_;
  std::set<dist_autograd_internal::PassId> open_;
  std::set<ContextId> dropped_;
  std::deque<std::pair<dist_autograd_internal::PassId, bool>> asked_;  // pass, is it a discovery
  std::optional<dist_autograd_internal::PassId> held_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
