// Which store a process of a job opens, by its environment; and that store as one of c10d.
#include "weft/store/job/job_store.h"

#include <future>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "weft/sockets/tcp_port.h"
#include "weft/store/job/c10d_store.h"
#include "weft/store/rendezvous.h"
#include "weft/tests/sockets/unused_port.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using testing::unused_port;

LaunchEnvironment environment_of(uint32_t rank, uint16_t port) {
  LaunchEnvironment environment;
  environment.rank = rank;
  environment.world_size = 2;
  environment.master_addr = "127.0.0.1";
  environment.master_port = port;
  return environment;
}

std::shared_ptr<StoreHandle> opened(const LaunchEnvironment& environment) {
  auto store = open_job_store(environment, SecurityMode::kAuto, absl::Seconds(20));
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

TEST(JobStore, RankZeroHostsAndOthersConnect) {
  const uint16_t port = unused_port();
  const auto zero = opened(environment_of(0, port));
  const auto one = opened(environment_of(1, port));
  ASSERT_TRUE(zero != nullptr && one != nullptr);
  ASSERT_TRUE(zero->set("from", "rank 0").ok());
  EXPECT_EQ(*one->get("from", absl::Seconds(20)), "rank 0");
  EXPECT_TRUE(listen_on("127.0.0.1", port).ok()) << "on one host it needs no TCP port";
}

TEST(JobStore, TheLaunchersStoreIsUsedByAll) {
  const auto hosted = host_rendezvous_store({.port = 0});
  ASSERT_TRUE(hosted.ok()) << hosted.status();
  ASSERT_TRUE(hosted->store->set("from", "launcher").ok());
  for (const uint32_t rank : {0, 1}) {
    LaunchEnvironment environment = environment_of(rank, unused_port());
    environment.store = rendezvous_address({.port = hosted->port});
    EXPECT_FALSE(environment.hosts_store());
    const auto store = opened(environment);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(*store->get("from", absl::Seconds(20)), "launcher");
  }
  LaunchEnvironment environment = environment_of(0, 1);
  environment.store = "nonsense";
  EXPECT_THAT(std::string(open_job_store(environment).status().message()),
              HasSubstr("'nonsense' is no address"));
}

// As torchrun serves it.
c10::intrusive_ptr<c10d::TCPStore> tcp_store_of_a_launcher() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(JobStore, ATcpStoreOfTheLauncherTellsWhereRankZeroHosts) {
  const auto agent = tcp_store_of_a_launcher();
  LaunchEnvironment zero = environment_of(0, agent->getPort());
  LaunchEnvironment one = environment_of(1, agent->getPort());
  zero.agent_hosts_store = one.agent_hosts_store = true;
  auto first = std::async(std::launch::async, [&one] { return opened(one); });
  const auto hosted = opened(zero);
  ASSERT_NE(hosted, nullptr);
  ASSERT_TRUE(hosted->set("from", "rank 0").ok());
  const auto client = first.get();
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(*client->get("from", absl::Seconds(20)), "rank 0");
  EXPECT_EQ(*opened(zero)->get("from", absl::Seconds(20)), "rank 0");
}

TEST(JobStore, WithoutRankZeroTheErrorSaysSo) {
  const auto agent = tcp_store_of_a_launcher();
  LaunchEnvironment one = environment_of(1, agent->getPort());
  one.agent_hosts_store = true;
  const absl::Status status =
      open_job_store(one, SecurityMode::kAuto, absl::Milliseconds(300)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("launcher's store at 127.0.0.1:", agent->getPort())));
}

TEST(JobStore, RankZerosKeptStoreServesOthersUntilItComesAgain) {
  const LaunchEnvironment environment = environment_of(0, unused_port());
  LaunchEnvironment other = environment;
  other.rank = 1;
  for (int64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    auto zero = opened(environment);
    ASSERT_NE(zero, nullptr);
    EXPECT_EQ(*zero->add("lives", 1), incarnation);
    auto at_the_same_time = opened(environment);
    keep_job_store(environment, SecurityMode::kAuto);
    zero = nullptr;
    at_the_same_time = nullptr;
    const auto one = opened(other);
    ASSERT_NE(one, nullptr);
    EXPECT_EQ(*one->get("lives", absl::Seconds(20)), absl::StrCat(incarnation));
  }
  ASSERT_NE(opened(environment), nullptr);  // not kept: its hosted store stops at once
  EXPECT_EQ(*opened(environment)->try_get("lives"), std::nullopt);
}

class C10dStoreTest : public ::testing::Test {
 protected:
  using Bytes = std::vector<uint8_t>;

  C10dStoreTest() {
    const uint16_t port = unused_port();
    zero_ =
        c10::make_intrusive<C10dStore>(opened(environment_of(0, port)), std::chrono::seconds(20));
    one_ =
        c10::make_intrusive<C10dStore>(opened(environment_of(1, port)), std::chrono::seconds(20));
  }

  c10::intrusive_ptr<C10dStore> zero_, one_;
};

TEST_F(C10dStoreTest, KeepsTheContractOfC10d) {
  zero_->set("key", Bytes{1, 0, 2});
  EXPECT_EQ(one_->get("key"), (Bytes{1, 0, 2}));
  EXPECT_EQ(one_->add("n", 2), 2);
  EXPECT_EQ(zero_->add("n", 0), 2);
  EXPECT_TRUE(one_->check({"key", "n"}));
  EXPECT_FALSE(one_->check({"key", "none"}));
  EXPECT_EQ(one_->getNumKeys(), 2);
  EXPECT_TRUE(one_->deleteKey("key"));
  EXPECT_FALSE(one_->deleteKey("key"));
  EXPECT_EQ(one_->compareSet("x", Bytes{9}, Bytes{1}), (Bytes{9})) << "absent";
  EXPECT_EQ(one_->compareSet("x", Bytes{}, Bytes{1}), (Bytes{1}));
  EXPECT_EQ(zero_->compareSet("x", Bytes{}, Bytes{2}), (Bytes{1}));
  EXPECT_EQ(zero_->compareSet("x", Bytes{1}, Bytes{2}), (Bytes{2}));
  EXPECT_EQ(zero_->clone()->get("x"), (Bytes{2}));
}

TEST_F(C10dStoreTest, WaitsAndErrorsAreThoseOfC10d) {
  auto waiting = std::async(std::launch::async, [this] { one_->wait({"late"}); });
  zero_->set("late", Bytes{});
  EXPECT_NO_THROW(waiting.get());
  EXPECT_THROW(one_->wait({"never"}, std::chrono::milliseconds(20)), c10::DistStoreError);
  one_->setTimeout(std::chrono::milliseconds(20));
  EXPECT_THROW(one_->get("never"), c10::DistStoreError);
  zero_ = nullptr;
  EXPECT_THROW(one_->add("n", 1), c10::DistNetworkError);
}

}  // namespace
}  // namespace weft
