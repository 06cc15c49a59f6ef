#include "weft/ddp/distributed_sampler.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "weft/tests/comm/failure_of.h"

namespace weft::testing {
namespace {

using Indices = std::vector<size_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Reads all that a sampler has left in its epoch.
Indices rest_of(DistributedSampler& sampler, size_t batch = 3) {
  Indices all;
  while (const auto some = sampler.next(batch)) all.insert(all.end(), some->begin(), some->end());
  return all;
}

Indices epoch_of(size_t samples, const DistributedSamplerOptions& options, uint64_t epoch = 0) {
  DistributedSampler sampler(samples, options);
  sampler.set_epoch(epoch);
  EXPECT_EQ(sampler.size(), DistributedSampler(samples, options).size());
  Indices indices = rest_of(sampler);
  EXPECT_EQ(indices.size(), sampler.size());
  return indices;
}

// The documented rule, written without any of the sampler's arithmetic.
Indices by_the_rule(size_t samples, const DistributedSamplerOptions& options, uint64_t epoch) {
  Indices list(samples);
  std::iota(list.begin(), list.end(), size_t{0});
  if (options.shuffle) {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_current_seed(options.seed + epoch);
    const at::Tensor order = at::randperm(static_cast<int64_t>(samples), generator);
    for (size_t i = 0; i < samples; ++i) list[i] = order[static_cast<int64_t>(i)].item<int64_t>();
  }
  const auto replicas = static_cast<size_t>(options.num_replicas);
  if (options.drop_last) {
    while (list.size() % replicas != 0) list.pop_back();
  } else {
    const Indices once = list;
    for (size_t i = 0; list.size() % replicas != 0; ++i) list.push_back(once[i % once.size()]);
  }
  Indices mine;
  for (size_t i = static_cast<size_t>(options.rank); i < list.size(); i += replicas) {
    mine.push_back(list[i]);
  }
  return mine;
}

TEST(DistributedSampler, DealsEveryKthSampleAndRepeatsTheFirstOnesToFillUp) {
  EXPECT_THAT(epoch_of(7, {.num_replicas = 3, .rank = 0, .shuffle = false}), ElementsAre(0, 3, 6));
  EXPECT_THAT(epoch_of(7, {.num_replicas = 3, .rank = 1, .shuffle = false}), ElementsAre(1, 4, 0));
  EXPECT_THAT(epoch_of(7, {.num_replicas = 3, .rank = 2, .shuffle = false}), ElementsAre(2, 5, 1));
}

TEST(DistributedSampler, RepeatsTheWholeListWhileReplicasOutnumberSamples) {
  const auto dealt = [](int64_t rank) {
    return epoch_of(2, {.num_replicas = 7, .rank = rank, .shuffle = false});
  };
  for (int64_t rank = 0; rank < 7; ++rank) {
    EXPECT_THAT(dealt(rank), ElementsAre(static_cast<size_t>(rank % 2)));
  }
}

TEST(DistributedSampler, LeavesOutTheTailWithDropLast) {
  const auto dealt = [](size_t samples, int64_t rank) {
    return epoch_of(samples,
                    {.num_replicas = 3, .rank = rank, .shuffle = false, .drop_last = true});
  };
  EXPECT_THAT(dealt(8, 0), ElementsAre(0, 3));
  EXPECT_THAT(dealt(8, 2), ElementsAre(2, 5));
  EXPECT_THAT(dealt(9, 2), ElementsAre(2, 5, 8));
  EXPECT_THAT(dealt(2, 0), ElementsAre());
}

TEST(DistributedSampler, FollowsTheRuleForAllSizesReplicasAndEpochs) {
  for (const size_t samples : {1, 2, 5, 12, 31}) {
    for (const int64_t replicas : {1, 2, 3, 5, 8, 40}) {
      for (const bool drop : {false, true}) {
        for (int64_t rank = 0; rank < replicas; ++rank) {
          for (const uint64_t epoch : {0, 1, 9}) {
            const DistributedSamplerOptions options = {.num_replicas = replicas,
                                                       .rank = rank,
                                                       .shuffle = true,
                                                       .seed = 17,
                                                       .drop_last = drop};
            ASSERT_EQ(epoch_of(samples, options, epoch), by_the_rule(samples, options, epoch))
                << samples << " samples, rank " << rank << " of " << replicas << ", epoch "
                << epoch;
          }
        }
      }
    }
  }
}

// The values are those of torch.utils.data.DistributedSampler in Python, torch 2.11.0.
TEST(DistributedSampler, GivesTheIndicesThatPythonGives) {
  const auto dealt = [](size_t samples, DistributedSamplerOptions options, uint64_t epoch) {
    std::vector<Indices> all;
    for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
      all.push_back(epoch_of(samples, options, epoch));
    }
    return all;
  };
  EXPECT_THAT(dealt(10, {.num_replicas = 3}, 0),
              ElementsAre(Indices{4, 5, 0, 2}, Indices{1, 3, 8, 4}, Indices{7, 9, 6, 1}));
  EXPECT_THAT(dealt(10, {.num_replicas = 3}, 1),
              ElementsAre(Indices{5, 2, 9, 4}, Indices{6, 0, 3, 5}, Indices{1, 8, 7, 6}));
  EXPECT_THAT(dealt(10, {.num_replicas = 3, .seed = 42, .drop_last = true}, 5),
              ElementsAre(Indices{5, 3, 0}, Indices{9, 8, 7}, Indices{1, 6, 2}));
  EXPECT_THAT(dealt(7, {.num_replicas = 3, .seed = 7}, 2),
              ElementsAre(Indices{4, 0, 3}, Indices{5, 2, 4}, Indices{6, 1, 5}));
  EXPECT_THAT(dealt(2, {.num_replicas = 5}, 3),
              ElementsAre(Indices{0}, Indices{1}, Indices{0}, Indices{1}, Indices{0}));
}

TEST(DistributedSampler, GivesNothingOfAnEmptyDataSet) {
  EXPECT_THAT(epoch_of(0, {.num_replicas = 3, .rank = 1}), ElementsAre());
}

TEST(DistributedSampler, BeginsTheEpochAgainAtReset) {
  DistributedSampler sampler(10, {.num_replicas = 2, .rank = 1});
  const Indices first = rest_of(sampler);
  EXPECT_EQ(sampler.next(1), std::nullopt);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler), first);
  sampler.set_epoch(1);
  EXPECT_NE(rest_of(sampler), first);
}

TEST(DistributedSampler, TakesANewSizeAtReset) {
  DistributedSampler sampler(4, {.num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_THAT(rest_of(sampler), ElementsAre(1, 3));
  sampler.reset(7);
  EXPECT_EQ(sampler.size(), 4u);
  EXPECT_THAT(rest_of(sampler), ElementsAre(1, 3, 5, 0));
}

TEST(DistributedSampler, GoesOnWhereItWasSaved) {
  const DistributedSamplerOptions options = {.num_replicas = 2, .rank = 1, .seed = 5};
  DistributedSampler before(23, options);
  before.set_epoch(4);
  before.next(5);
  std::stringstream file;
  torch::serialize::OutputArchive saved;
  before.save(saved);
  saved.save_to(file);

  torch::serialize::InputArchive archive;
  archive.load_from(file);
  DistributedSampler after(23, options);
  after.load(archive);
  EXPECT_EQ(after.epoch(), 4u);
  EXPECT_EQ(after.position(), 5u);
  after.set_epoch(4);  // as a loop over epochs does
  after.reset();       // as a data loader does
  const Indices rest = rest_of(after);
  EXPECT_EQ(rest, rest_of(before));
  EXPECT_EQ(rest.size(), 7u);

  after.reset();
  EXPECT_EQ(after.position(), 0u);
  EXPECT_EQ(rest_of(after).size(), 12u);
}

TEST(DistributedSampler, ABatchBeginsAtItsNumberTimesItsSize) {
  const DistributedSamplerOptions options = {.num_replicas = 2, .rank = 1, .drop_last = true};
  DistributedSampler whole(21, options);
  ASSERT_EQ(whole.batches(4), 3u);
  EXPECT_EQ(whole.batches(5), 2u);
  EXPECT_EQ(whole.batches(100), 1u);
  EXPECT_EQ(DistributedSampler(1, options).batches(4), 0u);
  whole.set_epoch(6);
  for (size_t batch = 0; batch < 3; ++batch) {
    DistributedSampler sampler(21, options);
    sampler.seek(6, batch * 4);
    EXPECT_EQ(sampler.next(4), whole.next(4)) << batch;
  }
  EXPECT_EQ(whole.next(4), std::nullopt);
}

// With drop_last the samples that are left out differ from epoch to epoch.
TEST(DistributedSampler, LeavesOutOtherSamplesInEachEpoch) {
  std::vector<int> used(10, 0);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      for (const size_t sample :
           epoch_of(10, {.num_replicas = 3, .rank = rank, .drop_last = true}, epoch)) {
        ++used[sample];
      }
    }
  }
  EXPECT_EQ(std::accumulate(used.begin(), used.end(), 0), 20 * 9);
  EXPECT_GT(std::count_if(used.begin(), used.end(), [](int times) { return times < 20; }), 3);
}

TEST(DistributedSampler, LeavesALoadedPlaceForAnotherEpoch) {
  DistributedSampler sampler(12, {.num_replicas = 2, .rank = 0});
  sampler.seek(3, 4);
  sampler.set_epoch(5);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler), epoch_of(12, {.num_replicas = 2, .rank = 0}, 5));
}

class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  torch::data::Example<> get(size_t index) override {
    return {torch::tensor(static_cast<int64_t>(index)), torch::tensor(0)};
  }
  std::optional<size_t> size() const override { return 10; }
};

template <class Loader>
Indices read_from(Loader& loader) {
  Indices all;
  for (auto& batch : loader) {
    for (const auto& example : batch) all.push_back(example.data.template item<int64_t>());
  }
  return all;
}

TEST(DistributedSampler, SteersADataLoaderFromOutside) {
  const DistributedSamplerOptions options = {.num_replicas = 3, .rank = 2};
  DistributedSampler sampler(10, options);
  auto loader = torch::data::make_data_loader(Numbers(), sampler, /*batch_size=*/2);
  EXPECT_EQ(read_from(*loader), epoch_of(10, options, 0));
  sampler.set_epoch(1);
  EXPECT_EQ(read_from(*loader), epoch_of(10, options, 1));
  EXPECT_EQ(read_from(*loader), epoch_of(10, options, 1));

  sampler.seek(2, 3);
  Indices rest = epoch_of(10, options, 2);
  rest.erase(rest.begin(), rest.begin() + 3);
  EXPECT_EQ(read_from(*loader), rest);
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  const auto make = [](int64_t replicas, int64_t rank) {
    return value_error_of([&] { DistributedSampler(4, {.num_replicas = replicas, .rank = rank}); });
  };
  EXPECT_THAT(make(0, 0), HasSubstr("num_replicas is at least 1, not 0"));
  EXPECT_THAT(make(3, 3), HasSubstr("no rank 3 among 3 replicas"));
  EXPECT_THAT(make(3, -1), HasSubstr("no rank -1 among 3 replicas"));
  DistributedSampler sampler(9, {.num_replicas = 3, .rank = 0});
  EXPECT_THAT(value_error_of([&] { sampler.seek(0, 4); }), HasSubstr("position 4 is outside"));
}

TEST(DistributedSampler, RefusesThePlaceOfAnotherDataSet) {
  torch::serialize::OutputArchive saved;
  DistributedSampler(9, {.num_replicas = 3, .rank = 0}).save(saved);
  std::stringstream file;
  saved.save_to(file);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  DistributedSampler other(9, {.num_replicas = 2, .rank = 0});
  EXPECT_THAT(value_error_of([&] { other.load(archive); }),
              HasSubstr("of 9 samples and 3 replicas, this sampler has 9 and 2"));
  torch::serialize::InputArchive empty;
  EXPECT_THAT(value_error_of([&] { other.load(empty); }), HasSubstr("no integer 'samples'"));
}

}  // namespace
}  // namespace weft::testing
