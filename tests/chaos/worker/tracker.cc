#include "weft/tests/chaos/worker/tracker.h"

namespace weft::chaos {
namespace {

// The time that a call may take beyond its own limit before it counts as hanging.
constexpr std::chrono::seconds kSlack{1};

const char* name_of(Flavour flavour) {
  switch (flavour) {
    case Flavour::kCall:
      return "call";
    case Flavour::kCreate:
      return "creation";
    case Flavour::kStep:
      return "step";
    case Flavour::kPass:
      return "pass";
  }
  return "";
}

}  // namespace

uint64_t Tracker::call(Flavour flavour, WorkerId whom, std::chrono::milliseconds allowed) {
  const uint64_t token = next_.fetch_add(1);
  ledger_.append({.token = token,
                  .value = whom.bits(),
                  .detail = static_cast<uint32_t>(allowed.count()),
                  .kind = RecordKind::kCalled,
                  .code = static_cast<uint16_t>(flavour)});
  const uint64_t wait = watchdog_.begin(name_of(flavour), token, allowed + kSlack);
  MutexLock lock(mutex_);
  waits_.emplace(token, wait);
  return token;
}

void Tracker::told(uint64_t token, const absl::Status& status) {
  uint32_t ran = 1;
  if (!status.ok()) {
    ran = ran_of(status) == Ran::kNo ? 0 : ran_of(status) == Ran::kYes ? 1 : 2;
  }
  note(RecordKind::kTold, token, ran, static_cast<uint16_t>(status.code()));
  uint64_t wait = 0;
  {
    MutexLock lock(mutex_);
    const auto found = waits_.find(token);
    if (found == waits_.end()) return;  // told twice: the ledger shows it
    wait = found->second;
    waits_.erase(found);
    if (waits_.empty()) none_open_.notify_all();
  }
  watchdog_.end(wait);
}

size_t Tracker::open_calls() const {
  MutexLock lock(mutex_);
  return waits_.size();
}

void Tracker::wait_for_all() {
  MutexLock lock(mutex_);
  while (!waits_.empty()) none_open_.wait(mutex_);
}

}  // namespace weft::chaos
