// Records in the ledger what this worker calls, is told and executes. The watchdog watches each
// call until the worker is told of it.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: ledger and watchdog outlive it. It outlives every future that it follows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "absl/status/status.h"
#include "weft/async/future.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/tests/chaos/oracle/ledger.h"
#include "weft/tests/chaos/processes/watchdog.h"

namespace weft::chaos {

class Tracker {
 public:
  // `spawn`: the number of this process in the run. It makes tokens unique over all processes.
  Tracker(const LedgerWriter& ledger, Watchdog& watchdog, uint32_t spawn)
      : ledger_(ledger), watchdog_(watchdog), next_((uint64_t{spawn} << 40) | 1) {}

  // Records a call and returns its token. Use it before the call itself.
  uint64_t call(Flavour flavour, WorkerId whom, std::chrono::milliseconds allowed)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Records the result of a call; once for each call.
  void told(uint64_t token, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `told` when the future is complete. `check` gets a value first; false: the value is
  // wrong.
  template <class T>
  void follow(uint64_t token, const Future<T>& future,
              std::function<bool(const async_internal::Stored<T>&)> check = nullptr) {
    // Inline: the time of completion is what counts, and an append is one short system call.
    future.state()->on_complete_inline([this, token, future, check = std::move(check)] {
      const auto& result = future.result();
      if (result.ok() && check && !check(*result)) broken(Broken::kResult, token);
      told(token, result.status());
    });
  }

  void executed(uint64_t token, WorkerId caller) const {
    ledger_.append({.token = token, .value = caller.bits(), .kind = RecordKind::kExecuted});
  }
  void broken(Broken what, uint64_t token) const {
    ledger_.append(
        {.token = token, .kind = RecordKind::kBroken, .code = static_cast<uint16_t>(what)});
  }
  void gauge(Gauge which, uint64_t value) const {
    ledger_.append(
        {.value = value, .kind = RecordKind::kGauge, .code = static_cast<uint16_t>(which)});
  }
  void note(RecordKind kind, uint64_t token, uint32_t detail, uint16_t code) const {
    ledger_.append({.token = token, .detail = detail, .kind = kind, .code = code});
  }

  size_t open_calls() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no call is open. The watchdog bounds the wait.
  void wait_for_all() ABSL_LOCKS_EXCLUDED(mutex_);

  Watchdog& watchdog() { return watchdog_; }

 private:
  const LedgerWriter& ledger_;
  Watchdog& watchdog_;
  std::atomic<uint64_t> next_;
  mutable Mutex mutex_;
  CondVar none_open_;
  std::unordered_map<uint64_t, uint64_t> waits_ ABSL_GUARDED_BY(mutex_);  // token -> wait
};

}  // namespace weft::chaos
