// Tells a worker which of its peers on this host have left something for it, and wakes it.
//
// Each worker has one of these in shared memory, and all its local peers map it. Each peer has a
// slot there. A peer first publishes something elsewhere (a record in a ring, say) and then signals
// its slot. The worker (the reader) takes the pending slots and looks at these peers. A signal
// costs a system call only if the reader is asleep:
//
//   while (true) {
//     bits.disarm();
//     while (bits.take_pending(look_at_peer)) {
//     }
//     const uint32_t seen = bits.arm(reader);
//     if (!bits.any_pending()) bits.sleep(seen, deadline, reader);  // look at all else here, too
//   }
//
// The peers are untrusted: they may write anything here at any time. They can cause needless looks,
// and calls for slots that nobody has. They can also delay a wake-up, but not beyond kLongestSleep.
// So can a peer that dies or is stopped while it wakes the reader. The thread that notices a death
// therefore calls wake().
//
// Thread safety: signal(), wake() and any_pending() may be called from any thread of any process.
// One thread at a time is the reader. Two threads of one process may take turns, each with its own
// Group: a thread that stops reading arms for the other one, looks once more, and calls wake() if a
// bit is set. The other one may sleep all the while.
// Lifetime: it lies in zeroed shared memory and is never constructed or destroyed.
// Blocking: sleep().
// Protocol: docs/data_plane.md, "Rings and waking"; the model is tests/models/wake_bits.pml.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "weft/shm/wait_word.h"

namespace weft {

struct WakeBits {
  using TimePoint = WaitWord::TimePoint;
  static constexpr size_t kSlots = 1024;
  static constexpr std::chrono::seconds kLongestSleep{1};

  // A reader, as a group of sleepers of `word`.
  enum class Group : uint32_t {
    kServing = 1,  // the regular reader
    kCaller = 2,   // a thread that reads only until its own reply is there
  };

  WaitWord word;                            // the readers sleep on it; counts wake-ups
  alignas(64) std::atomic<uint32_t> armed;  // the Group that a signal must wake; 0: none
  alignas(64) std::atomic<uint64_t> pending[kSlots / 64];  // a bit for each slot

  // ---- For peers

  // Call it after what it signals is published.
  void signal(size_t slot) {
    // Release: a reader that takes the bit sees what was published before. Sequentially consistent,
    // before `armed` is loaded: the reader stores `armed` before it looks at the bits. So this side
    // sees that the reader is armed, or the reader sees the bit. The bit is set even if it seems to
    // be set already, because the reader may just be taking it.
    pending[slot / 64 % (kSlots / 64)].fetch_or(uint64_t{1} << slot % 64,
                                                std::memory_order_seq_cst);
    // The load spares a looking reader the write to this line.
    if (armed.load(std::memory_order_seq_cst) == 0) return;
    // Of several peers one makes the system call.
    const uint32_t reader = armed.exchange(0, std::memory_order_seq_cst);
    if (reader != 0) word.advance(reader);
  }

  // ---- For the reader

  // Whether a bit is set. It is cheap (16 loads), so call it in a loop to look without sleeping.
  bool any_pending() const {
    uint64_t any = 0;
    for (const std::atomic<uint64_t>& bits : pending) any |= bits.load(std::memory_order_seq_cst);
    return any != 0;
  }

  // Clears the bits, and calls `look_at` with the slot of each, which must then look at what that
  // peer has published. In this order: a signal that comes later sets the bit again. False: there
  // were none. The slot is less than kSlots, but may belong to no peer.
  template <class LookAt>
  bool take_pending(LookAt&& look_at) {
    bool any = false;
    for (size_t i = 0; i < kSlots / 64; ++i) {
      if (pending[i].load(std::memory_order_seq_cst) == 0) continue;
      // Acquire: pairs with the release of signal().
      uint64_t bits = pending[i].exchange(0, std::memory_order_acquire);
      for (; bits != 0; bits &= bits - 1) {
        any = true;
        look_at(i * 64 + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
    return any;
  }

  // Sets the bit of a slot again that take_pending() has passed. Nobody is woken.
  void put_back(size_t slot) {
    pending[slot / 64].fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
  }

  // From now on a signal wakes `reader`. The caller must look once more before that one sleeps: at
  // the bits, and at all else for which wake() is called. Returns what sleep() needs.
  uint32_t arm(Group reader) {
    // Loaded before `armed` is set: a late signal, whose bit the reader has taken already, may set
    // `armed` to 0 again, and then the next peer wakes nobody. So that late wake-up must count.
    const uint32_t seen = word.load();
    armed.store(static_cast<uint32_t>(reader), std::memory_order_seq_cst);
    return seen;
  }

  // Sleeps until a signal or wake() for `reader` comes that arm() has not seen, until `deadline`,
  // or for kLongestSleep. False: nobody woke it.
  bool sleep(uint32_t seen, TimePoint deadline, Group reader) {
    return word.sleep(seen, std::min(deadline, std::chrono::steady_clock::now() + kLongestSleep),
                      static_cast<uint32_t>(reader));
  }

  // The reader looks anyway, so signals need not wake it. Looking armed is correct but costs each
  // peer a needless system call, once.
  void disarm() { armed.store(0, std::memory_order_relaxed); }

  // Ends the sleep of both readers, or the next one of a reader that has called arm() already. For
  // threads that have something for them which is not in the shared memory.
  void wake() { word.advance(); }
  // The same for one of them.
  void wake(Group reader) { word.advance(static_cast<uint32_t>(reader)); }
};
static_assert(sizeof(WakeBits) == 256, "the layout is shared between processes, within a page");

}  // namespace weft
