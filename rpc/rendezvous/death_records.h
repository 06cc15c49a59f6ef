// The group's list of deaths, in the rendezvous store: appended to by compare-and-set, never
// revised.
//
// Thread safety: none; one caller at a time.
// Blocking: some round trips to the store.
// Errors: the store's; Internal (an entry is malformed).
// Protocol: docs/membership.md, "Death records".
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/base/ids.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft {

struct DeathRecord {
  WorkerId dead;
  WorkerId by;         // who wrote it
  std::string reason;  // in one line, printable (base/log.h)
  friend bool operator==(const DeathRecord&, const DeathRecord&) = default;
};

class DeathRecords {
 public:
  // The store is shared with whoever else uses it: a question may outlast the worker.
  DeathRecords(std::shared_ptr<RendezvousStore> store, std::string_view group, uint32_t epoch);

  // What was written since this object last looked, oldest first.
  absl::StatusOr<std::vector<DeathRecord>> read();
  // The same. Without an entry about `suspect` or `self`, now or before, appends that `suspect` is
  // dead; then the last entry is the new one. Safe to repeat when the store did not answer.
  absl::StatusOr<std::vector<DeathRecord>> declare_dead(WorkerId self, WorkerId suspect,
                                                        std::string_view reason);

 private:
  std::string key(uint64_t place) const;
  void note(const std::vector<DeathRecord>& read);

  const std::shared_ptr<RendezvousStore> store_;
  const std::string prefix_;
  uint64_t known_ = 0;       // entries read
  std::set<WorkerId> dead_;  // in them
};

}  // namespace weft
