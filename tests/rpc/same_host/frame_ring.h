// A ring of frames in private memory with both of its ends, and frames whose content can be
// checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/same_host/connection/ring_frames.h"
#include "weft/rpc/transport/frame_codec.h"

namespace weft::testing {

// The byte at `offset` of payload `payload` of frame `number`.
inline std::byte byte_of(uint64_t number, size_t payload, size_t offset) {
  return std::byte(number * 31 + payload * 7 + offset + offset / 256);
}

// A frame with payloads of these sizes, whose owner is `owner`.
inline FramePtr frame_with(uint64_t number, const std::vector<size_t>& sizes,
                           std::shared_ptr<void> owner = nullptr) {
  Frame frame;
  frame.header.kind = FrameKind::kCall;
  frame.header.sequence = number;
  frame.meta = absl::StrCat("meta ", number);
  frame.body = std::string(number % 40, static_cast<char>('a' + number % 26));
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::shared_ptr<std::byte[]> bytes(new std::byte[sizes[i] + 1]);
    for (size_t j = 0; j < sizes[i]; ++j) bytes[j] = byte_of(number, i, j);
    frame.payloads.push_back(
        {bytes.get(), sizes[i],
         std::make_shared<std::pair<std::shared_ptr<std::byte[]>, std::shared_ptr<void>>>(bytes,
                                                                                          owner)});
  }
  return std::make_shared<const Frame>(std::move(frame));
}

inline void expect_frame(const Frame& frame, const Frame& sent) {
  EXPECT_EQ(frame.header.sequence, sent.header.sequence);
  EXPECT_EQ(frame.meta, sent.meta);
  EXPECT_EQ(frame.body, sent.body);
  ASSERT_EQ(frame.payloads.size(), sent.payloads.size());
  for (size_t i = 0; i < sent.payloads.size(); ++i) {
    const Payload &got = frame.payloads[i], &want = sent.payloads[i];
    ASSERT_EQ(got.size, want.size);
    ASSERT_TRUE(want.size == 0 || std::memcmp(got.data, want.data, want.size) == 0)
        << "payload " << i << " of frame " << sent.header.sequence;
  }
}

// The bytes of the ring have exactly its size, so that AddressSanitizer sees accesses beyond them.
struct FrameRing {
  explicit FrameRing(size_t bytes, TransportLimits limits = {})
      : size(bytes),
        memory(new std::byte[bytes]()),
        ring_writer(*header, {memory.get(), bytes}),
        ring_reader(*header, {memory.get(), bytes}, rpc_internal::kLastRingRecord),
        writer(ring_writer),
        reader(ring_reader, pool, limits) {}

  bool is_small(const Frame& frame) const {
    return rpc_internal::RingFrameWriter::is_small(frame, size);
  }
  // Writes what fits. Returns whether the reader must be signalled.
  bool pump() {
    const absl::StatusOr<bool> published = writer.pump(done);
    EXPECT_TRUE(published.ok()) << published.status();
    return published.value_or(false);
  }
  absl::StatusOr<rpc_internal::RingFrameReader::Result> read(size_t most = size_t{1} << 30) {
    return reader.read(most, frames);
  }
  // Writes one record as a peer that may do anything, and reads it.
  absl::Status read_record(uint16_t kind, const std::string& content) {
    const auto room = ring_writer.reserve(kind, content.size());
    EXPECT_TRUE(room.ok() && room->has_value());
    if (!content.empty()) std::memcpy((*room)->data(), content.data(), content.size());
    ring_writer.commit();
    return read().status();
  }
  // The numbers of the frames that were read.
  std::vector<uint64_t> numbers() const {
    std::vector<uint64_t> all;
    for (const Frame& frame : frames) all.push_back(frame.header.sequence);
    return all;
  }

  const size_t size;
  const std::unique_ptr<RingHeader> header = std::make_unique<RingHeader>();
  const std::unique_ptr<std::byte[]> memory;
  rpc_internal::BufferPool pool;
  RingWriter ring_writer;
  RingReader ring_reader;
  rpc_internal::RingFrameWriter writer;
  rpc_internal::RingFrameReader reader;
  std::vector<FramePtr> done;
  std::vector<Frame> frames;
};

}  // namespace weft::testing
