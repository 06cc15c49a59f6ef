// Incarnations of one index: which one a worker believes in.
//
// The tests cover processes that say they have replaced a peer, and what is remembered of dead
// incarnations.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/membership/membership_group.h"

namespace weft::rpc_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembershipIncarnations : public MembershipGroup {
 protected:
  // This worker suspects a peer, and the store answers with these records. Returns what it tells
  // the others.
  std::vector<MembershipActions::Notice> declare_dead(WorkerId peer,
                                                      std::vector<DeathRecord> death_records) {
    MembershipActions out;
    core_.suspect(peer, silent(), out);
    core_.answer(peer, out.questions.at(0).number, std::move(death_records), out);
    return out.notices;
  }
};

// A later incarnation of the index has died as well, and another worker wrote its death record.
TEST_F(MembershipIncarnations, AWritersRecordOfAnEarlierIncarnationIsToldToo) {
  MembershipActions out;
  core_.on_notice({kOne, kTwo, "was silent"}, out);
  core_.on_notice({{1, 2}, kThree, "was silent too"}, out);
  const auto told = declare_dead(kTwo, {{kTwo, kSelf, "cannot be reached"}});
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].death_record, (DeathRecord{kTwo, kSelf, "cannot be reached"}));
  EXPECT_EQ(told[1].death_record, (DeathRecord{kOne, kTwo, "was silent"}));
  out = {};
  ASSERT_TRUE(core_.admit({{4, 1}, "four", "a4"}, out).ok());
  EXPECT_EQ(out.notices.size(), 3u);
}

TEST_F(MembershipIncarnations, AnIncarnationIsNotDeadBecauseALaterOneIs) {
  MembershipActions out;
  core_.on_notice({{7, 2}, kOne, "was silent"}, out);
  core_.meet({7, 1}, out);
  EXPECT_TRUE(out.gone.empty());
  EXPECT_THAT(out.lookups, ElementsAre(WorkerId{7, 1})) << "the records know";
}

TEST_F(MembershipIncarnations, EndsAreRememberedUpToABoundAndThoseOfMembersForGood) {
  MembershipActions out;
  core_.left(kTwo);
  for (uint32_t index = 10; index < 10 + 3000; ++index) {
    core_.on_notice({{index, 1}, kOne, "was silent"}, out);
  }
  out = {};
  EXPECT_TRUE(absl::IsPermissionDenied(core_.admit({kTwo, "two", "a2"}, out)));
  restart({{2, 2}, "two", "a2"}, out);  // it remembers that there was a w2.1
  EXPECT_TRUE(core_.is_live({2, 2}));
  EXPECT_EQ(out.notices.size(), 1024u);
}

TEST_F(MembershipIncarnations, ALaterIncarnationIsAdmittedAndTheEarlierOneSuspected) {
  MembershipActions out;
  const WorkerId later{1, 2};
  restart({later, "one", "b1"}, out);
  ASSERT_EQ(out.questions.size(), 1u);
  EXPECT_EQ(out.questions[0].suspect, kOne);
  EXPECT_EQ(out.questions[0].reason, "was restarted");
  EXPECT_TRUE(core_.is_live(later));
  core_.answer(kOne, out.questions[0].number,
               std::vector<DeathRecord>{{kOne, kSelf, "was restarted"}}, out);
  EXPECT_TRUE(core_.is_live(later));
  EXPECT_FALSE(core_.is_live(kOne));
  // A dead incarnation stays dead.
  const absl::Status again = core_.admit({kOne, "one", "a1"}, out);
  EXPECT_TRUE(absl::IsPermissionDenied(again));
  EXPECT_THAT(text(again), HasSubstr("'one' (w1.1) was declared dead"));
}

TEST_F(MembershipIncarnations, NobodyIsSuspectedBeforeTheRecordsNameWhoSaysItReplacedIt) {
  const WorkerInfo claimant{{1, 7}, "one", "b1"};
  MembershipActions out;
  const absl::Status asked = core_.admit(claimant, out);
  EXPECT_TRUE(absl::IsAborted(asked)) << asked;
  EXPECT_THAT(text(asked), HasSubstr("'one' (w1.7) says that it has replaced 'one' (w1.1)"));
  EXPECT_TRUE(absl::IsAborted(core_.admit(claimant, out)));
  EXPECT_EQ(out.claims, (std::vector<WorkerInfo>{claimant})) << "they are read once";
  EXPECT_FALSE(core_.compared(claimant, std::optional<WorkerInfo>(), out));
  const absl::Status refused = core_.admit(claimant, out);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(text(refused), HasSubstr("the group's records do not name it"));
  EXPECT_TRUE(out.questions.empty());
  EXPECT_TRUE(out.gone.empty());
  EXPECT_TRUE(core_.is_live(kOne));
  EXPECT_FALSE(core_.is_live(claimant.id));
}

TEST_F(MembershipIncarnations, WhileTheRecordsCannotBeReadAClaimIsNeitherAdmittedNorRefused) {
  const WorkerInfo claimant{{1, 2}, "one", "b1"};
  MembershipActions out;
  for (size_t i = 1; i <= 3; ++i) {
    EXPECT_TRUE(absl::IsAborted(core_.admit(claimant, out)));
    EXPECT_EQ(out.claims.size(), i);
    EXPECT_FALSE(core_.compared(claimant, absl::DeadlineExceededError("no store"), out));
  }
  EXPECT_TRUE(out.questions.empty());
  EXPECT_TRUE(core_.is_live(kOne));
  restart(claimant, out);  // the store is back
  EXPECT_EQ(out.questions.size(), 1u);
  // The timeout is reported after the answer.
  EXPECT_FALSE(core_.compared(claimant, absl::DeadlineExceededError("late"), out));
  EXPECT_TRUE(core_.is_live(claimant.id));
}

// Somebody claimed that very incarnation, or a later one, before it began.
TEST_F(MembershipIncarnations, AFalseClaimDoesNotKeepTheRealProcessOut) {
  MembershipActions out;
  for (const WorkerInfo& forged :
       {WorkerInfo{{1, 2}, "one", "evil"}, WorkerInfo{{1, 4000000000}, "one", "evil"}}) {
    EXPECT_TRUE(absl::IsAborted(core_.admit(forged, out)));
    EXPECT_FALSE(core_.compared(forged, std::optional<WorkerInfo>(), out));
  }
  restart({{1, 2}, "one", "b1"}, out);
  EXPECT_TRUE(core_.is_live({1, 2}));
}

// The same where no incarnation lives. If a false claimant were admitted and then declared dead,
// the index would be lost: no lower incarnation is admitted after it.
TEST_F(MembershipIncarnations, AFalseClaimToThePlaceOfAnEndedWorkerDoesNotKeepTheRealProcessOut) {
  MembershipActions out;
  core_.on_notice({kOne, kTwo, "was silent"}, out);
  core_.left(kThree);
  for (const WorkerInfo& forged : {WorkerInfo{{1, 4294967295}, "one", "evil"},
                                   WorkerInfo{{3, 4294967295}, "nobody", "evil"}}) {
    out = {};
    const absl::Status asked = core_.admit(forged, out);
    EXPECT_TRUE(absl::IsAborted(asked)) << asked;
    EXPECT_THAT(text(asked), HasSubstr("says that it has replaced"));
    EXPECT_EQ(out.claims, (std::vector<WorkerInfo>{forged}));
    EXPECT_FALSE(core_.compared(forged, std::optional<WorkerInfo>(), out));
    EXPECT_TRUE(absl::IsPermissionDenied(core_.admit(forged, out)));
    EXPECT_FALSE(core_.is_live(forged.id));
  }
  restart({{1, 2}, "one", "b1"}, out);
  restart({{3, 2}, "three", "b3"}, out);
  EXPECT_TRUE(core_.is_live({1, 2}));
  EXPECT_TRUE(core_.is_live({3, 2}));
  EXPECT_TRUE(out.questions.empty());
}

TEST_F(MembershipIncarnations, ThePlaceOfAnEndedWorkerIsGivenToNobodyWhileTheRecordsCannotBeRead) {
  const WorkerInfo claimant{{1, 2}, "one", "b1"};
  MembershipActions out;
  core_.on_notice({kOne, kTwo, "was silent"}, out);
  for (size_t i = 1; i <= 3; ++i) {
    EXPECT_TRUE(absl::IsAborted(core_.admit(claimant, out)));
    EXPECT_EQ(out.claims.size(), i);
    EXPECT_FALSE(core_.compared(claimant, absl::DeadlineExceededError("no store"), out));
  }
  EXPECT_FALSE(core_.is_live(claimant.id));
  restart(claimant, out);  // the store is back
  EXPECT_TRUE(core_.is_live(claimant.id));
}

// Otherwise each of N starting workers would ask the store for N records.
TEST_F(MembershipIncarnations, AFirstIncarnationIsNotCompared) {
  MembershipActions out;
  EXPECT_TRUE(core_.admit({{4, 1}, "four", "a4"}, out).ok());
  EXPECT_TRUE(core_.admit({{5, 3}, "five", "a5"}, out).ok());  // here it is the first
  EXPECT_TRUE(out.claims.empty());
}

TEST_F(MembershipIncarnations, AStaticGroupHasNoFurtherPlaces) {
  MembershipCore core({kSelf, "me", "a0"}, LeaseOptions{}, now_, /*world_size=*/2);
  core.add({kOne, "one", "a1"});
  MembershipActions out;
  const absl::Status refused = core.admit({{2, 1}, "two", "a2"}, out);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(text(refused), HasSubstr("'two' (w2.1) has no place in a group of 2"));
  EXPECT_TRUE(absl::IsAborted(core.admit({{1, 2}, "one", "b1"}, out)));
}

TEST_F(MembershipIncarnations, OnlySoManyClaimsAreComparedAtATime) {
  MembershipActions out;
  for (uint32_t incarnation = 2; incarnation < 500; ++incarnation) {
    EXPECT_TRUE(absl::IsAborted(core_.admit({{1, incarnation}, "one", "b"}, out)));
  }
  EXPECT_EQ(out.claims.size(), 64u);
  core_.drop_claims();
  EXPECT_FALSE(core_.compared(out.claims[0], out.claims[0], out)) << "nobody may join any more";
  EXPECT_TRUE(core_.is_live(kOne));
}

}  // namespace
}  // namespace weft::rpc_internal
