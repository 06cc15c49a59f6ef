// EndedIncarnations remembers incarnations that are gone: their names, their death records, and who
// must tell the others of them.
#include "weft/rpc/membership/internal/ended_incarnations.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/membership/membership_group.h"

namespace weft::rpc_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr WorkerId kFour{4, 1};

class EndedIncarnationsTest : public ::testing::Test {
 protected:
  // The worker was a member, and this record says that it is dead.
  bool declare(const DeathRecord& death_record) {
    ended_.add(death_record.dead, "w" + std::to_string(death_record.dead.index));
    return ended_.learn(death_record);
  }
  // More incarnations than are remembered separately. None was a member.
  void fill() {
    for (uint32_t index = 100; index < 100 + 1024; ++index) ended_.add({index, 1}, "");
  }

  EndedIncarnations ended_;
};

TEST_F(EndedIncarnationsTest, KnowsAnIncarnationAndNoOtherOfItsIndex) {
  ended_.add({1, 5}, "one");
  EXPECT_TRUE(ended_.contains({1, 5}));
  EXPECT_FALSE(ended_.contains({1, 4})) << "the records know of that one";
  EXPECT_FALSE(ended_.contains({1, 6}));
  EXPECT_EQ(ended_.name_of({1, 5}), "one");
  EXPECT_EQ(ended_.name_of({1, 4}), "");
}

TEST_F(EndedIncarnationsTest, KeepsTheFirstNameOfAnIncarnation) {
  ended_.add(kOne, "one");
  ended_.add(kOne, "");
  EXPECT_EQ(ended_.name_of(kOne), "one");
}

TEST_F(EndedIncarnationsTest, ALaterOneCountsIfItWasAMemberOrHasARecord) {
  ended_.add({1, 7}, "");
  EXPECT_FALSE(ended_.has_later({1, 2})) << "anybody may name such an incarnation";
  EXPECT_TRUE(ended_.learn({{1, 7}, kTwo, "was silent"}));
  EXPECT_TRUE(ended_.has_later({1, 2}));
  EXPECT_FALSE(ended_.has_later({1, 7}));
  ended_.add({2, 3}, "two");
  EXPECT_TRUE(ended_.has_later({2, 2}));
  EXPECT_FALSE(ended_.has_later({3, 1}));
}

TEST_F(EndedIncarnationsTest, FindsTheLastEarlierIncarnationOfAnIndex) {
  EXPECT_EQ(ended_.last_before({1, 9}), std::nullopt);
  ended_.add({1, 2}, "one");
  ended_.add({1, 4}, "one");
  ended_.add({2, 1}, "two");
  EXPECT_EQ(ended_.last_before({1, 9}), (WorkerId{1, 4}));
  EXPECT_EQ(ended_.last_before({1, 4}), (WorkerId{1, 2}));
  EXPECT_EQ(ended_.last_before({1, 2}), std::nullopt);
  EXPECT_EQ(ended_.last_before({3, 1}), std::nullopt);
}

TEST_F(EndedIncarnationsTest, RemembersMembersForGoodByTheLastIncarnationOfTheirIndex) {
  ended_.add({1, 3}, "one");
  ended_.add({2, 3}, "");
  fill();
  EXPECT_TRUE(ended_.contains({1, 3}));
  EXPECT_TRUE(ended_.contains({1, 2}));
  EXPECT_FALSE(ended_.contains({1, 4}));
  EXPECT_EQ(ended_.name_of({1, 3}), "");
  EXPECT_EQ(ended_.last_before({1, 9}), (WorkerId{1, 3}));
  EXPECT_FALSE(ended_.contains({2, 3})) << "it never was a member";
  EXPECT_EQ(ended_.last_before({2, 9}), std::nullopt);
}

TEST_F(EndedIncarnationsTest, ARecordIsNewOncePerWriter) {
  EXPECT_TRUE(declare({kOne, kTwo, "was silent"}));
  EXPECT_FALSE(declare({kOne, kTwo, "was silent"}));
  ended_.add(kThree, "w3");  // it left
  EXPECT_THAT(ended_.death_records(), ElementsAre(DeathRecord{kOne, kTwo, "was silent"}));
}

TEST_F(EndedIncarnationsTest, AWriterHandsItsRecordsOnToTheWorkerThatDeclaresItDead) {
  declare({kOne, kTwo, "a"});
  declare({kThree, kOne, "b"});
  declare({kFour, kThree, "c"});
  EXPECT_FALSE(ended_.speaks_for(kSelf, kTwo)) << "it lives and tells the others itself";
  declare({kTwo, kSelf, "d"});
  for (const WorkerId writer : {kSelf, kTwo, kOne, kThree}) {
    EXPECT_TRUE(ended_.speaks_for(kSelf, writer)) << writer.to_string();
  }
  EXPECT_THAT(ended_.written_by(kTwo),
              ElementsAre(DeathRecord{kOne, kTwo, "a"}, DeathRecord{kThree, kOne, "b"},
                          DeathRecord{kFour, kThree, "c"}));
  EXPECT_THAT(ended_.written_by(kFour), IsEmpty());
}

// Damaged records, because a dead worker writes nothing.
TEST_F(EndedIncarnationsTest, WritersInACircleEndTheSearch) {
  declare({kOne, kTwo, "a"});
  declare({kTwo, kOne, "b"});
  EXPECT_FALSE(ended_.speaks_for(kSelf, kOne));
  EXPECT_EQ(ended_.written_by(kOne).size(), 2u);
}

TEST_F(EndedIncarnationsTest, AnIncarnationIsUndecidedUntilItsRecordIsRead) {
  ended_.add(kOne, "one");
  EXPECT_FALSE(ended_.has_undecided());
  ended_.part_undecided(kOne);
  EXPECT_TRUE(ended_.has_undecided());
  EXPECT_TRUE(ended_.learn({kOne, kTwo, "was silent"}));
  EXPECT_FALSE(ended_.has_undecided());
}

TEST_F(EndedIncarnationsTest, ALaterMemberOfTheIndexSettlesAnUndecidedOne) {
  ended_.add({1, 2}, "one");
  ended_.part_undecided({1, 2});
  ended_.settle_before({1, 2});
  ended_.settle_before({2, 9});
  EXPECT_TRUE(ended_.has_undecided());
  ended_.settle_before({1, 3});
  EXPECT_FALSE(ended_.has_undecided());
}

TEST_F(EndedIncarnationsTest, AForgottenIncarnationIsNotUndecided) {
  ended_.add(kOne, "one");
  ended_.part_undecided(kOne);
  fill();
  EXPECT_FALSE(ended_.has_undecided());
}

}  // namespace
}  // namespace weft::rpc_internal
