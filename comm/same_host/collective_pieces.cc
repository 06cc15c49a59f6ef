// The steps of an operation in which some rank's data lies in private memory. All ranks copy such
// data piece by piece through their staging buffers.
#include <algorithm>
#include <cstring>

#include "weft/comm/same_host/collective_group.h"

namespace weft::comm_internal {

bool CollectiveGroup::move_pieces() {
  if (pieces_taken_ == pieces_) {
    pieces_before_ += static_cast<uint32_t>(pieces_);
    finish_operation();
    return true;
  }
  const bool staged = stage_piece();
  return take_piece() || staged;
}

bool CollectiveGroup::stage_piece() {
  if (pieces_staged_ == pieces_ || pieces_staged_ - pieces_taken_ == kStages) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_staged_);
  if (!all_reached(&ControlBlock::unstaged, piece + 1 - kStages)) return false;
  const Record& mine = records_[rank()];
  const uint64_t begin = pieces_staged_ * kStageBytes;
  if (mine.location != DataLocation::kSlot && begin < mine.bytes) {
    const uint64_t end = std::min(begin + kStageBytes, mine.bytes);
    queue_.front()->operation_.read(begin, end, mesh_->mine().stages[piece % kStages]);
    counts_.copied_bytes += end - begin;
  }
  ++pieces_staged_;
  move(&ControlBlock::staged, piece + 1);
  return true;
}

bool CollectiveGroup::take_piece() {
  if (pieces_taken_ == pieces_staged_) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_taken_);
  if (!all_reached(&ControlBlock::staged, piece + 1)) return false;
  const Operation& operation = queue_.front()->operation_;
  const uint64_t begin = pieces_taken_ * kStageBytes, end = begin + kStageBytes;
  const auto stage_of = [&](int other) { return mesh_->block(other).stages[piece % kStages]; };
  if (operation.sum != Operation::Sum::kNone) {
    for (int other = 0; other < size(); ++other) sources_[other] = stage_of(other);
  }
  const uint64_t width = operation.element_bytes;
  if (operation.sum == Operation::Sum::kEverywhere) {
    const uint64_t first = begin / width;
    const uint64_t count = std::min(end, operation.bytes()) / width - first;
    if (size() <= kAllAddUp) {
      sum_to_parts(first, count);
    } else {
      // Each rank adds up a part in its own staging buffer, and takes the other parts from theirs.
      if (!piece_reduced_) {
        const uint64_t from = part_begin(count, rank()), until = part_begin(count, rank() + 1);
        std::byte* target = stage_of(rank()) + from * width;
        sum(first, first + from, until - from, {&target, 1});
        piece_reduced_ = true;
        move(&ControlBlock::reduced, piece + 1);
      }
      if (!all_reached(&ControlBlock::reduced, piece + 1)) return false;
      piece_reduced_ = false;
      for (int other = 0; other < size(); ++other) {
        const uint64_t from = part_begin(count, other) * width;
        const uint64_t until = part_begin(count, other + 1) * width;
        operation.write(stage_of(other) + from, begin + from, begin + until);
      }
    }
  } else if (operation.sum == Operation::Sum::kHere) {
    const uint64_t first = std::max(begin / width, operation.first);
    const uint64_t last = std::min(end / width, operation.first + operation.count);
    if (first < last) {
      std::byte* target = operation.sum_to + (first - operation.first) * width;
      sum(begin / width, first, last - first, {&target, 1});
    }
  }
  for (const Operation::Pull& pull : operation.pulls) {
    if (records_[pull.from].location == DataLocation::kSlot) {
      if (pieces_taken_ == 0 && pull.size > 0) {
        std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
      }
      continue;
    }
    const uint64_t from = std::max(begin, pull.offset),
                   until = std::min(end, pull.offset + pull.size);
    if (from < until) {
      std::memcpy(pull.to + (from - pull.offset), stage_of(pull.from) + (from - begin),
                  until - from);
    }
  }
  ++pieces_taken_;
  move(&ControlBlock::unstaged, piece + 1);
  return true;
}

}  // namespace weft::comm_internal
