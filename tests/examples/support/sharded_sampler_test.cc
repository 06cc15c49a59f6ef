#include "weft/examples/support/sharded_sampler.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

using Options = ShardedSampler::Options;

std::vector<int64_t> epoch_of(ShardedSampler& sampler) {
  std::vector<int64_t> all;
  for (int64_t i = 0, steps = sampler.steps_per_epoch(); i < steps; ++i) {
    const std::vector<int64_t> batch = sampler.next();
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(ShardedSamplerTest, ShardsAreDisjointAndCoverAllInEveryEpoch) {
  std::vector<ShardedSampler> shards;
  for (int64_t shard = 0; shard < 3; ++shard) {
    shards.emplace_back(Options{.size = 300, .shard = shard, .shards = 3, .batch = 32, .seed = 7});
  }
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (ShardedSampler& shard : shards) {
      const std::vector<int64_t> samples = epoch_of(shard);
      EXPECT_EQ(samples.size(), 100u);
      seen.insert(samples.begin(), samples.end());
    }
    EXPECT_EQ(seen.size(), 300u);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 299);
  }
}

TEST(ShardedSamplerTest, GivesEveryShardEquallyManySteps) {
  // 10 samples over 3 shards: three each, and one is left out; another one in another epoch.
  std::set<int64_t> left_out;
  std::vector<ShardedSampler> shards;
  for (int64_t shard = 0; shard < 3; ++shard) {
    shards.emplace_back(Options{.size = 10, .shard = shard, .shards = 3, .batch = 2, .seed = 1});
    EXPECT_EQ(shards.back().steps_per_epoch(), 2);
  }
  for (int epoch = 0; epoch < 20; ++epoch) {
    std::set<int64_t> missing = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (ShardedSampler& shard : shards) {
      for (const int64_t sample : epoch_of(shard)) missing.erase(sample);
    }
    ASSERT_EQ(missing.size(), 1u);
    left_out.insert(*missing.begin());
  }
  EXPECT_GT(left_out.size(), 3u);
}

TEST(ShardedSamplerTest, OrderDependsOnSeedAndEpochAlone) {
  const Options options{.size = 500, .shard = 1, .shards = 2, .batch = 64, .seed = 3};
  ShardedSampler a(options);
  ShardedSampler b(options);
  const std::vector<int64_t> first = epoch_of(a);
  EXPECT_EQ(first, epoch_of(b));
  EXPECT_NE(first, epoch_of(a));
  Options other = options;
  other.seed = 4;
  ShardedSampler c(other);
  EXPECT_NE(first, epoch_of(c));
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

// The numbers of one seed, fixed: a change here would change every resumed run.
TEST(ShardedSamplerTest, KeepsItsOrderFromVersionToVersion) {
  ShardedSampler sampler(Options{.size = 8, .batch = 8, .seed = 42});
  EXPECT_THAT(sampler.next(), testing::ElementsAre(7, 2, 4, 5, 1, 0, 3, 6));
}

TEST(ShardedSamplerTest, ResumesAtItsPosition) {
  const Options options{.size = 500, .shard = 0, .shards = 2, .batch = 64, .seed = 3};
  ShardedSampler whole(options);
  for (int i = 0; i < 6; ++i) whole.next();
  EXPECT_EQ(whole.position(), (ShardedSampler::Position{1, 2}));
  ShardedSampler resumed(options);
  resumed.seek(whole.position());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(resumed.next(), whole.next()) << i;
  resumed.seek({0, 6});  // counted on
  EXPECT_EQ(resumed.position(), (ShardedSampler::Position{1, 2}));
}

TEST(ShardedSamplerTest, OrdersAreAboutUniform) {
  std::vector<int> first(6);
  ShardedSampler sampler(Options{.size = 6, .batch = 6, .seed = 11});
  for (int epoch = 0; epoch < 6000; ++epoch) ++first[sampler.next()[0]];
  for (const int count : first) EXPECT_NEAR(count, 1000, 150);
}

TEST(ShardedSamplerTest, RefusesOptionsWithoutSense) {
  EXPECT_TRUE((Options{.size = 2, .shard = 1, .shards = 2, .batch = 1}.validate().ok()));
  for (const Options& bad : {Options{.size = 1, .shards = 2}, Options{.size = 9, .batch = 0},
                             Options{.size = 9, .shard = 2, .shards = 2},
                             Options{.size = 9, .shard = -1}, Options{.size = 9, .shards = 0}}) {
    EXPECT_EQ(bad.validate().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace weft::examples
