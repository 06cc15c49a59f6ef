// What both halves of the ownership core share while they handle one event.
//
// Thread safety: none; part of the core.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weft/base/faults/breakage.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft::rref_internal {

// Numbers RRefs and forks of this worker incarnation from one counter, so that one watermark covers
// both.
class IdSource {
 public:
  explicit IdSource(WorkerId self) : self_(self) {}
  RRefId rref() { return {self_, next_++}; }
  ForkId fork() { return {self_, next_++}; }
  uint64_t next() const { return next_; }

 private:
  const WorkerId self_;
  uint64_t next_ = 1;
};

// Which lives of workers have ended. A death record is never revised: a worker comes back as a
// later incarnation (BN3).
class PeerIncarnations {
 public:
  // Returns false if that was known. The death record on a later incarnation may come before that
  // on an earlier one, so each life counts for itself.
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

// One event being handled: the only way for the tables to ask for actions.
class Step {
 public:
  Step(const PeerIncarnations& incarnations, Waiters& waiters, Actions& out)
      : incarnations_(incarnations), waiters_(waiters), out_(out) {}

  bool dead(WorkerId worker) const { return incarnations_.dead(worker); }

  // Nothing is sent to a dead worker: it is fenced, and its share is reaped where it matters.
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

// What became of one reference of a received carrier. A handle with an error protects nothing and
// need not be dropped.
struct Received {
  Handle handle;
  absl::Status status;
};

// What the sender of a carrier knows about its end.
enum class Delivery {
  kNeverSent,  // it did not leave this worker, and never will
  kUnknown,    // it may be read, now or later
};

}  // namespace weft::rref_internal
