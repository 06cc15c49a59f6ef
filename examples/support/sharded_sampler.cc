#include "weft/examples/support/sharded_sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::examples {
namespace {

// Returns a number below `bound`; all are equally likely. std::uniform_int_distribution differs
// between standard libraries, but trainers on different machines must agree.
uint64_t below(uint64_t bound, std::mt19937_64& random) {
  const uint64_t biased = (~bound + 1) % bound;  // 2^64 mod bound
  uint64_t value = random();
  while (value < biased) value = random();
  return value % bound;
}

}  // namespace

absl::Status ShardedSampler::Options::validate() const {
  if (batch < 1 || shards < 1 || shard < 0 || shard >= shards || size < shards) {
    return absl::InvalidArgumentError(absl::StrCat("no way to deal ", size, " samples to shard ",
                                                   shard, " of ", shards, " in batches of ",
                                                   batch));
  }
  return absl::OkStatus();
}

ShardedSampler::ShardedSampler(const Options& options) : options_(options) { deal(); }

int64_t ShardedSampler::steps_per_epoch() const {
  const int64_t length = options_.size / options_.shards;
  return (length + options_.batch - 1) / options_.batch;
}

std::vector<int64_t> ShardedSampler::next() {
  const int64_t begin = position_.step * options_.batch;
  const int64_t end = std::min<int64_t>(begin + options_.batch, shard_.size());
  std::vector<int64_t> batch(shard_.begin() + begin, shard_.begin() + end);
  if (++position_.step == steps_per_epoch()) {
    position_ = {position_.epoch + 1, 0};
    deal();
  }
  return batch;
}

void ShardedSampler::seek(Position position) {
  position_ = {position.epoch + position.step / steps_per_epoch(),
               position.step % steps_per_epoch()};
  deal();
}

void ShardedSampler::deal() {
  std::seed_seq seeds = {
      static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32),
      static_cast<uint32_t>(position_.epoch), static_cast<uint32_t>(position_.epoch >> 32)};
  std::mt19937_64 random(seeds);
  std::vector<int64_t> order(options_.size);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = options_.size - 1; i > 0; --i) {
    std::swap(order[i], order[below(static_cast<uint64_t>(i) + 1, random)]);
  }
  const int64_t length = options_.size / options_.shards;
  shard_.assign(order.begin() + options_.shard * length,
                order.begin() + (options_.shard + 1) * length);
}

}  // namespace weft::examples
