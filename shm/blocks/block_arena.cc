#include "weft/shm/blocks/block_arena.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"

namespace weft {
namespace {

using SegmentMemory = std::shared_ptr<const SealedMemory>;

struct PeerSource {
  BorrowerId peer;
  std::shared_ptr<ReturnSource> source;
};
using PeerSources = std::vector<PeerSource>;

TimePoint arena_now() { return std::chrono::steady_clock::now(); }

}  // namespace

class BlockArena::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Options options) : options_(std::move(options)) {}

  std::optional<Block> allocate(size_t size, bool may_grow) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Block> allocate_ahead(size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Resident> find(const std::byte* data, size_t size) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<void> hold(BlockId block) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint32_t> lend(BlockId block, BorrowerId peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status returned(BorrowerId peer, const Lending& lending) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Block> taken_home(BorrowerId peer, const Lending& lending)
      ABSL_LOCKS_EXCLUDED(mutex_);
  size_t peer_gone(BorrowerId peer) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<BlockTable::Borrower> borrower(BorrowerId peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<BlockTable::Borrower> largest_borrower() const ABSL_LOCKS_EXCLUDED(mutex_);

  void add_source(PeerSource source) ABSL_LOCKS_EXCLUDED(mutex_);
  void remove_source(const ReturnSource* source) ABSL_LOCKS_EXCLUDED(mutex_);
  void remove_all_sources() ABSL_LOCKS_EXCLUDED(mutex_);
  void drain() ABSL_LOCKS_EXCLUDED(mutex_);

  SegmentMemory segment(uint32_t number) const ABSL_LOCKS_EXCLUDED(mutex_);
  void retire_idle(TimePoint since) ABSL_LOCKS_EXCLUDED(mutex_);
  Statistics statistics() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The arena is destroyed. From now on, a segment is freed when its last block is.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Growth { kLookAgain, kRefused };

  std::optional<Block> take(size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  Growth grow(uint64_t block_size) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<void> owner_of(std::byte* data, BlockId block);
  void drop_reference(BlockId block) ABSL_LOCKS_EXCLUDED(mutex_);

  std::optional<uint64_t> plan_segment(uint64_t block_size, std::vector<SegmentMemory>& unused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SegmentMemory drop_segment(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::byte* data_of(BlockId block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return segments_.at(block.segment)->data() + block.offset;
  }
  template <class Which>
  std::shared_ptr<const PeerSources> without(const Which& which) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto rest = std::make_shared<PeerSources>();
    std::remove_copy_if(sources_->begin(), sources_->end(), std::back_inserter(*rest), which);
    return rest;
  }

  const Options options_;
  std::atomic<uint64_t> allocated_since_drain_{0};  // bytes

  mutable Mutex mutex_;
  BlockTable table_ ABSL_GUARDED_BY(mutex_);
  // Shared with those that hand a segment over at this moment.
  std::map<uint32_t, SegmentMemory> segments_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, uint32_t> by_address_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread creates a segment and has released the lock for this time. Only one thread does so, so
  // that a burst of allocations does not create more than it needs.
  bool creating_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t coming_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of allocate_ahead() that has not returned
  CondVar created_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Never changed in place, because drain() reads it without the lock.
  std::shared_ptr<const PeerSources> sources_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<PeerSources>();
  Statistics statistics_ ABSL_GUARDED_BY(mutex_);
};

// ---- allocation

std::optional<BlockArena::Block> BlockArena::State::allocate(size_t size, bool may_grow) {
  const std::optional<uint64_t> block_size = BlockTable::block_size(size);
  if (!block_size.has_value()) return std::nullopt;
  bool drained = allocated_since_drain_.fetch_add(*block_size) + *block_size >= kDrainEvery;
  if (drained) drain();
  while (true) {
    if (std::optional<Block> block = take(size); block.has_value()) return block;
    if (!drained) {
      drained = true;
      drain();
    } else if (!may_grow || grow(*block_size) == Growth::kRefused) {
      return std::nullopt;
    }
  }
}

std::optional<BlockArena::Block> BlockArena::State::allocate_ahead(size_t size) {
  const std::optional<uint64_t> whole = BlockTable::block_size(size);
  if (!whole.has_value()) return std::nullopt;
  {
    MutexLock lock(mutex_);
    if (table_.gauges().held_bytes + coming_bytes_ + *whole > options_.cap / 2) {
      ++statistics_.refused_ahead;
      return std::nullopt;
    }
    coming_bytes_ += *whole;
  }
  const absl::Cleanup over = [&] {  // also if something throws
    MutexLock lock(mutex_);
    coming_bytes_ -= *whole;
  };
  return allocate(size, true);
}

std::optional<BlockArena::Block> BlockArena::State::take(size_t size) {
  Block block;
  {
    MutexLock lock(mutex_);
    const std::optional<BlockTable::Found> found = table_.allocate(size);
    if (!found.has_value()) return std::nullopt;
    block = {data_of(found->block), size, found->block, nullptr};
  }
  block.owner = owner_of(block.data, block.id);
  return block;
}

BlockArena::State::Growth BlockArena::State::grow(uint64_t block_size) {
  std::vector<SegmentMemory> unused;  // unmapped without the lock
  std::optional<uint64_t> size;
  uint32_t number = 0;
  {
    MutexLock lock(mutex_);
    if (creating_) {
      while (creating_) created_.wait(mutex_);
      return Growth::kLookAgain;
    }
    size = plan_segment(block_size, unused);
    if (!size.has_value()) {
      ++statistics_.refused_at_cap;
      return Growth::kRefused;
    }
    creating_ = true;
    number = ++last_number_;
  }
  unused.clear();
  const absl::Cleanup over = [this] {  // also if something throws: other threads wait for it
    MutexLock lock(mutex_);
    creating_ = false;
    created_.notify_all();
  };
  absl::StatusOr<SealedMemory> created =
      options_.create(absl::StrCat(options_.label, "-", number), *size);
  SegmentMemory memory;
  if (created.ok()) memory = std::make_shared<SealedMemory>(*std::move(created));

  MutexLock lock(mutex_);
  if (memory == nullptr) {
    ++statistics_.refused_by_system;
    return Growth::kRefused;
  }
  const uint64_t usable = memory->size() / BlockTable::kUnit * BlockTable::kUnit;
  if (!table_.add_segment(number, usable, arena_now()).ok()) {  // there are too many
    ++statistics_.refused_at_cap;
    return Growth::kRefused;
  }
  by_address_[memory->data()] = number;
  segments_[number] = std::move(memory);
  ++statistics_.created;
  return Growth::kLookAgain;
}

// The size of the next segment. At the cap it retires idle segments, if this makes enough room:
// they are all too small for the block.
std::optional<uint64_t> BlockArena::State::plan_segment(uint64_t block_size,
                                                        std::vector<SegmentMemory>& unused) {
  uint64_t there = table_.gauges().bytes;
  const std::vector<uint32_t> idle = table_.idle_segments(kNever);
  uint64_t idle_bytes = 0;
  for (const uint32_t number : idle) idle_bytes += segments_.at(number)->size();
  const uint64_t busy_bytes = there - std::min(there, idle_bytes);
  if (block_size > options_.cap || busy_bytes > options_.cap - block_size) return std::nullopt;
  for (const uint32_t number : idle) {
    if (there <= options_.cap - block_size) break;
    unused.push_back(drop_segment(number));
    there = table_.gauges().bytes;
  }
  const uint64_t wanted = std::max(block_size, std::clamp(there, kFirstSegment, kLargestGrowth));
  const uint64_t room = (options_.cap - there) / BlockTable::kUnit * BlockTable::kUnit;
  return std::min(wanted, room);
}

std::shared_ptr<void> BlockArena::State::owner_of(std::byte* data, BlockId block) {
  return std::shared_ptr<void>(
      data, [state = shared_from_this(), block](void*) { state->drop_reference(block); });
}

std::shared_ptr<void> BlockArena::State::hold(BlockId block) {
  std::byte* data = nullptr;
  {
    MutexLock lock(mutex_);
    table_.add_reference(block);
    data = data_of(block);
  }
  return owner_of(data, block);
}

void BlockArena::State::drop_reference(BlockId block) {
  SegmentMemory unused;  // unmapped without the lock
  MutexLock lock(mutex_);
  table_.drop_reference(block, arena_now());
  if (closed_ && table_.segment_is_idle(block.segment)) unused = drop_segment(block.segment);
}

std::optional<BlockArena::Resident> BlockArena::State::find(const std::byte* data,
                                                            size_t size) const {
  MutexLock lock(mutex_);
  auto next = by_address_.upper_bound(data);
  if (next == by_address_.begin()) return std::nullopt;
  const auto [begin, number] = *std::prev(next);
  const auto offset = static_cast<uint64_t>(data - begin);
  const std::optional<BlockTable::Found> found = table_.find(number, offset);
  if (!found.has_value() || size > found->block.offset + found->size - offset) return std::nullopt;
  return Resident{found->block, offset};
}

// ---- lendings

absl::StatusOr<uint32_t> BlockArena::State::lend(BlockId block, BorrowerId peer) {
  MutexLock lock(mutex_);
  return table_.lend(block, peer, arena_now());
}

absl::Status BlockArena::State::returned(BorrowerId peer, const Lending& lending) {
  MutexLock lock(mutex_);
  absl::Status status = table_.returned(peer, lending, arena_now());
  if (status.ok()) ++statistics_.returned;
  return status;
}

absl::StatusOr<BlockArena::Block> BlockArena::State::taken_home(BorrowerId peer,
                                                                const Lending& lending) {
  Block block;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<BlockTable::Found> found = table_.taken_home(peer, lending);
    if (!found.ok()) return found.status();
    ++statistics_.returned;
    block = {data_of(found->block), static_cast<size_t>(found->size), found->block, nullptr};
  }
  block.owner = owner_of(block.data, block.id);
  return block;
}

size_t BlockArena::State::peer_gone(BorrowerId peer) {
  std::shared_ptr<const PeerSources> removed;  // destroyed without the lock
  MutexLock lock(mutex_);
  removed =
      std::exchange(sources_, without([&](const PeerSource& one) { return one.peer == peer; }));
  const size_t count = table_.peer_gone(peer, arena_now());
  statistics_.returned += count;
  return count;
}

std::optional<BlockTable::Borrower> BlockArena::State::borrower(BorrowerId peer) const {
  MutexLock lock(mutex_);
  return table_.borrower(peer);
}

std::optional<BlockTable::Borrower> BlockArena::State::largest_borrower() const {
  MutexLock lock(mutex_);
  return table_.largest_borrower();
}

// ---- sources

void BlockArena::State::add_source(PeerSource source) {
  MutexLock lock(mutex_);
  auto all = std::make_shared<PeerSources>(*sources_);
  all->push_back(std::move(source));
  sources_ = std::move(all);
}

void BlockArena::State::remove_source(const ReturnSource* source) {
  std::shared_ptr<const PeerSources> removed;  // destroyed without the lock
  MutexLock lock(mutex_);
  removed = std::exchange(
      sources_, without([&](const PeerSource& one) { return one.source.get() == source; }));
}

void BlockArena::State::remove_all_sources() {
  std::shared_ptr<const PeerSources> removed;  // destroyed without the lock
  MutexLock lock(mutex_);
  removed = std::exchange(sources_, std::make_shared<PeerSources>());
}

void BlockArena::State::drain() {
  allocated_since_drain_ = 0;
  std::shared_ptr<const PeerSources> sources;
  {
    MutexLock lock(mutex_);
    sources = sources_;
  }
  std::vector<Lending> returned;
  for (const auto& [peer, source] : *sources) {
    returned.clear();
    source->drain(returned);
    if (returned.empty()) continue;
    absl::Status violation;
    {
      MutexLock lock(mutex_);
      const TimePoint time = arena_now();
      // A wrong return does not harm the right ones beside it.
      for (const Lending& lending : returned) {
        const absl::Status status = table_.returned(peer, lending, time);
        ++(status.ok() ? statistics_.returned : statistics_.violations);
        violation.Update(status);
      }
    }
    if (!violation.ok()) source->on_violation(violation);
  }
}

// ---- segments

SegmentMemory BlockArena::State::segment(uint32_t number) const {
  MutexLock lock(mutex_);
  const auto segment = segments_.find(number);
  return segment == segments_.end() ? nullptr : segment->second;
}

SegmentMemory BlockArena::State::drop_segment(uint32_t number) {
  const auto segment = segments_.find(number);
  SegmentMemory memory = segment->second;
  (void)table_.drop_segment(number);  // the caller knows that it is idle
  by_address_.erase(memory->data());
  segments_.erase(segment);
  ++statistics_.retired;
  return memory;
}

void BlockArena::State::retire_idle(TimePoint since) {
  drain();
  std::vector<SegmentMemory> unused;  // unmapped without the lock
  MutexLock lock(mutex_);
  for (const uint32_t number : table_.idle_segments(since)) {
    unused.push_back(drop_segment(number));
  }
}

void BlockArena::State::close() {
  std::shared_ptr<const PeerSources> sources;
  std::vector<SegmentMemory> unused;
  MutexLock lock(mutex_);
  closed_ = true;
  sources = std::exchange(sources_, std::make_shared<PeerSources>());
  for (const uint32_t number : table_.idle_segments(kNever)) {
    unused.push_back(drop_segment(number));
  }
}

BlockArena::Statistics BlockArena::State::statistics() const {
  MutexLock lock(mutex_);
  Statistics statistics = statistics_;
  statistics.blocks = table_.gauges();
  return statistics;
}

// ---- the arena

BlockArena::BlockArena(Options options) : state_(std::make_shared<State>(std::move(options))) {}
BlockArena::~BlockArena() { state_->close(); }

std::optional<BlockArena::Block> BlockArena::allocate(size_t size) {
  return state_->allocate(size, true);
}
std::optional<BlockArena::Block> BlockArena::allocate_without_growth(size_t size) {
  return state_->allocate(size, false);
}
std::optional<BlockArena::Block> BlockArena::allocate_ahead(size_t size) {
  return state_->allocate_ahead(size);
}
std::optional<BlockArena::Resident> BlockArena::find(const void* data, size_t size) const {
  return state_->find(static_cast<const std::byte*>(data), size);
}
std::shared_ptr<void> BlockArena::hold(BlockId block) { return state_->hold(block); }
absl::StatusOr<uint32_t> BlockArena::lend(BlockId block, BorrowerId peer) {
  return state_->lend(block, peer);
}
absl::Status BlockArena::returned(BorrowerId peer, const Lending& lending) {
  return state_->returned(peer, lending);
}
absl::StatusOr<BlockArena::Block> BlockArena::taken_home(BorrowerId peer, const Lending& lending) {
  return state_->taken_home(peer, lending);
}
size_t BlockArena::peer_gone(BorrowerId peer) { return state_->peer_gone(peer); }
std::optional<BlockTable::Borrower> BlockArena::borrower(BorrowerId peer) const {
  return state_->borrower(peer);
}
std::optional<BlockTable::Borrower> BlockArena::largest_borrower() const {
  return state_->largest_borrower();
}
void BlockArena::add_source(BorrowerId peer, std::shared_ptr<ReturnSource> source) {
  state_->add_source({peer, std::move(source)});
}
void BlockArena::remove_source(const ReturnSource* source) { state_->remove_source(source); }
void BlockArena::remove_all_sources() { state_->remove_all_sources(); }
void BlockArena::drain() { state_->drain(); }
SegmentMemory BlockArena::segment(uint32_t number) const { return state_->segment(number); }
void BlockArena::retire_idle(TimePoint since) { state_->retire_idle(since); }
BlockArena::Statistics BlockArena::statistics() const { return state_->statistics(); }

}  // namespace weft
