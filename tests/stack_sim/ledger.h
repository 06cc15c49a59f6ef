// Records the calls of a simulated run, which of them ran, and what callers were told. Calls are
// checked against it.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/ids.h"
#include "weft/base/status.h"

namespace weft::sim {

class Ledger {
 public:
  // Adds a new call, made by this incarnation of a worker.
  uint64_t ask(WorkerId caller) {
    entries_.emplace_back().caller = caller;
    return entries_.size() - 1;
  }
  void executed(uint64_t call) { ++entries_[call].executed; }
  // Each call is told once. `as_expected`: the value is right.
  void told(uint64_t call, const absl::Status& status, bool as_expected) {
    Entry& entry = entries_[call];
    if (entry.told++ > 0) violation(call, "was told of twice");
    entry.status = status;
    if (status.ok() && !as_expected) violation(call, "returned a wrong value");
    if (status.ok() && entry.executed != 1) violation(call, "succeeded without running once");
    if (!status.ok()) ++errors_[std::string(absl::StatusCodeToString(status.code()))];
  }
  // Call it at the end, when nothing is in flight. `ended`: tells whether the caller's incarnation
  // has stopped.
  template <class Ended>
  void close(Ended ended) {
    for (uint64_t call = 0; call < entries_.size(); ++call) {
      const Entry& entry = entries_[call];
      if (entry.executed > 1) violation(call, "ran twice");
      if (entry.told == 0 && !ended(entry.caller)) violation(call, "was never answered");
      if (entry.told == 0 || entry.status.ok()) continue;
      const Ran ran = ran_of(entry.status);
      if (ran == Ran::kNo && entry.executed > 0) violation(call, "ran although it was said not to");
      if (ran == Ran::kYes && entry.executed == 0) violation(call, "did not run, and was said to");
    }
  }

  const std::vector<std::string>& violations() const { return violations_; }
  void violation(const std::string& what) { violations_.push_back(what); }
  size_t calls() const { return entries_.size(); }
  const std::map<std::string, uint64_t>& errors() const { return errors_; }

 private:
  struct Entry {
    WorkerId caller;
    int executed = 0;
    int told = 0;
    absl::Status status;
  };
  void violation(uint64_t call, const char* what) {
    violations_.push_back("call " + std::to_string(call) + " of " +
                          entries_[call].caller.to_string() + " " + what + ": " +
                          entries_[call].status.ToString());
  }

  std::vector<Entry> entries_;
  std::map<std::string, uint64_t> errors_;
  std::vector<std::string> violations_;
};

}  // namespace weft::sim
