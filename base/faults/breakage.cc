#include "weft/base/faults/breakage.h"

#include <map>
#include <string>

#include "weft/base/mutex.h"

namespace weft {
namespace {

struct Switches {
  Mutex mutex;
  std::map<std::string, bool, std::less<>> broken ABSL_GUARDED_BY(mutex);
};

Switches& switches() {
  static Switches& all = *new Switches;  // never destroyed: threads may outlive main
  return all;
}

bool& switch_of(std::string_view rule) {
  Switches& all = switches();
  MutexLock lock(all.mutex);
  return all.broken.try_emplace(std::string(rule), false).first->second;
}

}  // namespace

bool has_breakages() {
#ifdef WEFT_BREAKAGES
  return true;
#else
  return false;
#endif
}

void set_breakage(std::string_view rule, bool broken) { switch_of(rule) = broken; }

const bool& breakage(std::string_view rule) { return switch_of(rule); }

}  // namespace weft
