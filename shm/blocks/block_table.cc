#include "weft/shm/blocks/block_table.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr int kStepBits = 3;  // eight sizes per doubling

uint64_t bytes_of(uint64_t units) { return units * BlockTable::kUnit; }

absl::Status wrong_return(BorrowerId peer, const Lending& lending, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(peer.to_string(), " gave back a block (",
                                                 lending.to_string(), ") ", std::string(why)));
}

[[noreturn]] void misused(BlockId block) {
  std::fprintf(stderr, "block table: nobody holds the block at %s\n", block.to_string().c_str());
  std::abort();
}

}  // namespace

std::string BlockId::to_string() const {
  return absl::StrCat("offset ", offset, " of segment ", segment);
}

std::string Lending::to_string() const {
  return absl::StrCat("offset ", offset, " of segment ", segment, ", generation ", generation);
}

std::string BorrowerId::to_string() const {
  if (connection == 0) return worker.to_string();
  return absl::StrCat(worker.to_string(), ", connection ", connection);
}

// ---- sizes

size_t BlockTable::class_of(uint64_t units) {
  constexpr uint64_t kSteps = uint64_t{1} << kStepBits;
  if (units < kSteps) return units - 1;
  const int shift = std::bit_width(units) - 1 - kStepBits;
  return kSteps - 1 + shift * kSteps + ((units >> shift) - kSteps);
}

std::optional<uint64_t> BlockTable::block_size(uint64_t size) {
  if (size > kLargestSegment) return std::nullopt;
  const uint64_t units = std::max<uint64_t>(1, (size + kUnit - 1) / kUnit);
  const uint64_t step = std::max<uint64_t>(1, std::bit_floor(units) >> kStepBits);
  return bytes_of((units + step - 1) / step * step);
}

// ---- segments

absl::Status BlockTable::add_segment(uint32_t number, uint64_t size, TimePoint now) {
  if (number <= last_number_ || size == 0 || size % kUnit != 0 || size > kLargestSegment) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment ", number, " of ", size, " bytes is not possible after segment ", last_number_));
  }
  if (segments_.size() == kMostSegments) {
    return absl::ResourceExhaustedError(absl::StrCat("there are ", kMostSegments, " segments"));
  }
  last_number_ = number;
  const auto units = static_cast<uint32_t>(size / kUnit);
  Segment& segment = segments_[number];
  segment.units = units;
  segment.idle_since = now;
  segment.pieces[0].units = units;
  list_run(number, 0, units);
  ++gauges_.segments;
  gauges_.bytes += size;
  gauges_.free_bytes += size;
  return absl::OkStatus();
}

std::vector<uint32_t> BlockTable::idle_segments(TimePoint since) const {
  std::vector<uint32_t> idle;
  for (const auto& [number, segment] : segments_) {
    if (segment.used == 0 && (segment.idle_since <= since || spent(segment))) {
      idle.push_back(number);
    }
  }
  return idle;
}

bool BlockTable::segment_is_idle(uint32_t number) const {
  const auto segment = segments_.find(number);
  return segment != segments_.end() && segment->second.used == 0;
}

absl::Status BlockTable::drop_segment(uint32_t number) {
  const auto segment = segments_.find(number);
  if (segment == segments_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no segment ", number));
  }
  if (segment->second.used != 0) {
    return absl::FailedPreconditionError(absl::StrCat("blocks of segment ", number, " are in use"));
  }
  const uint32_t units = segment->second.units;
  unlist_run(number, 0, units);
  segments_.erase(segment);
  --gauges_.segments;
  gauges_.bytes -= bytes_of(units);
  gauges_.free_bytes -= bytes_of(units);
  return absl::OkStatus();
}

void BlockTable::list_run(uint32_t segment, uint32_t first, uint32_t units) {
  runs_[class_of(units)].emplace(segment, first);
}

void BlockTable::unlist_run(uint32_t segment, uint32_t first, uint32_t units) {
  runs_[class_of(units)].erase({segment, first});
}

// ---- blocks

std::optional<BlockTable::Found> BlockTable::allocate(uint64_t size) {
  const std::optional<uint64_t> whole = block_size(size);
  if (!whole.has_value()) return std::nullopt;
  const auto units = static_cast<uint32_t>(*whole / kUnit);
  const std::set<Run>* lowest = nullptr;
  for (size_t i = class_of(units); i < kClasses; ++i) {
    if (!runs_[i].empty() && (lowest == nullptr || *runs_[i].begin() < *lowest->begin())) {
      lowest = &runs_[i];
    }
  }
  if (lowest == nullptr) return std::nullopt;
  const auto [number, first] = *lowest->begin();
  Segment& segment = segments_.at(number);
  Piece& piece = segment.pieces.at(first);
  unlist_run(number, first, piece.units);
  if (const uint32_t rest = piece.units - units; rest > 0) {
    segment.pieces[first + units].units = rest;
    list_run(number, first + units, rest);
  }
  piece = {.units = units, .free = false, .references = 1};
  segment.used += units;
  gauges_.free_bytes -= *whole;
  gauges_.held_bytes += *whole;
  ++gauges_.held_blocks;
  return Found{{number, bytes_of(first)}, *whole};
}

std::optional<BlockTable::Spot> BlockTable::spot_of(uint32_t number, uint64_t offset) {
  const auto segment = segments_.find(number);
  if (segment == segments_.end() || offset >= bytes_of(segment->second.units)) return std::nullopt;
  const auto next = segment->second.pieces.upper_bound(static_cast<uint32_t>(offset / kUnit));
  return Spot{segment, std::prev(next)};
}

BlockTable::Spot BlockTable::block_at(BlockId block) {
  const std::optional<Spot> spot = spot_of(block.segment, block.offset);
  if (!spot.has_value() || bytes_of(spot->piece->first) != block.offset ||
      spot->piece->second.references == 0) {
    misused(block);
  }
  return *spot;
}

std::optional<BlockTable::Found> BlockTable::find(uint32_t segment, uint64_t offset) const {
  // The search changes nothing.
  const std::optional<Spot> spot = const_cast<BlockTable*>(this)->spot_of(segment, offset);
  if (!spot.has_value() || spot->piece->second.references == 0) return std::nullopt;
  return Found{{segment, bytes_of(spot->piece->first)}, bytes_of(spot->piece->second.units)};
}

void BlockTable::add_reference(BlockId block) { ++block_at(block).piece->second.references; }

void BlockTable::drop_reference(BlockId block, TimePoint now) {
  const Spot spot = block_at(block);
  Piece& piece = spot.piece->second;
  if (--piece.references == 0 && piece.generation == 0) set_free(spot, now);
}

void BlockTable::set_free(Spot spot, TimePoint now) {
  const uint32_t number = spot.segment->first;
  Segment& segment = spot.segment->second;
  Pieces& pieces = segment.pieces;
  const uint64_t bytes = bytes_of(spot.piece->second.units);
  segment.used -= spot.piece->second.units;
  if (segment.used == 0) segment.idle_since = now;
  gauges_.held_bytes -= bytes;
  gauges_.free_bytes += bytes;
  --gauges_.held_blocks;

  spot.piece->second = {.units = spot.piece->second.units};
  if (const auto next = std::next(spot.piece); next != pieces.end() && next->second.free) {
    unlist_run(number, next->first, next->second.units);
    spot.piece->second.units += next->second.units;
    pieces.erase(next);
  }
  if (spot.piece != pieces.begin() && std::prev(spot.piece)->second.free) {
    const auto before = std::prev(spot.piece);
    unlist_run(number, before->first, before->second.units);
    before->second.units += spot.piece->second.units;
    pieces.erase(spot.piece);
    spot.piece = before;
  }
  // No block of a segment without generations could be lent, so none is allocated there any more.
  if (!spent(segment)) list_run(number, spot.piece->first, spot.piece->second.units);
}

// ---- lendings

absl::StatusOr<uint32_t> BlockTable::lend(BlockId block, BorrowerId peer, TimePoint now) {
  const std::optional<Spot> spot = spot_of(block.segment, block.offset);
  if (!spot.has_value() || spot->piece->second.references == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("nobody holds the block at ", block.to_string()));
  }
  Segment& segment = spot->segment->second;
  Piece& piece = spot->piece->second;
  if (piece.generation != 0) {
    return absl::FailedPreconditionError(absl::StrCat("the block at ", block.to_string(),
                                                      " is lent to ", piece.borrower.to_string()));
  }
  const auto known = loans_.find(peer);
  if (known != loans_.end() && known->second.by_serial.size() == kMostLentToPeer) {
    return absl::ResourceExhaustedError(
        absl::StrCat(peer.to_string(), " has ", kMostLentToPeer, " blocks"));
  }
  if (spent(segment)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment ", block.segment, " has no generation left"));
  }
  piece.generation = ++segment.generation;
  if (spent(segment)) {
    for (const auto& [first, other] : segment.pieces) {
      if (other.free) unlist_run(block.segment, first, other.units);
    }
  }
  piece.borrower = peer;
  piece.serial = ++last_serial_;
  const uint64_t bytes = bytes_of(piece.units);
  Loans& loans = loans_[peer];
  loans.bytes += bytes;
  loans.by_serial[piece.serial] = {{block.segment, bytes_of(spot->piece->first)}, now};
  gauges_.held_bytes -= bytes;
  gauges_.lent_bytes += bytes;
  --gauges_.held_blocks;
  ++gauges_.lent_blocks;
  return piece.generation;
}

absl::StatusOr<BlockTable::Spot> BlockTable::lent_at(BorrowerId peer, const Lending& lending) {
  const std::optional<Spot> spot = spot_of(lending.segment, lending.offset);
  if (!spot.has_value()) return wrong_return(peer, lending, "of a segment that is not there");
  const Piece& piece = spot->piece->second;
  if (piece.free) return wrong_return(peer, lending, "that is free");
  if (piece.generation == 0) return wrong_return(peer, lending, "that is not lent");
  if (piece.borrower != peer) {
    return wrong_return(peer, lending, absl::StrCat("that ", piece.borrower.to_string(), " has"));
  }
  if (piece.generation != lending.generation) {
    return wrong_return(peer, lending,
                        absl::StrCat("that it has with generation ", piece.generation));
  }
  return *spot;
}

void BlockTable::end_lending(const Spot& spot, TimePoint now) {
  Piece& piece = spot.piece->second;
  const uint64_t bytes = bytes_of(piece.units);
  const auto loans = loans_.find(piece.borrower);
  loans->second.bytes -= bytes;
  loans->second.by_serial.erase(piece.serial);
  if (loans->second.by_serial.empty()) loans_.erase(loans);
  gauges_.lent_bytes -= bytes;
  gauges_.held_bytes += bytes;
  --gauges_.lent_blocks;
  ++gauges_.held_blocks;
  piece.generation = 0;
  piece.borrower = {};
  if (piece.references == 0) set_free(spot, now);
}

absl::Status BlockTable::returned(BorrowerId peer, const Lending& lending, TimePoint now) {
  WEFT_ASSIGN_OR_RETURN(const Spot spot, lent_at(peer, lending));
  end_lending(spot, now);
  return absl::OkStatus();
}

absl::StatusOr<BlockTable::Found> BlockTable::taken_home(BorrowerId peer, const Lending& lending) {
  WEFT_ASSIGN_OR_RETURN(const Spot spot, lent_at(peer, lending));
  Piece& piece = spot.piece->second;
  ++piece.references;
  end_lending(spot, TimePoint());  // the reference keeps the block in use
  return Found{{lending.segment, bytes_of(spot.piece->first)}, bytes_of(piece.units)};
}

size_t BlockTable::peer_gone(BorrowerId peer, TimePoint now) {
  size_t count = 0;
  for (auto loans = loans_.find(peer); loans != loans_.end(); loans = loans_.find(peer)) {
    const BlockId block = loans->second.by_serial.begin()->second.block;
    end_lending(*spot_of(block.segment, block.offset), now);
    ++count;
  }
  return count;
}

BlockTable::Borrower BlockTable::report(BorrowerId peer, const Loans& loans) {
  return {peer, loans.by_serial.size(), loans.bytes, loans.by_serial.begin()->second.since};
}

std::optional<BlockTable::Borrower> BlockTable::borrower(BorrowerId peer) const {
  const auto loans = loans_.find(peer);
  if (loans == loans_.end()) return std::nullopt;
  return report(peer, loans->second);
}

std::optional<BlockTable::Borrower> BlockTable::largest_borrower() const {
  const auto largest = std::max_element(
      loans_.begin(), loans_.end(),
      [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  if (largest == loans_.end()) return std::nullopt;
  return report(largest->first, largest->second);
}

}  // namespace weft
