// Accepting: in turns with other descriptors, and again after the system has refused something.
#include "weft/sockets/accept_loop.h"

#include <deque>
#include <memory>
#include <sys/eventfd.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/base/mutex.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using testing::eventually;

// The "listening socket" is an eventfd: it is readable as long as its count is not 0.
class AcceptLoopTest : public ::testing::Test {
 protected:
  AcceptLoopTest() {
    EXPECT_TRUE(watcher_->start().ok());
    watcher_->post([this] { loop_.start(); });
  }
  ~AcceptLoopTest() override { watcher_->stop(); }

  void come(uint64_t connections) {
    MutexLock lock(mutex_);
    waiting_ += connections;
    EXPECT_EQ(::write(listening_.get(), &connections, sizeof(connections)),
              static_cast<ssize_t>(sizeof(connections)));
  }
  uint64_t accepted() {
    MutexLock lock(mutex_);
    return accepted_;
  }
  void refuse(absl::Status why) {
    MutexLock lock(mutex_);
    refusal_ = std::move(why);
  }
  int refused() {
    MutexLock lock(mutex_);
    return refused_;
  }

 private:
  absl::Status accept_one() {
    MutexLock lock(mutex_);
    if (!refusal_.ok()) {
      ++refused_;
      return refusal_;
    }
    if (waiting_ == 0) {
      uint64_t ignored;
      (void)!::read(listening_.get(), &ignored, sizeof(ignored));
      return absl::DeadlineExceededError("nobody waits");
    }
    --waiting_;
    ++accepted_;
    return absl::OkStatus();
  }

 protected:
  ManualClock clock_;
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();

 private:
  Mutex mutex_;
  uint64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t accepted_ ABSL_GUARDED_BY(mutex_) = 0;
  int refused_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  const FileDescriptor listening_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  AcceptLoop loop_{clock_, watcher_, listening_.get(), "connections of a test",
                   [this] { return accept_one(); }};
};

TEST_F(AcceptLoopTest, AcceptsAllThatCome) {
  come(200);  // more than in one turn
  EXPECT_TRUE(eventually([&] { return accepted() == 200; }));
  come(1);
  EXPECT_TRUE(eventually([&] { return accepted() == 201; }));
}

TEST_F(AcceptLoopTest, AfterARefusalItTriesAgainWithoutABusyLoop) {
  refuse(absl::ResourceExhaustedError("no descriptor"));
  come(3);
  EXPECT_TRUE(eventually([&] { return clock_.next_timer() != kNever; }));
  EXPECT_EQ(refused(), 1);
  clock_.advance(std::chrono::milliseconds(100));
  EXPECT_TRUE(eventually([&] { return refused() == 2 && clock_.next_timer() != kNever; }));
  EXPECT_EQ(accepted(), 0u);
  refuse(absl::OkStatus());
  clock_.advance(std::chrono::milliseconds(100));
  EXPECT_TRUE(eventually([&] { return accepted() == 3; }));
}

TEST_F(AcceptLoopTest, MayEndDuringAPause) {
  refuse(absl::ResourceExhaustedError("no descriptor"));
  come(1);
  EXPECT_TRUE(eventually([&] { return clock_.next_timer() != kNever; }));
  watcher_->stop();
  clock_.advance(std::chrono::milliseconds(100));
  EXPECT_EQ(refused(), 1);
}

}  // namespace
}  // namespace weft
