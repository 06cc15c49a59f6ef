// Both sides of lent memory, under descriptors and returns that lie. The owner must take a block
// back only for its present lending. The borrower must accept no bytes outside the segment, and no
// unit twice. What both do honestly must succeed. The input is a sequence of events.
#include <algorithm>
#include <fcntl.h>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "weft/shm/blocks/block_table.h"
#include "weft/shm/blocks/borrowed_segments.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

constexpr uint64_t kUnit = BlockTable::kUnit;
constexpr uint64_t kSegmentBytes = 16 * kUnit;
constexpr uint32_t kSegment = 1;
constexpr WorkerId kPeers[] = {{1, 1}, {2, 1}};  // the first one has the memory mapped

SealedMemory segment() {
  static const SealedMemory memory = SealedMemory::create("weft-fuzz", kSegmentBytes).value();
  return SealedMemory::adopt(FileDescriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0)),
                             memory.size())
      .value();
}

class Returns : public ReturnSink {
 public:
  void give_back(const Lending& lending) override { all.push_back(lending); }
  std::vector<Lending> all;
};

class Run {
 public:
  explicit Run(Bytes input) : input_(input) {
    require(table_.add_segment(kSegment, kSegmentBytes, now_).ok(), "no segment");
    require(borrowed_.add_segment(kSegment, segment()).ok(), "a segment is refused");
  }

  void play() {
    while (!input_.empty()) {
      now_ += std::chrono::milliseconds(1);
      event();
      check();
    }
    while (!blocks_.empty()) drop_borrowed(blocks_.size() - 1);
    while (!owned_.empty()) drop_owned(owned_.size() - 1);
    for (const WorkerId peer : kPeers) lose(peer);
    require(table_.gauges().free_bytes == kSegmentBytes, "a block is left");
    require(borrowed_.gauges().borrowed_bytes == 0, "a block is still borrowed");
    require(borrowed_.gauges().private_bytes == 0, "a range is still private");
    require(table_.drop_segment(kSegment).ok() && borrowed_.retire_segment(kSegment).ok(),
            "the segment cannot be retired");
  }

 private:
  struct Lent {
    WorkerId peer;
    BlockId block;
    uint64_t size = 0;
  };
  struct Borrowed {
    Lending lending;
    BorrowedSegments::Block block;
  };

  // A value near one that could be right, or any value.
  template <class T>
  T about(T truth) {
    const size_t kind = input_.below(8);
    return kind == 7 ? input_.number<T>() : static_cast<T>(truth + (kind < 4 ? 0 : kind - 5));
  }
  Lending any_lending() {
    return {about(kSegment), about(static_cast<uint32_t>(input_.below(16))),
            about(uint64_t{64} * input_.number<uint16_t>())};
  }

  void event() {
    switch (input_.below(10)) {
      case 0:
      case 1:
        if (const auto found = table_.allocate(input_.below(9) * kUnit)) owned_.push_back(*found);
        break;
      case 2:
        if (!owned_.empty()) drop_owned(input_.below(owned_.size()));
        break;
      case 3:
      case 4:
        if (!owned_.empty()) lend(owned_[input_.below(owned_.size())]);
        break;
      case 5:
        forged_descriptor();
        break;
      case 6:
        if (!blocks_.empty()) drop_borrowed(input_.below(blocks_.size()));
        break;
      case 7:
        forged_return();
        break;
      case 8:
        borrowed_.copy_out(input_.below(16) * kUnit, now_);
        settle();
        break;
      default:
        if (input_.below(8) == 0) lose(kPeers[input_.below(2)]);
    }
  }

  void drop_owned(size_t i) {
    table_.drop_reference(owned_[i].block, now_);
    owned_.erase(owned_.begin() + static_cast<ptrdiff_t>(i));
  }

  void lend(const BlockTable::Found& found) {
    const WorkerId peer = kPeers[input_.below(2)];
    const absl::StatusOr<uint32_t> generation = table_.lend(found.block, peer, now_);
    const bool lent_now = std::any_of(lent_.begin(), lent_.end(), [&](const auto& one) {
      return one.second.block == found.block;
    });
    require(generation.ok() != lent_now, "a block is lent twice, or not at all");
    if (!generation.ok()) return require_refusal(generation.status());
    require(lent_.emplace(*generation, Lent{peer, found.block, found.size}).second,
            "a generation comes twice");
    if (peer != kPeers[0]) return;
    const uint64_t inside = input_.below(256) * 64 % found.size;
    borrow({kSegment, *generation, found.block.offset + inside}, found.size - inside, !lied_);
  }
  void forged_descriptor() {
    const Lending lending = any_lending();
    const uint64_t size = about(uint64_t{input_.number<uint16_t>()});
    if (borrow(lending, size, false)) lied_ = true;
  }
  bool borrow(const Lending& lending, uint64_t size, bool honest) {
    auto block = borrowed_.borrow(lending, size, returns_, now_);
    if (!block.ok()) {
      require(!honest, "an honest descriptor is refused");
      require_refusal(block.status());
      return false;
    }
    require(lending.segment == kSegment && lending.offset % 64 == 0 && size > 0 &&
                lending.offset < kSegmentBytes && size <= kSegmentBytes - lending.offset,
            "bytes outside the segment are accepted");
    for (uint64_t unit = lending.offset / kUnit; unit * kUnit < lending.offset + size; ++unit) {
      require(!std::exchange(units_[unit], true), "a unit is borrowed twice");
      require(std::exchange(generations_[unit], lending.generation) < lending.generation,
              "an earlier generation is accepted");
    }
    block->data[0] = block->data[size - 1] = std::byte{1};
    sizes_[lending] = size;
    blocks_.push_back({lending, *std::move(block)});
    return true;
  }
  void drop_borrowed(size_t i) {
    BorrowedSegments::Block& block = blocks_[i].block;
    block.data[0] = block.data[block.size - 1] = std::byte{2};
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(i));
    settle();
  }
  // The owner learns of the blocks that the borrower has given back.
  void settle() {
    for (const Lending& lending : std::exchange(returns_->all, {})) {
      const auto size = sizes_.find(lending);
      require(size != sizes_.end(), "a block is given back twice");
      for (uint64_t unit = lending.offset / kUnit; unit * kUnit < lending.offset + size->second;
           ++unit) {
        units_[unit] = false;
      }
      sizes_.erase(size);
      const bool taken = take_back(kPeers[0], lending);
      require(taken || lied_, "an honest return is refused");
    }
  }

  void forged_return() {
    // The peer then has a block that the owner thinks is back: what follows is not honest.
    if (take_back(kPeers[input_.below(2)], any_lending())) lied_ = true;
  }
  bool take_back(WorkerId peer, const Lending& lending) {
    const auto known = lent_.find(lending.generation);
    const bool right = known != lent_.end() && known->second.peer == peer &&
                       lending.segment == kSegment &&
                       lending.offset >= known->second.block.offset &&
                       lending.offset - known->second.block.offset < known->second.size;
    if (right && input_.below(4) == 0) {
      const auto home = table_.taken_home(peer, lending);
      require(home.ok() && home->block == known->second.block, "a block does not come home");
      owned_.push_back(*home);
    } else {
      const absl::Status status = table_.returned(peer, lending, now_);
      require(status.ok() == right, "a wrong return is taken, or a right one refused");
      if (!right) require_refusal(status);
    }
    if (right) lent_.erase(known);
    return right;
  }
  void lose(WorkerId peer) {
    const size_t count =
        std::erase_if(lent_, [&](const auto& one) { return one.second.peer == peer; });
    require(table_.peer_gone(peer, now_) == count, "a dead peer has other blocks");
    // In truth the borrower lives, and goes on.
    if (count > 0 && peer == kPeers[0]) lied_ = true;
  }

  void check() {
    const BlockTable::Gauges gauges = table_.gauges();
    require(gauges.lent_blocks == lent_.size(), "other blocks are lent");
    require(gauges.free_bytes + gauges.held_bytes + gauges.lent_bytes == kSegmentBytes,
            "the bytes do not add up");
    uint64_t bytes = 0;
    for (const auto& [lending, size] : sizes_) bytes += size;
    require(borrowed_.gauges().borrowed_bytes == bytes, "other bytes are borrowed");
  }

  Bytes input_;
  TimePoint now_;
  BlockTable table_;
  BorrowedSegments borrowed_{{}};
  const std::shared_ptr<Returns> returns_ = std::make_shared<Returns>();
  bool lied_ = false;                       // from then on, honest events may fail
  std::vector<BlockTable::Found> owned_;    // one for each reference
  std::map<uint32_t, Lent> lent_;           // by generation
  std::vector<Borrowed> blocks_;            // borrowed, or copied out
  std::map<Lending, uint64_t> sizes_;       // of what is not given back
  bool units_[kSegmentBytes / kUnit] = {};  // borrowed
  uint32_t generations_[kSegmentBytes / kUnit] = {};
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
