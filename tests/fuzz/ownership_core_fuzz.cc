// The ownership core under messages and carriers of two peers that say anything at all, among the
// events of an honest driver. Values must be freed once, questions answered once, and what the core
// sends must be well formed. Input is a sequence of events.
#include <map>
#include <set>

#include "weft/rref/internal/ownership_core.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::internal;

constexpr WorkerId kSelf{0, 1};
constexpr WorkerId kWorkers[] = {{1, 1}, {2, 1}, {1, 2}, kSelf};  // the third is a later life
constexpr size_t kNumbers = 16;
const TypeTag kTypes[] = {{1, "a"}, {2, "b"}};

class Run {
 public:
  explicit Run(Bytes input) : input_(input), core_(kSelf, {4, 4, 4}) {}

  void play() {
    while (!input_.empty()) {
      event();
      take();
    }
    core_.close(actions_);
    take();
    require(waiters_.empty(), "a carrier's waiter was never told");
    require(tickets_.empty(), "a fetch was never answered");
    require(core_.drained(), "something is held after the end");
  }

 private:
  WorkerId worker() { return kWorkers[input_.below(4)]; }
  // Frames are from whom their connection is from: never from this worker's own messages.
  WorkerId peer() { return kWorkers[input_.below(3)]; }
  RRefId rref() { return {worker(), 1 + input_.below(kNumbers)}; }
  ForkId fork() { return {worker(), 1 + input_.below(kNumbers)}; }
  TypeTag type() { return kTypes[input_.below(2)]; }

  void event() {
    switch (input_.below(16)) {
      case 0:
        keep(core_.own(type()));
        break;
      case 1:
        create();
        break;
      case 2:
        creation_failed();
        break;
      case 3:
        accept_creation();
        break;
      case 4:
        set_value();
        break;
      case 5:
        make_fork();
        break;
      case 6:
        if (!sent_.empty()) {
          const Reference reference = sent_.back();
          sent_.pop_back();
          core_.carrier_failed(reference, input_.flag() ? Delivery::kUnknown : Delivery::kNeverSent,
                               actions_);
        }
        break;
      case 7:
        receive();
        break;
      case 8: {
        const WorkerId from = peer();
        const std::vector<Reference> references = carrier();
        core_.discard(from, references, actions_);
        break;
      }
      case 9:
        if (!handles_.empty()) {
          const Handle handle = handles_.back();
          handles_.pop_back();
          core_.drop(handle, actions_);
        }
        break;
      case 10: {
        const WorkerId from = worker();
        tickets_.insert(++last_ticket_);
        core_.fetch(from, rref(), last_ticket_, actions_);
        break;
      }
      case 11:
        if (!tickets_.empty()) {
          const FetchTicket ticket = *tickets_.begin();
          tickets_.erase(ticket);
          core_.cancel_fetch(rref(), ticket, actions_);
          cancelled_.insert(ticket);  // of another RRef: it may still be answered
        }
        break;
      case 12:
        if (input_.below(8) == 0) core_.peer_dead(peer(), actions_);
        break;
      case 13:
        if (input_.below(8) == 0) core_.begin_shutdown(actions_);
        break;
      default:
        message();
    }
  }

  void keep(const absl::StatusOr<Handle>& handle) {
    if (handle.ok()) handles_.push_back(*handle);
  }
  void create() {
    const auto handle = core_.create(peer(), type());
    keep(handle);
    if (handle.ok()) created_.push_back(handle->fork);
  }
  void creation_failed() {
    if (created_.empty()) return;
    const ForkId fork = created_.back();
    created_.pop_back();
    core_.creation_failed(fork, absl::AbortedError("the call failed"), actions_);
  }
  void accept_creation() {
    const WorkerId from = peer();
    const auto creation = decode_creation(encode(Creation{rref(), fork(), type()}));
    if (!creation.ok()) return;
    const Acceptance accepted =
        core_.accept_creation(from, creation->rref, creation->fork, creation->type, actions_);
    if (accepted == Acceptance::kRun) running_.push_back(creation->rref);
  }
  void set_value() {
    if (running_.empty()) return;
    const RRefId rref = running_.back();
    running_.pop_back();
    core_.set_value(rref, input_.flag() ? absl::OkStatus() : absl::UnknownError("threw"), actions_);
  }
  void make_fork() {
    if (handles_.empty()) return;
    const auto reference = core_.fork(handles_[input_.below(256) % handles_.size()], worker());
    if (!reference.ok()) return;
    require(decode_reference(encode(*reference)).ok(), "a malformed reference is sent");
    sent_.push_back(*reference);
  }
  std::vector<Reference> carrier() {
    std::vector<Reference> references;
    for (size_t left = input_.below(4); left > 0; --left) {
      Reference reference{worker(), rref(), fork(), {}, type()};
      if (reference.fork.creator != reference.owner) reference.parent = fork();
      if (decode_reference(encode(reference)).ok()) references.push_back(reference);
    }
    return references;
  }
  void receive() {
    const WorkerId from = peer();
    const std::vector<Reference> references = carrier();
    waiters_.insert(++last_waiter_);
    const auto results = core_.receive(from, references, last_waiter_, actions_);
    require(results.size() == references.size(), "one result for each reference");
    for (const Received& result : results) {
      if (result.status.ok()) handles_.push_back(result.handle);
    }
  }
  void message() {
    const WorkerId from = peer();
    const WorkerId to = input_.below(16) == 0 ? worker() : kSelf;
    const auto decoded = decode_message(encode(any_message()));
    if (decoded.ok()) core_.on_message(from, to, *decoded, actions_);
  }
  Message any_message() {
    const size_t kind = input_.below(9);
    const RRefId r = rref();
    const ForkId f = fork();
    const uint64_t below = input_.below(kNumbers + 2);
    switch (kind) {
      case 0:
        return ForkRequest{r, f, below};
      case 1:
        return ForkAccept{r, f};
      case 2:
        return ForkReject{r, f, static_cast<RejectReason>(1 + below % 5)};
      case 3:
        return ChildAccept{r, f};
      case 4:
        return UserDelete{r, f, input_.flag(), below};
      case 5:
        return DeleteAck{r, f};
      case 6:
        return CancelFork{worker(), r, f, input_.flag(), below};
      case 7:
        return CancelAck{worker(), r, f, input_.flag()};
      default:
        return Settled{below};
    }
  }

  void take() {
    Actions actions;
    actions.swap(actions_);
    for (const Action& action : actions) std::visit(*this, action);
  }

 public:
  void operator()(const Send& send) {
    require(send.to != kSelf && send.to.valid(), "a message to nobody else");
    require(decode_message(encode(send.message)).ok(), "a malformed message is sent");
  }
  void operator()(const Free& free) {
    require(freed_.insert(free.rref).second, "a value is freed twice");
  }
  void operator()(const Confirmed&) {}
  void operator()(const AllConfirmed& told) {
    require(waiters_.erase(told.waiter) == 1, "a waiter is told twice");
  }
  void operator()(const Lost& lost) { require(!lost.status.ok(), "lost without a reason"); }
  void operator()(const FetchReady& ready) {
    require(!freed_.contains(ready.rref), "a freed value is fetched");
    answered(ready.ticket);
  }
  void operator()(const FetchFailed& failed) {
    require(!failed.status.ok(), "a fetch failed without a reason");
    answered(failed.ticket);
  }

 private:
  void answered(FetchTicket ticket) {
    require(tickets_.erase(ticket) + cancelled_.erase(ticket) == 1, "a fetch is answered twice");
  }

  Bytes input_;
  OwnershipCore core_;
  Actions actions_;
  std::vector<Handle> handles_;
  std::vector<ForkId> created_;
  std::vector<RRefId> running_;
  std::vector<Reference> sent_;
  std::set<RRefId> freed_;
  std::set<WaiterId> waiters_;
  std::set<FetchTicket> tickets_, cancelled_;
  WaiterId last_waiter_ = 0;
  FetchTicket last_ticket_ = 0;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
