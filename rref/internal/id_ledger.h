// Remembers which RRef and fork ids of other workers have ended, in bounded memory.
//
// A late or repeated message about an ended fork must not bring it back (BN4; this closes BX1).
// Each worker numbers its RRefs and forks from one counter. It tells an owner a watermark: all of
// its numbers below it are decided. So an id below the watermark that is in no table has ended. The
// ledger stores only the ended ids at or above the watermark one by one. These are the tombstones.
//
// Thread safety: none; part of the core.
// Protocol: docs/rref_protocol.md, "Tombstones".
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "weft/base/ids.h"

namespace weft::rref_internal {

class IdLedger {
 public:
  explicit IdLedger(uint32_t max_tombstones_per_creator) : limit_(max_tombstones_per_creator) {}

  // Whether the id has ended. Ask only about ids that are in no table.
  bool ended(WorkerId creator, uint64_t number) const;

  // Keeps a tombstone for an id. Past the limit, the ledger raises the watermark itself, so that
  // only half the limit of tombstones is left. It then returns true: undecided ids of this creator
  // may have ended with this.
  bool add_tombstone(WorkerId creator, uint64_t number);

  // Raises the watermark, which never falls. Returns whether it rose.
  bool raise(WorkerId creator, uint64_t settled_below);

  // The creator is dead. Its unknown ids are refused for that reason, so nothing is kept for it.
  void forget(WorkerId creator);

  uint64_t watermark(WorkerId creator) const;
  uint64_t tombstones() const { return tombstones_; }

 private:
  struct Creator {
    uint64_t watermark = 0;
    std::set<uint64_t> tombstones;  // all >= watermark
  };

  void raise_to(Creator& creator, uint64_t watermark);

  const uint32_t limit_;
  std::map<WorkerId, Creator> creators_;
  uint64_t tombstones_ = 0;
};

}  // namespace weft::rref_internal
