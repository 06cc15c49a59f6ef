#include "weft/shm/return_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

absl::Status check_return_position(std::string_view side, uint64_t position, uint64_t least,
                                   uint64_t most) {
  if (position >= least && position <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("return ring: the ", std::string(side),
                                                 "'s position is ", position, ", must be from ",
                                                 least, " to ", most));
}

}  // namespace

absl::StatusOr<bool> ReturnWriter::push(const Lending& block) {
  WEFT_RETURN_IF_ERROR(failure_);
  if (tail_ - head_ == ReturnRing::kSlots) {
    // Acquire: the owner has read the slot before it is written again.
    const uint64_t head = ring_.head.load(std::memory_order_acquire);
    failure_ = check_return_position("owner", head, head_, tail_);
    if (failure_.ok() && head == head_) {
      failure_ = absl::InvalidArgumentError(
          absl::StrCat("return ring: all ", ReturnRing::kSlots, " slots are full at position ",
                       tail_, ", so the owner has lent more blocks than that"));
    }
    WEFT_RETURN_IF_ERROR(failure_);
    head_ = head;
  }
  ReturnRing::Slot& slot = ring_.slots[tail_ % ReturnRing::kSlots];
  slot.segment_and_generation.store(block.segment | uint64_t{block.generation} << 32,
                                    std::memory_order_relaxed);
  slot.offset.store(block.offset, std::memory_order_relaxed);
  ++tail_;
  // A release for the slot. Sequentially consistent, before the flag is loaded: request_wake()
  // stores the flag before it loads the position. So the owner sees the return, or this side sees
  // the flag.
  ring_.tail.store(tail_, std::memory_order_seq_cst);
  if (ring_.wants_memory.load(std::memory_order_seq_cst) == 0) return false;
  return ring_.wants_memory.exchange(0, std::memory_order_relaxed) != 0;
}

absl::Status ReturnReader::look() {
  const uint64_t tail = ring_.tail.load(std::memory_order_seq_cst);
  failure_ = check_return_position("borrower", tail, tail_, head_ + ReturnRing::kSlots);
  if (failure_.ok()) tail_ = tail;
  return failure_;
}

absl::StatusOr<size_t> ReturnReader::take(std::span<Lending> returns) {
  WEFT_RETURN_IF_ERROR(failure_);
  WEFT_RETURN_IF_ERROR(look());
  const size_t count = std::min<uint64_t>(returns.size(), tail_ - head_);
  for (Lending& block : returns.first(count)) {
    const ReturnRing::Slot& slot = ring_.slots[head_ % ReturnRing::kSlots];
    const uint64_t first = slot.segment_and_generation.load(std::memory_order_relaxed);
    block = {.segment = static_cast<uint32_t>(first),
             .generation = static_cast<uint32_t>(first >> 32),
             .offset = slot.offset.load(std::memory_order_relaxed)};
    ++head_;
  }
  // Release: the slots were read before the borrower may write them again.
  if (count != 0) ring_.head.store(head_, std::memory_order_release);
  return count;
}

absl::StatusOr<bool> ReturnReader::request_wake() {
  WEFT_RETURN_IF_ERROR(failure_);
  ring_.wants_memory.store(1, std::memory_order_seq_cst);
  WEFT_RETURN_IF_ERROR(look());
  if (head_ == tail_) return false;
  // If the borrower has seen the flag already, the owner gets a needless signal.
  ring_.wants_memory.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace weft
