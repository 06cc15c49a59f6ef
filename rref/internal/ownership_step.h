// The owner's and the user's tables of the ownership core share these classes to handle one event.
//
// Thread safety: none; part of the core.
// Protocol: docs/rref_protocol.md.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weft/base/faults/breakage.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft::rref_internal {

// Numbers the RRefs and forks that this incarnation makes, and makes the keys of the RRefs. One
// counter serves both, so that one watermark covers both.
class IdSource {
 public:
  IdSource(WorkerId self, KeySource keys) : self_(self), keys_(std::move(keys)) {}
  RRefKey key(RRefId rref) const { return keys_(rref); }
  RRefId rref() { return {self_, next_++}; }
  ForkId fork() { return {self_, next_++}; }
  uint64_t next() const { return next_; }

 private:
  const WorkerId self_;
  const KeySource keys_;
  uint64_t next_ = 1;
};

// The incarnations of workers that are declared dead. A death is never revised: a restarted worker
// is a later incarnation (BN3).
class PeerIncarnations {
 public:
  // Notes the death of an incarnation. Returns false if it was known. A later incarnation may be
  // declared dead before an earlier one, so each incarnation is noted by itself.
  bool add(WorkerId worker) {
    if (WEFT_BREAK(earlier_incarnation_not_recorded)) {
      const auto later = ended_.lower_bound(worker);
      if (later != ended_.end() && later->index == worker.index) return false;
    }
    return ended_.insert(worker).second;
  }
  bool dead(WorkerId worker) const { return ended_.contains(worker); }

 private:
  std::set<WorkerId> ended_;
};

// Counts, for each received carrier, the references that are still undecided (B5).
class Waiters {
 public:
  void expect(WaiterId waiter, size_t references) { waiting_[waiter].undecided = references; }

  void decide(WaiterId waiter, const absl::Status& status, Actions& out) {
    auto found = waiting_.find(waiter);
    if (found == waiting_.end()) return;
    found->second.status.Update(status);  // the first error stays
    if (--found->second.undecided > 0 && !WEFT_BREAK(starts_at_first_confirmation)) return;
    out.push_back(AllConfirmed{waiter, std::move(found->second.status)});
    waiting_.erase(found);
  }

  void fail_all(const absl::Status& status, Actions& out) {
    for (const auto& [waiter, carrier] : waiting_) out.push_back(AllConfirmed{waiter, status});
    waiting_.clear();
  }

  size_t size() const { return waiting_.size(); }

 private:
  struct Carrier {
    size_t undecided = 0;
    absl::Status status;
  };
  std::map<WaiterId, Carrier> waiting_;
};

// One event that is being handled. The tables ask for actions only through it.
class Step {
 public:
  Step(const PeerIncarnations& incarnations, Waiters& waiters, Actions& out)
      : incarnations_(incarnations), waiters_(waiters), out_(out) {}

  bool dead(WorkerId worker) const { return incarnations_.dead(worker); }

  // Nothing is sent to a dead worker. It is fenced, and the tables remove its forks by themselves.
  void send(WorkerId to, Message message) {
    if (!incarnations_.dead(to)) out_.push_back(Send{to, std::move(message)});
  }
  void add(Action action) { out_.push_back(std::move(action)); }

  void confirm(Handle handle, std::optional<WaiterId> waiter) {
    out_.push_back(Confirmed{handle});
    decide(waiter, absl::OkStatus());
  }
  void lose(Handle handle, const absl::Status& status, std::optional<WaiterId> waiter) {
    out_.push_back(Lost{handle, status});
    decide(waiter, status);
  }
  void decide(std::optional<WaiterId> waiter, const absl::Status& status) {
    if (waiter) waiters_.decide(*waiter, status, out_);
  }

 private:
  const PeerIncarnations& incarnations_;
  Waiters& waiters_;
  Actions& out_;
};

// The result for one reference of a received carrier. A handle with an error protects nothing and
// must not be dropped.
struct Received {
  Handle handle;
  absl::Status status;
};

// Whether the sender of a failed carrier knows that it was not read.
enum class Delivery {
  kNeverSent,  // it did not leave this worker, and never will
  kUnknown,    // the receiver may have read it, or may read it later
};

}  // namespace weft::rref_internal
