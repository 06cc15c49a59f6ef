// What workers that join write to the rendezvous store: keys and records.
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
  // Static groups: `round_number` counts how often the group has ended in good order.
  JoinKeys(const std::string& group_name, uint32_t epoch_number, uint32_t round_number = 0);

  // The incarnation outlives the epoch: no two incarnations of an index ever share one.
  std::string incarnation(uint32_t index) const;
  std::string claim(uint32_t rank, uint32_t attempt) const;
  std::string name(const std::string& name) const;
  std::string member(uint32_t index) const;
  std::string world_size() const;
  std::string failure() const;
  // Dynamic groups: how many indices are given out, and the last life of one that left.
  std::string indices() const;
  std::string left(uint32_t index) const;
  // Static groups: the round that joins now.
  std::string current_round() const;

  std::string group;
  std::string epoch;
  std::string round;  // where all keys are but incarnations and current_round
};

// A member record: "incarnation attempt name address"; a name holds no space, an address may.
struct MemberRecord {
  MemberInfo member;
  uint32_t attempt = 0;

  std::string encode() const;
  // Internal: the store holds something else under `key`.
  static absl::StatusOr<MemberRecord> decode(const RendezvousStore& store, const std::string& key,
                                             uint32_t index, const std::string& text);
};

// The record of this incarnation; nullopt if its index has another one, or it has left.
absl::StatusOr<std::optional<WorkerInfo>> find_incarnation(RendezvousStore& store,
                                                           const JoinKeys& keys,
                                                           WorkerId incarnation);
// InvalidArgument: name, address or group.
absl::Status check_joiner(const JoinRequest& request);
// The decimal number under `key`, 0 if there is none. Internal: it holds something else.
absl::StatusOr<uint32_t> read_number(RendezvousStore& store, const std::string& key);
// The next incarnation of this index.
absl::StatusOr<WorkerId> new_incarnation(RendezvousStore& store, const JoinKeys& keys,
                                         uint32_t index);

}  // namespace weft::rpc_internal
