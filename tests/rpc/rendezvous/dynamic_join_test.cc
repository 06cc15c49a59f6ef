#include "weft/rpc/rendezvous/dynamic_join.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/memory_store.h"

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
  ASSERT_TRUE(rpc_internal::mark_left(store, rpc_internal::JoinKeys("weft", 0), a).ok());
  const auto c = join_dynamic_group(store, request("c"), {{b, a, "silent"}});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(names(*c), (std::vector<std::string>{"c"}));
}

TEST(DynamicJoin, ANameIsTakenOverOnceItsIncarnationHasEnded) {
  MemoryStore store;
  const WorkerId first = join_dynamic_group(store, request("a"), {})->self;
  const absl::Status taken = join_dynamic_group(store, request("a"), {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(text(taken), AllOf(HasSubstr("'a'"), HasSubstr("host:a")));
  // The first incarnation is dead, so the next one may come.
  const auto second = join_dynamic_group(store, request("a"), {{first, {5, 1}, "x"}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->self.index, first.index);
  EXPECT_GT(second->self.incarnation, first.incarnation);
  // The second one has left, so the next one may come.
  ASSERT_TRUE(rpc_internal::mark_left(store, rpc_internal::JoinKeys("weft", 0), second->self).ok());
  EXPECT_TRUE(join_dynamic_group(store, request("a"), {}).ok());
  // The third one is neither dead nor gone, but the launcher knows that it restarted it.
  JoinRequest again = request("a");
  again.attempt = 1;
  EXPECT_TRUE(join_dynamic_group(store, again, {}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(join_dynamic_group(store, again, {}).status()));
}

// One of its round trips fails, before it has an effect or after.
class FailingStore final : public RendezvousStore {
 public:
  FailingStore(RendezvousStore& store, int fails_at, bool with_effect)
      : store_(store), left_(fails_at), with_effect_(with_effect) {}

  bool has_failed() const { return left_ < 0; }

  absl::Status set(const std::string& key, const std::string& value) override {
    return trip<absl::Status>([&] { return store_.set(key, value); });
  }
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override {
    return trip<absl::StatusOr<std::string>>([&] { return store_.get(key, timeout); });
  }
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    return trip<absl::StatusOr<std::optional<std::string>>>([&] { return store_.try_get(key); });
  }
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    return trip<absl::StatusOr<int64_t>>([&] { return store_.add(key, amount); });
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    return trip<absl::StatusOr<std::string>>(
        [&] { return store_.compare_set(key, expected, desired); });
  }
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return trip<absl::Status>([&] { return store_.wait(keys, timeout); });
  }
  std::string description() const override { return store_.description(); }

 private:
  template <class Result, class Call>
  Result trip(Call call) {
    const absl::Status lost = absl::UnavailableError("the store's answer was lost");
    if (left_-- != 0) return call();
    if (with_effect_) (void)call();
    return lost;
  }

  RendezvousStore& store_;
  int left_;
  const bool with_effect_;
};

TEST(DynamicJoin, WhereverTheStoreFailsTheNameStaysFree) {
  for (bool with_effect : {false, true}) {
    for (bool successor : {false, true}) {
      for (int at = 0;; ++at) {
        SCOPED_TRACE(::testing::Message() << "round trip " << at << ", with effect " << with_effect
                                          << ", after an earlier incarnation " << successor);
        MemoryStore store;
        ASSERT_TRUE(join_dynamic_group(store, request("b"), {}).ok());
        if (successor) {
          const WorkerId earlier = join_dynamic_group(store, request("a"), {})->self;
          ASSERT_TRUE(
              rpc_internal::mark_left(store, rpc_internal::JoinKeys("weft", 0), earlier).ok());
        }
        FailingStore failing(store, at, with_effect);
        const absl::Status failed = join_dynamic_group(failing, request("a"), {}).status();
        if (!failing.has_failed()) {
          EXPECT_TRUE(failed.ok());
          EXPECT_GT(at, 5);
          break;
        }
        EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
        EXPECT_EQ(names(*join_dynamic_group(store, request("c"), {})),
                  (std::vector<std::string>{"b", "c"}));
        const auto again = join_dynamic_group(store, request("a"), {});
        EXPECT_TRUE(again.ok()) << again.status();
      }
    }
  }
}

TEST(DynamicJoin, AFailedTakeoverDoesNotEndTheIncarnationThatHoldsTheName) {
  for (int at = 0;; ++at) {
    SCOPED_TRACE(at);
    MemoryStore store;
    const WorkerId holder = join_dynamic_group(store, request("a"), {})->self;
    FailingStore failing(store, at, false);
    const absl::Status refused = join_dynamic_group(failing, request("a"), {}).status();
    EXPECT_FALSE(refused.ok());
    const auto other = join_dynamic_group(store, request("b"), {});
    ASSERT_TRUE(other.ok()) << other.status();
    ASSERT_EQ(names(*other), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(other->members[0].id, holder);
    if (!failing.has_failed()) break;
  }
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
