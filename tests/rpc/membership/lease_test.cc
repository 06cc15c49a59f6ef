// One peer's lease, what this worker suspects of the peer, and the time for which this worker ran.
#include "weft/rpc/membership/internal/lease.h"

#include <chrono>
#include <optional>

#include <gtest/gtest.h>

#include "weft/rpc/membership/awake_time.h"
#include "weft/rpc/membership/internal/suspicion.h"

namespace weft::rpc_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr WorkerId kPeer{1, 1};
constexpr Nanoseconds kNone{0};

class LeaseTest : public ::testing::Test {
 protected:
  // One interval passes, in which this worker was awake, and the driver looks at the peer.
  std::optional<TimePoint> look(bool heard = false, Nanoseconds waited = kNone) {
    now_ += limits_.heartbeat_interval;
    if (heard) heard_ = now_;
    const PassedTime passed{limits_.heartbeat_interval, limits_.heartbeat_interval};
    return lease_.look({kPeer, true, heard_, kNone, waited}, now_, passed);
  }
  void begin() {
    lease_.share(now_);
    const std::optional<TimePoint> until = look();
    EXPECT_EQ(until, now_ + limits_.valid_for);
  }

  const LeaseOptions limits_{};  // 200 ms, 1.8 s, 1.4 s, 10 s
  TimePoint now_ = TimePoint() + seconds(100);
  TimePoint heard_;
  Lease lease_{limits_};
};

TEST_F(LeaseTest, LastsForLingerAfterTheLastSharedState) {
  EXPECT_FALSE(lease_.is_active());
  EXPECT_TRUE(lease_.is_valid(now_)) << "without a lease calls are sent";
  EXPECT_EQ(look(), std::nullopt);
  begin();
  for (int i = 0; i < 48; ++i) EXPECT_EQ(look(), std::nullopt);
  EXPECT_TRUE(lease_.is_active());
  EXPECT_EQ(look(), kNever);
  EXPECT_FALSE(lease_.is_active());
  EXPECT_EQ(look(), std::nullopt);
}

TEST_F(LeaseTest, IsValidFromTheFirstAnswerForALimitedTimeAfterItsHeartbeatLeft) {
  begin();
  EXPECT_FALSE(lease_.is_valid(now_));
  const TimePoint sent = now_;
  lease_.sent(7, sent, milliseconds(1000));
  (void)look();
  EXPECT_EQ(lease_.answered(6, milliseconds(1100)), std::nullopt) << "an older one";
  EXPECT_EQ(lease_.answered(7, milliseconds(1150)), sent + limits_.valid_for);
  EXPECT_EQ(lease_.answered(7, milliseconds(1150)), std::nullopt) << "a repetition";
  EXPECT_TRUE(lease_.is_valid(sent + limits_.valid_for - milliseconds(1)));
  EXPECT_FALSE(lease_.is_valid(sent + limits_.valid_for));
  EXPECT_EQ(lease_.lag(), kNone);
}

TEST_F(LeaseTest, AnswersThatComeLateExtendTheLimitUntilTheyFade) {
  begin();
  const Nanoseconds worst = seconds(1);
  EXPECT_EQ(lease_.silence_limit(worst), limits_.suspect_after + 2 * worst)
      << "it has answered no heartbeat, so it is assumed to be as late as the others";
  lease_.sent(1, now_, kNone);
  (void)lease_.answered(1, milliseconds(700));
  EXPECT_EQ(lease_.lag(), milliseconds(500));
  EXPECT_EQ(lease_.silence_limit(worst), limits_.suspect_after + seconds(1));
  (void)look(/*heard=*/true);
  EXPECT_EQ(lease_.lag(), milliseconds(400));
}

TEST_F(LeaseTest, SilenceBeginsWithTheLastFrameAndNeedsTwoWatchedLooks) {
  begin();
  EXPECT_EQ(look(/*heard=*/true), std::nullopt);
  EXPECT_FALSE(lease_.is_watched());
  int looks = 0;
  while (!lease_.is_silent(kNone)) {
    (void)look();
    ASSERT_LT(++looks, 100);
  }
  EXPECT_EQ(looks, 9) << "1.8 s";
  EXPECT_TRUE(lease_.is_watched());
  EXPECT_FALSE(lease_.is_heard());
  EXPECT_FALSE(lease_.is_silent(kNone, milliseconds(400)));
  (void)look(/*heard=*/true);
  EXPECT_FALSE(lease_.is_silent(kNone));
  EXPECT_TRUE(lease_.is_heard());
}

TEST_F(LeaseTest, WaitsForAProcessorAreNoSilenceUpToABound) {
  begin();
  (void)look(/*heard=*/true);
  int looks = 0;
  while (!lease_.is_silent(kNone)) {
    lease_.share(now_);
    (void)look(false, limits_.heartbeat_interval);
    ASSERT_LT(++looks, 1000);
  }
  EXPECT_EQ(looks, 16 * 9) << "16 times suspect_after";
}

TEST(AwakeTimeTest, AGapCountsForTwoIntervals) {
  const LeaseOptions limits;
  TimePoint now = TimePoint() + seconds(100);
  AwakeTime own(limits, now);
  EXPECT_EQ(own.look(now += milliseconds(250)).awake, milliseconds(250));
  EXPECT_EQ(own.lag(), kNone);
  EXPECT_EQ(own.at(now + milliseconds(100)), milliseconds(350));
  EXPECT_EQ(own.look(now += seconds(5)).awake, milliseconds(400)) << "this worker was stopped";
  EXPECT_EQ(own.lag(), milliseconds(4600));
  EXPECT_EQ(own.at(now), milliseconds(650));
  (void)own.look(now += milliseconds(200));
  EXPECT_EQ(own.lag(), milliseconds(3680)) << "a fifth less";
  EXPECT_EQ(own.last_look(), now);
}

TEST(AwakeTimeTest, ItsOwnWaitsAreSubtractedButForOneSixteenth) {
  const LeaseOptions limits;
  TimePoint now = TimePoint() + seconds(100);
  AwakeTime own(limits, now);
  own.add_wait(milliseconds(350));
  EXPECT_EQ(own.look(now += milliseconds(160)).counted, milliseconds(10));
  EXPECT_EQ(own.look(now += milliseconds(160)).counted, milliseconds(10));
  EXPECT_EQ(own.look(now += milliseconds(160)).counted, milliseconds(130)) << "30 ms were left";
  own.add_wait(seconds(1));
  own.drop_wait();
  EXPECT_EQ(own.look(now += milliseconds(160)).counted, milliseconds(160));
}

TEST(SuspicionTest, AReportIsOpenOnce) {
  const TimePoint now = TimePoint() + seconds(100);
  Suspicion suspicion;
  EXPECT_TRUE(suspicion.reported().ok());
  EXPECT_TRUE(suspicion.report(absl::UnavailableError("silent"), now));
  EXPECT_FALSE(suspicion.report(absl::UnavailableError("still silent"), now + seconds(1)));
  EXPECT_EQ(suspicion.reported(), absl::UnavailableError("silent"));
  EXPECT_EQ(suspicion.age_report(milliseconds(300)), milliseconds(300));
  EXPECT_EQ(suspicion.age_report(milliseconds(300)), milliseconds(600));
  EXPECT_FALSE(suspicion.is_heard_since_report(now));
  EXPECT_TRUE(suspicion.is_heard_since_report(now + milliseconds(1)));
  suspicion.withdraw_report();
  EXPECT_TRUE(suspicion.report(absl::UnavailableError("again"), now));
  EXPECT_EQ(suspicion.age_report(kNone), kNone);
}

TEST(SuspicionTest, AWithdrawnReportTakesItsOwnQuestionWithIt) {
  const absl::Status silent = absl::UnavailableError("silent");
  Suspicion suspicion;
  suspicion.report(silent, TimePoint());
  suspicion.ask(3, "silent", /*declares_dead=*/false);
  suspicion.set_undecided(silent);
  EXPECT_TRUE(suspicion.is_asked(3));
  suspicion.withdraw_report();
  EXPECT_FALSE(suspicion.is_asked());
  EXPECT_TRUE(suspicion.undecided().ok());
}

TEST(SuspicionTest, AWithdrawnReportLeavesAQuestionOfAnotherReason) {
  Suspicion suspicion;
  suspicion.report(absl::UnavailableError("silent"), TimePoint());
  suspicion.ask(3, "refuses", /*declares_dead=*/false);
  suspicion.set_undecided(absl::PermissionDeniedError("refuses"));
  suspicion.withdraw_report();
  EXPECT_TRUE(suspicion.is_asked(3));
  EXPECT_FALSE(suspicion.undecided().ok());
  Suspicion declaring;
  declaring.report(absl::UnavailableError("silent"), TimePoint());
  declaring.ask(4, "breaks the protocol", /*declares_dead=*/true);
  declaring.set_undecided(absl::UnavailableError("silent"));
  declaring.withdraw_report();
  EXPECT_TRUE(declaring.is_asked(4));
  EXPECT_EQ(declaring.reason(), "breaks the protocol");
}

}  // namespace
}  // namespace weft::rpc_internal
