// Deals the samples of a data set to several trainers, in a new random order every epoch.
//
// The order of epoch e depends on (seed, e) alone, so trainers that never speak to each other hold
// disjoint shards, and a resumed run goes on exactly where it stood. All shards have equal length;
// the `size % shards` samples left over sit out, other ones every epoch.
//
// Thread safety: belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace weft::examples {

class ShardedSampler {
 public:
  struct Options {
    int64_t size = 0;  // samples in the data set
    int64_t shard = 0;
    int64_t shards = 1;
    int64_t batch = 64;
    uint64_t seed = 0;

    absl::Status validate() const;
  };
  // The batch that `next` gives next. `step` counts from 0 within the epoch.
  struct Position {
    int64_t epoch = 0;
    int64_t step = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  explicit ShardedSampler(const Options& options);  // valid ones

  int64_t steps_per_epoch() const;  // equal for all shards
  // Indices of the next batch; the last one of an epoch may be smaller, then the next epoch begins.
  std::vector<int64_t> next();

  Position position() const { return position_; }
  void seek(Position position);

 private:
  void deal();

  Options options_;
  Position position_;
  std::vector<int64_t> shard_;  // this epoch's samples, in order
};

}  // namespace weft::examples
