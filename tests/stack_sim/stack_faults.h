// The faults of a simulated run: workers die and restart, connections break, partitions come and
// go, and the store does not answer.
//
// Thread safety: none. Deterministic: equal random numbers give equal faults.
// Lifetime: its constructor arguments outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "weft/tests/stack_sim/stack_world.h"

namespace weft::sim {

class StackFaults {
 public:
  struct Hooks {
    std::function<void(uint32_t rank)> forget;  // called before the worker stops
    std::function<void(const std::string&)> trace;
  };
  // `counts`: faults by kind.
  StackFaults(StackWorld& world, std::mt19937_64& random, std::map<std::string, uint64_t>& counts,
              Hooks hooks)
      : world_(world), random_(random), counts_(counts), hooks_(std::move(hooks)) {}

  // Chooses which kinds of faults this run has. Call it once, before the first fault.
  void begin();
  // Injects one fault, or repairs one.
  void one();
  // Repairs all partitions. Frames get through again.
  void stop();

 private:
  uint64_t pick(uint64_t bound) { return random_() % bound; }
  void note(const char* kind, const std::string& what);
  void kill(uint32_t rank);
  // `other` is the rank of another worker.
  void restart(uint32_t rank, uint32_t other);
  void partition(uint32_t a, uint32_t b);
  void heal_later(uint32_t a, uint32_t b);
  void mend_stores_later();
  // Runs `then` on the clock of a live worker. Without one, stop() does it.
  void after(Nanoseconds time, std::function<void()> then);
  bool joining(uint32_t rank);
  uint32_t living();

  StackWorld& world_;
  std::mt19937_64& random_;
  std::map<std::string, uint64_t>& counts_;
  const Hooks hooks_;
  bool store_cuts_ = false;
};

}  // namespace weft::sim
