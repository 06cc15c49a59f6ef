#include "weft/rpc/internal/quiescence_core.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using internal::MembershipMessages;
using internal::PeerTraffic;
using internal::QuiescenceCore;
using Stage = QuiescenceCore::Stage;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using namespace std::chrono_literals;

WorkerId id(uint32_t index) { return {index, 1}; }

// Cores joined by wires that keep order, and counters that the test moves.
class Group {
 public:
  explicit Group(uint32_t workers) {
    std::vector<WorkerId> members;
    for (uint32_t i = 0; i < workers; ++i) members.push_back(id(i));
    for (uint32_t i = 0; i < workers; ++i) add(id(i), members);
  }

  QuiescenceCore& operator[](uint32_t i) { return nodes_[i].core; }
  Stage stage(uint32_t i) const { return nodes_[i].core.stage(); }
  void advance(Nanoseconds step) { now_ += step; }

  // A second life of this worker, which knows the first lives of the others. Returns its number.
  uint32_t revive(uint32_t worker) {
    std::vector<WorkerId> members;
    for (const Node& node : nodes_) {
      if (node.live && node.self.index != worker) members.push_back(node.self);
    }
    members.push_back({worker, 2});
    add({worker, 2}, members);
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  void hold(uint32_t i, uint32_t newcomer) {
    nodes_[i].holds[nodes_[newcomer].self].peer = nodes_[newcomer].self;
  }
  void meet(uint32_t i, uint32_t newcomer) {
    hold(i, newcomer);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.joined(nodes_[newcomer].self, out);
    });
  }
  // Worker i hears that this one has ended.
  void lose(uint32_t i, uint32_t dead) {
    nodes_[i].holds.erase(nodes_[dead].self);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.gone(nodes_[dead].self, now_, out);
    });
  }

  void enter(uint32_t i, Timeout timeout = {}) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.enter(timeout, now_, out); });
  }
  void drop(uint32_t i) {
    act(i,
        [&](QuiescenceCore& core, MembershipMessages& out) { core.references_dropped(now_, out); });
  }
  void idle(uint32_t i) {
    std::vector<PeerTraffic> traffic;
    for (const auto& [peer, counters] : nodes_[i].holds) traffic.push_back(counters);
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) {
      core.idle(std::move(traffic), now_, out);
    });
  }
  void busy(uint32_t i, const std::string& work) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.busy(work, now_, out); });
  }
  // Whoever was named when the group ended, and by what.
  std::map<WorkerId, std::string> at_work(uint32_t i) {
    std::map<WorkerId, std::string> named;
    for (const auto& each : nodes_[i].core.at_work()) named[each.worker] = each.work;
    return named;
  }
  void tick(uint32_t i) {
    act(i, [&](QuiescenceCore& core, MembershipMessages& out) { core.tick(now_, out); });
  }
  void count_sent(uint32_t from, uint32_t to) { ++nodes_[from].holds.at(nodes_[to].self).sent; }
  void count_received(uint32_t from, uint32_t to) {
    ++nodes_[to].holds.at(nodes_[from].self).received;
  }
  void stop(uint32_t dead, bool loses_messages = true) {
    nodes_[dead].live = false;
    const WorkerId self = nodes_[dead].self;
    if (loses_messages) std::erase_if(wire_, [&](const Sent& s) { return s.from == self; });
  }
  // What it has sent is lost, all others hear of it.
  void kill(uint32_t dead, bool loses_messages = true) {
    stop(dead, loses_messages);
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].live) lose(i, dead);
    }
  }

  bool deliver_one() {
    if (wire_.empty()) return false;
    Sent sent = std::move(wire_.front());
    wire_.pop_front();
    for (uint32_t to = 0; to < nodes_.size(); ++to) {
      if (nodes_[to].self != sent.to || !nodes_[to].live) continue;
      act(to, [&](QuiescenceCore& core, MembershipMessages& out) {
        core.receive(sent.from, sent.post, now_, out);
      });
    }
    return true;
  }
  // Messages flow and idle workers say so, until nothing changes any more.
  void settle(const std::vector<uint32_t>& idle_workers) {
    for (int round = 0; round < 6; ++round) {
      while (deliver_one()) {
      }
      for (uint32_t i : idle_workers) idle(i);
    }
    while (deliver_one()) {
    }
  }

 private:
  struct Node {
    WorkerId self;
    QuiescenceCore core;
    std::map<WorkerId, PeerTraffic> holds;  // those it holds for live, itself included
    bool live = true;
  };
  struct Sent {
    WorkerId from, to;
    wire::MembershipPost post;
  };

  void add(WorkerId self, const std::vector<WorkerId>& members) {
    Node node{self, QuiescenceCore(self, members), {}};
    for (const WorkerId member : members) node.holds[member].peer = member;
    nodes_.push_back(std::move(node));
  }
  template <class Event>
  void act(uint32_t i, const Event& event) {
    MembershipMessages out;
    event(nodes_[i].core, out);
    for (const auto& message : out) wire_.push_back({nodes_[i].self, message.to, message.post});
  }

  std::deque<Node> nodes_;
  std::deque<Sent> wire_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
};

TEST(QuiescenceCoreTest, AGroupOfOneEndsOnceItIsIdleInBothPhases) {
  Group group(1);
  EXPECT_TRUE(group[0].others_entered());
  group.enter(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  group.drop(0);
  EXPECT_EQ(group.stage(0), Stage::kMessages);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_FALSE(group[0].timed_out());
}

TEST(QuiescenceCoreTest, NothingEndsBeforeTheLastLiveWorkerHasEntered) {
  Group group(3);
  group.enter(0);
  group.enter(1);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  EXPECT_TRUE(group[2].others_entered());
  EXPECT_FALSE(group[0].others_entered());
  group.enter(2);
  group.settle({0, 1, 2});
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

TEST(QuiescenceCoreTest, AMessageInFlightHoldsThePhase) {
  Group group(2);
  group.enter(0);
  group.enter(1);
  group.count_sent(1, 0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.count_received(1, 0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
}

TEST(QuiescenceCoreTest, ReportsOfTheFirstPhaseSayNothingAboutTheSecond) {
  Group group(2);
  group.enter(0);
  group.enter(1);
  group.settle({0, 1});
  group.drop(0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kMessages);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
  group.drop(1);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_EQ(group.stage(1), Stage::kEnded);
}

TEST(QuiescenceCoreTest, TheClockStartsWhenTheLastHasEnteredAndTheShortestWishHolds) {
  Group group(3);
  group.enter(0, 10s);
  group.enter(1, 2s);
  group.settle({0, 1});
  group.advance(1h);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.enter(2);
  group.settle({0, 1});  // worker 2 is never idle
  group.advance(2s - 1ns);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.advance(1ns);
  group.tick(0);
  while (group.deliver_one()) {
  }
  group.busy(2, "sings");
  group.settle({0, 1});
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(group.stage(i), Stage::kEnded) << i;
    EXPECT_TRUE(group[i].timed_out()) << i;
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(2), "sings"))) << i;
  }
}

// Worker 1 was idle, and said so, before the call of worker 0 came: what it reported last is no
// reason to leave it out, and that worker 0 waits for it is only half of the truth.
TEST(QuiescenceCoreTest, TheTimeoutNamesAWorkerWhoseWorkBeganAfterItsReport) {
  for (const bool leader_works : {false, true}) {
    const uint32_t caller = leader_works ? 1 : 0, works = leader_works ? 0 : 1;
    Group group(3);
    for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
    while (group.deliver_one()) {
    }
    for (uint32_t i : {works, 2u}) group.idle(i);
    while (group.deliver_one()) {
    }
    group.count_sent(caller, works);
    group.count_received(caller, works);
    group.advance(1s);
    for (uint32_t i = 0; i < 3; ++i) group.tick(i);
    while (group.deliver_one()) {
    }
    EXPECT_FALSE(group[2].timed_out()) << "nobody has said yet what it is at";
    group.busy(works, "serves 'f'");
    group.busy(caller, "waits for 'f'");
    group.idle(2);
    while (group.deliver_one()) {
    }
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(group[i].timed_out()) << i;
      EXPECT_THAT(group.at_work(i), UnorderedElementsAre(Pair(id(works), "serves 'f'"),
                                                         Pair(id(caller), "waits for 'f'")))
          << i;
    }
  }
}

// An idle worker's report that crosses the question is from before it, and answers nothing.
TEST(QuiescenceCoreTest, OnlyWhatFollowsTheQuestionAnswersIt) {
  Group group(2);
  for (uint32_t i = 0; i < 2; ++i) group.enter(i, 1s);
  while (group.deliver_one()) {
  }
  group.advance(1s);
  group.idle(1);
  group.tick(0);
  group.busy(0, "waits for 'f'");
  group.deliver_one();  // the report
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  while (group.deliver_one()) {
  }
  group.busy(1, "serves 'f'");
  while (group.deliver_one()) {
  }
  EXPECT_THAT(group.at_work(0),
              ElementsAre(Pair(id(0), "waits for 'f'"), Pair(id(1), "serves 'f'")));
}

TEST(QuiescenceCoreTest, AWorkerThatDoesNotSayWhatItIsAtIsNamedSoonAfterTheDeadline) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.settle({0, 2});
  group.advance(1s);
  group.tick(0);
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.advance(250ms);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_THAT(group.at_work(0), ElementsAre(Pair(id(1), "does not say what it is at")));
}

TEST(QuiescenceCoreTest, TheTimeoutNamesTheSenderOfAMessageUnderWayIfAllAreIdle) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.count_sent(1, 2);
  group.settle({0, 1, 2});
  group.advance(1s);
  group.tick(0);
  group.settle({0, 1, 2});
  const std::string lost = "is idle, but messages from or to it are under way";
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(1), lost))) << i;
  }
}

// The one who asked has died: the next leader asks anew, and the answer meant for the other counts.
TEST(QuiescenceCoreTest, TheNextLeaderLearnsWhoIsAtWorkToo) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.settle({1});
  group.advance(1s);
  group.tick(0);
  while (group.deliver_one()) {
  }
  group.kill(0);
  group.busy(2, "serves 'f'");
  group.idle(1);
  while (group.deliver_one()) {
  }
  for (uint32_t i : {1, 2})
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(2), "serves 'f'"))) << i;
}

TEST(QuiescenceCoreTest, AnUnansweringLeaderDoesNotHoldUpTheTimeout) {
  Group group(2);
  group.enter(0, 1s);
  group.enter(1, 1s);
  group.settle({1});
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kCalls);  // the leader knows more and gets a moment
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kEnded);
  EXPECT_THAT(group.at_work(1), ElementsAre(Pair(id(0), "does not answer")));
}

TEST(QuiescenceCoreTest, ADeadWorkerIsNotWaitedFor) {
  Group group(3);
  group.enter(0);
  group.enter(2);
  group.count_sent(1, 2);  // never arrives
  group.count_sent(0, 1);
  group.settle({0, 2});
  group.kill(1);
  EXPECT_TRUE(group[0].others_entered());
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(2), Stage::kDropping);
}

TEST(QuiescenceCoreTest, AReportFromBeforeADeathDoesNotCount) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i);
  while (group.deliver_one()) {
  }
  group.idle(2);  // still counts worker 1 among the living
  while (group.deliver_one()) {
  }
  group.kill(1);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
}

TEST(QuiescenceCoreTest, TheNextLeaderCollectsReportsAnew) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i);
  group.settle({1, 2});
  group.kill(0);
  group.settle({1, 2});
  EXPECT_EQ(group.stage(1), Stage::kDropping);
  EXPECT_EQ(group.stage(2), Stage::kDropping);
}

// Worker 2 had not heard of the death when it was idle: what it reported names a life that its new
// leader, the next life of the same worker, has never known.
TEST(QuiescenceCoreTest, ARestartedLeaderDoesNotWaitForItsEarlierLife) {
  Group group(3);
  group.count_sent(2, 0);
  group.stop(0);
  const uint32_t again = group.revive(0);
  for (uint32_t i : {1, 2}) group.meet(i, again);
  group.lose(1, 0);
  for (uint32_t i : {1u, 2u, again}) group.enter(i);
  group.idle(2);
  group.lose(2, 0);
  while (group.deliver_one()) {
  }
  group.settle({1, again});
  EXPECT_EQ(group.stage(again), Stage::kCalls) << "its messages may be under way to worker 2";
  group.settle({2});
  for (uint32_t i : {1u, 2u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// A report about a newcomer may come to the leader before the newcomer itself does.
TEST(QuiescenceCoreTest, AReportThatNamesANewcomerWaitsForIt) {
  Group group(3);
  group.kill(2);
  const uint32_t again = group.revive(2);
  group.meet(1, again);
  for (uint32_t i : {0u, 1u}) group.enter(i);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.meet(0, again);
  group.enter(again);
  group.settle({0, again});  // nothing new of worker 1
  for (uint32_t i : {0u, 1u, again}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// It died again before worker 1 had met it: that one has nothing to say but that.
TEST(QuiescenceCoreTest, ANewcomerThatNotAllHaveMetIsNotWaitedForAfterItsEnd) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  while (group.deliver_one()) {
  }
  group.idle(1);
  while (group.deliver_one()) {
  }
  const uint32_t again = group.revive(2);
  group.meet(0, again);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.kill(again);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
}

// Worker 0 said what it holds before it met the newcomer, and not again before that one's end. Its
// counters are the same as then; that it has left the newcomer out is news.
TEST(QuiescenceCoreTest, ANewcomerThatEndsBeforeTheNextReportIsNotWaitedFor) {
  for (const uint32_t early : {0, 1}) {
    const uint32_t late = 1 - early;
    Group group(3);
    group.kill(2);
    group.enter(early);
    group.idle(early);
    while (group.deliver_one()) {
    }
    const uint32_t again = group.revive(2);
    for (uint32_t i : {0, 1}) group.meet(i, again);
    group.kill(again);
    group.enter(late);
    group.settle({0, 1});
    EXPECT_EQ(group.stage(0), Stage::kDropping) << early;
    EXPECT_EQ(group.stage(1), Stage::kDropping) << early;
  }
}

// Worker 1 has met the newcomer, has heard of its end and has said all that it will. The leader did
// not know then of whom it said nothing.
TEST(QuiescenceCoreTest, ANewcomerWhoseEndWasReportedBeforeTheLeaderMetItIsNotWaitedFor) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  while (group.deliver_one()) {
  }
  const uint32_t again = group.revive(2);
  group.meet(1, again);
  group.stop(again);
  group.lose(1, again);
  group.idle(1);
  while (group.deliver_one()) {
  }
  group.meet(0, again);
  group.lose(0, again);
  group.settle({0, 1});
  for (uint32_t i : {0, 1}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Worker 2 said what it holds before it met the newcomer, which then called it and died.
TEST(QuiescenceCoreTest, AReportFromBeforeItsSenderMetTheDeadOneDoesNotCount) {
  Group group(3);
  group.kill(0);
  group.enter(2);
  const uint32_t again = group.revive(0);
  group.meet(1, again);
  group.idle(2);
  while (group.deliver_one()) {
  }
  group.meet(2, again);
  for (uint32_t i : {1u, again}) group.enter(i);
  while (group.deliver_one()) {
  }
  group.count_sent(again, 2);
  group.stop(again);
  group.lose(1, again);
  group.settle({1});
  EXPECT_EQ(group.stage(1), Stage::kCalls);
  group.lose(2, again);
  group.settle({1, 2});
  for (uint32_t i : {1, 2}) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

// Worker 1 reported before it met the joiner, and the report was under way until the leader had
// heard of the joiner's death. The joiner had called worker 1, which still works.
TEST(QuiescenceCoreTest, AReportThatWasUnderWayBeforeTheLeaderAskedAgainDoesNotCount) {
  for (const bool leader_has_entered : {true, false}) {
    Group group(3);
    group.kill(2);
    if (leader_has_entered) group.enter(0);
    group.enter(1);
    while (group.deliver_one()) {
    }
    group.idle(1);
    const uint32_t again = group.revive(2);
    for (uint32_t i : {0, 1}) group.meet(i, again);
    group.count_sent(again, 1);
    group.count_received(again, 1);
    group.stop(again);
    group.lose(0, again);
    while (group.deliver_one()) {
    }
    group.enter(0);
    group.settle({0});
    EXPECT_EQ(group.stage(0), Stage::kCalls) << leader_has_entered;
    group.lose(1, again);
    group.settle({0, 1});
    for (uint32_t i : {0, 1}) EXPECT_EQ(group.stage(i), Stage::kDropping) << leader_has_entered;
  }
}

// The leader was declared dead, which neither it nor worker 1 has heard; a joiner has, and so it
// did not meet the leader.
TEST(QuiescenceCoreTest, APhaseDoesNotEndBeforeAJoinerThatItsLeaderDoesNotKnowHasEntered) {
  Group group(3);
  group.kill(2);
  for (uint32_t i : {0, 1}) group.enter(i);
  while (group.deliver_one()) {
  }
  group.idle(1);
  while (group.deliver_one()) {
  }
  const uint32_t again = group.revive(2);
  group.lose(again, 0);
  group.meet(1, again);
  group.idle(0);
  ASSERT_EQ(group.stage(0), Stage::kDropping);
  while (group.deliver_one()) {
  }
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
    post.mutable_report()->set_round(version == 0 ? 0 : 1);  // of the leader, after a death
    for (const WorkerId peer : holds) {
      post.mutable_report()->add_counters()->set_worker(peer.bits());
    }
    leader.receive(id(1), post, now, out);
  };
  const WorkerId newcomer{2, 2}, earlier{2, 1};
  leader.joined(earlier, out);
  leader.enter({}, now, out);
  leader.gone(earlier, now, out);
  say(0, {});
  say(3, {id(0), id(1), newcomer});
  say(2, {id(0), id(1), earlier});
  leader.joined(newcomer, out);
  wire::MembershipPost post;
  post.mutable_report()->set_phase(1);
  leader.receive(newcomer, post, now, out);
  post.mutable_report()->set_version(1);
  post.mutable_report()->set_round(1);
  leader.receive(newcomer, post, now, out);
  leader.idle({{id(0)}, {id(1)}, {newcomer}}, now, out);
  EXPECT_EQ(leader.stage(), Stage::kDropping);
}

// Worker 1 was idle before the newcomer called it, and works now: hearing of the caller's death, it
// has nothing to say until it is idle again.
TEST(QuiescenceCoreTest, TheEndOfANewcomerDoesNotMakeAWorkerIdle) {
  Group group(3);
  group.kill(2);
  group.enter(1);
  group.idle(1);
  while (group.deliver_one()) {
  }
  const uint32_t again = group.revive(2);
  for (uint32_t i : {0, 1}) group.meet(i, again);
  group.kill(again);
  group.lose(1, again);  // the verdict's notice comes as well
  group.enter(0);
  group.settle({0});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.settle({1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
}

// Worker 2 reported to worker 1, then a lower one came: that one has to hear it, though nothing
// else has changed.
TEST(QuiescenceCoreTest, ANewcomerThatLeadsHearsWhatOthersHadSaid) {
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

// Everyone meets the new life and loses the earlier one when it happens to.
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
        continue;  // it condemns the earlier life, or hears of it, once it has met the new one
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

// Whatever a leader managed to say before it died, the rest end together.
TEST(QuiescenceCoreTest, ALeaderMayDieAtAnyStep) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Group group(4);
    for (uint32_t i = 0; i < 4; ++i) group.enter(i, 1h);
    const auto step = [&] {
      for (uint32_t n = random() % 6; n > 0; --n) group.deliver_one();
      const uint32_t i = random() % 4;
      group.idle(i);
      if (group.stage(i) == Stage::kDropping) group.drop(i);
    };
    for (uint32_t n = random() % 40; n > 0; --n) step();
    group.kill(0, random() % 2 == 0);
    for (uint32_t round = 0; round < 4; ++round) {
      group.settle({1, 2, 3});
      for (uint32_t i = 1; i < 4; ++i) group.drop(i);
    }
    for (uint32_t i = 1; i < 4; ++i) {
      ASSERT_EQ(group.stage(i), Stage::kEnded) << "worker " << i << ", run " << run;
      ASSERT_FALSE(group[i].timed_out());
    }
  }
}

// Messages wake workers that had reported; no worker may leave phase 1 while one is under way.
TEST(QuiescenceCoreTest, NoPhaseEndsWhileWorkIsLeft) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Group group(4);
    std::deque<std::pair<uint32_t, uint32_t>> work;
    int left = 30;
    const auto send = [&](uint32_t from, uint32_t to) {
      group.count_sent(from, to);
      work.emplace_back(from, to);
      --left;
    };
    send(0, 1);
    send(2, 3);
    for (uint32_t i = 0; i < 4; ++i) group.enter(i);
    while (!work.empty()) {
      for (uint32_t n = random() % 4; n > 0; --n) group.deliver_one();
      group.idle(random() % 4);
      for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(group.stage(i), Stage::kCalls) << "run " << run;
      if (random() % 2 == 0) {
        std::swap(work.front(), work[random() % work.size()]);
        const auto [from, to] = work.front();
        work.pop_front();
        group.count_received(from, to);
        while (left > 0 && random() % 3 != 0) send(to, random() % 4);
      }
    }
    group.settle({0, 1, 2, 3});
    for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(group.stage(i), Stage::kDropping) << "run " << run;
  }
}

}  // namespace
}  // namespace weft
