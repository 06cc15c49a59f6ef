// Carries records of bytes from one process to another through a ring in shared memory.
//
// There is one writer and one reader. Neither waits: a writer without room gets no memory, and a
// reader without records gets none. Both learn from shm/wake_bits.h when to look again.
//
// Neither side believes the other. Each keeps its own positions in private memory and only stores
// them in the shared memory. It loads a word of the other side once and checks it. The reader
// copies a record into private memory before anybody parses it. A peer that breaks the protocol
// ends the use of the ring: that call and all later ones return the same error.
//
// Thread safety: none. One thread at a time uses a writer, and one thread at a time uses a reader.
// Lifetime: the shared memory must outlive writer and reader. It is zeroed before they are made and
// is never constructed or destroyed. All zeros is an empty ring.
// Errors: InvalidArgument (the peer broke the protocol: the text names the field and its values, or
// reserve() got an argument outside its limits), FailedPrecondition (request_space).
// Protocol: docs/data_plane.md, "Rings and waking".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

// Positions count bytes since the ring was made. They are never reset and are multiples of 16.
struct RingHeader {
  // The producer's line.
  alignas(64) std::atomic<uint64_t> tail;  // the end of the published records
  std::atomic<uint32_t> wants_space;       // 1: the writer asks to be woken. The reader sets 0
  // The consumer's line.
  alignas(64) std::atomic<uint64_t> head;  // the end of the records whose space is free again
};
static_assert(sizeof(RingHeader) == 128 && offsetof(RingHeader, wants_space) == 8 &&
                  offsetof(RingHeader, head) == 64,
              "the layout is shared between processes");
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct RingRecord {
  uint16_t kind;
  std::span<const std::byte> content;  // private memory, valid until the next call of next()
};

// A ring has a power of two of bytes. Its data begins at a multiple of 16.
inline constexpr size_t kLeastRingBytes = 256;
inline constexpr size_t kMostRingBytes = size_t{1} << 30;
bool valid_ring_size(size_t bytes);

// The most bytes of content of one record. A record has at most a quarter of the ring. So each one
// fits if half of the ring is free, even if it has to skip the end of the ring.
size_t largest_in_ring(size_t ring_bytes);

class RingWriter {
 public:
  // Aborts unless `data` is a valid ring.
  RingWriter(RingHeader& header, std::span<std::byte> data);
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  size_t size() const { return data_.size(); }
  size_t largest() const { return largest_in_ring(data_.size()); }
  // The position at the end of the record that was reserved last.
  uint64_t end() const { return tail_; }
  // All records that end here or before are read. This is what the last look saw.
  uint64_t freed() const { return head_; }
  // The same, but it looks now.
  absl::StatusOr<uint64_t> read_position();

  // Returns the memory for the content of the next record, or nothing if there is no room. The
  // caller fills the memory before commit(). `kind` is at least 1, `size` at most largest().
  absl::StatusOr<std::optional<std::span<std::byte>>> reserve(uint16_t kind, size_t size);

  // Publishes all records that were reserved since the last call. True: there were some, so the
  // caller must now signal the reader (WakeBits::signal).
  bool commit();

  // For a writer that has no room. True: half of the ring is free, so call reserve() again. False:
  // once half is free, release() of the reader says that the writer must be woken.
  //
  // FailedPrecondition: there are reserved records that commit() has not published. The reader
  // cannot free their space, so the writer could wait for ever.
  absl::StatusOr<bool> request_space();

 private:
  // Loads and checks the reader's position.
  absl::Status look();
  // Writes the header of a record at tail_, where there is room. Returns its content.
  std::span<std::byte> append(uint16_t kind, size_t size);
  uint64_t used() const { return tail_ - head_; }

  RingHeader& header_;
  const std::span<std::byte> data_;
  uint64_t tail_ = 0;       // the end of the reserved records
  uint64_t published_ = 0;  // the end of the published records
  uint64_t head_ = 0;       // what the reader had freed at the last look
  uint64_t serial_ = 1;     // of the next record
  absl::Status failure_;    // the peer's violation, if there was one
};

class RingReader {
 public:
  // The kinds 1 to `last_kind` are known. Aborts unless `data` is a valid ring.
  RingReader(RingHeader& header, std::span<const std::byte> data, uint16_t last_kind);
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // Copies the next record into private memory. Returns nothing if no record is there.
  absl::StatusOr<std::optional<RingRecord>> next();

  // Gives the space of all records that next() has returned back to the writer. True: the caller
  // must signal the writer, because it asked for space and half of the ring is free.
  bool release();

 private:
  struct RecordHeader;  // a private copy
  // Loads and checks the writer's position.
  absl::Status look();
  // Copies the header of the record at head_.
  RecordHeader load_header() const;
  // Checks it. There are `to_end` bytes from here to the end of the ring.
  absl::Status check(const RecordHeader& record, uint64_t to_end) const;

  RingHeader& header_;
  const std::span<const std::byte> data_;
  const uint16_t last_kind_;
  const std::unique_ptr<std::byte[]> content_;  // of the record that next() returned last
  uint64_t head_ = 0;                           // the end of the returned records
  uint64_t released_ = 0;                       // the end of the records whose space is free again
  uint64_t tail_ = 0;                           // what was published at the last look
  uint64_t serial_ = 1;                         // of the next record
  absl::Status failure_;                        // the peer's violation, if there was one
};

}  // namespace weft
