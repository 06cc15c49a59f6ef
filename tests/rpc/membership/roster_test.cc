// Roster decides who may become a member, and which claims the group's records must confirm.
#include "weft/rpc/membership/internal/roster.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/membership/internal/replacement_claims.h"

namespace weft::rpc_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RosterTest : public ::testing::Test {
 protected:
  RosterTest() {
    roster_.put({{1, 2}, "one", "a1"});
    roster_.put({{2, 1}, "two", "a2"});
  }
  std::string refusal(const WorkerInfo& joiner) const {
    return std::string(roster_.refusal_of(joiner).message());
  }

  Roster roster_{{{0, 3}, "me", "a0"}, LeaseOptions{}, /*world_size=*/4};
};

TEST_F(RosterTest, APeerThatEndedIsKnownByItsName) {
  ASSERT_NE(roster_.find({1, 2}), nullptr);
  EXPECT_TRUE(roster_.end({1, 2}));
  EXPECT_EQ(roster_.find({1, 2}), nullptr);
  EXPECT_FALSE(roster_.end({1, 2}));
  EXPECT_EQ(roster_.named(WorkerId{1, 2}), "'one' (w1.2)");
  EXPECT_EQ(roster_.named(WorkerId{2, 1}), "'two' (w2.1)");
  EXPECT_EQ(roster_.named(WorkerId{0, 3}), "'me' (w0.3)");
  EXPECT_EQ(roster_.named(WorkerId{3, 1}), "w3.1");
}

TEST_F(RosterTest, RefusesAJoinerForANamedReason) {
  EXPECT_EQ(refusal({{3, 1}, "three", "a3"}), "");
  EXPECT_EQ(refusal({{4, 1}, "four", "a4"}), "worker 'four' (w4.1) has no place in a group of 4");
  EXPECT_EQ(refusal({{0, 4}, "me", "a0"}), "worker 'me' (w0.4) has the place of 'me' (w0.3)");
  EXPECT_EQ(refusal({{1, 1}, "one", "a1"}),
            "worker 'one' (w1.1) is an earlier incarnation of 'one' (w1.2)");
  EXPECT_EQ(refusal({{3, 1}, "two", "a3"}), "worker 'two' (w2.1) has that name already");
  EXPECT_EQ(refusal({{3, 1}, "me", "a3"}), "worker 'me' (w0.3) has that name already");
  roster_.end({1, 2});
  EXPECT_EQ(refusal({{1, 2}, "one", "a1"}), "worker 'one' (w1.2) was declared dead, or has left");
  EXPECT_EQ(refusal({{1, 1}, "one", "a1"}), "worker 'one' (w1.1) was declared dead, or has left");
  EXPECT_EQ(refusal({{1, 3}, "one", "a1"}), "");
}

TEST_F(RosterTest, AWorkerReplacesTheLiveOrTheLastEndedIncarnationOfItsIndex) {
  EXPECT_EQ(roster_.replaced_by({1, 3}), (WorkerId{1, 2}));
  EXPECT_EQ(roster_.replaced_by({1, 2}), std::nullopt) << "it is a member itself";
  EXPECT_EQ(roster_.replaced_by({3, 7}), std::nullopt) << "the first that is known here";
  roster_.end({1, 2});
  EXPECT_EQ(roster_.replaced_by({1, 3}), (WorkerId{1, 2}));
}

TEST_F(RosterTest, AnIncarnationIsOutlivedByALaterOneThatIsKnown) {
  EXPECT_TRUE(roster_.is_outlived({1, 1}));
  EXPECT_FALSE(roster_.is_outlived({1, 2}));
  EXPECT_TRUE(roster_.is_outlived({0, 2})) << "this worker is later";
  EXPECT_FALSE(roster_.is_outlived({3, 1}));
  roster_.end({1, 2});
  EXPECT_TRUE(roster_.is_outlived({1, 1}));
  EXPECT_THAT(roster_.others_of_index({1, 3}), IsEmpty());
  roster_.put({{2, 2}, "two", "b2"});
  EXPECT_THAT(roster_.others_of_index({2, 2}), ElementsAre(WorkerId{2, 1}));
}

TEST(ReplacementClaimsTest, AClaimIsComparedOnceAtATime) {
  ReplacementClaims claims;
  const WorkerInfo claimant{{1, 2}, "one", "b1"}, other{{1, 2}, "one", "evil"};
  EXPECT_TRUE(claims.open(claimant));
  EXPECT_FALSE(claims.open(claimant));
  EXPECT_FALSE(claims.open(other));
  EXPECT_FALSE(claims.close(other)) << "the record was not read for this claim";
  EXPECT_TRUE(claims.close(claimant));
  EXPECT_FALSE(claims.close(claimant));
  EXPECT_TRUE(claims.open(other));
  claims.drop(other.id);
  EXPECT_FALSE(claims.close(other));
}

TEST(ReplacementClaimsTest, AContradictedClaimIsRefusedOnceAndOnlyTheProcessThatMadeIt) {
  ReplacementClaims claims;
  const WorkerInfo real{{1, 2}, "one", "b1"}, forged{{1, 2}, "one", "evil"};
  claims.contradict(forged);
  EXPECT_FALSE(claims.take_contradicted(real));
  EXPECT_TRUE(claims.take_contradicted(forged));
  EXPECT_FALSE(claims.take_contradicted(forged));
}

TEST(ReplacementClaimsTest, HoldsABoundedNumberOfClaims) {
  ReplacementClaims claims;
  const auto claimant = [](uint32_t i) { return WorkerInfo{{1, i}, "one", "b"}; };
  for (uint32_t i = 1; i <= 64; ++i) EXPECT_TRUE(claims.open(claimant(i)));
  EXPECT_FALSE(claims.open(claimant(65)));
  claims.drop_all();
  EXPECT_TRUE(claims.open(claimant(65)));
  for (uint32_t i = 1; i <= 65; ++i) claims.contradict(claimant(i));
  EXPECT_FALSE(claims.take_contradicted(claimant(1))) << "the oldest is forgotten";
  EXPECT_TRUE(claims.take_contradicted(claimant(2)));
}

}  // namespace
}  // namespace weft::rpc_internal
