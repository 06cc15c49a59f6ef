// A Frame is the unit that transports carry: a fixed header, two short byte strings, and large
// blocks of memory (payloads) that the sender never copies.
//
// Thread safety: plain values.
// Protocol: proto/weft.proto, section "Envelope", has the layout and the meaning of every field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "weft/base/ids.h"

namespace weft {

enum class FrameKind : uint8_t {
  kDial = 1,       // not a frame: for InprocNetwork's filter, a dial has this kind
  kCall = 2,       // run a function
  kReply = 3,      // the result of a call
  kPost = 4,       // one-way message to a room (membership, references, autograd)
  kAck = 5,        // carries only the acknowledgement and credit fields
  kCancel = 6,     // the caller gave up on a call
  kGoodbye = 7,    // the sender leaves in good order: its connection closes, but it has not died
  kHeartbeat = 8,  // asks whether the peer lives, or answers
};
inline constexpr uint8_t kFirstFrameKind = 2;
inline constexpr uint8_t kLastFrameKind = 8;

// Flags of FrameHeader::flags.
inline constexpr uint8_t kFlagNested = 1;  // the call was made inside a handler: no call credit
inline constexpr uint8_t kFlagError = 2;   // the reply holds a status instead of a value
inline constexpr uint8_t kFlagObject = 4;  // the result stays with the callee, as an object
inline constexpr uint8_t kFlagAnswer = 8;  // the heartbeat answers another heartbeat

// Fields that every frame carries. Unused ones are 0.
struct FrameHeader {
  FrameKind kind = FrameKind::kAck;
  uint8_t flags = 0;
  WorkerId source;
  WorkerId destination;
  uint64_t sequence = 0;      // number in the session from source to destination; 0: not sequenced
  uint64_t acknowledged = 0;  // all sequences up to this one have arrived at the sender
  uint64_t call = 0;      // calls, replies, cancels: the caller's CallId; heartbeats: their number
  uint64_t function = 0;  // calls: id of the function; posts: the topic
  uint64_t fingerprint = 0;   // calls: hash of the signature the caller compiled
  uint64_t budget_us = 0;     // calls: time left until the deadline; 0: without limit
  uint64_t credit_calls = 0;  // calls that the sender has taken from its queue, in total
  uint64_t credit_bytes = 0;  // bytes of them, in total
  uint32_t value_bytes = 0;   // the part of the body that precedes the tensor headers
};

// A block of memory, and the owner that keeps it alive.
struct Payload {
  std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;  // shared: a frame may be resent while its tensor lives on elsewhere
  // Another process can still write here. Copy first what must be checked.
  bool lent = false;
  // Nobody but the frame reads or writes here any more, so the receiver may get this very memory.
  bool given = false;
};

struct Frame {
  FrameHeader header;
  std::string meta;  // serialized wire::Meta, empty when there is nothing to say
  std::string body;  // encoded values (header.value_bytes), then tensor headers
  std::vector<Payload> payloads;

  size_t payload_bytes() const {
    size_t total = 0;
    for (const Payload& payload : payloads) total += payload.size;
    return total;
  }
  // The bytes that the frame counts against byte credits and memory bounds.
  size_t cost() const { return kFrameOverhead + meta.size() + body.size() + payload_bytes(); }

  static constexpr size_t kFrameOverhead = 128;
};

// Shared by the transport that writes it and the session that may have to send it again.
using FramePtr = std::shared_ptr<const Frame>;
using FrameBatch = absl::InlinedVector<FramePtr, 2>;  // sent together

}  // namespace weft
