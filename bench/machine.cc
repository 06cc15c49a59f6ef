#include "weft/bench/machine.h"

#include <cerrno>
#include <fstream>
#include <sched.h>
#include <string>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace weft::bench {

Usage& Usage::operator+=(const Usage& other) {
  cpu_seconds += other.cpu_seconds;
  page_faults += other.page_faults;
  switches += other.switches;
  return *this;
}

Usage operator-(Usage left, const Usage& right) {
  left.cpu_seconds -= right.cpu_seconds;
  left.page_faults -= right.page_faults;
  left.switches -= right.switches;
  return left;
}

Usage usage_of_this_process() {
  rusage raw{};
  getrusage(RUSAGE_SELF, &raw);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {.cpu_seconds = seconds(raw.ru_utime) + seconds(raw.ru_stime),
          .page_faults = static_cast<double>(raw.ru_minflt + raw.ru_majflt),
          .switches = static_cast<double>(raw.ru_nvcsw + raw.ru_nivcsw)};
}

ProcessorTicks processor_ticks() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  ProcessorTicks ticks;
  // Fields: user nice system idle iowait irq softirq steal. Guest time is already part of user.
  for (int field = 0; field < 8; ++field) {
    double value = 0;
    if (!(file >> value)) break;
    ticks.total += value;
    if (field == 7) ticks.stolen = value;
  }
  return ticks;
}

double stolen_fraction(const ProcessorTicks& before, const ProcessorTicks& after) {
  const double total = after.total - before.total;
  return total > 0 ? (after.stolen - before.stolen) / total : 0;
}

absl::Status pin_to_processor(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot run on processor ", processor));
  }
  return absl::OkStatus();
}

}  // namespace weft::bench
