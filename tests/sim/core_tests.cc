// Runs the unit tests of the cores over cores with one rule broken. If a rule of the table names a
// test, this test must fail. Without a broken rule the same tests pass.
//
//   weft_core_tests [--gtest_filter=TESTS] RULE   which test finds this rule broken
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

// Remembers only the name of the first test that failed.
class FirstFailure final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const ::testing::TestInfo& test) override {
    ++tests_;
    if (!test.result()->Failed() || !name_.empty()) return;
    name_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  // Returns the name and forgets it.
  std::string take() {
    tests_ = 0;
    return std::exchange(name_, {});
  }
  int tests() const { return tests_; }

 private:
  std::string name_;
  int tests_ = 0;
};

int run_all(const std::string& mutant) {
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* const failure = new FirstFailure;  // gtest owns it
  listeners.Append(failure);
  GTEST_FLAG_SET(fail_fast, true);
  int wrong = 0;
  std::string filter;
  const std::string wanted_tests = GTEST_FLAG_GET(filter);
  const auto run = [&](const std::string& tests) {
    GTEST_FLAG_SET(filter, tests);
    failure->take();
    return RUN_ALL_TESTS();
  };
  for (const Rule& rule : rules()) {
    const bool wanted = mutant.empty() ? rule.test != nullptr : mutant == rule.name;
    if (!wanted) continue;
    if (mutant.empty()) filter += std::string(filter.empty() ? "" : ":") + rule.test;
    break_rule(rule.name);
    const bool found = run(mutant.empty() ? rule.test : wanted_tests) != 0;
    mend_rules();
    const std::string by = failure->take();
    std::cout << rule.name << ": " << rule.broken << ": " << (found ? by : "NOT FOUND") << "\n";
    wrong += found ? 0 : 1;
  }
  if (!mutant.empty()) return wrong;
  const bool holds = run(filter) == 0 && failure->tests() > 0;
  std::cout << failure->tests()
            << " tests without a broken rule: " << (holds ? "hold" : failure->take() + " fails")
            << "\n";
  return wrong == 0 && holds ? 0 : 1;
}

}  // namespace
}  // namespace weft::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return weft::sim::run_all(argc > 1 ? argv[1] : "");
}
