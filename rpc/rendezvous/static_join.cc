#include "weft/rpc/rendezvous/static_join.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/join_records.h"

namespace weft {
namespace {

using rpc_internal::JoinKeys;
using rpc_internal::MemberRecord;

constexpr uint32_t kMaxWorldSize = 1u << 16;
constexpr size_t kMaxRanksListed = 16;
// The time between two reads of the failure key. One wait occupies the store no longer than this.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(100);

absl::Status check(const JoinRequest& request) {
  WEFT_RETURN_IF_ERROR(rpc_internal::check_joiner(request));
  if (request.world_size == 0 || request.world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", request.world_size, " is not within 1 to ", kMaxWorldSize));
  }
  if (request.rank >= request.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", request.rank, " is out of range for world size ", request.world_size));
  }
  return absl::OkStatus();
}

std::string random_token() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device()), absl::Hex(device()));
}

// Reads a failure from its text in the store: the number of the code, a space, the message.
absl::Status parse_failure(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code) || code == 0) {
    return absl::InternalError(absl::StrCat("the group failed: ", printable(text)));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), printable(parts.second));
}

// Makes `status` the group's failure if there is none yet. Returns the group's failure.
absl::Status fail_group(RendezvousStore& store, const JoinKeys& keys, const absl::Status& status) {
  auto standing = store.compare_set(
      keys.failure(), "", absl::StrCat(static_cast<int>(status.code()), " ", status.message()));
  return standing.ok() ? parse_failure(*standing) : status;
}

absl::Status check_failure(RendezvousStore& store, const JoinKeys& keys) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> failure, store.try_get(keys.failure()));
  return failure ? parse_failure(*failure) : absl::OkStatus();
}

absl::Status agree_on_world_size(RendezvousStore& store, const JoinKeys& keys,
                                 const JoinRequest& request) {
  const std::string mine = absl::StrCat(request.world_size, " ", request.rank);
  WEFT_ASSIGN_OR_RETURN(const std::string first, store.compare_set(keys.world_size(), "", mine));
  const std::pair<std::string, std::string> parts = absl::StrSplit(first, absl::MaxSplits(' ', 1));
  if (parts.first == absl::StrCat(request.world_size)) return absl::OkStatus();
  if (parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group '", request.group, "' is ", parts.first, ": it has no ranks to join"));
  }
  return fail_group(
      store, keys,
      absl::InvalidArgumentError(absl::StrCat(
          "world sizes differ in group '", request.group, "': rank ", parts.second, " has ",
          parts.first, ", rank ", request.rank, " has ", request.world_size)));
}

// The store alone cannot distinguish a restarted process from a second process with the same rank.
// So a restarted process must have a higher attempt, which both launchers ensure.
absl::Status claim_rank(RendezvousStore& store, const JoinKeys& keys, const JoinRequest& request) {
  const std::string mine =
      absl::StrCat(random_token(), " '", request.name, "' at ", request.address);
  WEFT_ASSIGN_OR_RETURN(const std::string holder,
                        store.compare_set(keys.claim(request.rank, request.attempt), "", mine));
  if (holder == mine) return absl::OkStatus();
  const std::pair<std::string, std::string> parts = absl::StrSplit(holder, absl::MaxSplits(' ', 1));
  return absl::AlreadyExistsError(
      absl::StrCat("rank ", request.rank, " of group '", request.group, "' is taken by ",
                   printable(parts.second),
                   "; a restarted process needs a higher restart count than ", request.attempt));
}

// Knows whether the process that has a rank of the group is gone.
class Holder {
 public:
  Holder(RendezvousStore& store, const JoinKeys& keys, const JoinRequest& request)
      : store_(store),
        keys_(keys),
        rank_(request.rank),
        // The records live no longer than this object.
        records_(std::shared_ptr<RendezvousStore>(std::shared_ptr<void>(), &store), request.group,
                 request.epoch) {}

  // The attempt after that of the process, if a death record names it or if it has left. nullopt:
  // it may live.
  absl::StatusOr<std::optional<uint32_t>> next_attempt() {
    WEFT_ASSIGN_OR_RETURN(const std::vector<DeathRecord> read, records_.read());
    for (const DeathRecord& record : read) dead_.insert(record.dead);
    const std::string key = keys_.member(rank_);
    WEFT_ASSIGN_OR_RETURN(const auto texts, store_.read({key, keys_.left(rank_)}));
    if (!texts[0]) return std::nullopt;
    WEFT_ASSIGN_OR_RETURN(const MemberRecord record,
                          MemberRecord::decode(store_, key, rank_, texts[0]->value));
    WEFT_ASSIGN_OR_RETURN(const bool has_left, record.has_left(texts[1]));
    if (!has_left && !dead_.contains(record.member.id)) return std::nullopt;
    return record.attempt + 1;
  }

 private:
  RendezvousStore& store_;
  const JoinKeys& keys_;
  const uint32_t rank_;
  DeathRecords records_;
  std::set<WorkerId> dead_;
};

// Claims the rank as soon as the process that has it is gone. Returns the attempt of the claim.
// Aborted: the group has completed a `shutdown` meanwhile, so this is not the round to join.
absl::StatusOr<uint32_t> claim_rank_of_the_dead(RendezvousStore& store, const JoinKeys& keys,
                                                JoinRequest request, uint32_t round,
                                                absl::Duration& left) {
  Holder holder(store, keys, request);
  bool told = false;
  while (true) {
    const absl::Status claimed = claim_rank(store, keys, request);
    if (claimed.ok()) return request.attempt;
    if (!absl::IsAlreadyExists(claimed)) return claimed;
    WEFT_ASSIGN_OR_RETURN(const std::optional<uint32_t> next, holder.next_attempt());
    if (next.has_value() && *next > request.attempt) {
      request.attempt = *next;
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const auto ended, store.try_get(keys.ended(round)));
    if (ended) return absl::AbortedError("the round has ended");
    if (left <= absl::ZeroDuration()) {
      return absl::AlreadyExistsError(absl::StrCat(
          claimed.message(), ", or the group must have declared that process dead; it has not"));
    }
    if (!std::exchange(told, true)) {
      log_warning("worker '", request.name, "' waits for a death: ", claimed.message());
    }
    // Nobody writes this key unless the group fails.
    const absl::Duration slice = std::min(left, kWaitSlice);
    const absl::Status waited = store.wait({keys.failure()}, slice);
    if (!waited.ok() && !absl::IsDeadlineExceeded(waited)) return waited;
    WEFT_RETURN_IF_ERROR(check_failure(store, keys));
    left -= slice;
  }
}

absl::Status claim_name(RendezvousStore& store, const JoinKeys& keys, const JoinRequest& request) {
  const std::string mine = absl::StrCat(request.rank);
  WEFT_ASSIGN_OR_RETURN(const std::string holder,
                        store.compare_set(keys.name(request.name), "", mine));
  if (holder == mine) return absl::OkStatus();
  return fail_group(store, keys,
                    absl::AlreadyExistsError(
                        absl::StrCat("two workers of group '", request.group, "' are named '",
                                     request.name, "': ranks ", holder, " and ", request.rank)));
}

// Writes the record of this incarnation. Fails if a later incarnation of the rank has written one.
absl::Status publish(RendezvousStore& store, const JoinKeys& keys, const MemberRecord& self) {
  const uint32_t rank = self.member.rank;
  const std::string key = keys.member(rank);
  const std::string mine = self.encode();
  std::string expected;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const std::string held, store.compare_set(key, expected, mine));
    if (held == mine) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(const MemberRecord other, MemberRecord::decode(store, key, rank, held));
    if (other.member.id.incarnation > self.member.id.incarnation) {
      return absl::AlreadyExistsError(absl::StrCat(
          "rank ", rank, " was taken over by '", other.member.name, "' at ", other.member.address));
    }
    expected = held;
  }
}

std::vector<std::string> member_keys(const JoinKeys& keys, const JoinRequest& request) {
  std::vector<std::string> members;
  for (uint32_t rank = 0; rank < request.world_size; ++rank) members.push_back(keys.member(rank));
  return members;
}

absl::Status missing_ranks_error(RendezvousStore& store, const JoinKeys& keys,
                                 const JoinRequest& request) {
  std::string ranks;
  size_t missing = 0;
  WEFT_ASSIGN_OR_RETURN(const auto records, store.read(member_keys(keys, request)));
  for (uint32_t rank = 0; rank < request.world_size; ++rank) {
    if (records[rank]) continue;
    if (missing < kMaxRanksListed) absl::StrAppend(&ranks, missing == 0 ? "" : ", ", rank);
    ++missing;
  }
  if (missing == 0) return absl::OkStatus();  // the last one has come just now
  if (missing > kMaxRanksListed) {
    absl::StrAppend(&ranks, " and ", missing - kMaxRanksListed, " more");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      missing == 1 ? "rank " : "ranks ", ranks, " of ", request.world_size, " did not join group '",
      request.group, "' within ", absl::FormatDuration(request.timeout), " (", store.description(),
      ")", keys.round != keys.epoch ? "; those who were in it before have shut down" : ""));
}

// Measures the time by the slices that the store has waited, so it needs no clock.
absl::Status wait_for_all(RendezvousStore& store, const JoinKeys& keys, const JoinRequest& request,
                          absl::Duration left) {
  // A part at a time, because the store keeps each key for which a call waits, and because what is
  // there need not be waited for again.
  constexpr size_t kAtATime = 64;
  std::vector<std::string> records = member_keys(keys, request);
  std::reverse(records.begin(), records.end());
  while (true) {
    const absl::Duration slice = std::min(left, kWaitSlice);
    const size_t part = std::min(kAtATime, records.size());
    const absl::Status there =
        store.wait({records.end() - static_cast<std::ptrdiff_t>(part), records.end()}, slice);
    if (!there.ok() && !absl::IsDeadlineExceeded(there)) return there;
    if (there.ok()) records.resize(records.size() - part);
    if (there.ok() && !records.empty()) continue;
    WEFT_RETURN_IF_ERROR(check_failure(store, keys));
    if (there.ok()) return there;
    left -= slice;
    if (left <= absl::ZeroDuration()) return missing_ranks_error(store, keys, request);
  }
}

// Waits for the others, and reads their records.
absl::StatusOr<std::vector<MemberInfo>> meet_all(RendezvousStore& store, const JoinKeys& keys,
                                                 const JoinRequest& request, WorkerId self,
                                                 absl::Duration left) {
  WEFT_RETURN_IF_ERROR(wait_for_all(store, keys, request, left));
  std::vector<MemberInfo> members;
  std::vector<std::string> authors;
  WEFT_ASSIGN_OR_RETURN(const auto texts, store.read(member_keys(keys, request)));
  for (uint32_t rank = 0; rank < request.world_size; ++rank) {
    const std::string key = keys.member(rank);
    const std::optional<StoredValue>& text = texts[rank];
    if (!text) return absl::InternalError(absl::StrCat("'", key, "' vanished from the store"));
    WEFT_ASSIGN_OR_RETURN(MemberRecord found, MemberRecord::decode(store, key, rank, text->value));
    WEFT_RETURN_IF_ERROR(found.check_author(text->author));
    MemberInfo& member = found.member;
    // A process with a higher attempt may have taken this rank during the wait.
    if (rank == self.index && member.id != self) {
      return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " was taken over by '",
                                                   member.name, "' at ", member.address));
    }
    members.push_back(std::move(member));
    authors.push_back(text->author);
  }
  WEFT_RETURN_IF_ERROR(rpc_internal::check_names(store, keys, members, authors));
  return members;
}

}  // namespace

absl::StatusOr<JoinResult> join_static_group(RendezvousStore& store, const JoinRequest& request) {
  WEFT_RETURN_IF_ERROR(check(request));
  absl::Duration left =
      request.timeout > absl::ZeroDuration() ? request.timeout : absl::InfiniteDuration();
  JoinResult result;
  result.attempt = request.attempt;
  std::optional<JoinKeys> round_keys;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(
        result.round, rpc_internal::current_round(store, JoinKeys(request.group, request.epoch)));
    const JoinKeys& keys = round_keys.emplace(request.group, request.epoch, result.round);
    WEFT_RETURN_IF_ERROR(check_failure(store, keys));
    WEFT_RETURN_IF_ERROR(agree_on_world_size(store, keys, request));
    if (!request.replaces_the_dead) {
      WEFT_RETURN_IF_ERROR(claim_rank(store, keys, request));
      break;
    }
    const auto attempt = claim_rank_of_the_dead(store, keys, request, result.round, left);
    if (absl::IsAborted(attempt.status())) continue;  // to the next round
    WEFT_ASSIGN_OR_RETURN(result.attempt, attempt);
    break;
  }
  const JoinKeys& keys = *round_keys;
  WEFT_RETURN_IF_ERROR(claim_name(store, keys, request));

  MemberRecord record;
  record.attempt = result.attempt;
  MemberInfo& self = record.member;
  WEFT_ASSIGN_OR_RETURN(self.id, rpc_internal::new_incarnation(store, keys, request.rank));
  self.name = request.name;
  self.rank = request.rank;
  self.address = request.address;
  WEFT_RETURN_IF_ERROR(publish(store, keys, record));
  result.self = self.id;
  auto members = meet_all(store, keys, request, self.id, left);
  if (!members.ok()) {
    // No process stands behind the record now. A process that replaces this one learns it here.
    (void)rpc_internal::mark_left(store, keys, self.id);
    return members.status();
  }
  result.members = *std::move(members);
  return result;
}

absl::Status mark_ended(RendezvousStore& store, const std::string& group, uint32_t epoch,
                        uint32_t round) {
  // Not `set`, because another member may have marked it already, and then the key is that
  // member's.
  return store.compare_set(JoinKeys(group, epoch).ended(round), "", "1").status();
}

}  // namespace weft
