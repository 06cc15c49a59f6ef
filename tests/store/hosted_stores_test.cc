#include "weft/store/hosted_stores.h"

#include <memory>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "weft/tests/store/core_calls.h"

namespace weft {
namespace {

class HostedStores : public ::testing::Test {
 protected:
  std::shared_ptr<StoreHandle> share(const std::string& more = "") {
    auto store = share_hosted_store(host_ + more, [this] {
      ++hosted_;
      return std::make_unique<StoreHandle>(std::make_unique<testing::CoreCalls>(),
                                           absl::Seconds(20));
    });
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // The process has one registry for all tests, so each test uses its own host name.
  const std::string host_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  int hosted_ = 0;
};

TEST_F(HostedStores, UsersOfOneAddressShareAStore) {
  const auto one = share();
  const auto two = share();
  EXPECT_EQ(hosted_, 1);
  ASSERT_TRUE(one->set("key", "value").ok());
  EXPECT_EQ(*two->get("key", absl::ZeroDuration()), "value");
  EXPECT_EQ(**two->try_get("key"), "value");
  EXPECT_EQ(*two->add("n", 2), 2);
  EXPECT_EQ(*two->compare_set("key", "value", "other"), "other");
  EXPECT_TRUE(two->wait({"key", "n"}, absl::ZeroDuration()).ok());
  EXPECT_EQ(two->description(), testing::CoreCalls().description());
}

TEST_F(HostedStores, AStoreEndsWithItsLastUser) {
  auto one = share();
  auto two = share();
  ASSERT_TRUE(one->set("key", "value").ok());
  one = nullptr;
  EXPECT_EQ(**share()->try_get("key"), "value");
  two = nullptr;
  EXPECT_EQ(*share()->try_get("key"), std::nullopt);
  EXPECT_EQ(hosted_, 2);
}

TEST_F(HostedStores, AKeptStoreGoesOnWithTheNextUserAndEndsWithThatOne) {
  auto store = share();
  ASSERT_TRUE(store->set("key", "value").ok());
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    keep_hosted_store(host_);
    store = nullptr;
    store = share();
    EXPECT_EQ(**store->try_get("key"), "value");
  }
  EXPECT_EQ(hosted_, 1);
  store = nullptr;
  EXPECT_EQ(*share()->try_get("key"), std::nullopt) << "who left without keep leaves no records";
}

TEST_F(HostedStores, KeepingWhereNobodyHostsDoesNothing) {
  keep_hosted_store(host_);
  (void)share();
  (void)share();
  EXPECT_EQ(hosted_, 2);
}

TEST_F(HostedStores, AnotherPlaceHasAnotherStore) {
  const auto one = share();
  const auto two = share(" with another protection");
  EXPECT_EQ(hosted_, 2);
}

TEST_F(HostedStores, AfterAFailureTheNextUserHosts) {
  const auto refused =
      share_hosted_store(host_, [] { return absl::AlreadyExistsError("the port is in use"); });
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  EXPECT_NE(share(), nullptr);
  EXPECT_EQ(hosted_, 1);
}

TEST_F(HostedStores, AForkedChildHasNoneOfItsParents) {
  auto store = share();
  keep_hosted_store(host_);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)share();
    store = nullptr;
    _exit(hosted_ == 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  store = nullptr;
  (void)share();
  EXPECT_EQ(hosted_, 1);
}

}  // namespace
}  // namespace weft
