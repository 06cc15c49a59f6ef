#include "weft/rpc/same_host/connection/payload_lender.h"

#include <algorithm>
#include <array>
#include <utility>

#include "weft/base/status.h"
#include "weft/rpc/same_host/connection/segment_message.h"
#include "weft/shm/large_copy.h"

namespace weft::rpc_internal {
namespace {

uint64_t next_connection() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

PayloadLender::PayloadLender(std::shared_ptr<BlockArena> arena, WorkerId peer,
                             std::shared_ptr<PairMemory> memory, PairMemory::End end, WakeSlot here)
    : arena_(std::move(arena)),
      peer_(peer, next_connection()),
      memory_(std::move(memory)),
      here_(std::move(here)),
      returns_(memory_->returns(end)) {}

Lendings PayloadLender::lend(const Frame& frame, LocalSocket& socket) {
  Lendings lendings(frame.payloads.size());
  for (size_t i = 0; i < frame.payloads.size(); ++i) {
    const Payload& payload = frame.payloads[i];
    if (payload.size < kLeast) continue;
    lendings[i] = lend_one(payload, socket);
    if (lendings[i].generation == 0) {
      take_back(lendings);
      return {};
    }
  }
  return lendings;
}

std::optional<Payload> PayloadLender::copy(const std::byte* data, size_t size) {
  std::optional<BlockArena::Block> block = arena_->allocate_ahead(size);
  if (!block.has_value()) return std::nullopt;
  large_copy(block->data, data, size);
  return Payload{
      .data = block->data, .size = size, .owner = std::move(block->owner), .given = true};
}

Lending PayloadLender::lend_one(const Payload& payload, LocalSocket& socket) {
  std::optional<BlockArena::Resident> there;
  if (payload.given) there = arena_->find(payload.data, payload.size);
  // A part of a block may not be aligned as the far end wants it.
  if (there.has_value() && there->offset == there->id.offset) {
    const absl::StatusOr<Lending> lending = lend_block(there->id, socket);
    if (lending.ok()) return *lending;
    // FailedPrecondition: the far end has it already. It may be writing to it, but then this frame
    // is a repetition, which its session drops.
    if (!absl::IsFailedPrecondition(lending.status())) return {};
  }
  const std::optional<BlockArena::Block> block = arena_->allocate(payload.size);
  if (!block.has_value() || !hand_over(block->id.segment, socket)) return {};
  large_copy(block->data, payload.data, payload.size);
  return lend_block(block->id, socket).value_or(Lending());
}

absl::StatusOr<Lending> PayloadLender::lend_block(BlockId block, LocalSocket& socket) {
  WEFT_ASSIGN_OR_RETURN(const uint32_t generation, arena_->lend(block, peer_));
  const Lending lending = {block.segment, generation, block.offset};
  if (hand_over(block.segment, socket)) return lending;
  take_back({&lending, 1});
  return absl::ResourceExhaustedError("the segment cannot be handed over");
}

bool PayloadLender::hand_over(uint32_t segment, LocalSocket& socket) {
  MutexLock lock(mutex_);
  if (handed_over_.contains(segment)) return true;
  const std::shared_ptr<const SealedMemory> memory = arena_->segment(segment);
  if (memory == nullptr) return false;
  const SegmentMessage message = {segment, 0, memory->size()};
  const int descriptors[] = {memory->descriptor()};
  // Without waiting: if the socket is full, the peer does not read, and the ring will do.
  if (!socket.send(message.bytes(), descriptors, LocalSocket::TimePoint::min()).ok()) return false;
  collect_dropped();
  handed_over_.insert(segment);
  return true;
}

void PayloadLender::take_back(std::span<const Lending> lendings) {
  for (const Lending& lending : lendings) {
    if (lending.generation == 0) continue;
    // It fails only if the peer's process is gone: then all its blocks are back already.
    (void)arena_->returned(peer_, lending);
  }
}

void PayloadLender::find_dropped() {
  MutexLock lock(mutex_);
  collect_dropped();
}

void PayloadLender::collect_dropped() {
  for (auto next = handed_over_.begin(); next != handed_over_.end();) {
    const auto each = next++;
    if (arena_->segment(*each) != nullptr) continue;
    dropped_.push_back(*each);
    handed_over_.erase(each);
  }
}

std::vector<uint32_t> PayloadLender::take_dropped() {
  MutexLock lock(mutex_);
  return std::exchange(dropped_, {});
}

void PayloadLender::settle(std::span<const Lending> unread) {
  take_back(unread);
  ask_for_returns();
}

void PayloadLender::ask_for_returns() {
  // True: some have come already, and the peer signals nothing. After the end of its process, the
  // arena does not take what is left in the ring.
  const auto have_come = [this] {
    if (gone_.load(std::memory_order_acquire)) return false;
    MutexLock lock(mutex_);
    return violation_.ok() && returns_.request_wake().value_or(true);
  };
  while (have_come()) arena_->drain();
}

void PayloadLender::peer_gone() {
  gone_.store(true, std::memory_order_release);
  arena_->peer_gone(peer_);
}

absl::Status PayloadLender::violation() const {
  MutexLock lock(mutex_);
  return violation_;
}

void PayloadLender::drain(std::vector<Lending>& returned) {
  std::array<Lending, 64> some;
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    while (violation_.ok()) {
      const absl::StatusOr<size_t> taken = returns_.take(some);
      if (!taken.ok()) {
        failure = taken.status();
        break;
      }
      returned.insert(returned.end(), some.begin(), some.begin() + *taken);
      if (*taken < some.size()) break;
    }
  }
  if (!failure.ok()) on_violation(failure);
}

void PayloadLender::on_violation(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!violation_.ok()) return;
    violation_ = why;
  }
  here_.signal();
}

}  // namespace weft::rpc_internal
