// Reads and appends the death records of a group, a list in the rendezvous store.
//
// Workers append by compare-and-set, and no entry is ever changed.
//
// Thread safety: none. One caller at a time.
// Blocking: several round trips to the store.
// Errors: those of the store; Internal (an entry has another form).
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
  WorkerId by;         // the worker that wrote the record
  std::string reason;  // one line of printable text (base/log.h)
  friend bool operator==(const DeathRecord&, const DeathRecord&) = default;
};

class DeathRecords {
 public:
  // The store is shared with its other users. A question to it may outlive the worker.
  DeathRecords(std::shared_ptr<RendezvousStore> store, std::string_view group, uint32_t epoch);

  // Returns the entries that this object has not returned before, oldest first.
  absl::StatusOr<std::vector<DeathRecord>> read();
  // As `read`. If no entry, old or new, names `suspect` or `self`, it also appends that `suspect`
  // is dead. Then the last returned entry is the new one. If the store did not answer, the call may
  // be repeated.
  absl::StatusOr<std::vector<DeathRecord>> declare_dead(WorkerId self, WorkerId suspect,
                                                        std::string_view reason);

 private:
  std::string key(uint64_t place) const;
  void note(const std::vector<DeathRecord>& read);

  const std::shared_ptr<RendezvousStore> store_;
  const std::string prefix_;
  uint64_t known_ = 0;       // number of entries that were read
  std::set<WorkerId> dead_;  // the workers that these entries name
};

}  // namespace weft
