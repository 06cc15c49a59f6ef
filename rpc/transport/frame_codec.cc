#include "weft/rpc/transport/frame_codec.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft::rpc_internal {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kMagic = 0x31544657;  // "WFT1"

template <class T>
void put(char*& out, T value) {
  std::memcpy(out, &value, sizeof(value));
  out += sizeof(value);
}

template <class T>
T take(const char*& in) {
  T value;
  std::memcpy(&value, in, sizeof(value));
  in += sizeof(value);
  return value;
}

struct Sizes {
  uint32_t meta = 0;
  uint32_t body = 0;
  uint32_t payloads = 0;
  uint32_t value = 0;
  size_t head() const { return kFixedHeaderBytes + size_t{payloads} * 8 + meta + body; }
};

absl::StatusOr<Sizes> read_sizes(std::string_view start, const TransportLimits& limits) {
  if (start.size() < kFixedHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", start.size(), " bytes is shorter than its header"));
  }
  const char* in = start.data();
  if (const uint32_t magic = take<uint32_t>(in); magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("frame magic ", magic, " is not Weft's"));
  }
  // The four sizes are the last fields of the fixed header.
  in = start.data() + 88;
  Sizes sizes;
  sizes.meta = take<uint32_t>(in);
  sizes.body = take<uint32_t>(in);
  sizes.payloads = take<uint32_t>(in);
  sizes.value = take<uint32_t>(in);
  if (sizes.value > sizes.body) {
    return absl::InvalidArgumentError(
        absl::StrCat("values of ", sizes.value, " bytes in a body of ", sizes.body));
  }
  if (sizes.payloads > limits.max_payloads) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", sizes.payloads, " payloads exceeds ", limits.max_payloads));
  }
  if (sizes.head() > limits.max_frame_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame head of ", sizes.head(), " bytes exceeds ", limits.max_frame_bytes));
  }
  return sizes;
}

}  // namespace

absl::Status check_frame(const Frame& frame, const TransportLimits& limits) {
  if (frame.payloads.size() > limits.max_payloads) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", frame.payloads.size(),
                                                   " tensors exceeds ", limits.max_payloads));
  }
  // The wire has 32 bits for the sizes of meta, of the body, and of the record that holds the head.
  const size_t head = head_bytes(frame);
  const size_t head_limit = std::min<size_t>(limits.max_frame_bytes, UINT32_MAX);
  if (head > head_limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message with ", head, " bytes beside its tensors exceeds ", head_limit, " bytes"));
  }
  size_t whole = head;
  for (const Payload& payload : frame.payloads) {
    // The size is checked before it is added: payloads may be views of the same memory, so that
    // their sum has no bound.
    if (payload.size > limits.max_frame_bytes - whole) {
      return absl::InvalidArgumentError(absl::StrCat("a message with a tensor of ", payload.size,
                                                     " bytes exceeds ", limits.max_frame_bytes,
                                                     " bytes: send it in parts"));
    }
    whole += payload.size;
  }
  return absl::OkStatus();
}

std::string encode_head(const Frame& frame) {
  std::string head;
  append_head(frame, head);
  return head;
}

size_t head_bytes(const Frame& frame) {
  return kFixedHeaderBytes + frame.payloads.size() * 8 + frame.meta.size() + frame.body.size();
}

void append_head(const Frame& frame, std::string& text) {
  const size_t start = text.size();
  text.resize(start + head_bytes(frame));
  write_head(frame, text.data() + start);
}

void write_head(const Frame& frame, char* out) {
  const FrameHeader& header = frame.header;
  put(out, kMagic);
  put(out, static_cast<uint8_t>(header.kind));
  put(out, header.flags);
  put(out, uint16_t{0});
  put(out, header.source.bits());
  put(out, header.destination.bits());
  put(out, header.sequence);
  put(out, header.acknowledged);
  put(out, header.call);
  put(out, header.function);
  put(out, header.fingerprint);
  put(out, header.budget_us);
  put(out, header.credit_calls);
  put(out, header.credit_bytes);
  put(out, static_cast<uint32_t>(frame.meta.size()));
  put(out, static_cast<uint32_t>(frame.body.size()));
  put(out, static_cast<uint32_t>(frame.payloads.size()));
  put(out, header.value_bytes);
  for (const Payload& payload : frame.payloads) put(out, static_cast<uint64_t>(payload.size));
  std::memcpy(out, frame.meta.data(), frame.meta.size());
  std::memcpy(out + frame.meta.size(), frame.body.data(), frame.body.size());
}

absl::StatusOr<size_t> head_size(std::string_view start, const TransportLimits& limits) {
  auto sizes = read_sizes(start, limits);
  if (!sizes.ok()) return sizes.status();
  return sizes->head();
}

absl::StatusOr<Frame> decode_head(std::string_view head, const TransportLimits& limits) {
  auto sizes = read_sizes(head, limits);
  if (!sizes.ok()) return sizes.status();
  if (sizes->head() != head.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame head of ", head.size(), " bytes says it has ", sizes->head()));
  }
  const char* in = head.data() + 4;
  Frame frame;
  FrameHeader& header = frame.header;
  const uint8_t kind = take<uint8_t>(in);
  if (kind < kFirstFrameKind || kind > kLastFrameKind) {
    return absl::InvalidArgumentError(absl::StrCat("frame kind ", kind, " is unknown"));
  }
  header.kind = static_cast<FrameKind>(kind);
  header.flags = take<uint8_t>(in);
  if (take<uint16_t>(in) != 0) return absl::InvalidArgumentError("frame padding is not zero");
  header.source = WorkerId::from_bits(take<uint64_t>(in));
  header.destination = WorkerId::from_bits(take<uint64_t>(in));
  header.sequence = take<uint64_t>(in);
  header.acknowledged = take<uint64_t>(in);
  header.call = take<uint64_t>(in);
  header.function = take<uint64_t>(in);
  header.fingerprint = take<uint64_t>(in);
  header.budget_us = take<uint64_t>(in);
  header.credit_calls = take<uint64_t>(in);
  header.credit_bytes = take<uint64_t>(in);
  header.value_bytes = sizes->value;
  in = head.data() + kFixedHeaderBytes;
  frame.payloads.resize(sizes->payloads);
  size_t left = limits.max_frame_bytes - sizes->head();
  for (Payload& payload : frame.payloads) {
    const uint64_t size = take<uint64_t>(in);
    if (size > left) {
      return absl::InvalidArgumentError(absl::StrCat("a payload of ", size,
                                                     " bytes exceeds the frame limit of ",
                                                     limits.max_frame_bytes, " bytes"));
    }
    left -= size;
    payload.size = size;
  }
  frame.meta.assign(in, sizes->meta);
  frame.body.assign(in + sizes->meta, sizes->body);
  return frame;
}

}  // namespace weft::rpc_internal
