// Measures what a process uses and holds of the machine, and what the hypervisor takes away from
// the machine.
//
// Thread safety: free functions. The processor set belongs to the calling thread and to those it
// starts.
// Errors: only pin_to_processor can fail. Counters that the system does not provide are zero.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace weft::bench {

// Counters of this process since it started, or the difference of two such readings.
struct Usage {
  double cpu_seconds = 0;  // user and system, all threads
  double page_faults = 0;
  double switches = 0;  // context switches, voluntary and not

  Usage& operator+=(const Usage& other);
  friend Usage operator-(Usage left, const Usage& right);
};

Usage usage_of_this_process();

// What this process holds at this moment.
struct Footprint {
  double threads = 0;
  double descriptors = 0;
  double private_mib = 0;  // anonymous memory in RAM
  // Its part of the shared memory in RAM. A page that n processes map counts for 1/n in each, so
  // the sum over all processes is the memory that they hold together.
  double shared_mib = 0;
};

Footprint footprint_of_this_process();

// Ticks of all processors since boot, from /proc/stat.
struct ProcessorTicks {
  double total = 0;
  double stolen = 0;
};

ProcessorTicks processor_ticks();

// The fraction of the machine's time between two readings that the hypervisor gave to other guests.
double stolen_fraction(const ProcessorTicks& before, const ProcessorTicks& after);

// Keeps the calling thread, and all threads that it starts later, on one processor.
absl::Status pin_to_processor(int processor);

}  // namespace weft::bench
