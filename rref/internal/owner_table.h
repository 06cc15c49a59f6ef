// Holds the owner's side of the RRef protocol: which forks keep which value alive.
//
// For each RRef owned here, the table has the forks and their holders, the number of local handles,
// whether a value is there, and the requests that wait for it. The forks are a set and not a count.
// So a repeated message changes nothing, and the owner can remove a dead worker's forks (S8, S9,
// BN2).
//
// Thread safety: none; part of the core.
// Protocol: docs/rref_protocol.md, guarantees G1 to G4.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/rref/internal/creation_errors.h"
#include "weft/rref/internal/id_ledger.h"
#include "weft/rref/internal/ownership_step.h"

namespace weft::rref_internal {

// The owner's answer to a creation call.
enum class Acceptance {
  kRun,        // registered and confirmed: run the function
  kDuplicate,  // was accepted before: do not run it again
  kRefused,    // withdrawn, or from a dead incarnation: do not run it, answer "not executed"
  kOverQuota,  // its creator is past its bound of forks: do not run it, answer "not executed"
};

class OwnerTable {
 public:
  OwnerTable(WorkerId self, const OwnershipLimits& limits)
      : self_(self),
        limits_(limits),
        ledger_(limits.tombstones_per_creator),
        creation_errors_(limits.errors_per_creator) {}

  void own(RRefId rref, TypeTag type, RRefKey key);
  Acceptance accept_creation(WorkerId from, const Creation& creation, Step& step);
  bool set_value(RRefId rref, absl::Status result, Step& step);

  // Registers a fork for worker `to` before its carrier leaves (cases 3 and 6).
  absl::StatusOr<Reference> lend(RRefId rref, ForkId fork, WorkerId to);
  void carrier_failed(const Reference& reference, Delivery delivery, Step& step);
  Received receive(const Reference& reference, std::optional<WaiterId> waiter, Step& step);
  void discard(const Reference& reference, Step& step);
  void drop(RRefId rref, Step& step);
  void drop_all_handles(Step& step);

  void fetch(WorkerId from, RRefId rref, RRefKey key, FetchTicket ticket, Step& step);
  void cancel_fetch(RRefId rref, FetchTicket ticket, Step& step);

  // Each returns false if the sender may not send this about that fork; then nothing has changed.
  bool on_fork_request(WorkerId from, const ForkRequest& message, Step& step);
  bool on_user_delete(WorkerId from, const UserDelete& message, Step& step);
  bool on_cancel_fork(WorkerId from, const CancelFork& message, Step& step);
  bool on_cancel_ack(WorkerId from, const CancelAck& message, Step& step);
  void on_settled_below(WorkerId from, uint64_t settled_below, Step& step);

  void peer_dead(WorkerId worker, Step& step);
  void close(Step& step);

  bool created(RRefId rref) const;
  bool empty() const { return entries_.empty(); }
  void fill(OwnershipGauges& gauges) const;
  // Appends the holders of forks, and the creators of RRefs whose creation is awaited here.
  void append_ties(std::vector<WorkerId>& workers) const {
    for (const auto& [holder, forks] : holders_) workers.push_back(holder);
    for (auto rref = placeholders_.begin(); rref != placeholders_.end();
         rref = placeholders_.upper_bound({rref->creator, UINT64_MAX})) {
      workers.push_back(rref->creator);
    }
  }
  void report(std::vector<Leak>& leaks) const;

 private:
  enum class Value : uint8_t { kNone, kReady, kFailed };

  struct Fork {
    WorkerId holder;
    bool recalled = false;  // the holder has not yet answered our CANCEL_FORK
  };
  struct ParkedFork {  // a request or a reference that came before the creation
    WorkerId from;
    bool is_reference = false;  // true: a reference sent to this worker; false: a FORK_REQUEST
    std::optional<WaiterId> waiter;
    TypeTag type;  // set for a reference only
    RRefKey key = 0;
  };
  struct ParkedFetch {
    WorkerId from;
    RRefKey key = 0;
  };
  struct Entry {
    bool created = false;
    Value value = Value::kNone;
    TypeTag type;
    RRefKey key = 0;
    absl::Status error;
    uint64_t handles = 0;
    std::map<ForkId, Fork> forks;
    // By the fork and its sender. Any worker may name any fork, so that the request of one must not
    // take the place of another's.
    std::map<std::pair<ForkId, WorkerId>, ParkedFork> parked;
    bool has_parked(ForkId fork) const {
      const auto first = parked.lower_bound({fork, WorkerId()});
      return first != parked.end() && first->first.first == fork;
    }
    std::map<FetchTicket, ParkedFetch> fetches;
  };
  using Entries = std::map<RRefId, Entry>;

  // Whether an id has ended; asked only about ids that are in no table. Ids of this worker and of
  // dead workers need no tombstone: if they are unknown, they have ended.
  template <class Id>
  bool ended(const Id& id, const Step& step) const {
    return id.creator == self_ || step.dead(id.creator) || ledger_.ended(id.creator, id.number);
  }
  // Whether `from` may use an RRef that is created, with this key. This worker needs no key.
  bool opens(const Entry& entry, WorkerId from, RRefKey key) const {
    return from == self_ || key == entry.key;
  }
  void decide_parked(Entries::iterator it, Step& step);
  RejectReason refusal(RRefId rref, ForkId fork, const Step& step) const;
  std::vector<RRefId> listed() const;
  Entries::iterator placeholder(RRefId rref);
  bool park(WorkerId from);
  void unpark(WorkerId from);
  void add_tombstone(WorkerId creator, uint64_t number, Step& step);
  void refuse_placeholders(WorkerId creator, uint64_t below, Step& step);
  void refuse_placeholder(Entries::iterator it, RejectReason reason, Step& step);
  void list(Entry& entry, ForkId fork, WorkerId holder);
  void unlist(Entries::iterator it, ForkId fork, Step& step);
  void settle(Entries::iterator it, Step& step);
  void fail_fetches(Entry& entry, RRefId rref, const absl::Status& status, Step& step);
  absl::Status lost(RRefId rref, RejectReason reason) const;

  const WorkerId self_;
  const OwnershipLimits limits_;
  IdLedger ledger_;
  Entries entries_;
  std::set<RRefId> placeholders_;        // entries that are not created
  std::map<WorkerId, uint32_t> parked_;  // number of waiting requests, by sender
  // Recalled forks, with their holders, whose USER_DELETE came before the CANCEL_ACK. The holder
  // may keep a tombstone that no carrier will use up. So the owner answers a CANCEL_ACK "absent"
  // with DELETE_ACK.
  std::map<ForkId, WorkerId> read_while_recalled_;
  std::map<WorkerId, uint64_t> holders_;  // number of listed forks, by holder
  CreationErrors creation_errors_;
  uint64_t parked_forks_ = 0;
  uint64_t parked_fetches_ = 0;
};

}  // namespace weft::rref_internal
