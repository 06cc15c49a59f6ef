// The keys and records that joining workers write to the rendezvous store.
//
// Thread safety: plain values and functions.
// Protocol: docs/launch.md has the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

struct JoinKeys {
  // `round_number`: how often a static group has completed a `shutdown`.
  JoinKeys(const std::string& group_name, uint32_t epoch_number, uint32_t round_number = 0);

  // The counter is outside of the epoch, so an index never uses an incarnation twice.
  std::string incarnation(uint32_t index) const;
  std::string claim(uint32_t rank, uint32_t attempt) const;
  std::string name(const std::string& name) const;
  std::string member(uint32_t index) const;
  std::string world_size() const;
  std::string failure() const;
  std::string left(uint32_t index) const;  // the last incarnation that has left
  // Dynamic groups: how many indices are given out.
  std::string indices() const;
  // Static groups: exists once the group has completed this round.
  std::string ended(uint32_t round) const;

  std::string group;
  std::string epoch;
  std::string round;  // prefix of all keys but those of incarnations and of ended
};

// A member record: "incarnation attempt name address". A name has no space; an address may.
struct MemberRecord {
  MemberInfo member;
  uint32_t attempt = 0;

  std::string encode() const;
  // PermissionDenied: a certificate proves that another worker has written the record. If it proves
  // only the author's rank (security/certificate_name.h), check_names must follow.
  absl::Status check_author(const std::string& author) const;
  // Whether the process has left. `mark`: what is under its index's key `left`. Nobody else can say
  // that a worker has left, so the mark of another proven author says nothing. Internal: it is no
  // number.
  absl::StatusOr<bool> has_left(const std::optional<StoredValue>& mark) const;
  // Internal: the text under `key` is no member record.
  static absl::StatusOr<MemberRecord> decode(const RendezvousStore& store, const std::string& key,
                                             uint32_t index, const std::string& text);

 private:
  bool is_of(const std::string& author) const;
};

// For members of a static group whose records were written by authors with these proven names.
// PermissionDenied: one has the name of another rank. Only authors that have proven no more than
// their rank are asked about: each must have claimed its name. At most one call of the store.
absl::Status check_names(RendezvousStore& store, const JoinKeys& keys,
                         const std::vector<MemberInfo>& members,
                         const std::vector<std::string>& authors);
// Reads the record of this incarnation. nullopt: its index has no record or that of another
// incarnation, or it has left. PermissionDenied: the record is not its own, or the name is not.
absl::StatusOr<std::optional<WorkerInfo>> find_incarnation(RendezvousStore& store,
                                                           const JoinKeys& keys,
                                                           WorkerId incarnation);
// Static groups: the round that workers join now.
absl::StatusOr<uint32_t> current_round(RendezvousStore& store, const JoinKeys& keys);
// Marks this incarnation as left: later joiners do not try to meet it, and in a static group
// another process may take over its rank.
absl::Status mark_left(RendezvousStore& store, const JoinKeys& keys, WorkerId self);
// InvalidArgument: the name, the address or the group is bad.
absl::Status check_joiner(const JoinRequest& request);
// Reads the decimal number under `key`; 0 if the key does not exist. Internal: it holds no number.
absl::StatusOr<uint32_t> read_number(RendezvousStore& store, const std::string& key);
// Takes the next incarnation of this index.
absl::StatusOr<WorkerId> new_incarnation(RendezvousStore& store, const JoinKeys& keys,
                                         uint32_t index);

}  // namespace weft::rpc_internal
