// Virtual time: the future events, in order of time. Events of one instant run in the order of
// scheduling.
//
// Events are plain numbers. So their order does not depend on pointers, and no event needs an
// allocation.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/base/clock.h"

namespace weft::sim {

using Slot = uint32_t;  // one incarnation of a worker, in order of creation
inline constexpr Slot kNobody = UINT32_MAX;

enum class EventKind : uint8_t {
  kArrive,       // a frame reaches `slot`; a: flight
  kClosed,       // `slot` notices that a connection closed; a: connection
  kDialled,      // `slot` learns the result of dialling; a: the other's slot
  kAck,          // `slot` must acknowledge; a: the other's slot
  kDeadlines,    // calls of `slot` may be late; a: the other's slot
  kRun,          // a call at `slot` gets a thread; a: its number there
  kFinish,       // the handler of a call at `slot` is done; a: its number there
  kValue,        // a value of `slot` for itself is ready; a: number of its RRef
  kPassWork,     // one action of a pass's local graph at `slot`; a: the pass's number
  kPassTimer,    // deadline of a pass at `slot`; a: the pass's number, b: the timer's
  kHold,         // a hold on a pass at `slot` is over; a: the pass's number
  kStepTimer,    // for an optimizer or an owner at `slot`; a: its number there
  kPiggybacked,  // deferred piggybacked messages leave `slot`
  kStore,        // `slot` gets an answer of the store; a: the question
  kLease,        // all workers check when they last heard each other
  kLook,         // `slot` looks at its peers
  kStep,         // the program does something
  kFault,        // something breaks
  kMend,         // a fault is repaired; a: which
  kSettle,       // faults and program have stopped; a: the stage (World::settle)
};
inline constexpr size_t kEventKinds = static_cast<size_t>(EventKind::kSettle) + 1;

struct Event {
  TimePoint when;
  uint64_t number = 0;
  uint64_t a = 0, b = 0;
  EventKind kind = EventKind::kStep;
  Slot slot = kNobody;
};

class Schedule {
 public:
  TimePoint now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  TimePoint next() const { return heap_.front().when; }

  void at(TimePoint when, EventKind kind, Slot slot, uint64_t a = 0, uint64_t b = 0) {
    heap_.push_back({std::max(when, now_), ++number_, a, b, kind, slot});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void in(Nanoseconds delay, EventKind kind, Slot slot, uint64_t a = 0, uint64_t b = 0) {
    at(now_ + delay, kind, slot, a, b);
  }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.when;
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.number > b.number;
  }

  TimePoint now_{};
  uint64_t number_ = 0;
  std::vector<Event> heap_;
};

}  // namespace weft::sim
