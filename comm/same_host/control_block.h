// Defines the control block: the shared memory in which a rank tells the others of its operations.
//
// Thread safety: counters and words are atomic. A record or a piece belongs to its writer until the
// counter that publishes it has moved. Then it belongs to its readers, until their own counters say
// that they are done with it. Counters wrap around, so compare them with reached().
// Lifetime: a control block lies in zeroed shared memory (shm/sealed_memory.h). It is never
// constructed or destroyed.
// Protocol: docs/same_host_collectives.md, "The control block".
#pragma once

#include <atomic>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "weft/shm/wait_word.h"

namespace weft::comm_internal {

inline constexpr uint32_t kSlots = 8;
inline constexpr size_t kSlotBytes = size_t{64} << 10;
inline constexpr uint32_t kStages = 2;
inline constexpr size_t kStageBytes = size_t{1} << 20;
inline constexpr size_t kLabelBytes = 64;
inline constexpr uint32_t kMostDims = 12;

enum class DataLocation : uint32_t {
  kSlot = 0,     // in the slot, beside the record
  kArena = 1,    // in memory that the other ranks can map
  kPrivate = 2,  // in private memory; copied piece by piece through the staging buffers
};

// Describes a rank's contribution to one operation.
struct Record {
  uint64_t number;          // of the operation
  char label[kLabelBytes];  // kind, reduction and data type as text; zero-filled
  int32_t root;             // -1: none
  uint32_t dims;
  int64_t shape[kMostDims];
  uint64_t fingerprint;  // hash of whatever else must be the same; 0: nothing
  uint64_t bytes;        // of the contribution
  DataLocation location;
  uint32_t arena;
  uint64_t offset;  // within the arena
};

struct Slot {
  Record record;
  alignas(64) std::byte data[kSlotBytes];
};

struct alignas(64) Counter {
  std::atomic<uint32_t> value;
  uint32_t load() const { return value.load(std::memory_order_seq_cst); }
};

struct ControlBlock {
  WaitWord wake_word;  // this rank sleeps on it, and the others wake it
  // The counters are over all operations of the group, not per operation.
  Counter published;  // operations whose record is in its slot
  Counter consumed;   // operations of which this rank reads no slot any more
  Counter turned;     // operations for which it is done with the data in the others' arenas
  Counter staged;     // pieces that it has copied into its staging buffers
  Counter reduced;    // pieces whose part it has added up in its staging buffer
  Counter unstaged;   // pieces of which it reads no staging buffer any more
  Counter failed;     // 1: this rank has given up, and `failure` says why
  char failure[256];  // zero-filled
  // By slot: how many chunks of this rank's part of the sum are claimed (see first_claim). All
  // ranks change it.
  struct alignas(64) Claims {
    std::atomic<uint64_t> value;
  } claims[kSlots];
  Slot slots[kSlots];
  alignas(4096) std::byte stages[kStages][kStageBytes];
};

// Claims hold the operation's number in the upper 32 bits and the number of claimed chunks in the
// lower 32 bits. This is the value before the first claim.
inline uint64_t first_claim(uint32_t operation) { return uint64_t{operation} << 32; }

inline constexpr uint32_t kChannelBytes = uint32_t{256} << 10;  // a power of two

// The part of a contribution that is meant for one rank, in bytes.
struct Share {
  uint64_t offset;
  uint64_t size;
};

// The memory for messages from this rank to one other rank. One for each rank follows the control
// block.
struct Channel {
  Share shares[kSlots];  // by slot: that rank's part of this rank's contribution
  Counter written;       // bytes sent to that rank
  Counter taken;         // bytes received from that rank
  alignas(64) std::byte ring[kChannelBytes];  // bytes sent to that rank
};

// Ranks of two builds must not misread each other's control blocks. If you change the layout, also
// change kVersion in mesh.cc.
static_assert(offsetof(ControlBlock, slots) == 1280 && sizeof(Slot) == kSlotBytes + 256);

// Makes text of another process printable, because it may contain anything. Cuts it at the first
// zero byte, and replaces each character that cannot be printed by a question mark.
inline std::string printable(const char* text, size_t size) {
  std::string all(text, strnlen(text, size));
  for (char& one : all) {
    if (std::isprint(static_cast<unsigned char>(one)) == 0) one = '?';
  }
  return all;
}

// Whether a counter has reached `goal`, or is beyond it by less than half of its range.
inline bool reached(uint32_t counter, uint32_t goal) {
  return static_cast<int32_t>(counter - goal) >= 0;
}

}  // namespace weft::comm_internal
