#include "weft/comm/same_host/records.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::comm_internal {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 48;

bool same(const Record& one, const Record& other) {
  return std::memcmp(one.label, other.label, kLabelBytes) == 0 && one.root == other.root &&
         one.dims == other.dims && one.fingerprint == other.fingerprint &&
         std::equal(one.shape, one.shape + std::min(one.dims, kMostDims), other.shape);
}

bool valid(const Record& record, bool arenas) {
  return record.location <= DataLocation::kPrivate &&
         (record.location == DataLocation::kSlot) == (record.bytes <= kSlotBytes) &&
         record.bytes <= kMostBytes && (arenas || record.location != DataLocation::kArena);
}

}  // namespace

void describe(const Operation& operation, uint64_t number, Record& record) {
  record.number = number;
  std::memset(record.label, 0, kLabelBytes);
  std::memcpy(record.label, operation.label.data(), std::min(operation.label.size(), kLabelBytes));
  record.root = operation.root;
  record.dims = static_cast<uint32_t>(operation.shape.size());
  std::copy_n(operation.shape.begin(), std::min<size_t>(operation.shape.size(), kMostDims),
              record.shape);
  record.fingerprint = operation.fingerprint;
  const uint64_t bytes = operation.bytes();
  record.bytes = bytes;
  if (bytes <= kSlotBytes) {
    record.location = DataLocation::kSlot;
  } else if (operation.resident.has_value()) {
    record.location = DataLocation::kArena;
    record.arena = operation.resident->arena;
    record.offset = operation.resident->offset;
  } else {
    record.location = DataLocation::kPrivate;
  }
}

std::string label_of(const Record& record) {
  std::string label = printable(record.label, kLabelBytes);
  const uint32_t dims = std::min(record.dims, kMostDims);
  if (dims > 0) {
    absl::StrAppend(&label, " of shape [", absl::StrJoin(record.shape, record.shape + dims, ", "),
                    "]");
  }
  if (record.root >= 0) absl::StrAppend(&label, " with root ", record.root);
  if (record.fingerprint != 0) absl::StrAppend(&label, " layout ", absl::Hex(record.fingerprint));
  return label;
}

absl::Status check_records(std::span<const Record> records, int rank, const RecordRules& rules) {
  const Record& mine = records[rank];
  for (int other = 0; other < static_cast<int>(records.size()); ++other) {
    const Record& record = records[other];
    if (record.number != mine.number) {
      return absl::InternalError(absl::StrCat("rank ", other, " is at operation ", record.number,
                                              ", rank ", rank, " at ", mine.number));
    }
    if (!same(record, mine) || (rules.equal_bytes && record.bytes != mine.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ranks called different operations: rank ", rank, " ", label_of(mine),
                       ", ", mine.bytes, " bytes, rank ", other, " ", label_of(record), ", ",
                       record.bytes, " bytes (operation ", mine.number, " of the group)"));
    }
    if (!valid(record, rules.arenas)) {
      return absl::InternalError(absl::StrCat("rank ", other, " published a damaged record"));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::comm_internal
