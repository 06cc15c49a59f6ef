// The ownership core. Two peers send arbitrary messages and carriers among the events of an honest
// driver. Values must be freed once, and questions answered once. The messages of the core must be
// well formed. The input is a sequence of events.
#include <map>
#include <set>

#include "weft/rref/internal/ownership_core.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rref_internal;

constexpr WorkerId kSelf{0, 1};
constexpr WorkerId kWorkers[] = {
    {1, 1}, {2, 1}, {1, 2}, kSelf};  // the third is a later incarnation
constexpr size_t kNumbers = 16;
constexpr rref_internal::RRefKey kKey = 77;
const rref_internal::TypeTag kTypes[] = {{1, "a"}, {2, "b"}};

class Run {
 public:
  explicit Run(Bytes input) : input_(input), core_(kSelf, [](RRefId) { return kKey; }, {4, 4, 4}) {}

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
  // The sender of a frame is the peer of its connection, never this worker.
  WorkerId peer() { return kWorkers[input_.below(3)]; }
  RRefId rref() { return {worker(), 1 + input_.below(kNumbers)}; }
  ForkId fork() { return {worker(), 1 + input_.below(kNumbers)}; }
  rref_internal::TypeTag type() { return kTypes[input_.below(2)]; }
  // One key for all RRefs, which a peer does not always know.
  rref_internal::RRefKey key() { return input_.below(8) == 0 ? 0 : kKey; }

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
          const rref_internal::Reference reference = sent_.back();
          sent_.pop_back();
          core_.carrier_failed(reference,
                               input_.flag() ? rref_internal::Delivery::kUnknown
                                             : rref_internal::Delivery::kNeverSent,
                               actions_);
        }
        break;
      case 7:
        receive();
        break;
      case 8: {
        const WorkerId from = peer();
        const std::vector<rref_internal::Reference> references = carrier();
        core_.discard(from, references, actions_);
        break;
      }
      case 9:
        if (!handles_.empty()) {
          const rref_internal::Handle handle = handles_.back();
          handles_.pop_back();
          core_.drop(handle, actions_);
        }
        break;
      case 10: {
        const WorkerId from = worker();
        tickets_.insert(++last_ticket_);
        core_.fetch(from, rref(), key(), last_ticket_, actions_);
        break;
      }
      case 11:
        if (!tickets_.empty()) {
          const rref_internal::FetchTicket ticket = *tickets_.begin();
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

  void keep(const absl::StatusOr<rref_internal::Handle>& handle) {
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
    const auto creation = rref_internal::decode_creation(
        encode(rref_internal::Creation{rref(), fork(), type(), kKey}));
    if (!creation.ok()) return;
    const rref_internal::Acceptance accepted = core_.accept_creation(from, *creation, actions_);
    if (accepted == rref_internal::Acceptance::kRun) running_.push_back(creation->rref);
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
    require(rref_internal::decode_reference(encode(*reference)).ok(),
            "a malformed reference is sent");
    sent_.push_back(*reference);
  }
  std::vector<rref_internal::Reference> carrier() {
    std::vector<rref_internal::Reference> references;
    for (size_t left = input_.below(4); left > 0; --left) {
      rref_internal::Reference reference{worker(), rref(), fork(), {}, type(), key()};
      if (reference.fork.creator != reference.owner) reference.parent = fork();
      if (rref_internal::decode_reference(encode(reference)).ok()) references.push_back(reference);
    }
    return references;
  }
  void receive() {
    const WorkerId from = peer();
    const std::vector<rref_internal::Reference> references = carrier();
    waiters_.insert(++last_waiter_);
    const auto results = core_.receive(from, references, last_waiter_, actions_);
    require(results.size() == references.size(), "one result for each reference");
    for (const rref_internal::Received& result : results) {
      if (result.status.ok()) handles_.push_back(result.handle);
    }
  }
  void message() {
    const WorkerId from = peer();
    const WorkerId to = input_.below(16) == 0 ? worker() : kSelf;
    const auto decoded = rref_internal::decode_message(encode(any_message()));
    if (decoded.ok()) core_.on_message(from, to, *decoded, actions_);
  }
  rref_internal::Message any_message() {
    const size_t kind = input_.below(9);
    const RRefId r = rref();
    const ForkId f = fork();
    const uint64_t below = input_.below(kNumbers + 2);
    switch (kind) {
      case 0:
        return rref_internal::ForkRequest{r, f, below, key()};
      case 1:
        return rref_internal::ForkAccept{r, f};
      case 2:
        return rref_internal::ForkReject{r, f,
                                         static_cast<rref_internal::RejectReason>(1 + below % 7)};
      case 3:
        return rref_internal::ChildAccept{r, f};
      case 4:
        return rref_internal::UserDelete{r, f, input_.flag(), below};
      case 5:
        return rref_internal::DeleteAck{r, f};
      case 6:
        return rref_internal::CancelFork{worker(), r, f, input_.flag(), below};
      case 7:
        return rref_internal::CancelAck{worker(), r, f, input_.flag()};
      default:
        return rref_internal::Settled{below};
    }
  }

  void take() {
    rref_internal::Actions actions;
    actions.swap(actions_);
    for (const rref_internal::Action& action : actions) std::visit(*this, action);
  }

 public:
  void operator()(const rref_internal::Send& send) {
    require(send.to != kSelf && send.to.valid(), "a message to nobody else");
    require(rref_internal::decode_message(encode(send.message)).ok(),
            "a malformed message is sent");
  }
  void operator()(const rref_internal::Free& free) {
    require(freed_.insert(free.rref).second, "a value is freed twice");
  }
  void operator()(const rref_internal::Confirmed&) {}
  void operator()(const rref_internal::AllConfirmed& told) {
    require(waiters_.erase(told.waiter) == 1, "a waiter is told twice");
  }
  void operator()(const rref_internal::Lost& lost) {
    require(!lost.status.ok(), "lost without a reason");
  }
  void operator()(const rref_internal::FetchReady& ready) {
    require(!freed_.contains(ready.rref), "a freed value is fetched");
    answered(ready.ticket);
  }
  void operator()(const rref_internal::FetchFailed& failed) {
    require(!failed.status.ok(), "a fetch failed without a reason");
    answered(failed.ticket);
  }

 private:
  void answered(rref_internal::FetchTicket ticket) {
    require(tickets_.erase(ticket) + cancelled_.erase(ticket) == 1, "a fetch is answered twice");
  }

  Bytes input_;
  rref_internal::OwnershipCore core_;
  rref_internal::Actions actions_;
  std::vector<rref_internal::Handle> handles_;
  std::vector<ForkId> created_;
  std::vector<RRefId> running_;
  std::vector<rref_internal::Reference> sent_;
  std::set<RRefId> freed_;
  std::set<rref_internal::WaiterId> waiters_;
  std::set<rref_internal::FetchTicket> tickets_, cancelled_;
  rref_internal::WaiterId last_waiter_ = 0;
  rref_internal::FetchTicket last_ticket_ = 0;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
