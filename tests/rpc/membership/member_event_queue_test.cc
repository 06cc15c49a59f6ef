// The events of one stream, without a group.
#include "weft/rpc/membership/internal/member_event_queue.h"

#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::testing {
namespace {

using rpc_internal::MemberEventQueue;

MemberEvent event(uint32_t index, MemberChange change) {
  return {{{index, 1}, absl::StrCat("w", index), ""}, change};
}

// Nothing is waited for: either an event is there or the time is over.
TimePoint now() { return std::chrono::steady_clock::now(); }

TEST(MemberEventQueue, GivesEventsInTheirOrder) {
  MemberEventQueue queue;
  queue.push(event(1, MemberChange::kJoined));
  queue.push(event(2, MemberChange::kJoined));
  EXPECT_EQ(queue.next(now())->worker.name, "w1");
  queue.push(event(1, MemberChange::kLeft));
  EXPECT_EQ(queue.next(now())->worker.name, "w2");
  EXPECT_EQ(queue.next(now())->change, MemberChange::kLeft);
  EXPECT_FALSE(queue.next(now()));
}

TEST(MemberEventQueue, HoldsNoMoreThanTheReaderMustKnow) {
  MemberEventQueue queue;
  for (uint32_t i = 1; i <= 1000; ++i) {
    queue.push(event(i, MemberChange::kJoined));
    queue.push(event(i, i % 2 == 0 ? MemberChange::kLeft : MemberChange::kDied));
  }
  queue.push(event(7, MemberChange::kJoined));
  EXPECT_EQ(queue.next(now())->worker.name, "w7");
  EXPECT_FALSE(queue.next(now()));
  queue.push(event(7, MemberChange::kDied));
  EXPECT_EQ(queue.next(now())->change, MemberChange::kDied);
}

TEST(MemberEventQueue, IsClosedWhenItsEventsAreRead) {
  MemberEventQueue queue;
  queue.push(event(1, MemberChange::kJoined));
  queue.close();
  EXPECT_FALSE(queue.closed());
  EXPECT_TRUE(queue.next(kNever));
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.next(kNever));
}

TEST(MemberEventQueue, AWakeIsNoticedOnceAndLosesNoEvent) {
  MemberEventQueue queue;
  queue.wake();
  queue.wake();
  queue.push(event(1, MemberChange::kJoined));
  EXPECT_TRUE(queue.next(kNever));
  EXPECT_FALSE(queue.next(kNever));  // the wake
  std::thread other([&] { queue.push(event(2, MemberChange::kJoined)); });
  EXPECT_TRUE(queue.next(kNever));
  other.join();
}

}  // namespace
}  // namespace weft::testing
