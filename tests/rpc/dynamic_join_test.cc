#include "weft/rpc/dynamic_join.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/memory_store.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JoinRequest request(const std::string& name) {
  JoinRequest request;
  request.name = name;
  request.address = "host:" + name;
  return request;
}
std::string text(const absl::Status& status) { return std::string(status.message()); }
std::vector<std::string> names(const JoinResult& result) {
  std::vector<std::string> names;
  for (const MemberInfo& member : result.members) names.push_back(member.name);
  return names;
}

TEST(DynamicJoin, ALaterWorkerMeetsTheEarlierOnes) {
  MemoryStore store;
  const auto a = join_dynamic_group(store, request("a"), {});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->self, (WorkerId{0, 1}));
  EXPECT_EQ(names(*a), (std::vector<std::string>{"a"}));
  const auto b = join_dynamic_group(store, request("b"), {});
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->self, (WorkerId{1, 1}));
  EXPECT_EQ(names(*b), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(b->members[0].address, "host:a");
}

TEST(DynamicJoin, OfTwoThatJoinAtOnceOneMeetsTheOther) {
  for (int round = 0; round < 50; ++round) {
    MemoryStore store;
    absl::StatusOr<JoinResult> results[4];
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        results[i] = join_dynamic_group(store, request("worker" + std::to_string(i)), {});
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto sees = [&](int i, int j) {
      const auto seen = names(*results[i]);
      return std::find(seen.begin(), seen.end(), "worker" + std::to_string(j)) != seen.end();
    };
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(results[i].ok()) << results[i].status();
      for (int j = 0; j < i; ++j) EXPECT_TRUE(sees(i, j) || sees(j, i)) << i << " and " << j;
    }
  }
}

TEST(DynamicJoin, WhoLeftOrIsDeadIsNotMet) {
  MemoryStore store;
  const WorkerId a = join_dynamic_group(store, request("a"), {})->self;
  const WorkerId b = join_dynamic_group(store, request("b"), {})->self;
  ASSERT_TRUE(mark_left(store, "weft", 0, a).ok());
  const auto c = join_dynamic_group(store, request("c"), {{b, a, "silent"}});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(names(*c), (std::vector<std::string>{"c"}));
}

TEST(DynamicJoin, ANameIsTakenOverOnceItsLifeHasEnded) {
  MemoryStore store;
  const WorkerId first = join_dynamic_group(store, request("a"), {})->self;
  const absl::Status taken = join_dynamic_group(store, request("a"), {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(text(taken), AllOf(HasSubstr("'a'"), HasSubstr("host:a")));
  // Dead: the next life may come.
  const auto second = join_dynamic_group(store, request("a"), {{first, {5, 1}, "x"}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->self.index, first.index);
  EXPECT_GT(second->self.incarnation, first.incarnation);
  // Left: the same.
  ASSERT_TRUE(mark_left(store, "weft", 0, second->self).ok());
  EXPECT_TRUE(join_dynamic_group(store, request("a"), {}).ok());
  // Neither, but the launcher knows that it restarted it.
  JoinRequest again = request("a");
  again.attempt = 1;
  EXPECT_TRUE(join_dynamic_group(store, again, {}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(join_dynamic_group(store, again, {}).status()));
}

TEST(DynamicJoin, AGroupHasASizeOrHasNone) {
  MemoryStore fixed;
  JoinRequest one = request("a");
  ASSERT_TRUE(join_static_group(fixed, one).ok());
  const absl::Status late = join_dynamic_group(fixed, request("b"), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(late)) << late;
  EXPECT_THAT(text(late), HasSubstr("fixed size 1"));

  MemoryStore dynamic;
  ASSERT_TRUE(join_dynamic_group(dynamic, request("a"), {}).ok());
  const absl::Status ranked = join_static_group(dynamic, one).status();
  EXPECT_TRUE(absl::IsInvalidArgument(ranked)) << ranked;
  EXPECT_THAT(text(ranked), HasSubstr("is dynamic"));
}

TEST(DynamicJoin, RefusesBadRequests) {
  MemoryStore store;
  EXPECT_TRUE(absl::IsInvalidArgument(join_dynamic_group(store, request("a b"), {}).status()));
  JoinRequest nowhere = request("a");
  nowhere.address.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(join_dynamic_group(store, nowhere, {}).status()));
  EXPECT_EQ(*store.try_get("weft/weft/0/indices"), std::nullopt);
}

}  // namespace
}  // namespace weft
