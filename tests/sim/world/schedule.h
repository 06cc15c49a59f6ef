// Virtual time: what will happen, in order of time and, at one instant, of scheduling.
//
// Events are plain numbers, so a run has no pointers to order by and costs no allocation per event.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/base/clock.h"

namespace weft::sim {

using Slot = uint32_t;  // one incarnation of a worker, numbered in order of birth
inline constexpr Slot kNobody = UINT32_MAX;

enum class EventKind : uint8_t {
  kArrive,       // a frame reaches `slot`; a: flight
  kClosed,       // `slot` notices the end of a connection; a: connection
  kDialled,      // `slot` hears what became of dialling; a: the other's slot
  kAck,          // `slot` owes an acknowledgement; a: the other's slot
  kDeadlines,    // calls of `slot` may be late; a: the other's slot
  kRun,          // a call at `slot` gets a thread; a: its number there
  kFinish,       // the handler of a call at `slot` has done its own work; a: its number there
  kValue,        // a value made at `slot` for itself is there; a: number of its RRef
  kPassWork,     // one action of a pass's local graph at `slot`; a: the pass's number
  kPassTimer,    // deadline of a pass at `slot`; a: the pass's number, b: the timer's
  kHold,         // a hold on a pass at `slot` ends; a: the pass's number
  kStepTimer,    // for an optimizer or an owner at `slot`; a: its number there
  kPiggybacked,  // messages that waited for a ride leave `slot`
  kStore,        // `slot` gets an answer of the store; a: the question
  kLease,        // everybody looks who was heard
  kLook,         // `slot` looks at its peers
  kStep,         // the program does something
  kFault,        // something breaks
  kMend,         // a fault ends; a: which
  kSettle,       // faults and program have stopped; a: the stage of the end (World::settle)
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
