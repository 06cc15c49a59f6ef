// One worker's membership, with a test that speaks for its peers.
//
// The tests make orders of events that a real group shows once in a million joins.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "weft/async/executor.h"
#include "weft/base/status.h"
#include "weft/rpc/membership/membership.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/tests/support/fake_proc.h"
#include "weft/tests/support/scripted_transport.h"

namespace weft::testing {
namespace {

using rpc_internal::Agent;
using rpc_internal::AgentOptions;
using rpc_internal::Membership;
using rpc_internal::Quiescence;
using rpc_internal::Topic;
using std::chrono::milliseconds;

class MembershipDriver : public ::testing::Test {
 protected:
  // Starts this worker, and with two workers `peer_` as a member.
  void start(size_t workers) {
    std::vector<WorkerInfo> members{{me_, "w0", "script:0"}, {peer_, "w1", "script:1"}};
    members.resize(workers);
    AgentOptions options;
    options.group = "test";
    options.self = members[0];
    options.connect_timeout = connect_timeout_;
    agent_ = std::make_unique<Agent>(options, transport_, clock_, executor_);
    quiescence_ = std::make_unique<Quiescence>(*agent_, executor_, clock_, members);
    quiescence_->attach();
    membership_ = std::make_unique<Membership>(*agent_, *quiescence_, clock_,
                                               std::make_shared<DeathRecords>(store_, "test", 0),
                                               store_thread_, options_);
    membership_->attach(members, false);
    ASSERT_TRUE(agent_->start(members).ok());
    membership_->start({});
  }
  // The same with `peer_` and a connection to it.
  ScriptedConnectionPtr start_connected() {
    start(2);
    const ScriptedConnectionPtr peer = connection();
    transport_.sink().on_open(peer);
    return peer;
  }
  ~MembershipDriver() override {
    agent_->stop();
    membership_->stop();
    quiescence_->stop();
  }
  ScriptedConnectionPtr connection() const {
    return std::make_shared<ScriptedConnection>(PeerIdentity{"test", "w1", peer_, "script:1"});
  }
  size_t death_records() const { return DeathRecords(store_, "test", 0).read()->size(); }
  void say(const ConnectionPtr& connection, const wire::MembershipPost& post) {
    Frame frame;
    frame.header.kind = FrameKind::kPost;
    frame.header.function = static_cast<uint64_t>(Topic::kMembership);
    frame.header.source = peer_;
    frame.header.destination = me_;
    frame.header.sequence = ++said_;
    frame.body = post.SerializeAsString();
    transport_.deliver(connection, std::move(frame));
  }
  // A frame that shows only that the peer lives.
  void say_welcome(const ConnectionPtr& connection) {
    wire::MembershipPost welcome;
    welcome.mutable_welcome();
    say(connection, welcome);
  }

  // The peer's answer to this worker's newest heartbeat, or to the one `before` heartbeats earlier.
  void answer_heartbeat(const ScriptedConnectionPtr& connection, const std::string& said = "",
                        uint64_t before = 0) {
    uint64_t newest = 0;
    for (const FramePtr& frame : connection->sent) {
      if (frame->header.kind == FrameKind::kHeartbeat) newest = frame->header.call;
    }
    ASSERT_GT(newest, before);
    Frame answer;
    answer.header.kind = FrameKind::kHeartbeat;
    answer.header.flags = kFlagAnswer;
    answer.header.call = newest - before;
    answer.body = said;
    answer.header.source = peer_;
    answer.header.destination = me_;
    transport_.deliver(connection, std::move(answer));
  }
  static size_t calls_on(const ScriptedConnectionPtr& connection) {
    return std::count_if(
        connection->sent.begin(), connection->sent.end(),
        [](const FramePtr& frame) { return frame->header.kind == FrameKind::kCall; });
  }
  std::shared_ptr<absl::Status> call() {
    auto result = std::make_shared<absl::Status>();
    agent_->call(peer_, Frame(), "f", kNever,
                 [result](const absl::StatusOr<Frame>& reply) { *result = reply.status(); });
    return result;
  }

  static Membership::Options empty_records() {
    Membership::Options options;
    options.find_incarnation = [](WorkerId) { return std::optional<WorkerInfo>(); };
    return options;
  }

  FakeProc proc_;
  milliseconds connect_timeout_{100};
  Membership::Options options_ = empty_records();
  WorkerId me_{0, 1};
  const WorkerId peer_{1, 1};
  ManualClock clock_;
  ManualExecutor executor_;
  ManualExecutor store_thread_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  ScriptedTransport transport_;
  uint64_t said_ = 0;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Quiescence> quiescence_;
  std::unique_ptr<Membership> membership_;
};

// The joiner's second connection is faster than its first.
TEST_F(MembershipDriver, HearsThatAJoinerWantsToEndBeforeItsFirstConnectionStands) {
  start(1);
  const Future<void> drained = quiescence_->calls_drained();
  quiescence_->enter(std::chrono::seconds(30));
  const ScriptedConnectionPtr first = connection(), second = connection();
  ASSERT_TRUE(transport_.sink().on_accept(first->peer()).ok());
  ASSERT_TRUE(transport_.sink().on_accept(second->peer()).ok());
  first->on_first_send = [&] {
    transport_.sink().on_open(second);
    wire::MembershipPost entered;
    entered.mutable_report()->set_phase(1);
    say(second, entered);
  };
  transport_.sink().on_open(first);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_FALSE(drained.done());  // the joiner must be idle too
  wire::MembershipPost idle;
  idle.mutable_report()->set_phase(1);
  idle.mutable_report()->set_version(1);
  say(second, idle);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(drained.done());
}

TEST_F(MembershipDriver, CallsWithoutAValidLeaseWaitUntilAHeartbeatIsAnswered) {
  const ScriptedConnectionPtr peer = start_connected();
  const auto first = call();  // without a lease: sent at once
  EXPECT_EQ(calls_on(peer), 1u);
  clock_.advance(milliseconds(200));  // the lease begins
  (void)call();                       // and its heartbeat gets time to be answered
  EXPECT_EQ(calls_on(peer), 2u);
  clock_.advance(milliseconds(200));
  const TimePoint sent = clock_.now();
  answer_heartbeat(peer);
  clock_.advance(milliseconds(1399));
  (void)call();
  EXPECT_EQ(calls_on(peer), 3u);
  clock_.advance(sent + milliseconds(1400) - clock_.now());
  const auto held = call();
  say_welcome(peer);  // a frame is no answer to a heartbeat
  EXPECT_EQ(calls_on(peer), 3u);
  answer_heartbeat(peer);
  EXPECT_EQ(calls_on(peer), 4u);
}

TEST_F(MembershipDriver, CallsThatWaitedForAValidLeaseHaveNotRunWhenThePeerIsGone) {
  const ScriptedConnectionPtr peer = start_connected();
  const auto sent = call();
  clock_.advance(milliseconds(1700));  // a lease, and no answer
  const auto held = call();
  EXPECT_EQ(calls_on(peer), 1u);
  clock_.advance(milliseconds(600));
  store_thread_.run_all();
  EXPECT_FALSE(agent_->is_live(peer_));
  EXPECT_EQ(ran_of(*sent), Ran::kMaybe) << *sent;
  EXPECT_EQ(ran_of(*held), Ran::kNo) << *held;
}

// Calls would wait for that stream as long as TCP keeps trying.
TEST_F(MembershipDriver, AConnectionWhoseHeartbeatsAreLostWhileTheRestArrivesIsMadeAnew) {
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  for (int i = 0; i < 22; ++i) {  // 1.4 s with a valid lease, 3 s without
    clock_.advance(milliseconds(200));
    EXPECT_TRUE(peer->aborted.ok()) << i;
    say_welcome(peer);
  }
  const auto held = call();
  EXPECT_EQ(calls_on(peer), 1u);
  clock_.advance(milliseconds(400));
  EXPECT_EQ(peer->closed, 0);  // close() would wait for the hung stream
  EXPECT_FALSE(peer->aborted.ok());
  transport_.sink().on_closed(peer, peer->aborted);
  const ScriptedConnectionPtr next = transport_.answer_dial();
  say_welcome(next);
  clock_.advance(milliseconds(200));
  answer_heartbeat(next);
  EXPECT_EQ(calls_on(next), 2u);  // the first call again
  EXPECT_TRUE(agent_->is_live(peer_));
}

// On a host where many workers dial each other at once, a handshake takes seconds. The dial has its
// own time limit.
TEST_F(MembershipDriver, APeerToWhichADialIsUnderWayIsNotSilent) {
  start(2);
  const auto result = call();
  for (int i = 0; i < 40; ++i) clock_.advance(milliseconds(200));
  store_thread_.run_all();
  EXPECT_EQ(death_records(), 0u);
  EXPECT_TRUE(result->ok()) << *result;
  const ScriptedConnectionPtr peer = transport_.answer_dial();
  EXPECT_EQ(calls_on(peer), 1u);
  say_welcome(peer);
  // From now on its silence counts.
  for (int i = 0; i < 11; ++i) clock_.advance(milliseconds(200));
  store_thread_.run_all();
  EXPECT_EQ(ran_of(*result), Ran::kMaybe) << *result;
  EXPECT_EQ(death_records(), 1u);
}

// The far end may learn later than this worker that a connection has opened.
TEST_F(MembershipDriver, APeerThatHasSaidNothingYetHasTheTimeOfADial) {
  connect_timeout_ = std::chrono::seconds(10);
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  for (int i = 0; i < 49; ++i) clock_.advance(milliseconds(200));
  store_thread_.run_all();
  EXPECT_EQ(death_records(), 0u);
  for (int i = 0; i < 11; ++i) clock_.advance(milliseconds(200));
  store_thread_.run_all();
  EXPECT_EQ(death_records(), 1u);
}

// A dial that took its whole time begins a lease. This worker has met nobody, so it declares nobody
// dead: it reads the records after twice the time, and the pair is over.
TEST_F(MembershipDriver, ACallToAPeerThatIsNeverReachedHasNotRun) {
  start(2);
  const auto result = call();
  clock_.advance(connect_timeout_);
  transport_.fail_dial(absl::DeadlineExceededError("no answer"));
  for (int i = 0; i < 40; ++i) {
    clock_.advance(milliseconds(200));
    store_thread_.run_all();
  }
  EXPECT_TRUE(absl::IsUnavailable(*result)) << *result;
  EXPECT_EQ(ran_of(*result), Ran::kNo) << *result;
  EXPECT_EQ(death_records(), 0u);
}

// No dial and no frame of a peer come before a call to oneself.
TEST_F(MembershipDriver, ACallToOneselfThatTheEndCutsOffMayHaveRun) {
  start(1);
  auto result = std::make_shared<absl::Status>();
  agent_->call(me_, Frame(), "f", kNever,
               [result](const absl::StatusOr<Frame>& reply) { *result = reply.status(); });
  agent_->stop();
  EXPECT_FALSE(result->ok());
  EXPECT_EQ(ran_of(*result), Ran::kMaybe) << *result;
}

// A silent peer may be slow. Its connection is kept as long as the peer is not suspected.
TEST_F(MembershipDriver, TheConnectionOfASilentPeerIsKept) {
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  for (int i = 0; i < 8; ++i) {
    for (int silent = 0; silent < 4; ++silent) clock_.advance(milliseconds(200));
    say_welcome(peer);  // 0.2 s of each second are heard
    ASSERT_TRUE(peer->aborted.ok()) << i;
  }
}

// The peer is slow, but its heartbeat stream moves.
TEST_F(MembershipDriver, AConnectionWhoseHeartbeatsAreAnsweredTooLateForTheLeaseIsKept) {
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  for (int i = 0; i < 60; ++i) {
    clock_.advance(milliseconds(200));
    say_welcome(peer);
    if (i > 10) answer_heartbeat(peer, "", 10);  // 2 s after it was sent
    ASSERT_EQ(peer->closed, 0) << i;
  }
}

TEST_F(MembershipDriver, HeartbeatsAndAnswersSayWhichProcessThisIs) {
  options_.processor_waits = std::make_shared<rpc_internal::ProcessorWaits>(proc_.root());
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  clock_.advance(milliseconds(200));
  Frame asked;
  asked.header.kind = FrameKind::kHeartbeat;
  asked.header.call = 1;
  asked.header.source = peer_;
  asked.header.destination = me_;
  transport_.deliver(peer, std::move(asked));
  size_t heartbeats = 0;
  for (const FramePtr& frame : peer->sent) {
    if (frame->header.kind != FrameKind::kHeartbeat) continue;
    ++heartbeats;
    wire::Heartbeat said;
    ASSERT_TRUE(said.ParseFromString(frame->body));
    EXPECT_EQ(said.host(), "boot pid:[1]");
    EXPECT_EQ(said.pid(), 7u);
    EXPECT_EQ(said.started(), 70u);
    EXPECT_EQ(said.lag_us(), 0u);
  }
  EXPECT_EQ(heartbeats, 2u);
}

TEST_F(MembershipDriver, AProcessOfThisMachineThatWaitsForAProcessorIsNotDeclaredDead) {
  options_.processor_waits = std::make_shared<rpc_internal::ProcessorWaits>(proc_.root());
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  clock_.advance(milliseconds(200));
  wire::Heartbeat said;
  said.set_host(proc_.peer().host);
  said.set_pid(proc_.peer().pid);
  said.set_started(proc_.peer().started);
  answer_heartbeat(peer, said.SerializeAsString());
  proc_.thread(81, "weft serving", 'R', milliseconds(1));
  clock_.advance(std::chrono::seconds(20));
  store_thread_.run_all();
  EXPECT_TRUE(agent_->is_live(peer_));
  proc_.thread(81, "weft serving", 'T', milliseconds(1));
  clock_.advance(milliseconds(2400));
  store_thread_.run_all();
  EXPECT_FALSE(agent_->is_live(peer_));
}

// The store runs on some machine of the group, which may be as busy.
TEST_F(MembershipDriver, TheStoreMayTakeLongerWhereAPeerSaysThatItIsLate) {
  const ScriptedConnectionPtr peer = start_connected();
  (void)call();
  clock_.advance(milliseconds(200));
  wire::Heartbeat said;
  said.set_lag_us(1000000);
  answer_heartbeat(peer, said.SerializeAsString());
  clock_.advance(milliseconds(400));
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  clock_.advance(milliseconds(2400));
  EXPECT_TRUE(agent_->is_live(peer_));
  store_thread_.run_all();
  EXPECT_FALSE(agent_->is_live(peer_));
  EXPECT_EQ(death_records(), 1u);
}

TEST_F(MembershipDriver, NobodyHearsOfTheEndOfOneWhoseJoinNobodyHeardOf) {
  std::vector<MemberChange> heard;
  options_.listener = [&](const WorkerInfo&, MemberChange change, const absl::Status&) {
    heard.push_back(change);
  };
  start(1);
  const MemberEvents events = membership_->events();
  const ScriptedConnectionPtr joiner = connection();
  ASSERT_TRUE(transport_.sink().on_accept(joiner->peer()).ok());
  transport_.sink().on_open(joiner);
  EXPECT_TRUE(absl::IsNotFound(membership_->when_gone("w1", milliseconds(1)).result().status()));
  const absl::Status unknown = agent_->resolve("w1").status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_TRUE(absl::EndsWith(unknown.message(), "the group has: w0")) << unknown;
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  store_thread_.run_all();
  EXPECT_FALSE(agent_->is_live(peer_));
  EXPECT_TRUE(heard.empty());
  EXPECT_FALSE(events.next(milliseconds(1)));
}

TEST_F(MembershipDriver, AFencedWorkersStreamsCloseAndItsWaitsFail) {
  const ScriptedConnectionPtr peer = start_connected();
  const MemberEvents read = membership_->events();
  const MemberEvents unread = membership_->events();
  EXPECT_EQ(read.next(milliseconds(1))->change, MemberChange::kJoined);
  const Future<void> gone = membership_->when_gone("w1", absl::InfiniteDuration());
  wire::MembershipPost death;
  death.mutable_death()->set_worker(me_.bits());
  death.mutable_death()->set_by(peer_.bits());
  say(peer, death);
  EXPECT_FALSE(membership_->standing().ok());
  EXPECT_EQ(read.next(milliseconds(1))->change, MemberChange::kDied);
  EXPECT_TRUE(read.closed());
  EXPECT_TRUE(unread.closed());
  EXPECT_TRUE(membership_->events().closed());
  EXPECT_TRUE(absl::IsUnavailable(gone.result().status()));
  EXPECT_EQ(membership_->when_gone("w1", milliseconds(1)).result().status(),
            membership_->standing());
}

// The shutdown leader may have met the dead worker, and waits to hear that this worker never will.
TEST_F(MembershipDriver, SaysThatItHeardOfTheDeathOfOneThatItNeverMet) {
  me_ = {2, 1};
  start(2);
  const ScriptedConnectionPtr leader = connection();
  ASSERT_TRUE(transport_.sink().on_accept(leader->peer()).ok());
  transport_.sink().on_open(leader);
  const auto newest_report = [&] {
    uint64_t newest = 0;
    for (const FramePtr& frame : leader->sent) {
      wire::MembershipPost post;
      if (frame->header.kind != FrameKind::kPost || !post.ParseFromString(frame->body)) continue;
      newest = std::max<uint64_t>(newest, post.report().version());
    }
    return newest;
  };
  quiescence_->enter(std::chrono::seconds(30));
  wire::MembershipPost entered;
  entered.mutable_report()->set_phase(1);
  say(leader, entered);
  clock_.advance(std::chrono::seconds(1));
  const uint64_t before = newest_report();
  EXPECT_GT(before, 0u);
  wire::MembershipPost death;
  death.mutable_death()->set_worker(WorkerId{0, 1}.bits());
  death.mutable_death()->set_by(peer_.bits());
  say(leader, death);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_GT(newest_report(), before);
}

TEST_F(MembershipDriver, AQuestionThatTheStoreThreadReachesInTimeDeclaresDead) {
  start(2);
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  store_thread_.run_all();
  EXPECT_FALSE(agent_->is_live(peer_));
  EXPECT_EQ(death_records(), 1u);
}

TEST_F(MembershipDriver, AQuestionThatItReachesTooLateDeclaresNobodyDead) {
  start(2);
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  clock_.advance(Membership::Options{}.store_timeout);
  EXPECT_FALSE(agent_->is_live(peer_));  // for this worker only
  store_thread_.run_all();
  EXPECT_EQ(death_records(), 0u);
}

// This worker gave up the peer while the store was silent. The death record of this worker came
// later.
TEST_F(MembershipDriver, ReadsOfItsOwnDeathOnceTheStoreAnswersAgain) {
  start(2);
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  clock_.advance(std::chrono::seconds(10));
  EXPECT_FALSE(agent_->is_live(peer_));
  store_thread_.run_all();
  EXPECT_EQ(DeathRecords(store_, "test", 0).declare_dead(peer_, me_, "cannot be reached")->size(),
            1u);
  EXPECT_TRUE(membership_->standing().ok());
  for (int i = 0; i < 1000 && store_thread_.run_all() == 0; ++i) clock_.advance(milliseconds(200));
  EXPECT_FALSE(membership_->standing().ok());
}

TEST_F(MembershipDriver, AStoreThatOwesAnAnswerIsNotAskedAgain) {
  start(2);
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  clock_.advance(std::chrono::hours(1));
  EXPECT_EQ(store_thread_.run_all(), 1u);
}

TEST_F(MembershipDriver, AnUnknownIsNotLookedUpTooLate) {
  int looked_up = 0;
  options_.find_incarnation = [&](WorkerId) -> absl::StatusOr<std::optional<WorkerInfo>> {
    ++looked_up;
    return std::nullopt;
  };
  start(1);
  EXPECT_TRUE(agent_->post({7, 1}, Topic::kRRef, "for somebody"));
  clock_.advance(options_.store_timeout);
  store_thread_.run_all();
  EXPECT_EQ(looked_up, 0);
  EXPECT_TRUE(agent_->post({8, 1}, Topic::kRRef, "for somebody else"));
  store_thread_.run_all();
  EXPECT_EQ(looked_up, 1);
}

// A dialler says that it has replaced `peer_`.
TEST_F(MembershipDriver, AClaimToHaveReplacedAPeerIsDecidedByTheRecordsAlone) {
  const PeerIdentity claimant{"test", "w1", {1, 2}, "script:9"};
  const auto store = std::make_shared<absl::StatusOr<std::optional<WorkerInfo>>>(
      absl::UnavailableError("no store"));
  options_.find_incarnation = [store](WorkerId) { return *store; };
  start(2);
  const auto dial = [&] {
    const absl::Status status = transport_.sink().on_accept(claimant);
    store_thread_.run_all();
    return status.code();
  };
  EXPECT_EQ(dial(), absl::StatusCode::kAborted);
  EXPECT_EQ(dial(), absl::StatusCode::kAborted) << "they could not be read";
  *store = std::optional<WorkerInfo>();
  EXPECT_EQ(dial(), absl::StatusCode::kAborted);
  EXPECT_EQ(dial(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(agent_->is_live(peer_));
  EXPECT_EQ(death_records(), 0u);
  *store = WorkerInfo{{1, 2}, "w1", "script:2"};
  EXPECT_EQ(dial(), absl::StatusCode::kAborted);
  store_thread_.run_all();
  EXPECT_EQ(dial(), absl::StatusCode::kOk);
  EXPECT_EQ(agent_->info_of({1, 2}).address, "script:2") << "as the records have it";
  EXPECT_FALSE(agent_->is_live(peer_));
  EXPECT_EQ(death_records(), 1u);
}

// `peer_` is dead. A dialler says that it has replaced it.
TEST_F(MembershipDriver, TheRecordsAloneDecideWhoComesInThePlaceOfADeadWorker) {
  options_.world_size = 2;
  options_.find_incarnation =
      [](WorkerId incarnation) -> absl::StatusOr<std::optional<WorkerInfo>> {
    if (incarnation != WorkerId{1, 2}) return std::nullopt;
    return WorkerInfo{incarnation, "w1", "script:2"};
  };
  start(2);
  agent_->suspect(peer_, absl::UnavailableError("nobody is there"));
  store_thread_.run_all();
  ASSERT_FALSE(agent_->is_live(peer_));
  const auto dial = [&](const PeerIdentity& claimant) {
    const absl::Status status = transport_.sink().on_accept(claimant);
    store_thread_.run_all();
    return status.code();
  };
  const PeerIdentity unknown{"test", "w1", {1, 4294967295}, "script:9"};
  EXPECT_EQ(dial(unknown), absl::StatusCode::kAborted);
  EXPECT_EQ(dial(unknown), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(agent_->is_live(unknown.id));
  EXPECT_EQ(dial({"test", "w2", {2, 1}, "script:9"}), absl::StatusCode::kPermissionDenied);
  const PeerIdentity next{"test", "w1", {1, 2}, "script:2"};
  EXPECT_EQ(dial(next), absl::StatusCode::kAborted);
  EXPECT_EQ(dial(next), absl::StatusCode::kOk);
  EXPECT_TRUE(agent_->is_live(next.id));
}

TEST_F(MembershipDriver, AReasonFromElsewhereIsPrintableInErrors) {
  const ScriptedConnectionPtr peer = start_connected();
  wire::MembershipPost death;
  death.mutable_death()->set_worker(me_.bits());
  death.mutable_death()->set_by(peer_.bits());
  death.mutable_death()->set_reason("was \x1b[2Jsilent\nweft error: forged" +
                                    std::string(1 << 20, 'x'));
  say(peer, death);
  const std::string standing(membership_->standing().message());
  EXPECT_TRUE(absl::StrContains(standing, "it was \\x1b[2Jsilent\\x0aweft error: forged"))
      << standing.substr(0, 200);
  EXPECT_LT(standing.size(), 2000u);
}

}  // namespace
}  // namespace weft::testing
