#include "weft/shm/byte_ring.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr size_t kUnit = 16;         // positions are multiples of it
constexpr size_t kHeaderBytes = 16;  // of a record
constexpr uint16_t kPadKind = 0;     // skips to the end of the ring

uint64_t bytes_in_ring(uint64_t content) {
  return kHeaderBytes + (content + kUnit - 1) / kUnit * kUnit;
}

bool usable_as_ring(std::span<const std::byte> data) {
  return valid_ring_size(data.size()) && reinterpret_cast<uintptr_t>(data.data()) % kUnit == 0;
}

// Loads a word that the peer may be changing. The load is atomic, so the compiler keeps to one load
// and never reads the word a second time after it was checked.
uint64_t load_once(const std::byte* word) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(word), __ATOMIC_RELAXED);
}

absl::Status ring_violation(std::string_view where, uint64_t position, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("shared ring: ", std::string(where), " ", position, ": ", std::string(rule)));
}

// The rule that all positions obey: from `least` to `most`, in units.
absl::Status check_position(std::string_view name, uint64_t position, uint64_t least,
                            uint64_t most) {
  if (position >= least && position <= most && position % kUnit == 0) return absl::OkStatus();
  return ring_violation(
      name, position, absl::StrCat("must be a multiple of ", kUnit, " from ", least, " to ", most));
}

}  // namespace

bool valid_ring_size(size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kLeastRingBytes && bytes <= kMostRingBytes;
}

size_t largest_in_ring(size_t ring_bytes) { return ring_bytes / 4 - kHeaderBytes; }

// ---- The writer

RingWriter::RingWriter(RingHeader& header, std::span<std::byte> data)
    : header_(header), data_(data) {
  if (!usable_as_ring(data)) std::abort();
}

absl::Status RingWriter::look() {
  // Acquire: the reader has copied the freed records before this side writes over them. Beyond that
  // sequentially consistent for request_space().
  const uint64_t head = header_.head.load(std::memory_order_seq_cst);
  // The reader cannot have freed what is not published.
  failure_ = check_position("the reader's position is", head, head_, published_);
  if (failure_.ok()) head_ = head;
  return failure_;
}

absl::StatusOr<uint64_t> RingWriter::read_position() {
  WEFT_RETURN_IF_ERROR(failure_);
  WEFT_RETURN_IF_ERROR(look());
  return head_;
}

absl::StatusOr<std::optional<std::span<std::byte>>> RingWriter::reserve(uint16_t kind,
                                                                        size_t size) {
  WEFT_RETURN_IF_ERROR(failure_);
  if (kind == kPadKind || size > largest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ring of ", data_.size(), " bytes has records of up to ", largest(),
                     " bytes and of kinds from 1 on; asked for ", size, " bytes of kind ", kind));
  }
  const uint64_t record = bytes_in_ring(size);
  const uint64_t to_end = data_.size() - tail_ % data_.size();
  const uint64_t pad = record > to_end ? to_end : 0;  // a record is contiguous
  if (used() + pad + record > data_.size()) {
    WEFT_RETURN_IF_ERROR(look());
    if (used() + pad + record > data_.size()) return std::nullopt;
  }
  if (pad != 0) append(kPadKind, pad - kHeaderBytes);
  return append(kind, size);
}

std::span<std::byte> RingWriter::append(uint16_t kind, size_t size) {
  const uint64_t words[] = {size | uint64_t{kind} << 32, serial_++};
  std::byte* const record = data_.data() + tail_ % data_.size();
  std::memcpy(record, words, kHeaderBytes);
  tail_ += bytes_in_ring(size);
  return {record + kHeaderBytes, size};
}

bool RingWriter::commit() {
  if (tail_ == published_) return false;
  published_ = tail_;
  // Release: a reader that sees the new tail also sees the records. It needs no stronger order,
  // because the signal that follows orders the tail before the writer looks whether the reader is
  // asleep.
  header_.tail.store(published_, std::memory_order_release);
  return true;
}

absl::StatusOr<bool> RingWriter::request_space() {
  WEFT_RETURN_IF_ERROR(failure_);
  if (tail_ != published_) {
    return absl::FailedPreconditionError(
        absl::StrCat("shared ring: ", tail_ - published_, " reserved bytes are not published"));
  }
  // The store of the flag comes before the load of the position in the one order of all
  // sequentially consistent operations. release() stores its position before it loads the flag. So
  // the writer sees the new position, or the reader sees the flag.
  header_.wants_space.store(1, std::memory_order_seq_cst);
  WEFT_RETURN_IF_ERROR(look());
  if (used() > data_.size() / 2) return false;
  // If the reader has seen the flag already, the writer gets a needless signal.
  header_.wants_space.store(0, std::memory_order_relaxed);
  return true;
}

// ---- The reader

// As in shared memory: u32 size of the content, u16 kind, u16 zero, u64 serial.
struct RingReader::RecordHeader {
  uint32_t size;
  uint16_t kind;
  uint16_t zero;
  uint64_t serial;
};

RingReader::RingReader(RingHeader& header, std::span<const std::byte> data, uint16_t last_kind)
    : header_(header),
      data_(data),
      last_kind_(last_kind),
      content_(std::make_unique<std::byte[]>(data.size() / 4)) {
  if (!usable_as_ring(data)) std::abort();
}

absl::Status RingReader::look() {
  const uint64_t tail = header_.tail.load(std::memory_order_acquire);
  // The writer may use what is released, and nothing beyond.
  WEFT_RETURN_IF_ERROR(
      check_position("the writer's position is", tail, tail_, released_ + data_.size()));
  tail_ = tail;
  return absl::OkStatus();
}

RingReader::RecordHeader RingReader::load_header() const {
  const std::byte* const record = data_.data() + head_ % data_.size();
  const uint64_t first = load_once(record);
  return {.size = static_cast<uint32_t>(first),
          .kind = static_cast<uint16_t>(first >> 32),
          .zero = static_cast<uint16_t>(first >> 48),
          .serial = load_once(record + 8)};
}

absl::Status RingReader::check(const RecordHeader& record, uint64_t to_end) const {
  const auto broken = [&](std::string_view field, uint64_t value, std::string_view rule,
                          uint64_t limit) {
    return ring_violation("the record at", head_,
                          absl::StrCat(std::string(field), " is ", value, ", must be ",
                                       std::string(rule), " ", limit));
  };
  if (record.zero != 0) return broken("zero", record.zero, "exactly", 0);
  if (record.serial != serial_) return broken("serial", record.serial, "exactly", serial_);
  if (record.kind > last_kind_) return broken("kind", record.kind, "at most", last_kind_);
  const uint64_t largest = largest_in_ring(data_.size());
  if (record.size > largest) return broken("size", record.size, "at most", largest);
  // A PAD record is shorter than the record that did not fit, so the limit above holds for it too.
  if (record.kind == kPadKind && kHeaderBytes + record.size != to_end) {
    return broken("size of the padding", record.size, "exactly", to_end - kHeaderBytes);
  }
  const uint64_t there = std::min(to_end, tail_ - head_) - kHeaderBytes;
  if (record.size > there) return broken("size", record.size, "at most what is there,", there);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RingRecord>> RingReader::next() {
  WEFT_RETURN_IF_ERROR(failure_);
  while (true) {
    if (head_ == tail_) {
      if (failure_ = look(); !failure_.ok()) return failure_;
      if (head_ == tail_) return std::nullopt;
    }
    const uint64_t to_end = data_.size() - head_ % data_.size();
    const RecordHeader record = load_header();
    if (failure_ = check(record, to_end); !failure_.ok()) return failure_;
    const std::byte* const shared = data_.data() + head_ % data_.size() + kHeaderBytes;
    head_ += bytes_in_ring(record.size);
    ++serial_;
    // The loop ends: no padding follows another one, because the beginning of the ring is further
    // from the end than the longest padding.
    if (record.kind == kPadKind) continue;
    std::memcpy(content_.get(), shared, record.size);
    // The compiler must not read the shared bytes again where the caller reads the copy.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return RingRecord{record.kind, {content_.get(), record.size}};
  }
}

bool RingReader::release() {
  // If nothing new was read, the last call has done its work: a flag that the writer has set since
  // then was followed by a look that saw this position.
  if (!failure_.ok() || head_ == released_) return false;
  released_ = head_;
  // Sequentially consistent, before the flag is loaded: see request_space(). It is also a release:
  // the copies were made before the writer may use the space.
  header_.head.store(released_, std::memory_order_seq_cst);
  if (header_.wants_space.load(std::memory_order_seq_cst) == 0) return false;
  // tail_ may be old, so there may be less free space than this. Then the writer asks again. There
  // is never more, so no wake is missed.
  if (tail_ - head_ > data_.size() / 2) return false;
  return header_.wants_space.exchange(0, std::memory_order_relaxed) != 0;
}

}  // namespace weft
