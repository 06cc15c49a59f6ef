// A chaos worker without Weft. It joins, calls the others and stops as the arena asks, but only in
// its ledger. CHAOS_FAKE in its environment says what it does wrong:
//
//   crash   aborts soon after it has joined
//   hang    exits as the watchdog would make it exit
//   leak    stops calling with a reference left
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <time.h>

#include "weft/tests/chaos/oracle/ledger.h"

namespace weft::chaos {
namespace {

int run(int argc, char** argv) {
  std::map<std::string, std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    arguments[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const char* fake = std::getenv("CHAOS_FAKE");
  const std::string wrong = fake != nullptr ? fake : "";
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);

  const LedgerWriter ledger(arguments.at("ledger"));
  const uint64_t spawn = std::stoull(arguments.at("spawn"));
  ledger.append({.token = spawn, .value = spawn, .kind = RecordKind::kJoined});
  std::cout << "process " << spawn << " is there" << std::endl;
  bool ceased = false;
  for (uint64_t token = spawn << 40;; ++token) {
    const timespec wait{0, std::chrono::nanoseconds(std::chrono::milliseconds(10)).count()};
    switch (sigtimedwait(&signals, nullptr, &wait)) {
      case SIGTERM:
        ceased = true;
        ledger.append({.kind = RecordKind::kCeased});
        break;
      case SIGUSR1:
        ledger.append({.value = 1, .kind = RecordKind::kGauge});
        ledger.append({.detail = wrong == "leak" ? 0u : 1u, .kind = RecordKind::kQuiet});
        break;
      case SIGUSR2:
        return 0;
      default:
        break;
    }
    if (ceased) continue;
    ledger.append({.token = token, .value = 1, .detail = 100, .kind = RecordKind::kCalled});
    ledger.append({.token = token, .value = 2, .kind = RecordKind::kExecuted});
    ledger.append({.token = token, .detail = 1, .kind = RecordKind::kTold});
    if ((token & 31) != 31) continue;
    if (wrong == "crash") std::abort();
    if (wrong == "hang") return kExitHang;
  }
}

}  // namespace
}  // namespace weft::chaos

int main(int argc, char** argv) { return weft::chaos::run(argc, argv); }
