// Deals the samples of a data set to several trainers, in a new random order every epoch.
//
// The order of epoch e depends only on (seed, e). So trainers hold disjoint shards without any
// message, and a resumed run continues exactly where it stood. All shards have equal length. In
// each epoch `size % shards` samples are left out, other ones every time.
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
  // The position of the batch that `next` returns next. `step` counts from 0 within the epoch.
  struct Position {
    int64_t epoch = 0;
    int64_t step = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  explicit ShardedSampler(const Options& options);  // `options` must be valid

  int64_t steps_per_epoch() const;  // equal for all shards
  // Returns the indices of the next batch. The last batch of an epoch may be smaller.
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
