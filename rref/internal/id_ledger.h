// Remembers which RRef and fork ids of other workers have ended, in bounded memory.
//
// A late or repeated message about an ended fork must not bring it back (BN4, closes BX1). Each
// worker numbers its RRefs and forks from one counter and tells an owner a watermark: all of its
// numbers below are decided. So an id below the watermark that is in no table has ended; only the
// ended ones at or above it are stored one by one: the tombstones.
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

  // Whether the id has ended; asked only about ids that are in no table.
  bool ended(WorkerId creator, uint64_t number) const;

  // Notes the end of an id. Past the limit the watermark is forced up to keep only half of it;
  // returns whether that happened: undecided ids of this creator may have ended by it.
  bool add_tombstone(WorkerId creator, uint64_t number);

  // Returns whether the watermark rose. It never falls.
  bool raise(WorkerId creator, uint64_t settled_below);

  // The creator is dead: its unknown ids are refused for that reason, so nothing need be kept.
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
