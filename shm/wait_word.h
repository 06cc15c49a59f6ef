// A number in shared memory that one side moves on and others wait for.
//
// Waking a sleeper takes a system call, so the side that moves it makes one only if somebody
// sleeps. Who waits usually looks for a while first (base/spin_policy.h); only then it sleeps.
//
// It trusts nobody: a process that dies while it sleeps here costs the others a needless system
// call at each move and no more, and whatever is written here can at worst keep a waiter until its
// deadline.
//
// Thread safety: all methods, from any thread of any process that maps the memory.
// Lifetime: lies in zeroed shared memory, is never constructed or destroyed; all zeros is 0 and
// nobody asleep. Blocking: sleep(). Protocol: futex(2), not private; store and count are
// sequentially consistent, so either the sleeper sees the new number or the mover sees the sleeper.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft {

struct alignas(64) WaitWord {
  using TimePoint = std::chrono::steady_clock::time_point;

  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  uint32_t load() const { return value.load(std::memory_order_acquire); }

  // Everything written before is seen by whoever sees `next`.
  void move_to(uint32_t next) {
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }
  // The same for a number that several sides move; returns the new one.
  uint32_t advance() {
    const uint32_t next = value.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
    return next;
  }

  // Wakes those that sleep, if there are any, and keeps those from it that are about to.
  void notify() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) advance();
  }
  class Sleeper;

  // Sleeps while the number is `seen`, until `deadline` at the latest; may return early. Callers
  // look again. False: nobody woke it before the deadline.
  bool sleep(uint32_t seen, TimePoint deadline);

  // Wakes all that sleep, without a change.
  void wake();
};

// For who sleeps until something else has changed than the number: whoever changes that (a
// sequentially consistent store) and calls notify() afterwards, wakes it. So look between making
// this and sleep().
class WaitWord::Sleeper {
 public:
  explicit Sleeper(WaitWord& word) : word_(word) {
    word_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    seen_ = word_.value.load(std::memory_order_seq_cst);
  }
  ~Sleeper() { word_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  bool sleep(TimePoint deadline) const { return word_.sleep(seen_, deadline); }

 private:
  WaitWord& word_;
  uint32_t seen_;
};
static_assert(sizeof(WaitWord) == 64, "the layout is shared between processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Tells the processor that this thread looks at memory in a loop.
inline void pause_spinning() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace weft
