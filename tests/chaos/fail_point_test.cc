// Fail points do what their variable says, once, and only at the named point.
#include "weft/base/faults/fail_point.h"

#include <chrono>
#include <csignal>
#include <optional>

#include <gtest/gtest.h>

namespace weft::base_internal {
namespace {

using Action = FailPointPlan::Action;

TEST(FailPointTest, ReadsNameCountAndAction) {
  const std::optional<FailPointPlan> kill = parse_fail_point("agent.sent:3:kill");
  ASSERT_TRUE(kill.has_value());
  EXPECT_EQ(kill->name, "agent.sent");
  EXPECT_EQ(kill->count, 3);
  EXPECT_EQ(kill->action, Action::kKill);
  EXPECT_EQ(parse_fail_point("a:1:stop")->action, Action::kStop);
  const std::optional<FailPointPlan> delay = parse_fail_point("a:1:delay20");
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->action, Action::kDelay);
  EXPECT_EQ(delay->delay, std::chrono::milliseconds(20));
}

TEST(FailPointTest, RefusesWhatIsNotOfThatForm) {
  for (const char* text : {"", "a", "a:1", ":1:kill", "a:0:kill", "a:-1:kill", "a:x:kill",
                           "a:1:die", "a:1:delay", "a:1:delayx", "a:1x:kill"}) {
    EXPECT_FALSE(parse_fail_point(text).has_value()) << text;
  }
}

TEST(FailPointTest, ActsAtTheGivenPassageOnly) {
  const auto pass = [](int times, const char* name) {
    FailPoint point(parse_fail_point("here:3:kill"));
    for (int i = 0; i < times; ++i) point.pass(name);
    std::_Exit(0);
  };
  EXPECT_EXIT(pass(2, "here"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(pass(3, "here"), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(pass(9, "there"), ::testing::ExitedWithCode(0), "");
}

TEST(FailPointTest, DelaysThePassingThreadOnce) {
  FailPoint point(parse_fail_point("here:1:delay30"));
  const auto start = std::chrono::steady_clock::now();
  point.pass("here");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
  const auto again = std::chrono::steady_clock::now();
  point.pass("here");
  EXPECT_LT(std::chrono::steady_clock::now() - again, std::chrono::milliseconds(30));
}

TEST(FailPointTest, WithoutAPlanDoesNothing) {
  FailPoint point(std::nullopt);
  point.pass("here");
}

}  // namespace
}  // namespace weft::base_internal
