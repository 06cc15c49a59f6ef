// Tests the arena with workers that only pretend: it injects the plan, replaces workers that died,
// stops all workers, and reports what a worker did wrong.
#include "weft/tests/chaos/arena.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override { network_ = Network::enter(3, false); }
  void TearDown() override { ::unsetenv("CHAOS_FAKE"); }

  // Runs for a second with these faults.
  Arena& run(const std::vector<Fault>& plan, const std::string& wrong = "") {
    ::setenv("CHAOS_FAKE", wrong.c_str(), 1);
    ArenaOptions options;
    options.workers = 3;
    options.program = WEFT_BUILD_DIR "/tests/chaos/chaos_fake_worker";
    options.store = "127.0.0.1:1";
    options.run_id = "fake";
    options.proxied = {0};
    arena_ = std::make_unique<Arena>(*network_, options);
    arena_->start();
    arena_->run(plan, milliseconds(1000), interrupted_);
    arena_->finish();
    return *arena_;
  }

  const std::atomic<bool> interrupted_{false};
  std::unique_ptr<Network> network_;
  std::unique_ptr<Arena> arena_;  // destroyed before the network
};

TEST_F(ArenaTest, ReplacesWhoDiedAndEndsAllInGoodOrder) {
  const Arena& arena = run({{FaultKind::kKill, 0, milliseconds(300), {}, {}, 0},
                            {FaultKind::kStop, 1, milliseconds(400), milliseconds(200), {}, 0},
                            {FaultKind::kLeave, 2, milliseconds(500), {}, {}, 0}});
  EXPECT_THAT(arena.failures(), ElementsAre());
  ASSERT_EQ(arena.incarnations().size(), 5u);
  EXPECT_EQ(arena.incarnations()[0].end, Incarnation::End::kKilled);
  ASSERT_EQ(arena.incarnations()[1].stopped.size(), 1u);
  EXPECT_NEAR(static_cast<double>(arena.incarnations()[1].stopped[0].end -
                                  arena.incarnations()[1].stopped[0].begin),
              200e6, 150e6);
  const Findings findings = judge(arena.incarnations(), arena.injections());
  EXPECT_THAT(findings.violations, ElementsAre());
  EXPECT_EQ(findings.joins, 5u);
  for (const FaultKind kind : {FaultKind::kKill, FaultKind::kStop, FaultKind::kLeave}) {
    EXPECT_EQ(findings.injected[static_cast<size_t>(kind)], 1u) << to_string(kind);
    EXPECT_EQ(findings.effective[static_cast<size_t>(kind)], 1u) << to_string(kind);
  }
}

TEST_F(ArenaTest, ReportsACrashWithWhatTheWorkerPrinted) {
  const Arena& arena = run({}, "crash");
  ASSERT_FALSE(arena.failures().empty());
  EXPECT_THAT(arena.failures()[0], HasSubstr("ended with 134"));
  EXPECT_THAT(arena.failures()[0], HasSubstr("is there"));
}

TEST_F(ArenaTest, ReportsAHang) {
  const Arena& arena = run({}, "hang");
  ASSERT_FALSE(arena.failures().empty());
  EXPECT_THAT(arena.failures()[0], HasSubstr("waited more than twice as long"));
}

TEST_F(ArenaTest, LeavesItToTheOracleThatAWorkerKeepsSomething) {
  const Arena& arena = run({}, "leak");
  EXPECT_THAT(arena.failures(), ElementsAre());
  EXPECT_EQ(judge(arena.incarnations(), arena.injections()).leaked, 3u);  // one in each worker
}

}  // namespace
}  // namespace weft::chaos
