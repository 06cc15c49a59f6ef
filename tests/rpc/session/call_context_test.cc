#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "weft/base/clock.h"
#include "weft/rpc/session/call_scope.h"

namespace weft {
namespace {

class CallContextTest : public ::testing::Test {
 protected:
  uint64_t on_cancel() {
    return context_->on_cancel([this] { ran_ += "c"; });
  }
  uint64_t on_explicit_cancel() {
    return context_->on_explicit_cancel([this] { ran_ += "x"; });
  }
  std::string ran() const { return ran_; }

  ManualClock clock_;
  const std::shared_ptr<CallContext> context_ = std::make_shared<CallContext>(
      clock_, WorkerId{1, 1}, "w1", clock_.now() + std::chrono::seconds(1));

 private:
  std::string ran_;  // a letter for each hook
};

TEST_F(CallContextTest, TheDeadlineRunsOnlyTheHooksOfOnCancel) {
  on_explicit_cancel();
  on_cancel();
  on_cancel();
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(ran(), "cc");
  EXPECT_TRUE(context_->cancelled());
  EXPECT_EQ(on_cancel(), 0u) << "it has run inside the method";
  EXPECT_EQ(ran(), "ccc");
  EXPECT_NE(on_explicit_cancel(), 0u);
  context_->cancel();
  EXPECT_EQ(ran(), "cccxx");
}

TEST_F(CallContextTest, ACancellationRunsAllHooksOnce) {
  on_cancel();
  on_explicit_cancel();
  context_->cancel();
  EXPECT_EQ(ran(), "cx");
  EXPECT_EQ(on_explicit_cancel(), 0u);
  EXPECT_EQ(on_cancel(), 0u);
  EXPECT_EQ(ran(), "cxxc");
  context_->cancel();
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(ran(), "cxxc");
}

TEST_F(CallContextTest, AForgottenHookDoesNotRun) {
  context_->forget(on_cancel());
  context_->forget(on_explicit_cancel());
  context_->forget(0);
  clock_.advance(std::chrono::seconds(1));
  context_->cancel();
  EXPECT_EQ(ran(), "");
}

}  // namespace
}  // namespace weft
