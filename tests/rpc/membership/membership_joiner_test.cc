// A worker that has joined but is not known to all others yet must not declare anybody dead.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/tests/rpc/membership/membership_group.h"

namespace weft::rpc_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Nobody would learn of its death records, and it may be cut off itself. A joiner without a network
// must not kill a group.
class JoinerCoreTest : public ::testing::Test {
 protected:
  JoinerCoreTest() {
    core_.add({kOne, "one", "a1"});
    core_.add({kTwo, "two", "a2"});
  }
  // Looks again and again until something is asked or the time is over. Worker two was heard, one
  // was not.
  void tick_for(Nanoseconds time) {
    for (const TimePoint end = now_ + time; now_ < end && out_.questions.empty();) {
      now_ += milliseconds(200);
      core_.tick(now_, {{kOne, true, TimePoint()}, {kTwo, true, now_}}, out_);
    }
  }
  TimePoint now_ = TimePoint() + seconds(100);
  MembershipCore core_{{kSelf, "me", "a0"}, LeaseOptions{}, now_};
  MembershipActions out_;
};

TEST_F(JoinerCoreTest, DoesNotDeclareDeadForSilenceButTellsTheOthers) {
  tick_for(milliseconds(3000));
  EXPECT_TRUE(out_.questions.empty());
  EXPECT_EQ(out_.suspect_reports, std::vector<WorkerId>{kOne});
  // Once all have welcomed it, it may declare others dead.
  core_.established();
  tick_for(milliseconds(200));
  ASSERT_EQ(out_.questions.size(), 1u);
  EXPECT_TRUE(out_.questions[0].declare_dead);
}

TEST_F(JoinerCoreTest, FailsToJoinWhereNobodyAnswersAndNobodyIsDeclaredDead) {
  core_.unanswered(kOne, unheard(), out_);
  EXPECT_EQ(out_.suspect_reports, std::vector<WorkerId>{kOne});
  tick_for(seconds(10));
  EXPECT_GE(now_ - TimePoint() - seconds(100), 2 * LeaseOptions{}.suspect_after);
  ASSERT_EQ(out_.questions.size(), 1u);
  EXPECT_FALSE(out_.questions[0].declare_dead);
  core_.answer(kOne, out_.questions[0].number, std::vector<DeathRecord>{}, out_);
  EXPECT_EQ(out_.refused, unheard());
  EXPECT_EQ(out_.gone.size(), 1u);
}

TEST_F(JoinerCoreTest, GoesOnWhenTheOthersDeclareTheSilentOneDead) {
  core_.unanswered(kOne, unheard(), out_);
  core_.on_notice({kOne, kTwo, "was silent"}, out_);
  tick_for(seconds(10));
  EXPECT_TRUE(out_.questions.empty());
  EXPECT_TRUE(out_.refused.ok());
  EXPECT_FALSE(core_.is_live(kOne));
}

TEST_F(JoinerCoreTest, GoesOnWhenTheOtherIsHeardAfterAll) {
  core_.unanswered(kOne, unheard(), out_);
  for (int i = 0; i < 100; ++i) {
    now_ += milliseconds(200);
    core_.tick(now_, {{kOne, true, now_}, {kTwo, true, now_}}, out_);
  }
  EXPECT_TRUE(out_.questions.empty());
}

// The peer was heard while the list was read because of the suspicion.
TEST_F(JoinerCoreTest, AnAnswerToASettledSuspectReportEndsNothing) {
  core_.unanswered(kOne, unheard(), out_);
  tick_for(seconds(10));
  ASSERT_EQ(out_.questions.size(), 1u);
  now_ += milliseconds(200);
  core_.tick(now_, {{kOne, true, now_}, {kTwo, true, now_}}, out_);
  core_.answer(kOne, out_.questions[0].number, std::vector<DeathRecord>{}, out_);
  EXPECT_TRUE(out_.refused.ok());
  EXPECT_TRUE(core_.is_live(kOne));
}

TEST_F(JoinerCoreTest, StoppedTimeSettlesNoSuspectReport) {
  core_.unanswered(kOne, unheard(), out_);
  now_ += seconds(10);
  core_.tick(now_, {{kOne, true, TimePoint()}, {kTwo, true, now_}}, out_);
  EXPECT_TRUE(out_.questions.empty());
}

// Otherwise it would never hear that the group has declared it dead.
TEST_F(JoinerCoreTest, WhoIsAnsweredByNobodyIsOutOfTheGroup) {
  core_.left(kTwo);
  core_.unanswered(kOne, unheard(), out_);
  tick_for(seconds(10));
  ASSERT_EQ(out_.questions.size(), 1u);
  core_.answer(kOne, out_.questions[0].number, std::vector<DeathRecord>{}, out_);
  EXPECT_EQ(out_.fenced, unheard());
  EXPECT_TRUE(core_.is_fenced());
  out_ = {};
  tick_for(seconds(60));
  EXPECT_TRUE(out_.questions.empty()) << "it asks the list for nothing any more";
}

TEST_F(JoinerCoreTest, DeclaresDeadWhereNobodyListensAnymore) {
  core_.suspect(kOne, silent(), out_);
  ASSERT_EQ(out_.questions.size(), 1u);
  EXPECT_TRUE(out_.questions[0].declare_dead);
}

}  // namespace
}  // namespace weft::rpc_internal
