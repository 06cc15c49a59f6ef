#include "weft/bench/machine.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <string>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace weft::bench {
namespace {

constexpr double kKibPerMib = 1024;

// Returns the number after `key` in a file of /proc with lines "key: number unit"; 0 if it is not
// there.
double field_of(const char* file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return std::atof(line.c_str() + key.size());
  }
  return 0;
}

}  // namespace

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

Footprint footprint_of_this_process() {
  Footprint footprint;
  footprint.threads = field_of("/proc/self/status", "Threads:");
  footprint.private_mib = field_of("/proc/self/status", "RssAnon:") / kKibPerMib;
  footprint.shared_mib = field_of("/proc/self/smaps_rollup", "Pss_Shmem:") / kKibPerMib;
  std::error_code ignored;
  for (std::filesystem::directory_iterator file("/proc/self/fd", ignored), end; file != end;
       file.increment(ignored)) {
    ++footprint.descriptors;
  }
  if (footprint.descriptors > 0) --footprint.descriptors;  // that of the loop itself
  return footprint;
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
