// gRPC connections of which one TCP flow hangs: nothing passes, and neither end is told.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/rpc/membership/membership.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/transport/internal/heartbeat_routes.h"
#include "weft/tests/rpc/transport/proxied_transport.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/eventually.h"

namespace weft::testing {
namespace {

using rpc_internal::Agent;
using rpc_internal::AgentOptions;
using rpc_internal::IncomingCall;
using rpc_internal::Membership;
using rpc_internal::Quiescence;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};
constexpr size_t kLarge = size_t{100} << 10;  // travels on the bulk stream

constexpr const char* kSmallPath = "/weft.Worker/Stream";
constexpr const char* kBulkPath = "/weft.Worker/Bulk";
constexpr const char* kHeartbeatPath = "/weft.Worker/Heartbeats";

// ---- Connections only

// One worker's transport, which answers heartbeats as an agent does.
class End final : public TransportSink {
 public:
  End(uint32_t index, Clock& clock, std::shared_ptr<ProxiedNetwork> network)
      : identity{"group", "w" + std::to_string(index), {index, 1}},
        transport(clock, std::move(network)) {
    EXPECT_TRUE(transport.listen().ok());
    EXPECT_TRUE(transport.start(identity, this).ok());
  }
  ~End() override { transport.stop(); }

  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const ConnectionPtr& connection) override {
    MutexLock lock(mutex_);
    accepted_ = connection;
  }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    FrameBatch answers;
    {
      MutexLock lock(mutex_);
      for (const Frame& frame : frames) {
        if (!rpc_internal::is_heartbeat(frame.header)) continue;
        if (rpc_internal::is_answer(frame.header)) {
          answered_ = std::max(answered_, frame.header.call);
          continue;
        }
        if (!answers_) continue;
        answers.push_back(heartbeat(frame.header.call, kFlagAnswer));
      }
    }
    if (!answers.empty()) (void)connection->send(std::move(answers));
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override {
    MutexLock lock(mutex_);
    closed_[connection.get()] = std::move(reason);
  }

  void answer_nothing() {
    MutexLock lock(mutex_);
    answers_ = false;
  }
  static FramePtr heartbeat(uint64_t number, uint8_t flags = 0) {
    Frame frame;
    frame.header.kind = FrameKind::kHeartbeat;
    frame.header.flags = flags;
    frame.header.call = number;
    return std::make_shared<const Frame>(std::move(frame));
  }
  ConnectionPtr dial(End& to) {
    Promise<ConnectionPtr> promise;
    Future<ConnectionPtr> future = promise.future();
    transport.connect(to.transport.address(), to.identity, kNever,
                      [promise = std::move(promise)](absl::StatusOr<ConnectionPtr> result) {
                        promise.set(std::move(result));
                      });
    return future.wait();
  }
  ConnectionPtr accepted() {
    EXPECT_TRUE(eventually([&] {
      MutexLock lock(mutex_);
      return accepted_ != nullptr;
    }));
    MutexLock lock(mutex_);
    return accepted_;
  }
  // Sends heartbeats until `until` holds.
  bool lease_until(const ConnectionPtr& connection, const std::function<bool()>& until) {
    return eventually([&] {
      EXPECT_TRUE(connection->send(heartbeat(++number_)));
      return until();
    });
  }
  // Sends heartbeats until one of these is answered.
  bool is_answered(const ConnectionPtr& connection) {
    const uint64_t before = number_;
    return lease_until(connection, [&] {
      MutexLock lock(mutex_);
      return answered_ > before;
    });
  }
  // The reason with which the connection was closed; nullopt: it still exists.
  std::optional<absl::Status> end_of(const ConnectionPtr& connection) {
    MutexLock lock(mutex_);
    const auto found = closed_.find(connection.get());
    if (found == closed_.end()) return std::nullopt;
    return found->second;
  }

  const PeerIdentity identity;
  ProxiedTransport transport;

 private:
  uint64_t number_ = 0;
  Mutex mutex_;
  ConnectionPtr accepted_ ABSL_GUARDED_BY(mutex_);
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  bool answers_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<const Connection*, absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

class GrpcStreamsTest : public ::testing::Test {
 protected:
  // Hung connections would delay the destruction of the transports.
  ~GrpcStreamsTest() override { network_->proxy().cut(); }

  size_t count(const char* path) { return network_->proxy().count(path); }
  size_t freeze(const char* path) { return network_->proxy().freeze(path); }

  SystemClock clock_;
  const std::shared_ptr<ProxiedNetwork> network_ = std::make_shared<ProxiedNetwork>();
  End a_{1, clock_, network_};
  End b_{2, clock_, network_};
};

// Both ends have dialled, and each writes to the connection that it had first.
TEST_F(GrpcStreamsTest, HeartbeatsHaveTheirOwnStreamOnEitherConnection) {
  for (const bool a_writes_to_its_own : {true, false}) {
    for (const bool b_writes_to_its_own : {true, false}) {
      const auto network = std::make_shared<ProxiedNetwork>();
      End a(1, clock_, network), b(2, clock_, network);
      const ConnectionPtr from_a = a.dial(b), at_b = b.accepted();
      const ConnectionPtr from_b = b.dial(a), at_a = a.accepted();
      const ConnectionPtr a_writes = a_writes_to_its_own ? from_a : at_a;
      const ConnectionPtr b_writes = b_writes_to_its_own ? from_b : at_b;
      const size_t used = a_writes_to_its_own == b_writes_to_its_own ? 2 : 1;
      const auto stand = [&] { return network->proxy().count(kHeartbeatPath) == used; };
      ASSERT_TRUE(a.lease_until(a_writes, [&] { return b.is_answered(b_writes) && stand(); }))
          << a_writes_to_its_own << b_writes_to_its_own;
      ASSERT_TRUE(a.is_answered(a_writes));
      ASSERT_TRUE(b.is_answered(b_writes));
      EXPECT_EQ(network->proxy().freeze(kSmallPath), 2u);
      EXPECT_EQ(network->proxy().freeze(kBulkPath), 2u);
      EXPECT_TRUE(a.is_answered(a_writes)) << a_writes_to_its_own << b_writes_to_its_own;
      EXPECT_TRUE(b.is_answered(b_writes)) << a_writes_to_its_own << b_writes_to_its_own;
      network->proxy().cut();  // so that the transports need not wait for hung streams
    }
  }
}

// The dialling end sends no heartbeats and answers none: it suspects the other end.
TEST_F(GrpcStreamsTest, TheDiallingEndDialsTheHeartbeatStreamThatItOnlyReads) {
  a_.answer_nothing();
  (void)a_.dial(b_);
  EXPECT_TRUE(b_.lease_until(b_.accepted(), [&] { return count(kHeartbeatPath) == 1; }));
}

TEST_F(GrpcStreamsTest, HeartbeatsAreAnsweredWhicheverStreamHangsAndTheirOwnIsMadeAnew) {
  const ConnectionPtr from_a = a_.dial(b_), at_b = b_.accepted();
  ASSERT_TRUE(eventually([&] { return count(kBulkPath) == 1; }));
  ASSERT_TRUE(b_.lease_until(at_b, [&] { return count(kHeartbeatPath) == 1; }));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(a_.is_answered(from_a));
    EXPECT_TRUE(b_.is_answered(at_b));
    EXPECT_EQ(freeze(kHeartbeatPath), 1u);
    // Only one end sends heartbeats. The other one must find out all the same.
    End& end = round % 2 == 0 ? b_ : a_;
    const ConnectionPtr& connection = round % 2 == 0 ? at_b : from_a;
    EXPECT_TRUE(end.is_answered(connection));
    EXPECT_TRUE(end.lease_until(connection, [&] { return count(kHeartbeatPath) == 1; })) << round;
  }
  EXPECT_EQ(freeze(kSmallPath), 1u);
  EXPECT_TRUE(a_.is_answered(from_a));
  EXPECT_TRUE(b_.is_answered(at_b));
  EXPECT_EQ(a_.end_of(from_a), std::nullopt);
  EXPECT_EQ(b_.end_of(at_b), std::nullopt);
}

TEST_F(GrpcStreamsTest, AnAbortNeedsNothingOfTheFarEnd) {
  const ConnectionPtr from_a = a_.dial(b_), at_b = b_.accepted();
  ASSERT_TRUE(eventually([&] { return count(kBulkPath) == 1; }));
  ASSERT_TRUE(a_.is_answered(from_a));
  for (const char* path : {kSmallPath, kBulkPath, kHeartbeatPath}) (void)freeze(path);
  // More bytes than the sockets hold, so gRPC waits.
  for (const ConnectionPtr& connection : {from_a, at_b}) {
    for (int i = 0; i < 64; ++i) {
      EXPECT_TRUE(
          connection->send(std::make_shared<const Frame>(frame_of("much", size_t{1} << 20))));
    }
  }
  a_.dial(b_)->close();  // other connections are not harmed
  from_a->close();       // the far end never answers it
  EXPECT_EQ(a_.end_of(from_a), std::nullopt);
  from_a->abort(absl::UnavailableError("it hung"));
  EXPECT_EQ(a_.end_of(from_a), absl::UnavailableError("it hung"));
  EXPECT_FALSE(from_a->send(End::heartbeat(1)));
  at_b->abort(absl::UnavailableError("it hung here as well"));
  EXPECT_EQ(b_.end_of(at_b), absl::UnavailableError("it hung here as well"));
}

// ---- Whole members

struct Member {
  Member(WorkerInfo info_in, Clock& clock, std::shared_ptr<ProxiedNetwork> network)
      : info(std::move(info_in)), transport(clock, std::move(network)) {
    EXPECT_TRUE(transport.listen().ok());
    info.address = transport.address();
  }

  WorkerInfo info;
  ProxiedTransport transport;
  std::unique_ptr<ThreadExecutor> executor;
  std::unique_ptr<Agent> agent;
  std::unique_ptr<Quiescence> quiescence;
  std::unique_ptr<Membership> membership;
};

class GrpcHungStreamTest : public ::testing::TestWithParam<const char*> {
 protected:
  // The leases are long enough for any machine, but hung streams are noticed soon.
  GrpcHungStreamTest() {
    Membership::Options options;
    options.find_incarnation = [](WorkerId) { return std::optional<WorkerInfo>(); };
    options.lease = {.heartbeat_interval = milliseconds(20),
                     .suspect_after = seconds(20),
                     .valid_for = seconds(10),
                     .linger = seconds(60)};
    std::vector<WorkerInfo> infos;
    for (uint32_t i = 0; i < 2; ++i) {
      WorkerInfo info{{i, 1}, "w" + std::to_string(i), ""};
      members_.push_back(std::make_unique<Member>(std::move(info), clock_, network_));
      infos.push_back(members_.back()->info);
    }
    for (auto& member : members_) {
      member->executor = std::make_unique<ThreadExecutor>(clock_, ThreadExecutorOptions{});
      AgentOptions agent;
      agent.group = "test";
      agent.self = member->info;
      agent.stuck_after = milliseconds(500);
      member->agent = std::make_unique<Agent>(agent, member->transport, clock_, *member->executor);
      member->agent->set_call_handler([](const std::shared_ptr<IncomingCall>& call) {
        Frame reply;
        reply.body = call->frame().body;
        reply.payloads = call->frame().payloads;
        call->reply(std::move(reply));
      });
      member->quiescence =
          std::make_unique<Quiescence>(*member->agent, *member->executor, clock_, infos);
      member->quiescence->attach();
      member->membership = std::make_unique<Membership>(
          *member->agent, *member->quiescence, clock_,
          std::make_shared<DeathRecords>(store_, "test", 0), store_thread_, options);
      member->membership->attach(infos, false);
    }
    for (auto& member : members_) {
      EXPECT_TRUE(member->agent->start(infos).ok());
      member->membership->start({});
    }
  }
  ~GrpcHungStreamTest() override {
    for (auto& member : members_) member->agent->stop();
    for (auto& member : members_) member->membership->stop();
    for (auto& member : members_) member->quiescence->stop();
    for (auto& member : members_) member->executor->stop();
    store_thread_.stop();
  }

  Future<Frame> call(size_t from, size_t payload) {
    Promise<Frame> promise;
    Future<Frame> future = promise.future();
    members_[from]->agent->call(
        members_[1 - from]->info.id, frame_of("same", payload), "same", kNever,
        [promise = std::move(promise)](auto reply) { promise.set(std::move(reply)); });
    return future;
  }
  // Small and large calls, both ways, all at the same time.
  void expect_calls_answered() {
    std::vector<Future<Frame>> calls;
    for (int i = 0; i < 10; ++i) {
      for (const size_t from : {0, 1}) {
        for (const size_t payload : {size_t{0}, kLarge}) calls.push_back(call(from, payload));
      }
    }
    for (const Future<Frame>& call : calls) {
      ASSERT_TRUE(call.wait_for(kPatience));
      EXPECT_TRUE(call.result().ok()) << call.result().status();
    }
  }
  bool all_streams_stand() {
    for (const char* path : {kSmallPath, kBulkPath, kHeartbeatPath}) {
      if (network_->proxy().count(path) == 0) return false;
    }
    return true;
  }

  SystemClock clock_;
  const std::shared_ptr<ProxiedNetwork> network_ = std::make_shared<ProxiedNetwork>();
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  ThreadExecutor store_thread_{clock_, {.name = "store", .threads = 1}};
  std::vector<std::unique_ptr<Member>> members_;
};

TEST_P(GrpcHungStreamTest, EveryCallIsAnsweredAndNobodyDies) {
  for (int round = 0; round < 2; ++round) {
    expect_calls_answered();
    ASSERT_TRUE(eventually([&] { return all_streams_stand(); }));
    EXPECT_GE(network_->proxy().freeze(GetParam()), 1u);
    expect_calls_answered();
    EXPECT_TRUE(eventually([&] { return all_streams_stand(); })) << "what hung is made anew";
  }
  EXPECT_TRUE(DeathRecords(store_, "test", 0).read()->empty());
  for (const auto& member : members_) EXPECT_EQ(member->agent->live().size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Paths, GrpcHungStreamTest,
                         ::testing::Values(kSmallPath, kBulkPath, kHeartbeatPath),
                         [](const auto& info) {
                           return std::string(info.param).substr(sizeof("/weft.Worker/") - 1);
                         });

}  // namespace
}  // namespace weft::testing
