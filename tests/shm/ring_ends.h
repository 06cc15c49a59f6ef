// A ring in private memory with both of its ends, and records whose content can be checked.
#pragma once

#include <cstring>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include "weft/shm/byte_ring.h"

namespace weft::ring_test {

inline constexpr uint16_t kLastKind = 5;

// The bytes of a ring have exactly its size, so that AddressSanitizer sees accesses beyond them.
struct SharedRing {
  explicit SharedRing(size_t size) : size(size), bytes(std::make_unique<std::byte[]>(size)) {}
  std::span<std::byte> data() { return {bytes.get(), size}; }
  // A record's header is two words: u32 size, u16 kind, u16 zero; and u64 serial.
  uint64_t word(size_t offset) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.get() + offset, sizeof(value));
    return value;
  }
  void set_word(size_t offset, uint64_t value) {
    std::memcpy(bytes.get() + offset, &value, sizeof(value));
  }

  const size_t size;
  std::unique_ptr<RingHeader> header = std::make_unique<RingHeader>();
  std::unique_ptr<std::byte[]> bytes;
};

struct Ends {
  explicit Ends(SharedRing& ring)
      : writer(*ring.header, ring.data()), reader(*ring.header, ring.data(), kLastKind) {}
  RingWriter writer;
  RingReader reader;
};

// Writes the content of the record with this number.
inline void fill(std::span<std::byte> content, uint64_t number) {
  for (size_t i = 0; i < content.size(); ++i) content[i] = std::byte(number * 31 + i);
}
inline void expect_filled(std::span<const std::byte> content, uint64_t number) {
  for (size_t i = 0; i < content.size(); ++i) {
    ASSERT_EQ(content[i], std::byte(number * 31 + i)) << "byte " << i << " of record " << number;
  }
}

inline bool reserve(RingWriter& writer, size_t size, uint64_t number) {
  const auto room = writer.reserve(1 + number % kLastKind, size);
  EXPECT_TRUE(room.ok()) << room.status();
  if (!room.ok() || !room->has_value()) return false;
  EXPECT_EQ((*room)->size(), size);
  fill(**room, number);
  return true;
}
inline bool write(RingWriter& writer, size_t size, uint64_t number) {
  if (!reserve(writer, size, number)) return false;
  EXPECT_TRUE(writer.commit());
  return true;
}
inline void expect_next(RingReader& reader, size_t size, uint64_t number) {
  const auto record = reader.next();
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_TRUE(record->has_value()) << "record " << number << " is missing";
  EXPECT_EQ((*record)->kind, 1 + number % kLastKind);
  ASSERT_EQ((*record)->content.size(), size);
  expect_filled((*record)->content, number);
}
inline void expect_nothing(RingReader& reader) {
  const auto record = reader.next();
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_FALSE(record->has_value());
}
inline bool asks(RingWriter& writer) {
  const absl::StatusOr<bool> retry = writer.request_space();
  EXPECT_TRUE(retry.ok()) << retry.status();
  return !retry.value_or(true);
}

}  // namespace weft::ring_test
