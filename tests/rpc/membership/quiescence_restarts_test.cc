// A shutdown while workers are started again.
//
// The tests check which reports count, so that the group waits for every live worker and for no
// dead one.
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "weft/tests/rpc/membership/quiescence_group.h"

namespace weft {
namespace {

using rpc_internal::MembershipMessages;
using rpc_internal::QuiescenceCore;
using testing::id;
using namespace std::chrono_literals;
using Group = testing::QuiescenceGroup;
using Stage = Group::Stage;

// Worker 2 had not heard of the death when it was idle. Its report names an incarnation that the
// new leader, the next incarnation of the same worker, has never known.
TEST(QuiescenceCoreTest, ARestartedLeaderDoesNotWaitForItsEarlierIncarnation) {
  Group group(3);
  group.count_sent(2, 0);
  group.stop(0);
  const uint32_t again = group.revive(0);
  for (uint32_t i : {1, 2}) group.meet(i, again);
  group.lose(1, 0);
  for (uint32_t i : {1u, 2u, again}) group.enter(i);
  group.idle(2);
  group.lose(2, 0);
  group.deliver_all();
  group.settle({1, again});
  EXPECT_EQ(group.stage(again), Stage::kCalls) << "its messages may be under way to worker 2";
  group.settle({2});
  for (uint32_t i : {1u, 2u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// A report about a joiner may reach the leader before the joiner does.
TEST(QuiescenceCoreTest, AReportThatNamesAJoinerWaitsForIt) {
  Group group(3);
  group.kill(2);
  const uint32_t again = group.revive(2);
  group.meet(1, again);
  for (uint32_t i : {0u, 1u}) group.enter(i);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.meet(0, again);
  group.enter(again);
  group.settle({0, again});  // worker 1 has nothing new to report
  for (uint32_t i : {0u, 1u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// The joiner died before worker 1 had met it. Worker 1 reports only that.
TEST(QuiescenceCoreTest, AJoinerThatNotAllHaveMetIsNotWaitedForAfterItsEnd) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  group.deliver_all();
  group.idle(1);
  group.deliver_all();
  const uint32_t again = group.revive(2);
  group.meet(0, again);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.kill(again);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
}

// Worker 0 reported its peers before it met the joiner, and did not report again before the joiner
// died. Its counters have not changed since, but that it has left the joiner out is news.
TEST(QuiescenceCoreTest, AJoinerThatEndsBeforeTheNextReportIsNotWaitedFor) {
  for (const uint32_t early : {0, 1}) {
    const uint32_t late = 1 - early;
    Group group(3);
    group.kill(2);
    group.enter(early);
    group.idle(early);
    group.deliver_all();
    const uint32_t again = group.revive(2);
    for (uint32_t i : {0, 1}) group.meet(i, again);
    group.kill(again);
    group.enter(late);
    group.settle({0, 1});
    EXPECT_EQ(group.stage(0), Stage::kDropping) << early;
    EXPECT_EQ(group.stage(1), Stage::kDropping) << early;
  }
}

// Worker 1 has met the joiner, has heard of its death and has sent its last report. The leader did
// not know the joiner then, so it could not see that the report left it out.
TEST(QuiescenceCoreTest, AJoinerWhoseEndWasReportedBeforeTheLeaderMetItIsNotWaitedFor) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  group.deliver_all();
  const uint32_t again = group.revive(2);
  group.meet(1, again);
  group.stop(again);
  group.lose(1, again);
  group.idle(1);
  group.deliver_all();
  group.meet(0, again);
  group.lose(0, again);
  group.settle({0, 1});
  for (uint32_t i : {0, 1}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Worker 2 reported its peers before it met the joiner, which then called it and died.
TEST(QuiescenceCoreTest, AReportFromBeforeItsSenderMetTheDeadOneDoesNotCount) {
  Group group(3);
  group.kill(0);
  group.enter(2);
  const uint32_t again = group.revive(0);
  group.meet(1, again);
  group.idle(2);
  group.deliver_all();
  group.meet(2, again);
  for (uint32_t i : {1u, again}) group.enter(i);
  group.deliver_all();
  group.count_sent(again, 2);
  group.stop(again);
  group.lose(1, again);
  group.settle({1});
  EXPECT_EQ(group.stage(1), Stage::kCalls);
  group.lose(2, again);
  group.settle({1, 2});
  for (uint32_t i : {1, 2}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Worker 1 reported before it met the joiner. Its report was in flight until the leader had heard
// of the joiner's death. The joiner had called worker 1, which still works.
TEST(QuiescenceCoreTest, AReportThatWasUnderWayBeforeTheLeaderAskedAgainDoesNotCount) {
  for (const bool leader_has_entered : {true, false}) {
    Group group(3);
    group.kill(2);
    if (leader_has_entered) group.enter(0);
    group.enter(1);
    group.deliver_all();
    group.idle(1);
    const uint32_t again = group.revive(2);
    for (uint32_t i : {0, 1}) group.meet(i, again);
    group.count_sent(again, 1);
    group.count_received(again, 1);
    group.stop(again);
    group.lose(0, again);
    group.deliver_all();
    group.enter(0);
    group.settle({0});
    EXPECT_EQ(group.stage(0), Stage::kCalls) << leader_has_entered;
    group.lose(1, again);
    group.settle({0, 1});
    for (uint32_t i : {0, 1}) EXPECT_EQ(group.stage(i), Stage::kDropping) << leader_has_entered;
  }
}

// The leader was declared dead, but neither it nor worker 1 has heard so. A joiner has heard it,
// and so did not meet the leader.
TEST(QuiescenceCoreTest, APhaseDoesNotEndBeforeAJoinerThatItsLeaderDoesNotKnowHasEntered) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  group.deliver_all();
  group.idle(1);
  group.deliver_all();
  const uint32_t again = group.revive(2);
  group.lose(again, 0);
  group.meet(1, again);
  group.idle(0);
  ASSERT_EQ(group.stage(0), Stage::kDropping);
  group.deliver_all();
  EXPECT_EQ(group.stage(1), Stage::kCalls);
  group.kill(0);
  group.settle({1, again});
  EXPECT_EQ(group.stage(1), Stage::kCalls);
  group.enter(again);
  group.settle({1, again});
  for (uint32_t i : {1u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Two threads of a worker may send its reports out of order.
TEST(QuiescenceCoreTest, AReportThatWaitsIsNotReplacedByAnOlderOne) {
  QuiescenceCore leader(id(0), {id(0), id(1)});
  const TimePoint now = TimePoint() + 1h;
  MembershipMessages out;
  const auto say = [&](uint64_t version, const std::vector<WorkerId>& holds) {
    wire::MembershipPost post;
    post.mutable_report()->set_phase(1);
    post.mutable_report()->set_version(version);
    post.mutable_report()->set_round(version == 0 ? 0 : 1);  // the leader's round, after a death
    for (const WorkerId peer : holds) {
      post.mutable_report()->add_counters()->set_worker(peer.bits());
    }
    leader.receive(id(1), post, now, out);
  };
  const WorkerId joiner{2, 2}, earlier{2, 1};
  leader.joined(earlier, out);
  leader.enter({}, now, out);
  leader.gone(earlier, now, out);
  say(0, {});
  say(3, {id(0), id(1), joiner});
  say(2, {id(0), id(1), earlier});
  leader.joined(joiner, out);
  wire::MembershipPost post;
  post.mutable_report()->set_phase(1);
  leader.receive(joiner, post, now, out);
  post.mutable_report()->set_version(1);
  post.mutable_report()->set_round(1);
  leader.receive(joiner, post, now, out);
  leader.idle({{id(0)}, {id(1)}, {joiner}}, now, out);
  EXPECT_EQ(leader.stage(), Stage::kDropping);
}

// Worker 1 was idle before the joiner called it, and works now. When it hears of the caller's
// death, it has nothing to report until it is idle again.
TEST(QuiescenceCoreTest, TheEndOfAJoinerDoesNotMakeAWorkerIdle) {
  Group group(3);
  group.kill(2);
  group.enter(1);
  group.idle(1);
  group.deliver_all();
  const uint32_t again = group.revive(2);
  for (uint32_t i : {0, 1}) group.meet(i, again);
  group.kill(again);
  group.lose(1, again);  // the notice of the death record comes too
  group.enter(0);
  group.settle({0});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.settle({1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
}

// Worker 2 reported to worker 1. Then a worker with a lower id joined, and becomes the leader.
// Worker 2 must report to it, although nothing else has changed.
TEST(QuiescenceCoreTest, AJoinerThatLeadsHearsWhatOthersHadSaid) {
  Group group(3);
  group.kill(0);
  for (uint32_t i : {1, 2}) group.enter(i);
  const uint32_t again = group.revive(0);
  group.hold(2, again);  // the agent knows it a moment before
  group.settle({2});
  for (uint32_t i : {1, 2}) group.meet(i, again);
  group.enter(again);
  group.settle({1, 2, again});
  for (uint32_t i : {1u, 2u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Each worker meets the new incarnation, and loses the earlier one, at a random step.
TEST(QuiescenceCoreTest, AWorkerMayBeRestartedAtAnyStep) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Group group(4);
    const uint32_t dead = random() % 4;
    std::vector<uint32_t> live;
    for (uint32_t i = 0; i < 4; ++i) {
      if (i == dead) continue;
      live.push_back(i);
      group.count_sent(i, dead);
    }
    const auto some_steps = [&] {
      for (uint32_t n = random() % 6; n > 0; --n) {
        for (uint32_t m = random() % 4; m > 0; --m) group.deliver_one();
        group.idle(live[random() % live.size()]);
      }
    };
    std::vector<uint32_t> enter = live;
    std::shuffle(enter.begin(), enter.end(), random);
    group.enter(enter[0], 1h);
    some_steps();
    group.stop(dead, random() % 2 == 0);
    const uint32_t again = group.revive(dead);
    enter.push_back(again);
    std::vector<uint32_t> meet = live, lose = live;
    live.push_back(again);
    while (!meet.empty() || !lose.empty()) {
      auto& happens = !meet.empty() && (lose.empty() || random() % 2 == 0) ? meet : lose;
      const size_t which = random() % happens.size();
      const uint32_t i = happens[which];
      if (&happens == &meet) {
        group.meet(i, again);
      } else if (std::find(meet.begin(), meet.end(), i) != meet.end()) {
        continue;  // it loses the earlier one only after it met the new one
      } else {
        group.lose(i, dead);
      }
      happens.erase(happens.begin() + static_cast<ptrdiff_t>(which));
      some_steps();
      for (uint32_t j : live)
        ASSERT_EQ(group.stage(j), j == enter[0] ? Stage::kCalls : Stage::kOpen);
    }
    for (uint32_t i : enter) {
      group.enter(i, 1h);
      some_steps();
    }
    group.settle(live);
    for (uint32_t i : live) ASSERT_EQ(group.stage(i), Stage::kDropping) << i << ", run " << run;
  }
}

}  // namespace
}  // namespace weft
