// The oracle finds each kind of broken promise in hand-made ledgers, and nothing in good ones.
#include "weft/tests/chaos/oracle/oracle.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/chaos/summary.h"

namespace weft::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;
constexpr uint64_t kToken = 77;

// Two workers that live from 0 to 100 s. Their WorkerIds are 10 and 20. The tests write their
// ledgers.
class OracleTest : public ::testing::Test {
 protected:
  OracleTest() {
    for (uint32_t spawn : {1, 2}) {
      Incarnation& incarnation = incarnations_.emplace_back();
      incarnation.spawn = spawn;
      incarnation.slot = spawn - 1;
      incarnation.id = 10 * spawn;
      incarnation.joined = 1;
      incarnation.ended = 100 * kSecond;
      incarnation.end = Incarnation::End::kInOrder;
    }
  }

  void enter(size_t incarnation, Record record) {
    incarnations_[incarnation].records.push_back(record);
  }
  void call(uint64_t time = kSecond, uint32_t allowed_ms = 1000, Flavour flavour = Flavour::kCall) {
    enter(0, {.time = time,
              .token = kToken,
              .value = 20,
              .detail = allowed_ms,
              .kind = RecordKind::kCalled,
              .code = static_cast<uint16_t>(flavour)});
  }
  void tell(uint64_t time, uint16_t code, uint32_t ran) {
    enter(0,
          {.time = time, .token = kToken, .detail = ran, .kind = RecordKind::kTold, .code = code});
  }
  void execute(size_t incarnation = 1) {
    enter(incarnation,
          {.time = kSecond + 1, .token = kToken, .value = 10, .kind = RecordKind::kExecuted});
  }
  void see_death(size_t incarnation, uint64_t time, uint64_t id) {
    enter(incarnation, {.time = time, .token = id, .kind = RecordKind::kDeath});
  }
  Findings judged() const { return judge(incarnations_, injections_); }

  std::vector<Incarnation> incarnations_;
  std::vector<Injection> injections_;
};

TEST_F(OracleTest, FindsNothingInACallThatRanOnceAndWasAnswered) {
  call();
  execute();
  tell(kSecond + 5, 0, 1);
  const Findings findings = judged();
  EXPECT_THAT(findings.violations, ElementsAre());
  EXPECT_EQ(findings.calls, 1u);
  EXPECT_EQ(findings.ok, 1u);
}

TEST_F(OracleTest, FindsNothingInACallWhoseAnswerWasLostHoweverItRan) {
  call();
  tell(2 * kSecond, 4, 2);
  EXPECT_THAT(judged().violations, ElementsAre());
  execute();
  EXPECT_THAT(judged().violations, ElementsAre());
}

TEST_F(OracleTest, FindsAFunctionThatWasExecutedTwice) {
  call();
  execute();
  execute();
  tell(kSecond + 5, 0, 1);
  EXPECT_EQ(judged().twice, 1u);
}

TEST_F(OracleTest, FindsAnExecutionThatItsCallerWasToldDidNotHappen) {
  call();
  execute();
  tell(kSecond + 5, 14, 0);
  EXPECT_EQ(judged().wrong_told, 1u);
}

TEST_F(OracleTest, FindsAnAnswerToWhatWasNeverExecuted) {
  call();
  tell(kSecond + 5, 0, 1);
  EXPECT_EQ(judged().wrong_told, 1u);
}

TEST_F(OracleTest, FindsAnExecutionThatNobodyAskedFor) {
  execute();
  EXPECT_EQ(judged().wrong_told, 1u);
}

TEST_F(OracleTest, FindsACallThatWasToldTwice) {
  call();
  execute();
  tell(kSecond + 5, 0, 1);
  tell(kSecond + 6, 0, 1);
  EXPECT_EQ(judged().wrong_told, 1u);
}

TEST_F(OracleTest, FindsACallThatWasToldTooLate) {
  call();
  execute();
  tell(5 * kSecond, 0, 1);
  EXPECT_EQ(judged().hanging, 1u);
}

TEST_F(OracleTest, DoesNotHoldTheCallersOwnStopAgainstACall) {
  call();
  execute();
  tell(5 * kSecond, 0, 1);
  incarnations_[0].stopped.push_back({kSecond, 4 * kSecond});
  EXPECT_EQ(judged().hanging, 0u);
}

TEST_F(OracleTest, FindsACallThatWasNeverToldUnlessItsCallerDiedFirst) {
  call();
  EXPECT_EQ(judged().hanging, 1u);
  incarnations_[0].end = Incarnation::End::kKilled;
  EXPECT_EQ(judged().hanging, 1u) << "it lived long enough to be told";
  incarnations_[0].ended = kSecond + 500 * kMs;
  EXPECT_EQ(judged().hanging, 0u);
}

TEST_F(OracleTest, FindsACreationThatRanAlthoughItWasRefusedButNotOneThatRanLate) {
  call(kSecond, 1000, Flavour::kCreate);
  tell(kSecond + 5, 0, 1);
  EXPECT_EQ(judged().wrong_told, 0u) << "accepted, and its owner died";
  incarnations_[0].records.clear();
  call(kSecond, 1000, Flavour::kCreate);
  tell(kSecond + 5, 14, 0);
  execute();
  EXPECT_EQ(judged().wrong_told, 1u);
}

TEST_F(OracleTest, HoldsACounterToWhatItsTrainersWereTold) {
  call(kSecond, 1000, Flavour::kStep);
  tell(kSecond + 5, 0, 1);
  const auto with_counter = [this](uint64_t value) {
    std::vector<Incarnation> incarnations = incarnations_;
    incarnations[1].records.push_back({.time = 90 * kSecond,
                                       .value = value,
                                       .kind = RecordKind::kGauge,
                                       .code = static_cast<uint16_t>(Gauge::kCounter)});
    return judge(incarnations, {}).counters;
  };
  EXPECT_EQ(with_counter(0), 1u) << "an acknowledged step is lost";
  EXPECT_EQ(with_counter(1), 0u);
  EXPECT_EQ(with_counter(2), 1u) << "applied twice";
}

TEST_F(OracleTest, FindsWhatAWorkerKeepsAtTheEnd) {
  incarnations_[0].until_the_end = true;
  EXPECT_EQ(judged().leaked, 1u) << "it never came to rest";
  enter(
      0,
      {.value = 3, .kind = RecordKind::kGauge, .code = static_cast<uint16_t>(Gauge::kReferences)});
  enter(0, {.detail = 0, .kind = RecordKind::kQuiet});
  EXPECT_EQ(judged().leaked, 3u);
  incarnations_[0].records.clear();
  enter(0, {.detail = 1, .kind = RecordKind::kQuiet});
  EXPECT_EQ(judged().leaked, 0u);
}

// ---- Threads and descriptors that a worker leaves behind

class OracleLeftoversTest : public OracleTest {
 protected:
  void gauge(Gauge which, uint64_t value) {
    enter(0, {.value = value, .kind = RecordKind::kGauge, .code = static_cast<uint16_t>(which)});
  }
  void leave_behind(uint64_t threads, uint64_t descriptors) {
    gauge(Gauge::kThreadsBefore, 2);
    gauge(Gauge::kThreadsAfter, 2 + threads);
    gauge(Gauge::kDescriptorsBefore, 8);
    gauge(Gauge::kDescriptorsAfter, 8 + descriptors);
  }
  // Returns the threads and descriptors found if only this was done to the slot. The worker exits
  // at 100 s.
  std::pair<uint64_t, uint64_t> found_after(FaultKind kind, Span span, size_t slot = 0) {
    injections_ = {{kind, slot, 1, span}};
    const Findings findings = judged();
    return {findings.threads, findings.descriptors};
  }
};

TEST_F(OracleLeftoversTest, AreNoneOfWhoWasKilled) {
  gauge(Gauge::kThreadsBefore, 2);
  gauge(Gauge::kDescriptorsBefore, 8);
  EXPECT_EQ(judged().threads + judged().descriptors, 0u);
}

TEST_F(OracleLeftoversTest, AreFoundWhereNothingWasDone) {
  leave_behind(2, 1);
  EXPECT_EQ(judged().threads, 2u);
  EXPECT_EQ(judged().descriptors, 1u);
}

TEST_F(OracleLeftoversTest, MayBeACallThatHangsInAStoreThatIsCutOff) {
  leave_behind(2, 1);
  for (const FaultKind kind : {FaultKind::kStoreCut, FaultKind::kIsolate}) {
    EXPECT_THAT(found_after(kind, {90 * kSecond, 101 * kSecond}), Pair(0, 0)) << to_string(kind);
    EXPECT_THAT(found_after(kind, {85 * kSecond, 95 * kSecond}), Pair(0, 0)) << "not resent yet";
  }
}

TEST_F(OracleLeftoversTest, MayBeThreadsOfGrpcWhereThreadsWereRefused) {
  leave_behind(8, 0);
  EXPECT_THAT(found_after(FaultKind::kThreadLimit, {60 * kSecond, 61 * kSecond}), Pair(0, 0));
  EXPECT_THAT(found_after(FaultKind::kThreadLimit, {60 * kSecond, 61 * kSecond}, 1), Pair(8, 0))
      << "another worker";
  leave_behind(9, 1);
  EXPECT_THAT(found_after(FaultKind::kThreadLimit, {60 * kSecond, 61 * kSecond}), Pair(1, 1));
}

TEST_F(OracleLeftoversTest, AreFoundWhereMoreIsLeftThanSuchACall) {
  leave_behind(3, 2);
  EXPECT_THAT(found_after(FaultKind::kIsolate, {90 * kSecond, 101 * kSecond}), Pair(1, 1));
}

TEST_F(OracleLeftoversTest, AreFoundWhereTheStoreWasNotCutOffFromThisIncarnation) {
  leave_behind(2, 1);
  const Span span{90 * kSecond, 101 * kSecond};
  EXPECT_THAT(found_after(FaultKind::kPartition, span), Pair(2, 1));
  EXPECT_THAT(found_after(FaultKind::kStop, span), Pair(2, 1));
  EXPECT_THAT(found_after(FaultKind::kIsolate, span, 1), Pair(2, 1)) << "another worker";
  EXPECT_THAT(found_after(FaultKind::kIsolate, {60 * kSecond, 70 * kSecond}), Pair(2, 1))
      << "the call has got through";
  incarnations_[0].joined = 96 * kSecond;
  EXPECT_THAT(found_after(FaultKind::kIsolate, {85 * kSecond, 95 * kSecond}), Pair(2, 1))
      << "the incarnation before it";
}

// ---- Deaths

class OracleDeathTest : public OracleTest {
 protected:
  // Worker 2 is killed at 10 s, and worker 1 has just called it.
  void kill_the_callee() {
    call(10 * kSecond - kMs);
    tell(10 * kSecond + 300 * kMs, 14, 2);
    incarnations_[1].end = Incarnation::End::kKilled;
    incarnations_[1].ended = 10 * kSecond;
    injections_.push_back({FaultKind::kKill, 1, 2, {10 * kSecond, 10 * kSecond}});
    // The fault met traffic: something was executed there.
    enter(1, {.time = 10 * kSecond - kMs / 2,
              .token = kToken,
              .value = 10,
              .kind = RecordKind::kExecuted});
  }
};

TEST_F(OracleDeathTest, MeasuresHowSoonASurvivorNoticed) {
  kill_the_callee();
  see_death(0, 10 * kSecond + 250 * kMs, 20);
  const Findings findings = judged();
  EXPECT_THAT(findings.violations, ElementsAre());
  EXPECT_THAT(findings.crash_ms, ElementsAre(250.0));
  EXPECT_EQ(findings.injected[static_cast<int>(FaultKind::kKill)], 1u);
  EXPECT_EQ(findings.effective[static_cast<int>(FaultKind::kKill)], 1u);
}

TEST_F(OracleDeathTest, MeasuresNothingWhileAnotherFaultGoesOn) {
  kill_the_callee();
  see_death(0, 10 * kSecond + 250 * kMs, 20);
  injections_.push_back({FaultKind::kStop, 0, 1, {9 * kSecond, 11 * kSecond}});
  EXPECT_THAT(judged().crash_ms, ElementsAre());
}

TEST_F(OracleDeathTest, FindsADeathThatAWorkerInTouchNeverNoticed) {
  kill_the_callee();
  const Findings findings = judged();
  EXPECT_EQ(findings.unnoticed, 1u);
  EXPECT_THAT(findings.violations, ElementsAre(HasSubstr("never noticed")));
}

TEST_F(OracleDeathTest, CountsAFaultThatMetNoTrafficAsWithoutEffect) {
  injections_.push_back({FaultKind::kKill, 1, 2, {50 * kSecond, 50 * kSecond}});
  EXPECT_EQ(judged().effective[static_cast<int>(FaultKind::kKill)], 0u);
}

TEST_F(OracleDeathTest, FindsAWorkerThatWasGivenUpWithoutAReason) {
  incarnations_[0].fenced = true;
  EXPECT_EQ(judged().false_deaths, 1u);
  injections_.push_back({FaultKind::kStop, 0, 1, {95 * kSecond, 95 * kSecond + 900 * kMs}});
  EXPECT_EQ(judged().false_deaths, 1u) << "so short a stop is no reason";
  for (const FaultKind kind : {FaultKind::kProxyHang, FaultKind::kThreadLimit}) {
    injections_.push_back({kind, 1, 2, {90 * kSecond, 95 * kSecond}});
    EXPECT_EQ(judged().false_deaths, 1u) << "nobody dies of a cut connection or a refused call";
  }
  injections_.push_back({FaultKind::kPartition, 1, 2, {90 * kSecond, 95 * kSecond}});
  EXPECT_EQ(judged().false_deaths, 0u);
}

TEST_F(OracleDeathTest, AsksOnlyForAnEndOfAllCallsWhereBitsWereFlipped) {
  call();
  execute();
  execute();
  tell(kSecond + 5, 0, 1);
  const Findings findings = judge(incarnations_, injections_, {.exact = false});
  EXPECT_EQ(findings.twice, 1u);
  EXPECT_THAT(findings.violations, ElementsAre());
}

TEST(RunReportTest, HoldsTimesAgainstTheirLimitsWhereFaultsLieApart) {
  RunReport report;
  report.findings.crash_ms.assign(100, 100);
  report.findings.hang_ms = {1900};
  report.apart = true;
  EXPECT_TRUE(report.passed());
  report.findings.crash_ms.back() = 600;  // one of a hundred
  EXPECT_TRUE(report.passed());
  report.findings.hang_ms = {2500};
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(describe(report), HasSubstr("too late"));
  report.apart = false;
  EXPECT_TRUE(report.passed());
}

TEST(PercentileTest, IsTheSmallestSampleThatSoManyDoNotExceed) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0.5), 2);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0.99), 4);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0), 1);
}

}  // namespace
}  // namespace weft::chaos
