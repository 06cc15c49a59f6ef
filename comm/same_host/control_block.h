// What a rank lays out for the others to read: the layout of its shared memory.
//
// Thread safety: words are atomic; a record or a piece belongs to its writer until the word that
// publishes it has moved, and to its readers until their own words say that they are done with it.
// Lifetime: lies in zeroed shared memory (shm/sealed_memory.h), never constructed or destroyed.
// Protocol: docs/same_host_collectives.md. Counters go round: compare them with reached().
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
  kSlot = 0,     // beside the record
  kArena = 1,    // in memory that the others can map
  kPrivate = 2,  // comes piece by piece through the stages
};

// What a rank brings to one operation.
struct Record {
  uint64_t number;          // of the operation
  char label[kLabelBytes];  // kind, reduction and data type, as people read them; zero-filled
  int32_t root;             // -1: none
  uint32_t dims;
  int64_t shape[kMostDims];
  uint64_t fingerprint;  // of what else must be the same; 0: nothing
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
  WaitWord wake_word;  // where this rank sleeps; others notify it
  Counter published;   // operations whose record is in its slot
  Counter consumed;    // operations of which this rank reads no slot any more
  Counter turned;      // operations whose data in others' arenas it has done with
  Counter staged;      // pieces in their stage, over all operations
  Counter reduced;     // pieces whose part it has added up in its stage
  Counter unstaged;    // pieces of which it reads no stage any more
  Counter failed;      // 1: it has given up, and `failure` says why
  char failure[256];   // zero-filled
  // By slot, how many chunks of this rank's share of the sum are claimed (first_claim): moved by
  // all ranks.
  struct alignas(64) Claims {
    std::atomic<uint64_t> value;
  } claims[kSlots];
  Slot slots[kSlots];
  alignas(4096) std::byte stages[kStages][kStageBytes];
};

// The claims of an operation are its number in the upper half, and how many in the lower.
inline uint64_t first_claim(uint32_t operation) { return uint64_t{operation} << 32; }

inline constexpr uint32_t kChannelBytes = uint32_t{256} << 10;  // a power of two

// The part of a contribution that is meant for one rank, in bytes.
struct Share {
  uint64_t offset;
  uint64_t size;
};

// Behind the control block, one for each rank.
struct Channel {
  Share shares[kSlots];  // of this rank's contribution to the operation in that slot
  Counter written;       // bytes sent to that rank
  Counter taken;         // bytes received from it
  alignas(64) std::byte ring[kChannelBytes];  // sent to it
};

// Ranks of two builds must not take each other's control blocks for their own: who changes the
// layout changes mesh.cc's kVersion.
static_assert(offsetof(ControlBlock, slots) == 1280 && sizeof(Slot) == kSlotBytes + 256);

// Text of another process, which may be anything: up to its first zero, and what cannot be printed
// as question marks.
inline std::string printable(const char* text, size_t size) {
  std::string all(text, strnlen(text, size));
  for (char& one : all) {
    if (std::isprint(static_cast<unsigned char>(one)) == 0) one = '?';
  }
  return all;
}

// Whether a counter has come to `goal`, or beyond it by less than half of its range.
inline bool reached(uint32_t counter, uint32_t goal) {
  return static_cast<int32_t>(counter - goal) >= 0;
}

}  // namespace weft::comm_internal
