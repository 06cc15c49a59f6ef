#include "weft/rpc/rendezvous/dynamic_join.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/join_records.h"

namespace weft {
namespace {

using rpc_internal::JoinKeys;
using rpc_internal::MemberRecord;
using rpc_internal::read_number;

constexpr const char* kDynamic = "dynamic";
constexpr int kMostTakeovers = 16;  // of this worker's name by others, while it joins

absl::Status agree_on_kind(RendezvousStore& store, const JoinKeys& keys,
                           const JoinRequest& request) {
  WEFT_ASSIGN_OR_RETURN(const std::string kind, store.compare_set(keys.world_size(), "", kDynamic));
  if (kind == kDynamic) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("group '", request.group, "' has the fixed size ",
                                                 printable(kind.substr(0, kind.find(' '))),
                                                 ": a dynamic worker cannot join it"));
}

absl::StatusOr<uint32_t> index_of(RendezvousStore& store, const JoinKeys& keys,
                                  const std::string& name) {
  const std::string key = keys.name(name);
  WEFT_ASSIGN_OR_RETURN(std::optional<std::string> held, store.try_get(key));
  if (!held) {
    // If another process takes the name between these calls, the new index stays unused.
    WEFT_ASSIGN_OR_RETURN(const int64_t count, store.add(keys.indices(), 1));
    WEFT_ASSIGN_OR_RETURN(held, store.compare_set(key, "", absl::StrCat(count - 1)));
  }
  uint32_t index = 0;
  if (!absl::SimpleAtoi(*held, &index)) {
    return absl::InternalError(absl::StrCat(store.description(), ": '", key, "' holds no index"));
  }
  return index;
}

class Incarnations {
 public:
  Incarnations(RendezvousStore& store, const JoinKeys& keys,
               const std::vector<DeathRecord>& death_records)
      : store_(store), keys_(keys), death_records_(death_records) {}

  struct Newest {
    MemberRecord record;
    bool has_ended = false;
  };
  // Of each of these indices; nullopt: no worker has had it yet. One call of the store.
  absl::StatusOr<std::vector<std::optional<Newest>>> newest(
      const std::vector<uint32_t>& indices) const {
    std::vector<std::string> keys;
    for (const uint32_t index : indices) {
      keys.push_back(keys_.member(index));
      keys.push_back(keys_.left(index));
    }
    WEFT_ASSIGN_OR_RETURN(const auto values, store_.read(keys));
    std::vector<std::optional<Newest>> result(indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<StoredValue>& record = values[2 * i];
      if (!record) continue;
      WEFT_ASSIGN_OR_RETURN(MemberRecord member,
                            MemberRecord::decode(store_, keys[2 * i], indices[i], record->value));
      WEFT_RETURN_IF_ERROR(member.check_author(record->author));
      WEFT_ASSIGN_OR_RETURN(const bool ended, has_ended(member, values[2 * i + 1]));
      result[i] = {std::move(member), ended};
    }
    return result;
  }
  absl::StatusOr<std::optional<Newest>> newest(uint32_t index) const {
    WEFT_ASSIGN_OR_RETURN(auto all, newest(std::vector<uint32_t>{index}));
    return std::move(all.front());
  }

 private:
  absl::StatusOr<bool> has_ended(const MemberRecord& member,
                                 const std::optional<StoredValue>& left) const {
    for (const DeathRecord& death_record : death_records_) {
      if (death_record.dead == member.member.id) return true;
    }
    return member.has_left(left);
  }

  RendezvousStore& store_;
  const JoinKeys& keys_;
  const std::vector<DeathRecord>& death_records_;
};

// Writes this worker's record, over that of an incarnation that is dead, has left, or has a lower
// attempt. Repeats this if another worker changes the record meanwhile.
absl::Status publish(RendezvousStore& store, const JoinKeys& keys, const Incarnations& incarnations,
                     const MemberRecord& self) {
  const uint32_t index = self.member.id.index;
  const std::string mine = self.encode();
  for (int i = 0; i < kMostTakeovers; ++i) {
    WEFT_ASSIGN_OR_RETURN(const auto held, incarnations.newest(index));
    if (held && !held->has_ended && held->record.attempt >= self.attempt) {
      return absl::AlreadyExistsError(absl::StrCat(
          "worker '", self.member.name, "' is in the group already, at ",
          held->record.member.address,
          ": it has neither left nor been declared dead; a process that replaces it needs a "
          "higher restart count than ",
          held->record.attempt));
    }
    WEFT_ASSIGN_OR_RETURN(
        const std::string now,
        store.compare_set(keys.member(index), held ? held->record.encode() : "", mine));
    if (now == mine) return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat("worker '", self.member.name, "' is taken over again and again by others"));
}

// Reads the members after this worker has published its record. A worker that publishes later sees
// that record. So of two workers that join at the same time, at least one finds the other.
absl::StatusOr<JoinResult> read_members(RendezvousStore& store, const JoinKeys& keys,
                                        const Incarnations& incarnations, const MemberInfo& self) {
  JoinResult result;
  result.self = self.id;
  WEFT_ASSIGN_OR_RETURN(const uint32_t indices, read_number(store, keys.indices()));
  std::vector<uint32_t> all(indices);
  std::iota(all.begin(), all.end(), 0);
  WEFT_ASSIGN_OR_RETURN(const auto newest, incarnations.newest(all));
  for (uint32_t index = 0; index < indices; ++index) {
    if (index == self.id.index) {
      result.members.push_back(self);
    } else if (newest[index] && !newest[index]->has_ended) {
      result.members.push_back(newest[index]->record.member);
    }
  }
  return result;
}

absl::StatusOr<JoinResult> publish_and_read(RendezvousStore& store, const JoinKeys& keys,
                                            const Incarnations& incarnations,
                                            const MemberRecord& self) {
  WEFT_RETURN_IF_ERROR(publish(store, keys, incarnations, self));
  WEFT_FAIL_POINT("join.published");
  return read_members(store, keys, incarnations, self.member);
}

// Marks the record as left after a failed join. No process stands behind the record, and it would
// keep the name. The record may exist although its writing seemed to fail: the answer was lost.
void withdraw(RendezvousStore& store, const JoinKeys& keys, const Incarnations& incarnations,
              const MemberRecord& self) {
  const WorkerId id = self.member.id;
  const auto held = incarnations.newest(id.index);
  if (!held.ok() || !*held || (*held)->record.member.id != id) return;
  (void)rpc_internal::mark_left(store, keys, id);
}

}  // namespace

absl::StatusOr<JoinResult> join_dynamic_group(RendezvousStore& store, const JoinRequest& request,
                                              const std::vector<DeathRecord>& death_records) {
  WEFT_RETURN_IF_ERROR(rpc_internal::check_joiner(request));
  const JoinKeys keys(request.group, request.epoch);
  const Incarnations incarnations(store, keys, death_records);
  WEFT_RETURN_IF_ERROR(agree_on_kind(store, keys, request));
  WEFT_ASSIGN_OR_RETURN(const uint32_t index, index_of(store, keys, request.name));
  MemberRecord self;
  self.attempt = request.attempt;
  WEFT_ASSIGN_OR_RETURN(self.member.id, rpc_internal::new_incarnation(store, keys, index));
  self.member.name = request.name;
  self.member.rank = index;
  self.member.address = request.address;
  absl::StatusOr<JoinResult> result = publish_and_read(store, keys, incarnations, self);
  if (!result.ok() && !absl::IsAlreadyExists(result.status()))
    withdraw(store, keys, incarnations, self);
  return result;
}

}  // namespace weft
