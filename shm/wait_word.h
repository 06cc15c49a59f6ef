// Holds a number in shared memory that one side changes and other threads or processes wait for.
//
// Waking a sleeper takes a system call, so the side that changes the number makes this call only if
// somebody sleeps. A waiter usually spins for a while (async/spin_policy.h) before it sleeps.
//
// A process that dies while it sleeps here causes a needless system call at each later change, and
// nothing else. Whatever another process writes here, a waiter waits at most until its deadline.
//
// Thread safety: all methods may be called from any thread of any process that maps the memory.
// Lifetime: a WaitWord lies in zeroed shared memory and is never constructed or destroyed. All
// zeros means that the number is 0 and nobody sleeps.
// Blocking: sleep().
// Protocol: futex(2), not private. The store of the number and the count of sleepers are
// sequentially consistent. So the sleeper sees the new number, or the writer sees the sleeper.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft {

struct alignas(64) WaitWord {
  using TimePoint = std::chrono::steady_clock::time_point;

  // Sleepers may belong to groups, each a bit of a mask, and be woken by group.
  static constexpr uint32_t kAllGroups = ~uint32_t{0};

  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;  // of all groups

  uint32_t load() const { return value.load(std::memory_order_acquire); }

  // Sets the number and wakes the sleepers. A reader that sees `next` also sees all earlier writes
  // of the caller.
  void move_to(uint32_t next) {
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }
  // Adds 1 and wakes the sleepers of these groups, for a number that several sides change. Returns
  // the new number.
  uint32_t advance(uint32_t groups = kAllGroups) {
    const uint32_t next = value.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake(groups);
    return next;
  }

  // If there are sleepers, changes the number and wakes them. A Sleeper that is about to sleep then
  // does not sleep.
  void notify() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) advance();
  }
  class Sleeper;

  // Sleeps while the number is `seen`, until `deadline` at the latest. It may return early, so the
  // caller must look again. False: nobody woke it before the deadline.
  bool sleep(uint32_t seen, TimePoint deadline, uint32_t groups = kAllGroups);

  // Wakes the sleepers that belong to one of these groups, and leaves the number as it is.
  void wake(uint32_t groups = kAllGroups);
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

// Tells the processor that this thread reads memory in a loop.
inline void pause_spinning() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace weft
