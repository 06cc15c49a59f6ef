// How an agent dials again, on a clock that the test moves.
#include <functional>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/async/executor.h"
#include "weft/rpc/session/agent.h"
#include "weft/tests/support/scripted_transport.h"

namespace weft::testing {
namespace {

using rpc_internal::Agent;
using rpc_internal::AgentOptions;
using rpc_internal::Topic;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

class AgentDialling : public ::testing::Test {
 protected:
  AgentDialling() {
    AgentOptions options;
    options.group = "test";
    options.self = {me_, "w1", "script:1"};
    agent_ = std::make_unique<Agent>(options, transport_, clock_, executor_);
    EXPECT_TRUE(agent_->start({{peer_, "w0", "script:0"}, {me_, "w1", "script:1"}}).ok());
  }
  void lose(const ConnectionPtr& connection) {
    transport_.sink().on_closed(connection, absl::UnavailableError("reset"));
  }
  // Returns how long the agent waits before it dials.
  milliseconds pause() {
    milliseconds waited{0};
    for (; transport_.dials() == 0 && waited < milliseconds(5000); ++waited) {
      clock_.advance(milliseconds(1));
    }
    return waited;
  }
  // Looks every 200 ms, as membership does, until the connection is cut. Calls `between` before
  // each look.
  milliseconds until_cut(const ScriptedConnectionPtr& connection,
                         const std::function<void()>& between) {
    const TimePoint start = clock_.now();
    while (connection->aborted.ok() && clock_.now() - start < std::chrono::minutes(5)) {
      clock_.advance(milliseconds(200));
      between();
      (void)agent_->look_at_peers();
    }
    return std::chrono::duration_cast<milliseconds>(clock_.now() - start);
  }
  TimePoint heard() { return agent_->look_at_peers().at(0).heard; }
  void acknowledge(const ConnectionPtr& connection, uint64_t sequence) {
    Frame ack;
    ack.header.kind = FrameKind::kAck;
    ack.header.source = peer_;
    ack.header.destination = me_;
    ack.header.acknowledged = sequence;
    transport_.deliver(connection, std::move(ack));
  }

  const WorkerId peer_{0, 1};
  const WorkerId me_{1, 1};
  ManualClock clock_;
  ManualExecutor executor_;
  ScriptedTransport transport_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentDialling, ConnectionsThatCarryNothingAreMadeAtGrowingPauses) {
  ConnectionPtr connection = transport_.answer_dial();
  ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "never acknowledged"));
  std::vector<milliseconds> pauses;
  for (int i = 0; i < 9; ++i) {
    lose(connection);
    pauses.push_back(pause());
    connection = transport_.answer_dial();
  }
  using ms = milliseconds;
  EXPECT_THAT(pauses,
              ElementsAre(ms(0), ms(0), ms(0), ms(0), ms(0), ms(40), ms(80), ms(160), ms(160)));
  // After a connection on which something arrived, the agent dials at once.
  acknowledge(connection, 1);
  ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "the next"));
  lose(connection);
  (void)pause();
  connection = transport_.answer_dial();
  lose(connection);
  EXPECT_EQ(pause(), ms(0));
}

// The oldest frame waits on a hung stream, while another stream carries traffic and the queue
// grows.
TEST_F(AgentDialling, AConnectionOfWhichOneStreamHangsIsCutAndItsFramesAreSentOnTheNext) {
  const ScriptedConnectionPtr hangs = transport_.answer_dial();
  hangs->streams = {{1000, 1000}, {5000, 700}};
  ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "is never acknowledged"));
  (void)agent_->look_at_peers();
  const milliseconds waited = until_cut(hangs, [&] {
    hangs->streams[0].taken += 50;
    hangs->streams[0].written += 50;
    hangs->streams[1].taken += 1000;
    ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "more"));
    acknowledge(hangs, 0);
  });
  EXPECT_GE(waited, milliseconds(30000));
  EXPECT_LE(waited, milliseconds(30400));
  EXPECT_EQ(hangs->closed, 0);  // close() would wait for the hung stream
  lose(hangs);
  const ScriptedConnectionPtr next = transport_.answer_dial();
  EXPECT_EQ(next->sent.size(), hangs->sent.size()) << "an acknowledgement, and all of them again";
}

TEST_F(AgentDialling, AConnectionThatRefusesFramesAndDoesNotEndIsCut) {
  const ScriptedConnectionPtr refuses = transport_.answer_dial();
  refuses->refuses = true;
  EXPECT_EQ(until_cut(refuses, [] {}), std::chrono::minutes(5)) << "nothing was refused";
  ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "refused"));
  EXPECT_EQ(until_cut(refuses, [&] { acknowledge(refuses, 0); }), milliseconds(3000));
  lose(refuses);
  const ScriptedConnectionPtr next = transport_.answer_dial();
  EXPECT_EQ(next->sent.size(), 2u);
  // A connection that closes in time is not cut.
  next->refuses = true;
  ASSERT_TRUE(agent_->post(peer_, Topic::kRRef, "refused again"));
  clock_.advance(milliseconds(2800));
  (void)agent_->look_at_peers();
  lose(next);
  const ScriptedConnectionPtr last = transport_.answer_dial();
  clock_.advance(milliseconds(2800));
  (void)agent_->look_at_peers();
  EXPECT_TRUE(next->aborted.ok());
  EXPECT_TRUE(last->aborted.ok());
}

TEST_F(AgentDialling, TheConnectionInUseMakesTheCopies) {
  std::byte content[4] = {};
  EXPECT_FALSE(agent_->copy_payload(peer_, content, 4).has_value()) << "not connected yet";
  const ScriptedConnectionPtr connection = transport_.answer_dial();
  connection->copy = Payload{content, 4, nullptr};
  EXPECT_EQ(agent_->copy_payload(peer_, content, 4)->data, content);
  EXPECT_FALSE(agent_->copy_payload({7, 1}, content, 4).has_value()) << "nobody";
  agent_->declare_dead(peer_, absl::UnavailableError("dead"));
  EXPECT_FALSE(agent_->copy_payload(peer_, content, 4).has_value());
}

// The frames may hold memory that other peers could use.
TEST_F(AgentDialling, FramesForADeadPeerAreDropped) {
  const ScriptedConnectionPtr connection = transport_.answer_dial();
  connection->sent.clear();
  const auto tensor = std::make_shared<int>();
  Frame frame;
  frame.payloads.push_back({nullptr, 10000, tensor});
  (void)agent_->call(peer_, std::move(frame), "f", kNever, [](const absl::StatusOr<Frame>&) {});
  ASSERT_EQ(connection->sent.size(), 1u);
  connection->sent.clear();
  EXPECT_EQ(tensor.use_count(), 2) << "the session would send it again";
  agent_->declare_dead(peer_, absl::UnavailableError("dead"));
  EXPECT_EQ(tensor.use_count(), 1);
}

// Both ends have dialled. An answer on the other connection would say nothing about the one with
// the heartbeat.
TEST_F(AgentDialling, AHeartbeatIsAnsweredOnTheConnectionThatBroughtIt) {
  const ScriptedConnectionPtr mine = transport_.answer_dial();
  const auto theirs =
      std::make_shared<ScriptedConnection>(PeerIdentity{"test", "w0", peer_, "script:0"});
  transport_.sink().on_open(theirs);
  const size_t before = mine->sent.size();
  Frame heartbeat;
  heartbeat.header.kind = FrameKind::kHeartbeat;
  heartbeat.header.call = 7;
  heartbeat.header.source = peer_;
  heartbeat.header.destination = me_;
  transport_.deliver(theirs, heartbeat);
  EXPECT_EQ(mine->sent.size(), before);
  ASSERT_EQ(theirs->sent.size(), 1u);
  EXPECT_EQ(theirs->sent[0]->header.call, 7u);
  EXPECT_EQ(theirs->sent[0]->header.flags, kFlagAnswer);
}

// Whichever comes first, the agent goes on dialling: a peer that was killed causes both at once.
TEST_F(AgentDialling, ADialThatFailsBesideAConnectionThatClosesIsMadeAgain) {
  const auto theirs = [&] {
    auto connection =
        std::make_shared<ScriptedConnection>(PeerIdentity{"test", "w0", peer_, "script:0"});
    transport_.sink().on_open(connection);
    return connection;
  };
  ASSERT_EQ(transport_.dials(), 1u);  // that of the start
  lose(theirs());
  EXPECT_EQ(transport_.dials(), 1u) << "two dials at a time";
  transport_.fail_dial(absl::UnavailableError("refused"));
  EXPECT_EQ(pause(), milliseconds(20));

  const ScriptedConnectionPtr connection = theirs();
  transport_.fail_dial(absl::UnavailableError("refused"));
  EXPECT_EQ(transport_.dials(), 0u) << "there is a connection";
  lose(connection);
  EXPECT_EQ(pause(), milliseconds(0));
}

TEST_F(AgentDialling, SilenceIsItsOwnOnlyWhileItHasNoDescriptors) {
  lose(transport_.answer_dial());
  transport_.fail_dial(absl::ResourceExhaustedError("too many open files"));
  clock_.advance(milliseconds(10));
  EXPECT_EQ(heard(), clock_.now());
  // The peer dials and then loses the connection. Now it is the peer that does not answer.
  const auto connection =
      std::make_shared<ScriptedConnection>(PeerIdentity{"test", "w0", peer_, "script:0"});
  ASSERT_TRUE(transport_.sink().on_accept(connection->peer()).ok());
  transport_.sink().on_open(connection);
  const TimePoint opened = clock_.now();
  clock_.advance(milliseconds(500));
  EXPECT_EQ(heard(), opened);
  lose(connection);
  clock_.advance(milliseconds(500));
  ASSERT_EQ(transport_.dials(), 1u);
  EXPECT_EQ(heard(), opened);
}

// A peer that cannot say yet whether it accepts this worker is alive. Only the dial's time limit
// stops the dialling.
TEST_F(AgentDialling, WhoIsToldToDialAgainDoesSoUntilItsTimeIsOver) {
  std::vector<absl::Status> suspected;
  rpc_internal::MembershipHooks hooks;
  hooks.suspect = [&](WorkerId, const absl::Status& why) { suspected.push_back(why); };
  agent_->set_membership(std::move(hooks));
  const TimePoint begun = clock_.now();
  int dials = 0;
  while (suspected.empty() && dials < 10000) {
    ++dials;
    transport_.fail_dial(absl::AbortedError("not compared yet"));
    if (suspected.empty()) clock_.advance(milliseconds(20));
  }
  EXPECT_EQ(clock_.now() - begun, AgentOptions().connect_timeout);
  EXPECT_GT(dials, 100);
  // "No answer" declares nobody dead.
  ASSERT_EQ(suspected.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(suspected[0])) << suspected[0];
  EXPECT_THAT(std::string(suspected[0].message()), ::testing::HasSubstr("not compared yet"));
}

}  // namespace
}  // namespace weft::testing
