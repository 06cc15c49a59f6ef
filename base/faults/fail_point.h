// Marks points in the code where a test may kill, stop or delay a process:
// WEFT_FAIL_POINT("agent.sent").
//
// A point compiles to nothing unless WEFT_FAIL_POINTS is defined (the CMake option of that name).
// If it is, the process reads the environment variable WEFT_FAIL_POINT="NAME:COUNT:ACTION" when it
// first passes any point. It then does ACTION once, at the COUNT-th pass of point NAME (from 1):
// * kill: SIGKILL
// * stop: SIGSTOP
// * delayN: the passing thread sleeps for N milliseconds
// If the variable has another form, the process exits with code 2.
//
// Thread safety: points may be passed on any thread.
#pragma once

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>

#ifdef WEFT_FAIL_POINTS
#define WEFT_FAIL_POINT(name) ::weft::base_internal::pass_fail_point(name)
#else
#define WEFT_FAIL_POINT(name) static_cast<void>(0)
#endif

namespace weft::base_internal {

#ifdef WEFT_FAIL_POINTS
inline constexpr bool kHasFailPoints = true;
#else
inline constexpr bool kHasFailPoints = false;
#endif

struct FailPointPlan {
  enum class Action { kKill, kStop, kDelay };
  std::string name;
  int64_t count = 1;
  Action action = Action::kKill;
  std::chrono::milliseconds delay{0};
};

// nullopt: `text` does not have the form above.
inline std::optional<FailPointPlan> parse_fail_point(std::string_view text) {
  const auto number = [](std::string_view digits, int64_t from) -> std::optional<int64_t> {
    int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (digits.empty() || error != std::errc() || stop != end || value < from) return std::nullopt;
    return value;
  };
  const size_t first = text.find(':');
  const size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
  if (first == 0 || second == text.npos) return std::nullopt;
  const std::optional<int64_t> count = number(text.substr(first + 1, second - first - 1), 1);
  if (!count) return std::nullopt;
  FailPointPlan plan{std::string(text.substr(0, first)), *count};
  const std::string_view action = text.substr(second + 1);
  if (action == "kill") {
    plan.action = FailPointPlan::Action::kKill;
  } else if (action == "stop") {
    plan.action = FailPointPlan::Action::kStop;
  } else if (action.substr(0, 5) == "delay") {
    const std::optional<int64_t> delay = number(action.substr(5), 0);
    if (!delay) return std::nullopt;
    plan.action = FailPointPlan::Action::kDelay;
    plan.delay = std::chrono::milliseconds(*delay);
  } else {
    return std::nullopt;
  }
  return plan;
}

class FailPoint {
 public:
  explicit FailPoint(std::optional<FailPointPlan> plan)
      : plan_(std::move(plan)), left_(plan_ ? plan_->count : 0) {}

  void pass(std::string_view name) {
    if (!plan_ || plan_->name != name || left_.fetch_sub(1) != 1) return;
    switch (plan_->action) {
      case FailPointPlan::Action::kKill:
        ::kill(::getpid(), SIGKILL);
        break;
      case FailPointPlan::Action::kStop:
        ::kill(::getpid(), SIGSTOP);
        break;
      case FailPointPlan::Action::kDelay:
        std::this_thread::sleep_for(plan_->delay);
        break;
    }
  }

  static std::optional<FailPointPlan> from_environment() {
    const char* const text = std::getenv("WEFT_FAIL_POINT");
    if (text == nullptr || *text == '\0') return std::nullopt;
    std::optional<FailPointPlan> plan = parse_fail_point(text);
    if (!plan) {
      std::fprintf(stderr, "WEFT_FAIL_POINT='%s' is not NAME:COUNT:kill|stop|delayN\n", text);
      std::_Exit(2);
    }
    return plan;
  }

 private:
  const std::optional<FailPointPlan> plan_;
  std::atomic<int64_t> left_;
};

inline void pass_fail_point(std::string_view name) {
  static FailPoint point(FailPoint::from_environment());
  point.pass(name);
}

}  // namespace weft::base_internal
