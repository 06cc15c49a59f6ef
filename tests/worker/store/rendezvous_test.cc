#include "weft/worker/store/rendezvous.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/sockets/tcp_port.h"
#include "weft/tests/rpc/transport/tcp_proxy.h"
#include "weft/worker/store/hosted_stores.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RendezvousOptions at_port(uint16_t port, absl::Duration timeout = absl::Seconds(20)) {
  RendezvousOptions options;
  options.port = port;
  options.timeout = timeout;
  return options;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

// A port of this machine on which nothing listens.
uint16_t closed_port() {
  auto listening = listen_on("127.0.0.1", 0);
  return listening.ok() ? listening->port : 0;
}

class Rendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hosted = host_rendezvous_store(at_port(0));
    ASSERT_TRUE(hosted.ok()) << hosted.status();
    hosted_ = *std::move(hosted);
    auto client = connect_rendezvous_store(at_port(hosted_.port));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  HostedStore hosted_;
  std::unique_ptr<RendezvousStore> client_;
};

TEST_F(Rendezvous, AClientReadsWhatTheHostWrites) {
  ASSERT_TRUE(hosted_.store->set("key", std::string("a\0b", 3)).ok());
  EXPECT_EQ(*client_->get("key", absl::Seconds(1)), std::string("a\0b", 3));
  EXPECT_EQ(**client_->try_get("key"), std::string("a\0b", 3));
  EXPECT_EQ(*client_->try_get("none"), std::nullopt);
}

TEST_F(Rendezvous, ExchangesAndAddsAsTheContractSays) {
  EXPECT_EQ(*client_->compare_set("key", "other", "x"), "");
  EXPECT_EQ(*client_->try_get("key"), std::nullopt);
  EXPECT_EQ(*client_->compare_set("key", "", "a"), "a");
  EXPECT_EQ(*hosted_.store->compare_set("key", "", "b"), "a");
  EXPECT_EQ(*hosted_.store->compare_set("key", "a", "b"), "b");
  EXPECT_EQ(*client_->add("n", 3), 3);
  EXPECT_EQ(*hosted_.store->add("n", -5), -2);
  EXPECT_EQ(*client_->get("n", absl::Seconds(1)), "-2");
}

TEST_F(Rendezvous, AddingToTextIsAnErrorAndTheServerLives) {
  ASSERT_TRUE(client_->set("key", "text").ok());
  const absl::Status status = client_->add("key", 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(message(status), HasSubstr("key"));
  EXPECT_EQ(*client_->get("key", absl::Seconds(1)), "text");
}

TEST_F(Rendezvous, AWaitEndsByItsTimeoutAndNamesKeyAndStore) {
  const absl::Status status = client_->get("missing", absl::Milliseconds(30)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status),
              AllOf(HasSubstr("missing"), HasSubstr(absl::StrCat("127.0.0.1:", hosted_.port)),
                    HasSubstr("30ms")));
}

TEST_F(Rendezvous, AWaitingThreadDoesNotKeepOthersFromTheStore) {
  auto waiting = std::async(std::launch::async,
                            [&] { return client_->get("late", absl::InfiniteDuration()); });
  ASSERT_TRUE(client_->set("early", "1").ok());
  ASSERT_TRUE(client_->set("late", "2").ok());
  EXPECT_EQ(*waiting.get(), "2");
}

TEST_F(Rendezvous, AGroupJoinsOverIt) {
  constexpr uint32_t kRanks = 4;
  std::vector<std::future<absl::StatusOr<JoinResult>>> joining;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    joining.push_back(std::async(std::launch::async, [&, rank]() -> absl::StatusOr<JoinResult> {
      auto store = connect_rendezvous_store(at_port(hosted_.port));
      if (!store.ok()) return store.status();
      JoinRequest request;
      request.name = absl::StrCat("w", rank);
      request.rank = rank;
      request.world_size = kRanks;
      request.address = absl::StrCat("127.0.0.1:", 100 + rank);
      return join_static_group(**store, request);
    }));
  }
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const absl::StatusOr<JoinResult> result = joining[rank].get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->self, (WorkerId{rank, 1}));
    EXPECT_EQ(result->members[3].address, "127.0.0.1:103");
  }
}

TEST_F(Rendezvous, AVanishedServerIsUnavailable) {
  const uint16_t port = hosted_.port;
  hosted_.store.reset();
  const absl::Status status = client_->try_get("key").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr(absl::StrCat("127.0.0.1:", port)),
                                     ::testing::Not(HasSubstr("frame #"))));
}

// A refused write must not take effect when the store wakes up, since the worker relies on its
// failure.
TEST_F(Rendezvous, AStoreThatStillOwesAnAnswerIsAskedNothingMore) {
  testing::TcpProxy proxy;
  const std::string door = proxy.open_door(absl::StrCat("127.0.0.1:", hosted_.port));
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(door.substr(door.rfind(':') + 1), &port));
  const auto client =
      connect_rendezvous_store(at_port(static_cast<uint16_t>(port), absl::Seconds(2)));
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ(proxy.freeze(""), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded((*client)->try_get("key").status()));
  const absl::Status refused = (*client)->compare_set("record", "", "w1 is dead").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_THAT(message(refused), HasSubstr("still owes the answer"));
  proxy.thaw();
  while (!(*client)->set("later", "x").ok()) std::this_thread::yield();
  EXPECT_EQ(*(*client)->get("later", absl::Seconds(20)), "x");
  EXPECT_EQ(*hosted_.store->try_get("record"), std::nullopt);
}

TEST_F(Rendezvous, APortInUseIsNamed) {
  const absl::Status status = host_rendezvous_store(at_port(hosted_.port)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(message(status),
              AllOf(HasSubstr(absl::StrCat("127.0.0.1:", hosted_.port)), HasSubstr("in use")));
}

TEST(RendezvousConnect, ADeadAddressIsNamedWithinTheTimeout) {
  const uint16_t port = closed_port();
  const absl::Time start = absl::Now();
  const absl::Status status =
      connect_rendezvous_store(at_port(port, absl::Milliseconds(200))).status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status),
              AllOf(HasSubstr(absl::StrCat("127.0.0.1:", port)), HasSubstr("refused")));
}

TEST(RendezvousConnect, AnUnknownHostIsNamed) {
  RendezvousOptions options = at_port(29500, absl::Milliseconds(100));
  options.host = "no-such-host.invalid";
  EXPECT_THAT(message(connect_rendezvous_store(options).status()),
              HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(message(host_rendezvous_store(options).status()), HasSubstr("no-such-host.invalid"));
}

TEST(RendezvousConnect, AServerThatNeverAnswersCostsTheTimeoutOnly) {
  auto mute = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(mute.ok());
  const absl::Time start = absl::Now();
  const absl::Status status =
      connect_rendezvous_store(at_port(mute->port, absl::Milliseconds(300))).status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status), HasSubstr(absl::StrCat("127.0.0.1:", mute->port)));
}

TEST(RendezvousConnect, AClientWaitsForAServerThatStartsLater) {
  const uint16_t port = closed_port();
  auto client =
      std::async(std::launch::async, [port] { return connect_rendezvous_store(at_port(port)); });
  auto hosted = host_rendezvous_store(at_port(port));
  ASSERT_TRUE(hosted.ok()) << hosted.status();
  auto connected = client.get();
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(*(*connected)->add("n", 1), 1);
}

TEST(RendezvousConnect, RankZeroHostsUnlessTheAgentDoes) {
  LaunchEnvironment environment;
  environment.master_addr = "localhost";
  environment.master_port = closed_port();
  environment.world_size = 2;
  auto rank0 = open_rendezvous_store(environment);
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  environment.rank = 1;
  auto rank1 = open_rendezvous_store(environment);
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  ASSERT_TRUE((*rank0)->set("from", "rank0").ok());
  EXPECT_EQ(*(*rank1)->get("from", absl::Seconds(5)), "rank0");

  environment.rank = 0;
  environment.agent_hosts_store = true;
  auto under_agent = open_rendezvous_store(environment);
  ASSERT_TRUE(under_agent.ok()) << "rank 0 must not bind the agent's port: "
                                << under_agent.status();
  EXPECT_EQ(*(*under_agent)->get("from", absl::Seconds(5)), "rank0");
}

TEST(RendezvousConnect, RankZerosKeptStoreServesOthersUntilItComesAgain) {
  LaunchEnvironment environment;
  environment.master_addr = "127.0.0.1";
  environment.master_port = closed_port();
  environment.world_size = 2;
  LaunchEnvironment other = environment;
  other.rank = 1;
  for (int64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    auto rank0 = open_rendezvous_store(environment);
    ASSERT_TRUE(rank0.ok()) << rank0.status();
    EXPECT_EQ(*(*rank0)->add("lives", 1), incarnation);
    auto at_the_same_time = open_rendezvous_store(environment);
    ASSERT_TRUE(at_the_same_time.ok()) << at_the_same_time.status();
    worker_internal::keep_hosted_store(environment.master_addr, environment.master_port);
    rank0->reset();
    at_the_same_time->reset();
    auto rank1 = open_rendezvous_store(other);
    ASSERT_TRUE(rank1.ok()) << rank1.status();
    EXPECT_EQ(*(*rank1)->get("lives", absl::Seconds(5)), absl::StrCat(incarnation));
  }
  ASSERT_TRUE(open_rendezvous_store(environment).ok());  // not kept: its hosted store stops at once
  EXPECT_TRUE(listen_on(environment.master_addr, environment.master_port).ok());
}

}  // namespace
}  // namespace weft
