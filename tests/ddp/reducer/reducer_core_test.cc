#include "weft/ddp/reducer/reducer_core.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::ddp_internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Options = ReducerCore::Options;
using Actions = ReducerCore::Actions;

// A core with the parameters p0, p1, ... in the given buckets.
ReducerCore core_of(Buckets buckets, Options options = {}) {
  size_t count = 0;
  for (const auto& bucket : buckets) count += bucket.size();
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("p", i));
  ReducerCore core(std::move(names), options);
  core.set_buckets(std::move(buckets));
  return core;
}

Actions arrive(ReducerCore& core, size_t parameter, bool used = true) {
  auto actions = core.arrived(parameter, used);
  EXPECT_TRUE(actions.ok()) << actions.status();
  return actions.ok() ? *actions : Actions();
}
// Runs a whole pass and returns the buckets in the order in which they were reduced.
std::vector<size_t> run_pass(ReducerCore& core, const std::vector<size_t>& order,
                             std::vector<size_t> unused = {}) {
  EXPECT_TRUE(core.begin(std::move(unused)).ok());
  std::vector<size_t> reduced;
  bool last = false;
  for (const size_t parameter : order) {
    const Actions actions = arrive(core, parameter);
    reduced.insert(reduced.end(), actions.reduce.begin(), actions.reduce.end());
    last = last || actions.last;
  }
  if (core.reduces_at_end()) {
    const Actions actions = core.at_end();
    reduced.insert(reduced.end(), actions.reduce.begin(), actions.reduce.end());
    last = actions.last;
  }
  EXPECT_TRUE(last);
  core.finished();
  return reduced;
}

TEST(ReducerCoreTest, GivesBucketsOutInTheOrderOfTheirIndexWhateverComesFirst) {
  ReducerCore core = core_of({{3, 2}, {1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  EXPECT_THAT(arrive(core, 0).reduce, IsEmpty());
  EXPECT_THAT(arrive(core, 1).reduce, IsEmpty());
  EXPECT_THAT(arrive(core, 3).reduce, IsEmpty());
  const Actions last = arrive(core, 2);
  EXPECT_THAT(last.write, ElementsAre(2));
  EXPECT_THAT(last.reduce, ElementsAre(0, 1, 2));
  EXPECT_TRUE(last.last);
}

TEST(ReducerCoreTest, ReducesABucketAsSoonAsItIsFull) {
  ReducerCore core = core_of({{2}, {1, 0}});
  ASSERT_TRUE(core.begin({}).ok());
  const Actions first = arrive(core, 2);
  EXPECT_THAT(first.reduce, ElementsAre(0));
  EXPECT_FALSE(first.last);
  EXPECT_THAT(arrive(core, 1).reduce, IsEmpty());
  EXPECT_THAT(core.missing(), ElementsAre("p0"));
  EXPECT_TRUE(arrive(core, 0).last);
  EXPECT_THAT(core.missing(), IsEmpty());
}

TEST(ReducerCoreTest, UnusedOnesCountWithTheFirstGradient) {
  ReducerCore core = core_of({{2}, {1}, {0}}, {.find_unused = true});
  ASSERT_TRUE(core.begin({0, 2}).ok());
  const Actions actions = arrive(core, 1);
  EXPECT_THAT(actions.write, ElementsAre(0, 2, 1));
  EXPECT_THAT(actions.reduce, ElementsAre(0, 1, 2));
  EXPECT_TRUE(actions.last);
  EXPECT_TRUE(core.shares_used());
  EXPECT_TRUE(core.used(1));
  EXPECT_FALSE(core.used(0));
  core.finished();
  EXPECT_THAT(run_pass(core, {2, 0}, {1}), ElementsAre(0, 1, 2)) << "those of the pass alone";
  EXPECT_THAT(core.order_to_build(), IsEmpty()) << "the order may differ each time";
}

TEST(ReducerCoreTest, UnusedOnesDoNotCountUnlessAskedFor) {
  ReducerCore core = core_of({{1}, {0}});
  EXPECT_FALSE(core.needs_unused());
  ASSERT_TRUE(core.begin({0}).ok());
  EXPECT_FALSE(arrive(core, 1).last);
  EXPECT_THAT(core.missing(), ElementsAre("p0"));
}

TEST(ReducerCoreTest, AnUnusedOneThatGetsAGradientIsNamed) {
  ReducerCore core = core_of({{2}, {1}, {0}}, {.find_unused = true});
  ASSERT_TRUE(core.begin({0}).ok());
  arrive(core, 2);
  EXPECT_THAT(core.arrived(0).status().message(), HasSubstr("'p0' was marked ready twice"));
  EXPECT_TRUE(arrive(core, 1).last) << "the core has stayed as it was";
}

TEST(ReducerCoreTest, OneThatComesTwiceIsNamedAndChangesNothing) {
  ReducerCore core = core_of({{1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 1);
  EXPECT_EQ(core.arrived(1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(core.arrived(1).status().message(),
              AllOf(HasSubstr("'p1' was marked ready twice"), Not(HasSubstr("'p0'"))));
  EXPECT_TRUE(arrive(core, 0).last);
}

TEST(ReducerCoreTest, APassThatDidNotEndIsNamedAtTheNextAndMayStillEnd) {
  ReducerCore core = core_of({{3, 2}, {1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 3);
  arrive(core, 1);
  EXPECT_THAT(core.begin({}).message(),
              AllOf(HasSubstr("no gradient came for 'p0', 'p2'"), HasSubstr("find_unused")));
  EXPECT_TRUE(core.in_pass());
  arrive(core, 0);
  EXPECT_TRUE(arrive(core, 2).last);
}

TEST(ReducerCoreTest, NamesTenOfManyThatDidNotCome) {
  Buckets buckets(1);
  for (size_t i = 0; i < 14; ++i) buckets[0].push_back(i);
  ReducerCore core = core_of(buckets);
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 0);
  EXPECT_THAT(core.begin({}).message(),
              AllOf(HasSubstr("'p10' and 3 more"), Not(HasSubstr("p11"))));
}

TEST(ReducerCoreTest, APassWithoutAnyGradientIsNone) {
  ReducerCore core = core_of({{1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  ASSERT_TRUE(core.begin({}).ok());
  EXPECT_THAT(run_pass(core, {1, 0}), ElementsAre(0, 1));
}

TEST(ReducerCoreTest, ResetGivesAPassUp) {
  ReducerCore core = core_of({{1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 1);
  core.reset();
  EXPECT_FALSE(core.in_pass());
  EXPECT_FALSE(core.used(1));
  EXPECT_THAT(run_pass(core, {0, 1}), ElementsAre(0, 1));
}

TEST(ReducerCoreTest, UsedBeforeAPassStaysUsedInItAndNotAfter) {
  ReducerCore core = core_of({{1}, {0}}, {.find_unused = true});
  EXPECT_THAT(arrive(core, 0).write, IsEmpty());
  EXPECT_FALSE(arrive(core, 0).last) << "outside a pass it may come as often as it likes";
  ASSERT_TRUE(core.begin({0}).ok());
  EXPECT_TRUE(arrive(core, 1).last);
  EXPECT_TRUE(core.used(0)) << "it has a gradient from the session";
  core.finished();
  EXPECT_FALSE(core.used(0));
  ASSERT_TRUE(core.begin({0}).ok());
  arrive(core, 1, /*used=*/false);
  EXPECT_FALSE(core.used(1)) << "its gradient was undefined";
}

TEST(ReducerCoreTest, ACancelledPassLetsGradientsAccumulate) {
  ReducerCore core = core_of({{1}, {0}});
  ASSERT_TRUE(core.begin({}).ok());
  core.cancel();
  EXPECT_THAT(arrive(core, 1).write, IsEmpty());
  EXPECT_THAT(arrive(core, 1).write, IsEmpty());
  EXPECT_THAT(run_pass(core, {1, 0}), ElementsAre(0, 1));
}

TEST(ReducerCoreTest, BuildsInTheOrderOfArrivalOnce) {
  ReducerCore core = core_of({{0, 1, 2}});
  EXPECT_THAT(core.order_to_build(), IsEmpty());
  run_pass(core, {1, 2, 0});
  EXPECT_THAT(core.order_to_build(), ElementsAre(1, 2, 0));
  EXPECT_THAT(core.order_before(), ElementsAre(1, 2, 0));
  core.built_again();
  core.set_buckets({{1}, {2, 0}});
  EXPECT_THAT(core.order_to_build(), IsEmpty());
  EXPECT_THAT(run_pass(core, {0, 2, 1}), ElementsAre(0, 1));
  EXPECT_THAT(core.order_to_build(), IsEmpty());
  core.start_over();
  EXPECT_THAT(core.order_to_build(), IsEmpty());
  run_pass(core, {2, 1, 0});
  EXPECT_THAT(core.order_to_build(), ElementsAre(2, 1, 0)) << "after another start";
}

TEST(ReducerCoreTest, AShadowOfAPassKnowsAnOrderToo) {
  ReducerCore core = core_of({{0, 1, 2}});
  core.shadowed();
  EXPECT_THAT(core.order_to_build(), ElementsAre(0, 1, 2));
}

TEST(ReducerCoreStaticTest, TheFirstPassOnlyCountsAndReducesAtItsEnd) {
  ReducerCore core = core_of({{2}, {1}, {0}}, {.static_graph = true});
  ASSERT_TRUE(core.begin({}).ok());
  for (const size_t parameter : {2, 1, 2}) {
    EXPECT_THAT(arrive(core, static_cast<size_t>(parameter)).write, IsEmpty());
  }
  EXPECT_TRUE(core.reduces_at_end());
  EXPECT_TRUE(core.shares_used());
  const Actions actions = core.at_end();
  EXPECT_THAT(actions.write, ElementsAre(0, 1, 2));
  EXPECT_THAT(actions.reduce, ElementsAre(0, 1, 2));
  EXPECT_TRUE(actions.last);
  core.finished();
  EXPECT_THAT(core.order_to_build(), IsEmpty()) << "the order of indices says nothing";

  ASSERT_TRUE(core.begin({}).ok());
  EXPECT_FALSE(core.reduces_at_end());
  EXPECT_FALSE(core.shares_used());
  EXPECT_THAT(arrive(core, 2).write, IsEmpty()) << "it comes once more";
  EXPECT_THAT(arrive(core, 2).write, ElementsAre(0, 2)) << "p0 was unused, and is";
  EXPECT_TRUE(arrive(core, 1).last);
  core.finished();
  EXPECT_THAT(core.order_to_build(), ElementsAre(0, 2, 1));
}

TEST(ReducerCoreStaticTest, MoreGradientsThanInTheFirstPassAreNamed) {
  ReducerCore core = core_of({{1}, {0}}, {.static_graph = true});
  run_pass(core, {1, 1, 0});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 1);
  arrive(core, 1);
  EXPECT_THAT(core.arrived(1).status().message(),
              AllOf(HasSubstr("the graph has changed"), HasSubstr("'p1'"), HasSubstr("2 times")));
  EXPECT_TRUE(arrive(core, 0).last);
}

TEST(ReducerCoreStaticTest, FewerGradientsThanInTheFirstPassAreNamedAtTheNext) {
  ReducerCore core = core_of({{1}, {0}}, {.static_graph = true});
  run_pass(core, {1, 1, 0});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 1);
  arrive(core, 0);
  EXPECT_THAT(core.begin({}).message(),
              AllOf(HasSubstr("the graph has changed"), HasSubstr("as often"), HasSubstr("'p1'"),
                    Not(HasSubstr("'p0'"))));
}

TEST(ReducerCoreStaticTest, AFirstPassThatBeginsAgainCountsAgain) {
  ReducerCore core = core_of({{1}, {0}}, {.static_graph = true});
  ASSERT_TRUE(core.begin({}).ok());
  arrive(core, 1);
  run_pass(core, {1, 0});
  EXPECT_THAT(run_pass(core, {1, 0}), ElementsAre(0, 1));
}

TEST(ReducerCoreStaticTest, WholeGradientsReduceAtOnceAndKnowTheUnusedOnes) {
  ReducerCore core = core_of({{1}, {0}}, {.static_graph = true, .whole_gradients = true});
  EXPECT_TRUE(core.needs_unused());
  EXPECT_THAT(run_pass(core, {1}, {0}), ElementsAre(0, 1));
  EXPECT_FALSE(core.needs_unused());
  EXPECT_THAT(run_pass(core, {1}), ElementsAre(0, 1));
}

// Before its own first pass this rank shadowed a pass of the other ranks.
TEST(ReducerCoreStaticTest, ARankThatShadowedTheFirstPassStillCountsItsOwn) {
  ReducerCore core = core_of({{1}, {0}}, {.static_graph = true});
  EXPECT_TRUE(core.others_share_used());
  core.shadowed();
  EXPECT_FALSE(core.others_share_used());
  EXPECT_THAT(core.order_to_build(), IsEmpty()) << "the others only counted";
  ASSERT_TRUE(core.begin({}).ok());
  EXPECT_FALSE(core.shares_used()) << "the others did, and do no more";
  arrive(core, 1);
  arrive(core, 1);
  arrive(core, 0);
  ASSERT_TRUE(core.reduces_at_end());
  EXPECT_TRUE(core.at_end().last);
  core.finished();
  EXPECT_THAT(core.order_to_build(), ElementsAre(0, 1)) << "the others build now";
  EXPECT_THAT(run_pass(core, {1, 0, 1}), ElementsAre(0, 1));
}

// The promises of a reducer, stated a second time without its bookkeeping.
class Model {
 public:
  Model(const Buckets& buckets, std::set<size_t> unused, std::map<size_t, int> to_come)
      : buckets_(buckets), unused_(std::move(unused)), to_come_(std::move(to_come)) {}

  Actions arrived(size_t parameter) {
    Actions actions;
    if (--to_come_[parameter] > 0) return actions;
    if (ready_.empty()) {
      for (const size_t one : unused_) {
        if (one != parameter) actions.write.push_back(one);
      }
    }
    actions.write.push_back(parameter);
    ready_.insert(actions.write.begin(), actions.write.end());
    while (next_ < buckets_.size() &&
           std::all_of(buckets_[next_].begin(), buckets_[next_].end(),
                       [&](size_t one) { return ready_.count(one) > 0; })) {
      actions.reduce.push_back(next_++);
    }
    actions.last = next_ == buckets_.size();
    return actions;
  }

 private:
  const Buckets& buckets_;
  const std::set<size_t> unused_;
  std::map<size_t, int> to_come_;
  std::set<size_t> ready_;
  size_t next_ = 0;
};

class Schedules : public ::testing::TestWithParam<Options> {};

TEST_P(Schedules, DoWhatASimpleModelDoes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const Options options = GetParam();
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const size_t count = 1 + random() % 12;
    std::vector<size_t> all(count);
    std::iota(all.begin(), all.end(), size_t{0});
    std::shuffle(all.begin(), all.end(), random);
    Buckets buckets;
    for (const size_t one : all) {
      if (buckets.empty() || random() % 3 == 0) buckets.emplace_back();
      buckets.back().push_back(one);
    }
    ReducerCore core = core_of(buckets, options);
    std::map<size_t, int> times;
    for (const size_t one : all) {
      times[one] = options.static_graph ? static_cast<int>(random() % 3) : 1;
    }
    times[all[0]] = 1;  // a pass has at least one gradient
    for (int pass = 0; pass < 4; ++pass) {
      std::set<size_t> unused;
      if (options.find_unused && !options.static_graph) {
        for (const size_t one : all) {
          times[one] = one == all[0] || random() % 3 > 0 ? 1 : 0;
        }
      }
      std::vector<size_t> arrivals;
      for (const auto& [one, often] : times) {
        arrivals.insert(arrivals.end(), static_cast<size_t>(often), one);
        if (often == 0) unused.insert(one);
      }
      std::shuffle(arrivals.begin(), arrivals.end(), random);
      for (uint64_t extra = random() % 3; extra > 0; --extra) arrive(core, random() % count);
      ASSERT_TRUE(core.begin({unused.begin(), unused.end()}).ok());
      Model model(buckets, unused, times);
      const bool counts = core.reduces_at_end();
      EXPECT_EQ(counts, options.static_graph && pass == 0);
      for (size_t i = 0; i < arrivals.size(); ++i) {
        const Actions own = arrive(core, arrivals[i]);
        const Actions truth = counts ? Actions() : model.arrived(arrivals[i]);
        ASSERT_EQ(own.write, truth.write);
        ASSERT_EQ(own.reduce, truth.reduce);
        ASSERT_EQ(own.last, truth.last);
        ASSERT_EQ(own.last, !counts && i + 1 == arrivals.size());
        ASSERT_TRUE(core.used(arrivals[i]));
      }
      if (counts) {
        ASSERT_EQ(core.at_end().reduce.size(), buckets.size());
      }
      ASSERT_THAT(core.missing(), IsEmpty());
      core.finished();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Mode, Schedules,
                         ::testing::Values(Options{}, Options{.find_unused = true},
                                           Options{.static_graph = true}),
                         [](const auto& info) {
                           return std::string(info.param.static_graph  ? "StaticGraph"
                                              : info.param.find_unused ? "FindUnused"
                                                                       : "Plain");
                         });

}  // namespace
}  // namespace weft::ddp_internal
