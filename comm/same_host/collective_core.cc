#include "weft/comm/same_host/collective_core.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/comm/same_host/records.h"

namespace weft::comm_internal {

CollectiveCore::CollectiveCore(Mesh& mesh, ArenaDirectory* arenas)
    : mesh_(mesh), arenas_(arenas), records_(mesh.size()), sources_(mesh.size()) {}

absl::StatusOr<CollectiveCore::Progress> CollectiveCore::advance(Operation& operation) {
  switch (phase_) {
    case Phase::kPublish:
      return publish(operation);
    case Phase::kMeet:
      return meet(operation);
    case Phase::kSlots:
      return take_slots(operation);
    case Phase::kArenas:
      return take_arenas(operation);
    case Phase::kLeaveArenas:
      return leave_arenas();
    case Phase::kPieces:
      return move_pieces(operation);
  }
  return Progress::kNone;
}

bool CollectiveCore::is_long() const {
  return phase_ == Phase::kPieces || (phase_ == Phase::kArenas && largest_ > kLargeBytes);
}

bool CollectiveCore::waits_for(int other) const {
  return other != rank() && awaited_ != nullptr &&
         !reached((mesh_.block(other).*awaited_).load(), goal_.number);
}

void CollectiveCore::give_up(absl::string_view reason) {
  ControlBlock& mine = mesh_.mine();
  std::memcpy(mine.failure, reason.data(), std::min(reason.size(), sizeof(mine.failure) - 1));
  move(&ControlBlock::failed, 1);
  mine.wake_word.notify();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before tensors are used again
}

// ---- the phases

CollectiveCore::Progress CollectiveCore::publish(const Operation& operation) {
  if (!all_reached(&ControlBlock::consumed, done_ + 1 - kSlots)) return Progress::kNone;
  Slot& slot = mesh_.mine().slots[done_ % kSlots];
  describe(operation, done_, slot.record);
  if (const uint64_t bytes = operation.bytes(); bytes <= kSlotBytes) {
    operation.read(0, bytes, slot.data);
    counts_.copied_bytes += bytes;
  }
  uint64_t offset = 0;
  for (size_t other = 0; other < operation.shares.size(); ++other) {
    mesh_.channel(rank(), static_cast<int>(other)).shares[done_ % kSlots] = {
        offset, operation.shares[other]};
    offset += operation.shares[other];
  }
  mesh_.mine().claims[done_ % kSlots].value = first_claim(done_);
  move(&ControlBlock::published, done_ + 1);
  phase_ = Phase::kMeet;
  return Progress::kMoved;
}

absl::StatusOr<CollectiveCore::Progress> CollectiveCore::meet(Operation& operation) {
  if (!all_reached(&ControlBlock::published, done_ + 1)) return Progress::kNone;
  for (int other = 0; other < size(); ++other) {
    records_[other] = mesh_.block(other).slots[done_ % kSlots].record;
  }
  WEFT_RETURN_IF_ERROR(check_records(
      records_, rank(),
      {.equal_bytes = operation.sum != Operation::Sum::kNone, .arenas = arenas_ != nullptr}));
  WEFT_RETURN_IF_ERROR(plan_pulls(operation));
  WEFT_RETURN_IF_ERROR(place_pulls(operation));
  WEFT_RETURN_IF_ERROR(find_contributions());
  return Progress::kMoved;
}

absl::Status CollectiveCore::plan_pulls(Operation& operation) const {
  if (operation.plan == nullptr) return absl::OkStatus();
  std::vector<uint64_t> bytes;
  for (const Record& record : records_) bytes.push_back(record.bytes);
  return operation.plan(bytes, operation.pulls);
}

// Fills in the offsets of Pull::share. Checks that every rank's contribution has the bytes that
// this rank takes from it.
absl::Status CollectiveCore::place_pulls(Operation& operation) const {
  for (Operation::Pull& pull : operation.pulls) {
    uint64_t size = pull.size;
    if (pull.share) {
      const Share share = mesh_.channel(pull.from, rank()).shares[done_ % kSlots];
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

// Finds out where the contributions lie, and so which phase comes next.
absl::Status CollectiveCore::find_contributions() {
  bool all_in_slots = true, any_private = false;
  largest_ = 0;
  for (const Record& record : records_) {
    all_in_slots = all_in_slots && record.location == DataLocation::kSlot;
    any_private = any_private || record.location == DataLocation::kPrivate;
    if (record.location != DataLocation::kSlot) largest_ = std::max(largest_, record.bytes);
  }
  for (int other = 0; other < size(); ++other) {
    sources_[other] = mesh_.block(other).slots[done_ % kSlots].data;
  }
  if (all_in_slots) {
    ++counts_.in_slots;
    phase_ = Phase::kSlots;
    return absl::OkStatus();
  }
  if (any_private) {
    ++counts_.in_pieces;
    pieces_ = (largest_ + kStageBytes - 1) / kStageBytes;
    pieces_staged_ = pieces_taken_ = 0;
    piece_reduced_ = false;
    phase_ = Phase::kPieces;
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(all_are_well());
  for (int other = 0; other < size(); ++other) {
    const Record& record = records_[other];
    if (record.location != DataLocation::kArena) continue;
    absl::StatusOr<std::byte*> at =
        arenas_->locate(other, record.arena, record.offset, record.bytes);
    if (!at.ok()) return prepend(absl::StrCat("rank ", other, ": "), at.status());
    sources_[other] = *at;
  }
  ++counts_.in_arenas;
  phase_ = Phase::kArenas;
  return absl::OkStatus();
}

CollectiveCore::Progress CollectiveCore::take_slots(const Operation& operation) {
  take_whole(operation);
  return finish();
}

absl::StatusOr<CollectiveCore::Progress> CollectiveCore::take_arenas(const Operation& operation) {
  if (operation.sum == Operation::Sum::kEverywhere) {
    WEFT_RETURN_IF_ERROR(add_chunks(operation));
  } else {
    take_whole(operation);
  }
  WEFT_RETURN_IF_ERROR(all_are_well());
  move(&ControlBlock::turned, done_ + 1);
  phase_ = Phase::kLeaveArenas;
  return Progress::kMoved;
}

CollectiveCore::Progress CollectiveCore::leave_arenas() {
  if (!all_reached(&ControlBlock::turned, done_ + 1)) return Progress::kNone;
  return finish();
}

CollectiveCore::Progress CollectiveCore::move_pieces(const Operation& operation) {
  if (pieces_taken_ == pieces_) {
    pieces_before_ += static_cast<uint32_t>(pieces_);
    return finish();
  }
  const bool staged = stage_piece(operation);
  return take_piece(operation) || staged ? Progress::kMoved : Progress::kNone;
}

CollectiveCore::Progress CollectiveCore::finish() {
  ++done_;
  move(&ControlBlock::consumed, done_);
  // Not every operation moves these counters. They follow here, because reached() needs numbers
  // that are less than half their range apart.
  mesh_.mine().turned.value.store(done_, std::memory_order_seq_cst);
  mesh_.mine().reduced.value.store(pieces_before_, std::memory_order_seq_cst);
  goal_ = {};
  awaited_ = nullptr;
  phase_ = Phase::kPublish;
  return Progress::kDone;
}

// ---- data that can be read as a whole

// An error if another rank has given up. Such a rank may use its tensors again, so the data there
// may no longer be its contribution. (If a rank gives up while this one writes to its tensor,
// nothing prevents that write.)
absl::Status CollectiveCore::all_are_well() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && mesh_.block(other).failed.load() != 0) return mesh_.end_of(other);
  }
  return absl::OkStatus();
}

// Adds up, for all ranks, the chunks of this rank's part. Then it goes on with the unclaimed chunks
// of the other parts, so a rank that has time does more. A part that no other rank helps with stays
// in one processor's caches.
absl::Status CollectiveCore::add_chunks(const Operation& operation) {
  for (int turn = 0; turn < size(); ++turn) {
    WEFT_RETURN_IF_ERROR(add_chunks_of(operation, (rank() + turn) % size()));
  }
  return absl::OkStatus();
}

// Claims and adds up chunks of that rank's part until none is left.
absl::Status CollectiveCore::add_chunks_of(const Operation& operation, int owner) {
  const uint64_t bytes = operation.bytes();
  const uint64_t width = operation.element_bytes, count = bytes / width;
  const uint64_t part = bytes / (kChunksEach * static_cast<uint64_t>(size()));
  const uint64_t chunk = std::clamp(part & ~(kPageBytes - 1), kPageBytes, kMostChunkBytes) / width;
  const uint64_t end = part_begin(count, owner + 1);
  std::atomic<uint64_t>& claims = mesh_.block(owner).claims[done_ % kSlots].value;
  for (;;) {
    WEFT_RETURN_IF_ERROR(all_are_well());
    const uint64_t claim = claims.fetch_add(1) - first_claim(done_);
    if (claim >> 32 != 0) {
      return absl::InternalError(
          absl::StrCat("rank ", owner, "'s control block counts another operation's chunks"));
    }
    const uint64_t begin = part_begin(count, owner) + claim * chunk;
    if (begin >= end) return absl::OkStatus();
    targets_.clear();
    for (std::byte* source : sources_) targets_.push_back(source + begin * width);
    sum(operation, 0, begin, std::min(chunk, end - begin), targets_);
    ++counts_.chunks;
  }
}

// Runs the operation in one go. Every contribution can be read as a whole at `sources_`.
void CollectiveCore::take_whole(const Operation& operation) {
  for (const Operation::Pull& pull : operation.pulls) {
    if (pull.size > 0) std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
  }
  switch (operation.sum) {
    case Operation::Sum::kNone:
      break;
    case Operation::Sum::kHere:
      sum(operation, 0, operation.first, operation.count, {&operation.sum_to, 1});
      break;
    case Operation::Sum::kEverywhere:
      sum_to_parts(operation, 0, operation.bytes() / operation.element_bytes);
      break;
  }
}

// ---- data in private memory, which all ranks copy piece by piece through staging buffers

bool CollectiveCore::stage_piece(const Operation& operation) {
  if (pieces_staged_ == pieces_ || pieces_staged_ - pieces_taken_ == kStages) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_staged_);
  if (!all_reached(&ControlBlock::unstaged, piece + 1 - kStages)) return false;
  const Record& mine = records_[rank()];
  const uint64_t begin = pieces_staged_ * kStageBytes;
  if (mine.location != DataLocation::kSlot && begin < mine.bytes) {
    const uint64_t end = std::min(begin + kStageBytes, mine.bytes);
    operation.read(begin, end, stage_of(rank(), piece));
    counts_.copied_bytes += end - begin;
  }
  ++pieces_staged_;
  move(&ControlBlock::staged, piece + 1);
  return true;
}

bool CollectiveCore::take_piece(const Operation& operation) {
  if (pieces_taken_ == pieces_staged_) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_taken_);
  if (!all_reached(&ControlBlock::staged, piece + 1)) return false;
  if (!add_up_piece(operation, piece)) return false;
  pull_piece(operation, piece);
  ++pieces_taken_;
  move(&ControlBlock::unstaged, piece + 1);
  return true;
}

// False: other ranks still add up their parts of the piece.
bool CollectiveCore::add_up_piece(const Operation& operation, uint32_t piece) {
  if (operation.sum == Operation::Sum::kNone) return true;
  for (int other = 0; other < size(); ++other) sources_[other] = stage_of(other, piece);
  const uint64_t begin = pieces_taken_ * kStageBytes, end = begin + kStageBytes;
  const uint64_t width = operation.element_bytes;
  if (operation.sum == Operation::Sum::kHere) {
    const uint64_t first = std::max(begin / width, operation.first);
    const uint64_t last = std::min(end / width, operation.first + operation.count);
    if (first < last) {
      std::byte* target = operation.sum_to + (first - operation.first) * width;
      sum(operation, begin / width, first, last - first, {&target, 1});
    }
    return true;
  }
  const uint64_t first = begin / width;
  const uint64_t count = std::min(end, operation.bytes()) / width - first;
  if (size() <= kAllAddUp) {
    sum_to_parts(operation, first, count);
    return true;
  }
  // Each rank adds up a part in its own staging buffer, and takes the other parts from theirs.
  if (!piece_reduced_) {
    const uint64_t from = part_begin(count, rank()), until = part_begin(count, rank() + 1);
    std::byte* target = stage_of(rank(), piece) + from * width;
    sum(operation, first, first + from, until - from, {&target, 1});
    piece_reduced_ = true;
    move(&ControlBlock::reduced, piece + 1);
  }
  if (!all_reached(&ControlBlock::reduced, piece + 1)) return false;
  piece_reduced_ = false;
  for (int other = 0; other < size(); ++other) {
    const uint64_t from = part_begin(count, other) * width;
    const uint64_t until = part_begin(count, other + 1) * width;
    operation.write(stage_of(other, piece) + from, begin + from, begin + until);
  }
  return true;
}

void CollectiveCore::pull_piece(const Operation& operation, uint32_t piece) const {
  const uint64_t begin = pieces_taken_ * kStageBytes, end = begin + kStageBytes;
  for (const Operation::Pull& pull : operation.pulls) {
    if (records_[pull.from].location == DataLocation::kSlot) {
      if (pieces_taken_ == 0 && pull.size > 0) {
        std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
      }
      continue;
    }
    const uint64_t from = std::max(begin, pull.offset);
    const uint64_t until = std::min(end, pull.offset + pull.size);
    if (from < until) {
      std::memcpy(pull.to + (from - pull.offset), stage_of(pull.from, piece) + (from - begin),
                  until - from);
    }
  }
}

// ---- sums

// Reduces elements [first, first + count) of all contributions into `targets`. `sources_` begin
// with element `base`.
void CollectiveCore::sum(const Operation& operation, uint64_t base, uint64_t first, uint64_t count,
                         std::span<std::byte* const> targets) {
  if (count == 0) return;
  shifted_.clear();
  for (const std::byte* source : sources_) {
    shifted_.push_back(source + (first - base) * operation.element_bytes);
  }
  operation.kernel(shifted_, targets, count);
}

// Reduces these elements into this rank's own contribution. `sources_` begin with element `first`.
void CollectiveCore::sum_to_parts(const Operation& operation, uint64_t first, uint64_t count) {
  if (count == 0) return;
  const uint64_t begin = first * operation.element_bytes;
  if (operation.parts.size() == 1) {
    std::byte* target = operation.parts[0].data + begin;
    sum(operation, first, first, count, {&target, 1});
    return;
  }
  const uint64_t bytes = count * operation.element_bytes;
  if (scratch_.size() < bytes) scratch_.resize(kStageBytes);
  std::byte* target = scratch_.data();
  sum(operation, first, first, count, {&target, 1});
  operation.write(target, begin, begin + bytes);
}

// ---- counters

bool CollectiveCore::all_reached(Counter ControlBlock::*counter, uint32_t number) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || reached((mesh_.block(other).*counter).load(), number)) continue;
    goal_ = {&(mesh_.block(other).*counter), number};
    awaited_ = counter;
    return false;
  }
  return true;
}

void CollectiveCore::move(Counter ControlBlock::*counter, uint32_t next) {
  ++moves_;
  (mesh_.mine().*counter).value.store(next, std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) mesh_.block(other).wake_word.notify();
  }
}

}  // namespace weft::comm_internal
