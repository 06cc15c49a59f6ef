#include "weft/comm/same_host/arenas.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/status.h"

namespace weft::comm_internal {

absl::StatusOr<Arenas::Block> Arenas::allocate(size_t size,
                                               std::chrono::steady_clock::time_point deadline) {
  const size_t whole = std::max(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (whole < size)
    return absl::ResourceExhaustedError(absl::StrCat("no memory of ", size, " bytes"));
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Arena>& arena : mine_) {
    if (const auto offset = arena->take(whole); offset.has_value()) {
      return block_of(arena, *offset, whole);
    }
  }
  if (mine_.size() == kMostArenas) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a rank has ", kMostArenas, " arenas and none has room for ", size, " bytes"));
  }
  WEFT_ASSIGN_OR_RETURN(
      SealedMemory memory,
      SealedMemory::create(absl::StrCat("weft-arena-", mesh_->rank(), "-", mine_.size()),
                           std::max(whole, kArenaBytes)));
  // First take the arenas that other ranks have sent: the sockets have little room.
  for (int other = 0; other < mesh_->size(); ++other) {
    if (other != mesh_->rank()) WEFT_RETURN_IF_ERROR(about(other, receive_from(other)));
  }
  // If the arena reaches only some ranks, they later get another one with the same number in its
  // place. That is safe, because no tensor was ever in this one.
  const std::string text = absl::StrCat(mine_.size(), " ", memory.size());
  for (int other = 0; other < mesh_->size(); ++other) {
    WEFT_RETURN_IF_ERROR(about(other, mesh_->hand(other, text, memory.descriptor(), deadline)));
  }
  const auto arena = std::make_shared<Arena>(std::move(memory));
  mine_.push_back(arena);
  return block_of(arena, *arena->take(whole), whole);
}

absl::Status Arenas::about(int rank, const absl::Status& status) const {
  // A rank that is gone needs no arena. An operation that needs this rank will report it.
  if (status.ok() || !mesh_->end_of(rank).ok()) return absl::OkStatus();
  return prepend(absl::StrCat("rank ", rank, ": "), status);
}

Arenas::Block Arenas::block_of(const std::shared_ptr<Arena>& arena, size_t offset, size_t size) {
  std::byte* const data = arena->memory().data() + offset;
  return {data, std::shared_ptr<void>(
                    data, [arena, offset, size](void*) { arena->give_back(offset, size); })};
}

std::optional<Operation::Resident> Arenas::find(const std::byte* data, size_t size) const {
  const std::less_equal<const std::byte*> not_behind;
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < mine_.size(); ++i) {
    const SealedMemory& memory = mine_[i]->memory();
    if (size > memory.size() || !not_behind(memory.data(), data)) continue;
    if (not_behind(data, memory.data() + memory.size() - size)) {
      return Operation::Resident{i, static_cast<uint64_t>(data - memory.data())};
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::byte*> Arenas::locate(int rank, uint32_t arena, uint64_t offset,
                                          uint64_t size) {
  MutexLock lock(mutex_);
  const SealedMemory* memory = nullptr;
  if (rank == mesh_->rank()) {
    if (arena < mine_.size()) memory = &mine_[arena]->memory();
  } else {
    // Look into the socket if the arena is unknown: it was sent before a record named it. Also look
    // if it is the last one, which may have been replaced.
    if (arena + 1 >= theirs_[rank].size()) WEFT_RETURN_IF_ERROR(receive_from(rank));
    if (arena < theirs_[rank].size()) memory = &theirs_[rank][arena];
  }
  if (memory == nullptr || offset > memory->size() || size > memory->size() - offset) {
    return absl::InvalidArgumentError(absl::StrCat("names memory that it has not sent: ", size,
                                                   " bytes from ", offset, " on of arena ", arena));
  }
  return memory->data() + offset;
}

absl::Status Arenas::receive_from(int rank) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::optional<LocalSocket::Message> message, mesh_->handed_by(rank));
    if (!message.has_value()) return absl::OkStatus();
    const std::vector<std::string> words = absl::StrSplit(message->bytes, ' ');
    std::vector<SealedMemory>& theirs = theirs_[rank];
    uint64_t number = 0, size = 0;
    if (message->descriptors.size() != 1 || words.size() != 2 ||
        !absl::SimpleAtoi(words[0], &number) || !absl::SimpleAtoi(words[1], &size) ||
        number >= kMostArenas || number > theirs.size() || number + 1 < theirs.size()) {
      return absl::InvalidArgumentError("sent something that is no arena");
    }
    WEFT_ASSIGN_OR_RETURN(SealedMemory memory,
                          SealedMemory::adopt(std::move(message->descriptors[0]), size));
    if (number == theirs.size()) theirs.emplace_back();
    theirs[number] = std::move(memory);
  }
}

std::optional<size_t> Arenas::Arena::take(size_t size) {
  MutexLock lock(mutex_);
  // Take the smallest piece that is large enough, so that large ones stay for large tensors.
  auto best = free_.end();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second >= size && (best == free_.end() || piece->second < best->second)) {
      best = piece;
    }
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, there] = *best;
  free_.erase(best);
  if (there > size) free_[offset + size] = there - size;
  return offset;
}

void Arenas::Arena::give_back(size_t offset, size_t size) {
  MutexLock lock(mutex_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

}  // namespace weft::comm_internal
