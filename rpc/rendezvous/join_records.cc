#include "weft/rpc/rendezvous/join_records.h"

#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/security/certificate_name.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMaxAddressLength = 4096;
constexpr size_t kMaxGroupLength = 1024;

bool is_address(const std::string& text) {
  return text.size() <= kMaxAddressLength && printable(text, kMaxAddressLength) == text;
}

}  // namespace

JoinKeys::JoinKeys(const std::string& group_name, uint32_t epoch_number, uint32_t round_number)
    : group(absl::StrCat("weft/", group_name, "/")),
      epoch(absl::StrCat(group, epoch_number, "/")),
      round(round_number == 0 ? epoch : absl::StrCat(epoch, "round/", round_number, "/")) {}

std::string JoinKeys::incarnation(uint32_t index) const {
  return absl::StrCat(group, "incarnation/", index);
}
std::string JoinKeys::claim(uint32_t rank, uint32_t attempt) const {
  return absl::StrCat(round, "claim/", rank, "/", attempt);
}
std::string JoinKeys::name(const std::string& name) const {
  return absl::StrCat(round, "name/", name);
}
std::string JoinKeys::member(uint32_t index) const { return absl::StrCat(round, "member/", index); }
std::string JoinKeys::world_size() const { return absl::StrCat(round, "world_size"); }
std::string JoinKeys::failure() const { return absl::StrCat(round, "failure"); }
std::string JoinKeys::indices() const { return absl::StrCat(round, "indices"); }
std::string JoinKeys::left(uint32_t index) const { return absl::StrCat(round, "left/", index); }
std::string JoinKeys::ended(uint32_t round) const { return absl::StrCat(epoch, "ended/", round); }

std::string MemberRecord::encode() const {
  return absl::StrCat(member.id.incarnation, " ", attempt, " ", member.name, " ", member.address);
}

absl::StatusOr<MemberRecord> MemberRecord::decode(const RendezvousStore& store,
                                                  const std::string& key, uint32_t index,
                                                  const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  MemberRecord record;
  MemberInfo& member = record.member;
  member.rank = index;
  member.id.index = index;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &member.id.incarnation) ||
      !member.id.valid() || !absl::SimpleAtoi(parts[1], &record.attempt) ||
      !check_worker_name(parts[2]).ok() || !is_address(parts[3])) {
    return absl::InternalError(
        absl::StrCat(store.description(), ": '", key, "' is not a member record"));
  }
  member.name = parts[2];
  member.address = parts[3];
  return record;
}

absl::Status MemberRecord::check_author(const std::string& author) const {
  if (author.empty() || is_of(author)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the record of worker '", member.name, "' was written by worker '", printable(author), "'"));
}

bool MemberRecord::is_of(const std::string& author) const {
  return proves(author, {member.name, member.id.index});
}

absl::StatusOr<bool> MemberRecord::has_left(const std::optional<StoredValue>& mark) const {
  if (!mark || (!mark->author.empty() && !is_of(mark->author))) return false;
  uint32_t number = 0;
  if (absl::SimpleAtoi(mark->value, &number)) return member.id.incarnation <= number;
  return absl::InternalError(absl::StrCat("the mark that worker '", member.name, "' has left is '",
                                          printable(mark->value), "', which is no number"));
}

absl::Status check_names(RendezvousStore& store, const JoinKeys& keys,
                         const std::vector<MemberInfo>& members,
                         const std::vector<std::string>& authors) {
  std::vector<const MemberInfo*> asked;
  std::vector<std::string> names;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!is_name_of_rank(authors[i])) continue;
    asked.push_back(&members[i]);
    names.push_back(keys.name(members[i].name));
  }
  if (asked.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto claims, store.read(names));
  for (size_t i = 0; i < asked.size(); ++i) {
    const MemberInfo& member = *asked[i];
    const uint32_t rank = member.id.index;
    const bool own = claims[i].has_value() && claims[i]->value == absl::StrCat(rank) &&
                     claims[i]->author == name_of_rank(rank);
    if (own) continue;
    return absl::PermissionDeniedError(absl::StrCat("rank ", rank, " says that it is worker '",
                                                    member.name,
                                                    "', but has not claimed the name"));
  }
  return absl::OkStatus();
}

absl::Status mark_left(RendezvousStore& store, const JoinKeys& keys, WorkerId self) {
  return store.set(keys.left(self.index), absl::StrCat(self.incarnation));
}

absl::StatusOr<uint32_t> current_round(RendezvousStore& store, const JoinKeys& keys) {
  constexpr uint32_t kAtATime = 64;
  for (uint32_t first = 0;; first += kAtATime) {
    std::vector<std::string> marks;
    for (uint32_t i = 0; i < kAtATime; ++i) marks.push_back(keys.ended(first + i));
    WEFT_ASSIGN_OR_RETURN(const auto found, store.read(marks));
    for (uint32_t i = 0; i < kAtATime; ++i) {
      if (!found[i].has_value()) return first + i;
    }
  }
}

absl::Status check_joiner(const JoinRequest& request) {
  WEFT_RETURN_IF_ERROR(check_worker_name(request.name));
  if (request.address.empty() || !is_address(request.address)) {
    return absl::InvalidArgumentError(absl::StrCat("worker '", request.name, "': the address '",
                                                   printable(request.address), "' of ",
                                                   request.address.size(), " bytes"));
  }
  if (request.group.empty()) return absl::InvalidArgumentError("the group's name is empty");
  if (request.group.size() > kMaxGroupLength ||
      printable(request.group, kMaxGroupLength) != request.group) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group's name '", printable(request.group), "' of ", request.group.size(),
                     " bytes: it is up to ", kMaxGroupLength, " printable ASCII characters"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WorkerInfo>> find_incarnation(RendezvousStore& store,
                                                           const JoinKeys& keys,
                                                           WorkerId incarnation) {
  const std::string key = keys.member(incarnation.index);
  WEFT_ASSIGN_OR_RETURN(const auto texts, store.read({key, keys.left(incarnation.index)}));
  if (!texts[0]) return std::nullopt;
  const std::string& author = texts[0]->author;
  WEFT_ASSIGN_OR_RETURN(const MemberRecord record,
                        MemberRecord::decode(store, key, incarnation.index, texts[0]->value));
  if (record.member.id != incarnation) return std::nullopt;
  WEFT_RETURN_IF_ERROR(record.check_author(author));
  WEFT_ASSIGN_OR_RETURN(const bool has_left, record.has_left(texts[1]));
  if (has_left) return std::nullopt;
  WEFT_RETURN_IF_ERROR(check_names(store, keys, {record.member}, {author}));
  return WorkerInfo{incarnation, record.member.name, record.member.address};
}

absl::StatusOr<uint32_t> read_number(RendezvousStore& store, const std::string& key) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text, store.try_get(key));
  uint32_t number = 0;
  if (text && !absl::SimpleAtoi(*text, &number)) {
    return absl::InternalError(absl::StrCat(store.description(), ": '", key, "' holds no number"));
  }
  return number;
}

absl::StatusOr<WorkerId> new_incarnation(RendezvousStore& store, const JoinKeys& keys,
                                         uint32_t index) {
  WEFT_ASSIGN_OR_RETURN(const int64_t incarnation, store.add(keys.incarnation(index), 1));
  if (incarnation < 1 || incarnation > std::numeric_limits<uint32_t>::max()) {
    return absl::InternalError(absl::StrCat(store.description(), ": '", keys.incarnation(index),
                                            "' reached ", incarnation));
  }
  return WorkerId{index, static_cast<uint32_t>(incarnation)};
}

}  // namespace weft::rpc_internal
