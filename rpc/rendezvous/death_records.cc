#include "weft/rpc/rendezvous/death_records.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr size_t kMaxReason = 1024;

// The text "DEAD BY REASON"; DEAD and BY are WorkerIds as decimal numbers.
std::string encode(const DeathRecord& death_record) {
  return absl::StrCat(death_record.dead.bits(), " ", death_record.by.bits(), " ",
                      death_record.reason);
}

absl::StatusOr<DeathRecord> decode(const std::string& text, const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  uint64_t dead = 0, by = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &dead) || !absl::SimpleAtoi(parts[1], &by) ||
      !WorkerId::from_bits(dead).valid()) {
    return absl::InternalError(absl::StrCat("'", key, "' is not a death record"));
  }
  return DeathRecord{WorkerId::from_bits(dead), WorkerId::from_bits(by),
                     printable(parts[2], kMaxReason)};
}

}  // namespace

DeathRecords::DeathRecords(std::shared_ptr<RendezvousStore> store, std::string_view group,
                           uint32_t epoch)
    : store_(std::move(store)),
      prefix_(absl::StrCat("weft/", absl_view(group), "/", epoch, "/death_record/")) {}

std::string DeathRecords::key(uint64_t place) const { return absl::StrCat(prefix_, place); }

void DeathRecords::note(const std::vector<DeathRecord>& read) {
  for (const DeathRecord& death_record : read) dead_.insert(death_record.dead);
  known_ += read.size();
}

// Entries count as read only if the whole call succeeds. Otherwise the next call reads them again.
absl::StatusOr<std::vector<DeathRecord>> DeathRecords::read() {
  std::vector<DeathRecord> read;
  while (true) {
    const std::string next = key(known_ + read.size() + 1);
    WEFT_ASSIGN_OR_RETURN(const auto held, store_->read({next}));
    if (!held.front()) break;
    WEFT_ASSIGN_OR_RETURN(DeathRecord death_record, decode(held.front()->value, next));
    if (const std::string& author = held.front()->author; !author.empty()) {
      absl::StrAppend(&death_record.reason, " (written by worker '", printable(author),
                      "', as its certificate proves)");
    }
    read.push_back(std::move(death_record));
  }
  note(read);
  return read;
}

absl::StatusOr<std::vector<DeathRecord>> DeathRecords::declare_dead(WorkerId self, WorkerId suspect,
                                                                    std::string_view reason) {
  const std::string mine = encode({suspect, self, std::string(reason.substr(0, kMaxReason))});
  std::vector<DeathRecord> read;
  bool decided = dead_.contains(suspect) || dead_.contains(self);
  bool appended = false;
  // Ends at the first free position, or at an entry of another worker that decides the question.
  while (!decided) {
    const std::string next = key(known_ + read.size() + 1);
    WEFT_ASSIGN_OR_RETURN(const std::string held, store_->compare_set(next, "", mine));
    WEFT_ASSIGN_OR_RETURN(DeathRecord death_record, decode(held, next));
    decided = death_record.dead == suspect || death_record.dead == self;
    appended = held == mine;
    read.push_back(std::move(death_record));
  }
  WEFT_FAIL_POINT("death_record.appended");
  note(read);
  if (appended) return read;
  // A later entry may be this worker's own death record.
  absl::StatusOr<std::vector<DeathRecord>> rest = this->read();
  if (rest.ok()) read.insert(read.end(), rest->begin(), rest->end());
  return read;
}

}  // namespace weft
