#include "weft/rpc/session/agent.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/tests/support/agent_world.h"

namespace weft {
namespace {

using rpc_internal::IncomingCall;
using rpc_internal::Topic;
using testing::AgentWorld;
using ::testing::ElementsAre;
using testing::frame_of;
using ::testing::HasSubstr;
using testing::TransportKind;

class AgentTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  // Every worker answers with what it got.
  void echo(AgentWorld& world, size_t workers) {
    for (size_t i = 0; i < workers; ++i) {
      world.agent(i).set_call_handler([&world, i](const std::shared_ptr<IncomingCall>& call) {
        world.executor(i).schedule([call] {
          call->taken();
          Frame reply;
          reply.body = call->frame().body;
          reply.payloads = call->frame().payloads;
          call->reply(std::move(reply));
        });
      });
    }
  }
};

TEST_P(AgentTest, AnswersCallsWithBodyAndPayload) {
  AgentWorld world(GetParam(), 2);
  echo(world, 2);
  world.start();
  for (size_t size : {size_t{0}, size_t{1}, size_t{40000}, size_t{3} << 20, size_t{20} << 20}) {
    Frame sent = frame_of("hello", size);
    Future<Frame> future = world.call(0, 1, sent);
    const Frame& reply = future.wait();
    EXPECT_EQ(reply.body, "hello");
    ASSERT_EQ(reply.payloads.size(), sent.payloads.size());
    if (size > 0) {
      ASSERT_EQ(reply.payloads[0].size, size);
      EXPECT_NE(reply.payloads[0].data, sent.payloads[0].data);
      EXPECT_EQ(std::memcmp(reply.payloads[0].data, sent.payloads[0].data, size), 0);
    }
  }
}

TEST_P(AgentTest, AnswersCallsToItself) {
  AgentWorld world(GetParam(), 1);
  echo(world, 1);
  world.start();
  EXPECT_EQ(world.call(0, 0, frame_of("self", 100000)).wait().payloads[0].size, 100000u);
}

// Who posed as the worker itself would have all its rights.
TEST_P(AgentTest, NobodyMayDialAsTheWorkerItself) {
  AgentWorld world(GetParam(), 2);
  world.start();
  const PeerIdentity itself{"test", world.name(0), world.id(0)};
  const absl::Status refused = world.agent(0).on_accept(itself);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_EQ(world.agent(1).on_accept(itself), absl::OkStatus());
}

TEST_P(AgentTest, ManyCallsInFlightAllComeBack) {
  AgentWorld world(GetParam(), 3);
  echo(world, 3);
  world.start();
  std::vector<Future<Frame>> futures;
  for (int i = 0; i < 3000; ++i) {
    futures.push_back(
        world.call(i % 3, (i + 1) % 3, frame_of(std::to_string(i), i % 7 == 0 ? 5000 : 0)));
  }
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(futures[i].wait().body, std::to_string(i));
}

TEST_P(AgentTest, PostsArriveExactlyOnce) {
  AgentWorld world(GetParam(), 2);
  Mutex mutex;
  CondVar arrived;
  std::multiset<std::string> bodies;
  world.agent(1).set_post_handler(Topic::kRRef, [&](WorkerId, Frame frame) {
    MutexLock lock(mutex);
    bodies.insert(frame.body);
    arrived.notify_all();
  });
  world.start();
  for (int i = 0; i < 500; ++i)
    EXPECT_TRUE(world.agent(0).post(world.id(1), Topic::kRRef, std::to_string(i)));
  MutexLock lock(mutex);
  while (bodies.size() < 500) arrived.wait(mutex);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(bodies.count(std::to_string(i)), 1u);
}

TEST_P(AgentTest, ErrorsKeepCodeTextRanAndWorker) {
  AgentWorld world(GetParam(), 2);
  world.agent(1).set_call_handler([](const std::shared_ptr<IncomingCall>& call) {
    call->reply(with_ran(absl::UnknownError("boom"), Ran::kYes));
  });
  world.start();
  Future<Frame> future = world.call(0, 1, frame_of(""));
  const Frame& reply = future.wait();
  EXPECT_EQ(reply.header.flags & kFlagError, kFlagError);
}

TEST_P(AgentTest, ACallPastItsDeadlineFailsAndTheCalleeIsTold) {
  AgentWorld world(GetParam(), 2);
  Promise<void> told;
  Future<void> heard = told.future();
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    call->context()->on_explicit_cancel([&] { told.set_value(); });
  });
  world.start();
  Future<Frame> future = world.call(0, 1, frame_of(""), std::chrono::milliseconds(50));
  const absl::Status status = future.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ran_of(status), Ran::kMaybe);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'w1'"));
  EXPECT_TRUE(heard.wait_for(std::chrono::seconds(20)));
}

TEST_P(AgentTest, ACallThatIsLateAlreadyIsNotSent) {
  AgentWorld world(GetParam(), 2);
  world.agent(1).set_call_handler([](const std::shared_ptr<IncomingCall>&) { FAIL(); });
  world.start();
  Promise<Frame> promise;
  Future<Frame> future = promise.future();
  world.agent(0).call(world.id(1), frame_of("late"), "test", world.clock().now() - Nanoseconds(179),
                      [&promise](absl::StatusOr<Frame> reply) { promise.set(std::move(reply)); });
  EXPECT_TRUE(future.done()) << "nothing is waited for";
  const absl::Status& status = future.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ran_of(status), Ran::kNo);
  EXPECT_EQ(std::string(status.message()),
            "call to 'test' on worker 'w1' was not sent: its deadline had passed already");
}

TEST_P(AgentTest, CancelReachesTheCallee) {
  AgentWorld world(GetParam(), 2);
  Promise<void> cancelled;
  Future<void> seen = cancelled.future();
  Promise<void> arrived;
  Future<void> there = arrived.future();
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    call->context()->on_cancel([&] { cancelled.set_value(); });
    arrived.set_value();
  });
  world.start();
  Future<Frame> future = world.call(0, 1, frame_of(""));
  there.wait();
  world.agent(0).cancel(world.id(1), world.last_call());
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(seen.wait_for(std::chrono::seconds(20)));
}

TEST_P(AgentTest, TheDeathOfAWorkerFailsItsCallsWithItsName) {
  AgentWorld world(GetParam(), 3);
  Promise<void> arrived;
  Future<void> there = arrived.future();
  world.agent(1).set_call_handler(
      [&](const std::shared_ptr<IncomingCall>&) { arrived.set_value(); });
  Promise<WorkerId> gone;
  Future<WorkerId> heard = gone.future();
  world.agent(0).add_gone_listener([&](WorkerId peer, const absl::Status&, bool left) {
    EXPECT_FALSE(left);
    gone.set(peer);
  });
  world.start();
  Future<Frame> future = world.call(0, 1, frame_of(""), absl::InfiniteDuration());
  there.wait();
  world.kill(1);
  const absl::Status status = future.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ran_of(status), Ran::kMaybe);
  EXPECT_EQ(worker_of(status), "w1");
  EXPECT_EQ(heard.wait(), world.id(1));
  const absl::Status later = world.call(0, 1, frame_of("")).result().status();
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ran_of(later), Ran::kNo);
}

// The dead member would have dialled this worker. Nobody calls it, and nothing is sent to it.
TEST_P(AgentTest, AMemberThatDiedBeforeItDialledIsMissedAllTheSame) {
  AgentWorld world(GetParam(), 2, {}, std::chrono::milliseconds(50));
  Promise<WorkerId> gone;
  Future<WorkerId> heard = gone.future();
  world.agent(0).add_gone_listener(
      [&](WorkerId peer, const absl::Status&, bool) { gone.set(peer); });
  world.kill(1);
  ASSERT_TRUE(
      world.agent(0)
          .start({{world.id(0), "w0", world.address(0)}, {world.id(1), "w1", world.address(1)}})
          .ok());
  ASSERT_TRUE(heard.wait_for(std::chrono::seconds(20)));
  EXPECT_EQ(heard.wait(), world.id(1));
}

TEST_P(AgentTest, CreditBoundsWhatIsSentAheadOfASlowCallee) {
  rpc_internal::CreditWindow credit;
  credit.calls = 4;
  credit.max_queued_calls = 8;
  AgentWorld world(GetParam(), 2, credit);
  Mutex mutex;
  CondVar changed;
  std::vector<std::shared_ptr<IncomingCall>> held;
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    MutexLock lock(mutex);
    held.push_back(call);
    changed.notify_all();
  });
  world.start();
  std::vector<Future<Frame>> futures;
  for (int i = 0; i < 13; ++i) futures.push_back(world.call(0, 1, frame_of("")));
  // 4 are sent, 8 queued, and the 13th is refused.
  const absl::Status refused = futures.back().result().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ran_of(refused), Ran::kNo);
  size_t answered = 0;
  MutexLock lock(mutex);
  while (answered < 12) {
    while (held.empty()) changed.wait(mutex);
    EXPECT_LE(held.size(), 4u);
    EXPECT_LE(world.agent(1).info().running_calls, 4u);
    std::shared_ptr<IncomingCall> call = held.back();
    held.pop_back();
    ++answered;
    mutex.unlock();
    call->reply(Frame());
    mutex.lock();
  }
}

TEST_P(AgentTest, LeavesInGoodOrder) {
  AgentWorld world(GetParam(), 2);
  echo(world, 2);
  Promise<bool> gone;
  Future<bool> heard = gone.future();
  world.agent(0).add_gone_listener(
      [&](WorkerId, const absl::Status&, bool left) { gone.set(left); });
  world.start();
  world.call(0, 1, frame_of("")).wait();
  world.agent(1).stop();
  EXPECT_TRUE(heard.wait());
}

// Others speak of a worker that this one has not met. Posts to that worker wait.
TEST_P(AgentTest, PostsToAnUnknownWaitUntilItIsKnown) {
  AgentWorld world(GetParam(), 2);
  Mutex mutex;
  CondVar arrived;
  std::multiset<std::string> bodies;
  world.agent(1).set_post_handler(Topic::kRRef, [&](WorkerId, Frame frame) {
    MutexLock lock(mutex);
    bodies.insert(frame.body);
    arrived.notify_all();
  });
  rpc_internal::Agent& agent = world.agent(0);
  const WorkerInfo& late = world.agent(1).self();
  std::vector<WorkerId> unknown, gone;
  rpc_internal::MembershipHooks hooks;
  hooks.unknown = [&](WorkerId worker) { unknown.push_back(worker); };
  agent.set_membership(hooks);
  agent.add_gone_listener([&](WorkerId peer, const absl::Status&, bool) { gone.push_back(peer); });
  ASSERT_TRUE(agent.start({agent.self()}).ok());
  const WorkerId never{9, 9};
  for (const char* body : {"one", "two"}) {
    EXPECT_TRUE(agent.post(late.id, Topic::kRRef, body));
    EXPECT_TRUE(agent.post(never, Topic::kRRef, body));
  }
  EXPECT_THAT(unknown, ElementsAre(late.id, never, late.id, never));
  EXPECT_FALSE(agent.quiescent());
  agent.declare_dead(never, absl::UnavailableError("is not in the group"));
  EXPECT_THAT(gone, ElementsAre(never));

  agent.add_member(late);
  EXPECT_TRUE(agent.quiescent());
  world.start(1);
  agent.reach(late.id);
  {
    MutexLock lock(mutex);
    while (bodies.size() < 2) arrived.wait(mutex);
    EXPECT_EQ(bodies, (std::multiset<std::string>{"one", "two"}));
  }
  world.stop_agents();
}

TEST_P(AgentTest, MorePostsThanAreKeptForAnUnknownAreItsEnd) {
  AgentWorld world(GetParam(), 1);
  rpc_internal::Agent& agent = world.agent(0);
  std::vector<absl::Status> gone;
  rpc_internal::MembershipHooks hooks;
  hooks.unknown = [](WorkerId) {};
  hooks.give_up = [&](WorkerId unknown, const absl::Status& why) {
    agent.declare_dead(unknown, why);
  };
  agent.set_membership(hooks);
  agent.add_gone_listener(
      [&](WorkerId, const absl::Status& reason, bool) { gone.push_back(reason); });
  world.start();
  while (gone.empty() && agent.post({9, 9}, Topic::kRRef, "x")) {
  }
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_THAT(std::string(gone[0].message()), HasSubstr("4096 posts"));
  EXPECT_TRUE(agent.quiescent());
  world.stop_agents();
}

// It loses all its peers one after the other. A call to the first fails, and its callback calls the
// second.
TEST_P(AgentTest, WhoIsFencedCallsNobodyAnyMore) {
  AgentWorld world(GetParam(), 3);
  Promise<void> arrived;
  std::shared_ptr<IncomingCall> unanswered;
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    unanswered = call;
    arrived.set_value();
  });
  std::atomic<int> ran{0};
  world.agent(2).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    ++ran;
    call->reply(Frame());
  });
  world.start();
  EXPECT_TRUE(world.call(0, 2, frame_of("")).result().ok());
  Promise<void> next;
  world.agent(0).call(world.id(1), frame_of(""), "test", kNever, [&](const absl::StatusOr<Frame>&) {
    world.agent(0).call(
        world.id(2), frame_of(""), "test", kNever,
        [&](const absl::StatusOr<Frame>& reply) { next.set_error(reply.status()); });
  });
  arrived.future().wait();
  world.agent(0).fence(absl::UnavailableError("declared dead"));
  const absl::Status status = next.future().result().status();
  EXPECT_EQ(ran_of(status), Ran::kNo) << status;
  EXPECT_EQ(ran, 1);
}

INSTANTIATE_TEST_SUITE_P(Transports, AgentTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return testing::to_string(info.param); });

TEST(AgentSessionTest, OfResultsThatALostConnectionTookTheOldestAreDataLoss) {
  rpc_internal::CreditWindow credit;
  credit.max_result_bytes = size_t{1} << 20;
  AgentWorld world(TransportKind::kInproc, 2, credit);
  std::atomic<int> replied{0};
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    call->reply(frame_of(std::string(size_t{400} << 10, 'r')));
    ++replied;
  });
  world.start();
  // Calls that wait for the first connection may be overtaken. From here on calls arrive in order.
  world.call(0, 1, frame_of("")).wait();
  world.network().set_filter([](const FrameHeader& header) {
    return header.kind == FrameKind::kReply ? InprocNetwork::Fate::kDrop
                                            : InprocNetwork::Fate::kDeliver;
  });
  std::vector<Future<Frame>> futures;
  for (int i = 0; i < 5; ++i) futures.push_back(world.call(0, 1, frame_of("")));
  while (replied < 6) std::this_thread::yield();
  EXPECT_LE(world.agent(1).info().retained_bytes, credit.max_result_bytes);
  world.network().set_filter(nullptr);
  world.network().sever(world.address(0), world.address(1));
  for (int i = 0; i < 5; ++i) {
    const Frame& reply = futures[i].wait();
    EXPECT_EQ((reply.header.flags & kFlagError) != 0, i < 3) << i;
    EXPECT_EQ(reply.body.size(), i < 3 ? 0 : size_t{400} << 10) << i;
  }
}

TEST(AgentSessionTest, DuplicatedAndSeveredFramesRunOnce) {
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() != 0
                            ? ::testing::UnitTest::GetInstance()->random_seed()
                            : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::atomic<uint64_t> counter{seed};
  Mutex mutex;
  std::multiset<std::string> ran;
  AgentWorld world(TransportKind::kInproc, 2);  // last: it sends and receives until it is destroyed
  world.agent(1).set_call_handler([&](const std::shared_ptr<IncomingCall>& call) {
    {
      MutexLock lock(mutex);
      ran.insert(call->frame().body);
    }
    call->reply(frame_of(call->frame().body));
  });
  world.start();
  world.network().set_filter([&](const FrameHeader&) {
    return counter.fetch_add(1) % 3 == 0 ? InprocNetwork::Fate::kDuplicate
                                         : InprocNetwork::Fate::kDeliver;
  });
  std::mt19937_64 random(seed);
  std::vector<Future<Frame>> futures;
  for (int i = 0; i < 2000; ++i) {
    futures.push_back(world.call(0, 1, frame_of(std::to_string(i))));
    if (random() % 100 == 0) world.network().sever(world.address(0), world.address(1));
  }
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(futures[i].wait().body, std::to_string(i));
  MutexLock lock(mutex);
  EXPECT_EQ(ran.size(), 2000u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(ran.count(std::to_string(i)), 1u) << i;
}

}  // namespace
}  // namespace weft
