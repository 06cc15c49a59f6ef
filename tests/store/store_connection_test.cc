// A store that another process could serve: over unix sockets, TLS and plain TCP.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/sockets/tcp_port.h"
#include "weft/store/rendezvous.h"
#include "weft/tests/rpc/transport/tcp_proxy.h"
#include "weft/tests/sockets/unused_port.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::unused_port;

std::string message(const absl::Status& status) { return std::string(status.message()); }

RendezvousOptions options_of(SecurityMode security, uint16_t port,
                             absl::Duration timeout = absl::Seconds(20)) {
  RendezvousOptions options;
  options.port = port;
  options.timeout = options.call_timeout = timeout;
  options.security = security;
  return options;
}

class GrpcStoreTest : public ::testing::TestWithParam<SecurityMode> {
 protected:
  void SetUp() override {
    auto hosted = host_rendezvous_store(options_of(GetParam(), 0));
    ASSERT_TRUE(hosted.ok()) << hosted.status();
    hosted_ = *std::move(hosted);
    client_ = connected();
    ASSERT_NE(client_, nullptr);
  }

  std::unique_ptr<StoreHandle> connected() {
    auto client = connect_rendezvous_store(options_of(GetParam(), hosted_.port));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  std::string address() const { return rendezvous_address(options_of(GetParam(), hosted_.port)); }

  HostedStore hosted_;
  std::unique_ptr<StoreHandle> client_;
};

INSTANTIATE_TEST_SUITE_P(Modes, GrpcStoreTest,
                         ::testing::Values(SecurityMode::kAuto, SecurityMode::kMtls,
                                           SecurityMode::kNone),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(GrpcStoreTest, AClientReadsWhatTheHostWrites) {
  ASSERT_TRUE(hosted_.store->set("key", std::string("a\0b", 3)).ok());
  EXPECT_EQ(*client_->get("key", absl::Seconds(20)), std::string("a\0b", 3));
  EXPECT_EQ(**client_->try_get("key"), std::string("a\0b", 3));
  EXPECT_EQ(*client_->try_get("none"), std::nullopt);
  EXPECT_TRUE(*client_->all_exist({"key"}));
  EXPECT_FALSE(*client_->all_exist({"key", "none"}));
  EXPECT_EQ(*client_->count(), 1);
  EXPECT_TRUE(*client_->erase("key"));
  EXPECT_FALSE(*client_->erase("key"));
}

TEST_P(GrpcStoreTest, ExchangesAndAddsAsTheContractSays) {
  EXPECT_EQ(*client_->compare_set("key", "other", "x"), "");
  EXPECT_EQ(*client_->try_get("key"), std::nullopt);
  EXPECT_EQ(*client_->compare_set("key", "", "a"), "a");
  EXPECT_EQ(*hosted_.store->compare_set("key", "", "b"), "a");
  EXPECT_EQ(*hosted_.store->compare_set("key", "a", "b"), "b");
  EXPECT_EQ(*client_->add("n", 3), 3);
  EXPECT_EQ(*hosted_.store->add("n", -5), -2);
  EXPECT_EQ(*client_->get("n", absl::Seconds(20)), "-2");
}

TEST_P(GrpcStoreTest, ErrorsOfTheStoreNameItAndItLivesOn) {
  ASSERT_TRUE(client_->set("key", "text").ok());
  const absl::Status status = client_->add("key", 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr("'key' holds no number"), HasSubstr(address())));
  EXPECT_EQ(*client_->get("key", absl::Seconds(20)), "text");
}

TEST_P(GrpcStoreTest, AWaitEndsByItsTimeoutAndNamesKeyAndStore) {
  const absl::Status status = client_->get("missing", absl::Milliseconds(30)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status),
              AllOf(HasSubstr("missing"), HasSubstr(address()), HasSubstr("30ms")));
}

TEST_P(GrpcStoreTest, AWaitingThreadDoesNotKeepOthersFromTheStore) {
  for (StoreHandle* store : {client_.get(), hosted_.store.get()}) {
    auto waiting = std::async(std::launch::async,
                              [&] { return store->get("late", absl::InfiniteDuration()); });
    ASSERT_TRUE(store->set("early", "1").ok());
    ASSERT_TRUE(store->set("late", "2").ok());
    EXPECT_EQ(*waiting.get(), "2");
    EXPECT_TRUE(*client_->erase("late"));
  }
}

TEST_P(GrpcStoreTest, AGroupJoinsOverIt) {
  constexpr uint32_t kRanks = 4;
  std::vector<std::future<absl::StatusOr<JoinResult>>> joining;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    joining.push_back(std::async(std::launch::async, [&, rank]() -> absl::StatusOr<JoinResult> {
      const auto store = connected();
      JoinRequest request;
      request.name = absl::StrCat("w", rank);
      request.rank = rank;
      request.world_size = kRanks;
      request.address = absl::StrCat("127.0.0.1:", 100 + rank);
      return join_static_group(*store, request);
    }));
  }
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const absl::StatusOr<JoinResult> result = joining[rank].get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->self, (WorkerId{rank, 1}));
    EXPECT_EQ(result->members[3].address, "127.0.0.1:103");
  }
}

TEST_P(GrpcStoreTest, AStoreThatIsGoneIsUnavailableAtOnce) {
  hosted_.store = nullptr;
  const absl::Time start = absl::Now();
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = client_->try_get("key").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(message(status), AllOf(HasSubstr(address()), HasSubstr("gone")));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "its timeout is 20 s";
}

TEST_P(GrpcStoreTest, AWaitEndsWhenTheStoreEnds) {
  ASSERT_TRUE(client_->set("key", "x").ok());
  auto waiting = std::async(std::launch::async,
                            [&] { return client_->get("never", absl::InfiniteDuration()); });
  hosted_.store = nullptr;
  const absl::Status status = waiting.get().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_P(GrpcStoreTest, AnotherStoreAtTheSameAddressIsNotTakenForTheFirst) {
  const uint16_t port = hosted_.port;
  ASSERT_TRUE(client_->set("key", "x").ok());
  hosted_.store = nullptr;
  const auto other = host_rendezvous_store(options_of(GetParam(), port));
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Status status = client_->try_get("key").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(message(status), HasSubstr("another store"));
}

TEST_P(GrpcStoreTest, APortInUseIsNamed) {
  const absl::Status status = host_rendezvous_store(options_of(GetParam(), hosted_.port)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr(absl::StrCat("127.0.0.1:", hosted_.port)),
                                     AnyOf(HasSubstr("in use"), HasSubstr("another job"))));
}

TEST_P(GrpcStoreTest, AnAddressWhereNobodyListensIsNamedWithinTheTimeout) {
  const RendezvousOptions options = options_of(GetParam(), unused_port(), absl::Milliseconds(200));
  const absl::Time start = absl::Now();
  const absl::Status status = connect_rendezvous_store(options).status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr(rendezvous_address(options)), HasSubstr("refused")));
}

TEST_P(GrpcStoreTest, AClientWaitsForAStoreThatStartsLater) {
  const RendezvousOptions options = options_of(GetParam(), unused_port());
  auto client =
      std::async(std::launch::async, [&options] { return connect_rendezvous_store(options); });
  const auto hosted = host_rendezvous_store(options);
  ASSERT_TRUE(hosted.ok()) << hosted.status();
  const auto connected = client.get();
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(*(*connected)->add("n", 1), 1);
}

TEST(GrpcStore, ModesThatDoNotFitAreTold) {
  const auto secure = host_rendezvous_store(options_of(SecurityMode::kMtls, 0));
  const auto open = host_rendezvous_store(options_of(SecurityMode::kNone, 0));
  ASSERT_TRUE(secure.ok() && open.ok()) << secure.status() << open.status();
  const absl::Duration soon = absl::Seconds(1);
  const absl::Status without =
      connect_rendezvous_store(options_of(SecurityMode::kNone, secure->port, soon)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(without)) << without;
  const absl::Status with =
      connect_rendezvous_store(options_of(SecurityMode::kMtls, open->port, soon)).status();
  EXPECT_THAT(message(with), HasSubstr("does not use TLS")) << with;
  const absl::Status local =
      connect_rendezvous_store(options_of(SecurityMode::kAuto, open->port, soon)).status();
  EXPECT_THAT(message(local), HasSubstr("weft-store-")) << local;
}

TEST(GrpcStore, AnUnknownHostIsNamed) {
  RendezvousOptions options = options_of(SecurityMode::kNone, 29500, absl::Milliseconds(100));
  options.host = "no-such-host.invalid";
  EXPECT_THAT(message(connect_rendezvous_store(options).status()),
              HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(message(host_rendezvous_store(options).status()), HasSubstr("no-such-host.invalid"));
}

TEST(GrpcStore, AServerThatNeverAnswersCostsTheTimeoutOnly) {
  const auto mute = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(mute.ok());
  const absl::Time start = absl::Now();
  const absl::Status status =
      connect_rendezvous_store(options_of(SecurityMode::kNone, mute->port, absl::Milliseconds(300)))
          .status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(message(status), HasSubstr(absl::StrCat("127.0.0.1:", mute->port)));
}

// The connections of a plain store pass through a proxy.
class ProxiedGrpcStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hosted = host_rendezvous_store(options_of(SecurityMode::kNone, 0));
    ASSERT_TRUE(hosted.ok()) << hosted.status();
    hosted_ = *std::move(hosted);
    door_ = proxy_.open_door(absl::StrCat("127.0.0.1:", hosted_.port));
  }
  std::unique_ptr<StoreHandle> connected(absl::Duration timeout) {
    auto client = connect_to_store(door_, options_of(SecurityMode::kNone, 0, timeout));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  HostedStore hosted_;
  testing::TcpProxy proxy_;
  std::string door_;
};

TEST_F(ProxiedGrpcStoreTest, AConnectionThatBreaksIsMadeAgainAndEachChangeIsMadeOnce) {
  const auto client = connected(absl::Seconds(60));
  ASSERT_NE(client, nullptr);
  int64_t expected = 0;
  // The cut comes at each place in turn: before the call, in it, and in its answer.
  for (uint64_t bytes = 0; proxy_.cuts() < 40 && bytes < 10'000; bytes += 13) {
    proxy_.cut_after(bytes % 400, bytes % 2 == 0 ? testing::TcpProxy::Cut::kReset
                                                 : testing::TcpProxy::Cut::kClose);
    ++expected;
    const absl::StatusOr<int64_t> sum = client->add("n", 1);
    ASSERT_TRUE(sum.ok()) << sum.status() << " after " << bytes << " bytes";
    EXPECT_EQ(*sum, expected) << "after " << bytes << " bytes";
  }
  EXPECT_EQ(proxy_.cuts(), 40u);
  auto waiting =
      std::async(std::launch::async, [&] { return client->get("late", absl::InfiniteDuration()); });
  proxy_.cut();
  ASSERT_TRUE(hosted_.store->set("late", "x").ok());
  EXPECT_EQ(*waiting.get(), "x");
}

// A refused write must not take effect when the store wakes up, since the worker relies on its
// failure.
TEST_F(ProxiedGrpcStoreTest, AStoreThatStillOwesAnAnswerIsAskedNothingMore) {
  const auto client = connected(absl::Seconds(2));
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(proxy_.freeze(""), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client->try_get("key").status()));
  const absl::Status refused = client->compare_set("record", "", "w1 is dead").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_THAT(message(refused), HasSubstr("still owes the answer"));
  proxy_.thaw();
  while (!client->set("later", "x").ok()) std::this_thread::yield();
  EXPECT_EQ(*client->get("later", absl::Seconds(20)), "x");
  EXPECT_EQ(*hosted_.store->try_get("record"), std::nullopt);
}

}  // namespace
}  // namespace weft
