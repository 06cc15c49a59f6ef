// The steps of one operation of a CollectiveGroup.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/async/error_text.h"
#include "weft/base/status.h"
#include "weft/comm/same_host/collective_group.h"

namespace weft::comm_internal {
namespace {

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

bool same(const Record& one, const Record& other) {
  return std::memcmp(one.label, other.label, kLabelBytes) == 0 && one.root == other.root &&
         one.dims == other.dims && one.fingerprint == other.fingerprint &&
         std::equal(one.shape, one.shape + std::min(one.dims, kMostDims), other.shape);
}

}  // namespace

bool CollectiveGroup::advance() {
  if (queue_.empty() || !failure_.ok()) return false;
  try {
    return advance_phase();
  } catch (const std::exception& failed) {  // for example, no memory
    // fail() may have been called before, and have emptied the queue.
    const std::string label = queue_.empty() ? "" : queue_.front()->operation_.label;
    fail(absl::ResourceExhaustedError(absl::StrCat(label, ": ", without_stack(failed.what()))));
    return true;
  }
}

bool CollectiveGroup::advance_phase() {
  switch (phase_) {
    case Phase::kPublish:
      return publish();
    case Phase::kMeet:
      return meet();
    case Phase::kSlots:
      return take_slots();
    case Phase::kArenas:
      return take_arenas();
    case Phase::kLeaveArenas:
      return leave_arenas();
    case Phase::kPieces:
      return move_pieces();
  }
  return false;
}

bool CollectiveGroup::publish() {
  if (!all_reached(&ControlBlock::consumed, operations_ + 1 - kSlots)) return false;
  const Operation& operation = queue_.front()->operation_;
  Slot& slot = mesh_->mine().slots[operations_ % kSlots];
  Record& record = slot.record;
  record.number = operations_;
  std::memset(record.label, 0, kLabelBytes);
  std::memcpy(record.label, operation.label.data(), std::min(operation.label.size(), kLabelBytes));
  record.root = operation.root;
  record.dims = static_cast<uint32_t>(operation.shape.size());
  std::copy_n(operation.shape.begin(), std::min<size_t>(record.dims, kMostDims), record.shape);
  record.bytes = operation.bytes();
  record.fingerprint = operation.fingerprint;
  if (record.bytes <= kSlotBytes) {
    record.location = DataLocation::kSlot;
    operation.read(0, record.bytes, slot.data);
    counts_.copied_bytes += record.bytes;
  } else if (operation.resident.has_value()) {
    record.location = DataLocation::kArena;
    record.arena = operation.resident->arena;
    record.offset = operation.resident->offset;
  } else {
    record.location = DataLocation::kPrivate;
  }
  uint64_t offset = 0;
  for (size_t other = 0; other < operation.shares.size(); ++other) {
    mesh_->channel(rank(), static_cast<int>(other)).shares[operations_ % kSlots] = {
        offset, operation.shares[other]};
    offset += operation.shares[other];
  }
  mesh_->mine().claims[operations_ % kSlots].value = first_claim(operations_);
  move(&ControlBlock::published, operations_ + 1);
  phase_ = Phase::kMeet;
  return true;
}

bool CollectiveGroup::meet() {
  if (!all_reached(&ControlBlock::published, operations_ + 1)) return false;
  for (int other = 0; other < size(); ++other) {
    records_[other] = mesh_->block(other).slots[operations_ % kSlots].record;
  }
  absl::Status same = compare();
  if (same.ok()) same = plan_pulls();
  if (same.ok()) same = place_pulls();
  if (!same.ok()) {
    fail(std::move(same));
    return true;
  }
  bool all_in_slots = true, any_private = false;
  largest_ = 0;
  for (const Record& record : records_) {
    all_in_slots = all_in_slots && record.location == DataLocation::kSlot;
    any_private = any_private || record.location == DataLocation::kPrivate;
    if (record.location != DataLocation::kSlot) largest_ = std::max(largest_, record.bytes);
  }
  for (int other = 0; other < size(); ++other) {
    sources_[other] = mesh_->block(other).slots[operations_ % kSlots].data;
  }
  pieces_ = pieces_staged_ = pieces_taken_ = 0;
  piece_reduced_ = false;
  if (all_in_slots) {
    ++counts_.in_slots;
    phase_ = Phase::kSlots;
  } else if (any_private) {
    ++counts_.in_pieces;
    pieces_ = (largest_ + kStageBytes - 1) / kStageBytes;
    phase_ = Phase::kPieces;
  } else {
    if (!all_are_well()) return true;
    for (int other = 0; other < size(); ++other) {
      const Record& record = records_[other];
      if (record.location != DataLocation::kArena) continue;
      absl::StatusOr<std::byte*> at =
          options_.arenas->locate(other, record.arena, record.offset, record.bytes);
      if (!at.ok()) {
        fail(prepend(absl::StrCat("rank ", other, ": "), at.status()));
        return true;
      }
      sources_[other] = *at;
    }
    ++counts_.in_arenas;
    phase_ = Phase::kArenas;
  }
  return true;
}

// Checks that the records of all ranks describe the same operation, and that each is valid.
absl::Status CollectiveGroup::compare() const {
  const Operation& operation = queue_.front()->operation_;
  const Record& mine = records_[rank()];
  for (int other = 0; other < size(); ++other) {
    const Record& record = records_[other];
    if (record.number != mine.number) {
      return absl::InternalError(absl::StrCat("rank ", other, " is at operation ", record.number,
                                              ", rank ", rank(), " at ", mine.number));
    }
    if (!same(record, mine) ||
        (operation.sum != Operation::Sum::kNone && record.bytes != mine.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ranks called different operations: rank ", rank(), " ", label_of(mine),
                       ", ", mine.bytes, " bytes, rank ", other, " ", label_of(record), ", ",
                       record.bytes, " bytes (operation ", mine.number, " of the group)"));
    }
    if (record.location > DataLocation::kPrivate ||
        (record.location == DataLocation::kSlot) != (record.bytes <= kSlotBytes) ||
        record.bytes > kMostBytes ||
        (record.location == DataLocation::kArena && options_.arenas == nullptr)) {
      return absl::InternalError(absl::StrCat("rank ", other, " published a damaged record"));
    }
  }
  return absl::OkStatus();
}

absl::Status CollectiveGroup::plan_pulls() {
  Operation& operation = queue_.front()->operation_;
  if (operation.plan == nullptr) return absl::OkStatus();
  std::vector<uint64_t> bytes;
  for (const Record& record : records_) bytes.push_back(record.bytes);
  return operation.plan(bytes, operation.pulls);
}

// Fills in the offsets of Pull::share. Checks that every rank's contribution has the bytes that
// this rank takes from it.
absl::Status CollectiveGroup::place_pulls() {
  Operation& operation = queue_.front()->operation_;
  for (Operation::Pull& pull : operation.pulls) {
    uint64_t size = pull.size;
    if (pull.share) {
      const Share share = mesh_->channel(pull.from, rank()).shares[operations_ % kSlots];
      pull.offset = share.offset;
      size = share.size;
    }
    const uint64_t there = records_[pull.from].bytes;
    if (size != pull.size || pull.offset > there || pull.size > there - pull.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          label_of(records_[rank()]), ": rank ", rank(), " takes ", pull.size, " bytes from rank ",
          pull.from, ", which brings ", size, " of ", there, " for it"));
    }
  }
  return absl::OkStatus();
}

bool CollectiveGroup::take_slots() {
  take_whole();
  finish_operation();
  return true;
}

bool CollectiveGroup::take_arenas() {
  if (queue_.front()->operation_.sum == Operation::Sum::kEverywhere) {
    if (!add_chunks()) return true;
  } else {
    take_whole();
  }
  if (!all_are_well()) return true;
  move(&ControlBlock::turned, operations_ + 1);
  phase_ = Phase::kLeaveArenas;
  return true;
}

// Fails the group if another rank has given up. Such a rank may use its tensors again, so the data
// there may no longer be its contribution. (If a rank gives up while this one writes to its tensor,
// nothing prevents that write.)
bool CollectiveGroup::all_are_well() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || mesh_->block(other).failed.load() == 0) continue;
    fail(mesh_->end_of(other));
    return false;
  }
  return true;
}

bool CollectiveGroup::leave_arenas() {
  if (!all_reached(&ControlBlock::turned, operations_ + 1)) return false;
  finish_operation();
  return true;
}

// Whether the next step takes long.
bool CollectiveGroup::is_long() const {
  return phase_ == Phase::kPieces || (phase_ == Phase::kArenas && largest_ > kLargeBytes);
}

// Adds up, for all ranks, the chunks of this rank's part. Then it goes on with the unclaimed chunks
// of the other parts, so a rank that has time does more. A part that no other rank helps with stays
// in one processor's caches.
bool CollectiveGroup::add_chunks() {
  const Operation& operation = queue_.front()->operation_;
  const uint64_t width = operation.element_bytes, count = operation.bytes() / width;
  const uint64_t part = operation.bytes() / (kChunksEach * static_cast<uint64_t>(size()));
  const uint64_t chunk = std::clamp(part & ~(kPageBytes - 1), kPageBytes, kMostChunkBytes) / width;
  for (int turn = 0; turn < size(); ++turn) {
    const int share = (rank() + turn) % size();
    const uint64_t end = part_begin(count, share + 1);
    std::atomic<uint64_t>& claims = mesh_->block(share).claims[operations_ % kSlots].value;
    for (;;) {
      if (!all_are_well()) return false;
      const uint64_t claim = claims.fetch_add(1) - first_claim(operations_);
      if (claim >> 32 != 0) {
        fail(absl::InternalError(
            absl::StrCat("rank ", share, "'s control block counts another operation's chunks")));
        return false;
      }
      const uint64_t begin = part_begin(count, share) + claim * chunk;
      if (begin >= end) break;
      targets_.clear();
      for (std::byte* source : sources_) targets_.push_back(source + begin * width);
      sum(0, begin, std::min(chunk, end - begin), targets_);
      ++counts_.chunks;
    }
  }
  return true;
}

// Runs the operation in one go. Every contribution can be read as a whole at `sources_`.
void CollectiveGroup::take_whole() {
  const Operation& operation = queue_.front()->operation_;
  for (const Operation::Pull& pull : operation.pulls) {
    if (pull.size > 0) std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
  }
  switch (operation.sum) {
    case Operation::Sum::kNone:
      break;
    case Operation::Sum::kHere:
      sum(0, operation.first, operation.count, {&operation.sum_to, 1});
      break;
    case Operation::Sum::kEverywhere:
      sum_to_parts(0, operation.bytes() / operation.element_bytes);
      break;
  }
}

// Reduces elements [first, first + count) of all contributions into `targets`. `sources_` begin
// with element `base`.
void CollectiveGroup::sum(uint64_t base, uint64_t first, uint64_t count,
                          std::span<std::byte* const> targets) {
  if (count == 0) return;
  const Operation& operation = queue_.front()->operation_;
  shifted_.clear();
  for (const std::byte* source : sources_) {
    shifted_.push_back(source + (first - base) * operation.element_bytes);
  }
  operation.kernel(shifted_, targets, count);
}

// Reduces these elements into this rank's own contribution. `sources_` begin with element `first`.
void CollectiveGroup::sum_to_parts(uint64_t first, uint64_t count) {
  if (count == 0) return;
  const Operation& operation = queue_.front()->operation_;
  const uint64_t begin = first * operation.element_bytes;
  if (operation.parts.size() == 1) {
    std::byte* target = operation.parts[0].data + begin;
    sum(first, first, count, {&target, 1});
    return;
  }
  const uint64_t bytes = count * operation.element_bytes;
  if (scratch_.size() < bytes) scratch_.resize(kStageBytes);
  std::byte* target = scratch_.data();
  sum(first, first, count, {&target, 1});
  operation.write(target, begin, begin + bytes);
}

uint64_t CollectiveGroup::part_begin(uint64_t count, int rank) const {
  return count * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size());
}

}  // namespace weft::comm_internal
