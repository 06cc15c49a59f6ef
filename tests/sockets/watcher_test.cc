// The thread that waits for descriptors: what it reports, and when it stops to.
#include "weft/sockets/watcher.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "weft/async/future.h"

namespace weft {
namespace {

struct SocketPair {
  SocketPair() {
    int both[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both), 0);
    near = FileDescriptor(both[0]);
    far = FileDescriptor(both[1]);
  }
  void write() { EXPECT_EQ(::write(far.get(), "x", 1), 1); }
  void read() {
    char byte;
    EXPECT_EQ(::read(near.get(), &byte, 1), 1);
  }
  FileDescriptor near, far;
};

class WatcherTest : public ::testing::Test {
 protected:
  WatcherTest() { EXPECT_TRUE(watcher_.start().ok()); }

  // Runs `task` on the watcher's thread and waits for it.
  void run(std::function<void()> task) {
    Promise<void> done;
    watcher_.post([&] {
      task();
      done.set_value();
    });
    (void)done.future().result();
  }

  Watcher watcher_;
};

TEST_F(WatcherTest, TasksRunInTheirOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) watcher_.post([&order, i] { order.push_back(i); });
  run([] {});
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// A worker that dials many peers at once must also answer those that dial it.
TEST_F(WatcherTest, EventsDoNotWaitForAllTasks) {
  SocketPair pair;
  size_t left = 100, left_at_event = 0;
  run([&] {
    EXPECT_TRUE(watcher_.watch(pair.near.get(), Watcher::Event::kReadable, [&] {
      left_at_event = left;
      watcher_.unwatch(pair.near.get());
    }));
    // From inside a task, so that all of them wait when the first one runs.
    for (size_t i = left; i > 0; --i) {
      watcher_.post([&] {
        if (left-- == 100) pair.write();
      });
    }
  });
  run([] {});
  EXPECT_EQ(left_at_event, 99u);
}

TEST_F(WatcherTest, ADescriptorThatCanBeReadIsReportedUntilItIsNotWatched) {
  SocketPair pair;
  Promise<void> twice;
  int times = 0;
  run([&] {
    EXPECT_TRUE(watcher_.watch(pair.near.get(), Watcher::Event::kReadable, [&] {
      if (++times < 2) return;  // it is reported again, because nobody has read
      watcher_.unwatch(pair.near.get());
      twice.set_value();
    }));
  });
  pair.write();
  (void)twice.future().result();
  run([] {});
  EXPECT_EQ(times, 2);
}

TEST_F(WatcherTest, AHangUpIsReportedAndBytesAreNot) {
  SocketPair pair;
  Promise<void> gone;
  bool written = false;
  run([&] {
    EXPECT_TRUE(watcher_.watch(pair.near.get(), Watcher::Event::kHungUp, [&] {
      EXPECT_TRUE(written);
      watcher_.unwatch(pair.near.get());
      gone.set_value();
    }));
  });
  pair.write();
  run([&] { written = true; });
  pair.far.reset();
  (void)gone.future().result();
}

// Both are ready in one round. The first closes the second, whose number another socket takes.
TEST_F(WatcherTest, AnEventOfAClosedDescriptorDoesNotReachTheNextOneWithThisNumber) {
  SocketPair first, second, other;
  int wrong = 0, calls = 0;
  const auto swap = [&](SocketPair& self, SocketPair& victim) {
    watcher_.unwatch(self.near.get());
    if (++calls > 1) return;
    const int number = victim.near.get();
    watcher_.unwatch(number);
    ASSERT_EQ(::dup2(other.near.get(), number), number);  // closes the victim
    EXPECT_TRUE(watcher_.watch(number, Watcher::Event::kReadable, [&] { ++wrong; }));
  };
  first.write();
  second.write();
  run([&] {
    EXPECT_TRUE(
        watcher_.watch(first.near.get(), Watcher::Event::kReadable, [&] { swap(first, second); }));
    EXPECT_TRUE(
        watcher_.watch(second.near.get(), Watcher::Event::kReadable, [&] { swap(second, first); }));
  });
  run([] {});
  run([] {});
  watcher_.stop();  // it would report the ends of these sockets
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(wrong, 0);
}

TEST_F(WatcherTest, StopDestroysCallbacksAndTasksWithoutRunningThem) {
  const auto held = std::make_shared<int>();
  SocketPair pair;
  run([&] { EXPECT_TRUE(watcher_.watch(pair.near.get(), Watcher::Event::kReadable, [held] {})); });
  watcher_.stop();
  watcher_.post([held] { ADD_FAILURE() << "a task ran after stop()"; });
  EXPECT_EQ(held.use_count(), 1);
  watcher_.stop();  // does no harm
}

TEST_F(WatcherTest, WhatCannotBeWatchedIsSaid) {
  run([&] {
    EXPECT_FALSE(watcher_.watch(-1, Watcher::Event::kReadable, [] {}));
    watcher_.unwatch(-1);
  });
}

}  // namespace
}  // namespace weft
