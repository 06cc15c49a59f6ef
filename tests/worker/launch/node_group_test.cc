// Several launchers in one process meet at a store in memory.
#include "weft/worker/launch/node_group.h"

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/rendezvous/memory_store.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using Joined = absl::StatusOr<std::unique_ptr<NodeGroup>>;

// A store whose server can go away.
class FrailStore final : public RendezvousStore {
 public:
  std::atomic<bool> gone{false};

  absl::Status set(const std::string& key, const std::string& value) override {
    return gone ? away() : store_.set(key, value);
  }
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration timeout) override {
    if (gone) return away();
    return store_.get(key, timeout);
  }
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    if (gone) return away();
    return store_.try_get(key);
  }
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    if (gone) return away();
    return store_.add(key, amount);
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    if (gone) return away();
    return store_.compare_set(key, expected, desired);
  }
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return gone ? away() : store_.wait(keys, timeout);
  }
  std::string description() const override { return store_.description(); }

 private:
  static absl::Status away() { return absl::UnavailableError("the store is gone"); }

  MemoryStore store_;
};

NodeRecord record(uint32_t node, uint32_t nodes) {
  return {.host = absl::StrCat("host", node),
          .nodes = nodes,
          .roles = {{"default", 2}},
          .run_id = node == 1 ? "" : "job",
          .token = absl::StrCat(node)};
}

NodeGroupOptions options(uint32_t node) {
  return {.node = node,
          .join_timeout = std::chrono::seconds(30),
          .interval = std::chrono::milliseconds(20),
          .lost_after = 50};
}

bool never() { return false; }

class NodeGroupTest : public ::testing::Test {
 protected:
  void join(uint32_t nodes) {
    std::vector<std::future<Joined>> joining;
    for (uint32_t node = 0; node < nodes; ++node) {
      joining.push_back(std::async(std::launch::async, [this, node, nodes] {
        return NodeGroup::join(store_, record(node, nodes), options(node), never);
      }));
    }
    for (std::future<Joined>& one : joining) {
      Joined joined = one.get();
      ASSERT_TRUE(joined.ok()) << joined.status();
      groups_.push_back(*std::move(joined));
    }
  }

  // Waits as the supervisor does.
  template <class Condition>
  static void wait_until(const NodeGroup& group, Condition condition) {
    while (!condition()) {
      pollfd waiting = {group.descriptor(), POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 30'000), 1) << "nothing changed within 30 s";
      uint64_t count = 0;
      (void)!read(group.descriptor(), &count, sizeof(count));
    }
  }
  static NodeFailure await_failure(const NodeGroup& group) {
    wait_until(group, [&] { return group.failure().has_value(); });
    return group.failure().value_or(NodeFailure());
  }
  static void await_leave(const NodeGroup& group) {
    wait_until(group, [&] { return group.may_leave(); });
  }

  FrailStore store_;
  std::vector<std::unique_ptr<NodeGroup>> groups_;
};

TEST_F(NodeGroupTest, AllNodesMeetAndHaveOneRunId) {
  join(3);
  for (uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(groups_[node]->place().first_rank, 2 * node);
    EXPECT_EQ(groups_[node]->place().world_size, 6u);
    EXPECT_EQ(groups_[node]->run_id(), "job");
    EXPECT_FALSE(groups_[node]->failure());
    EXPECT_FALSE(groups_[node]->may_leave());
  }
}

TEST_F(NodeGroupTest, NodesWithAndWithoutCertificatesDoNotMeet) {
  NodeGroupOptions options;
  options.join_timeout = std::chrono::seconds(30);
  std::future<Joined> other = std::async(std::launch::async, [&] {
    NodeGroupOptions second = options;
    second.node = 1;
    return NodeGroup::join(store_, {.nodes = 2, .token = "b"}, second, [] { return false; });
  });
  NodeRecord self = {.nodes = 2, .token = "a"};
  self.public_keys = {"key"};
  const Joined joined = NodeGroup::join(store_, self, options, [] { return false; });
  EXPECT_THAT(std::string(joined.status().message()),
              HasSubstr("different --certificates: node 0 () has per-worker, node 1 () has none"));
  EXPECT_FALSE(other.get().ok());
}

// On each node: node 0 first, and with the keys. After DeadlineExceeded once more.
TEST_F(NodeGroupTest, AllNodesActOnTheRecordsWhenAllHaveMet) {
  std::vector<std::string> acts;
  const auto options_of = [&](uint32_t node) {
    NodeGroupOptions options;
    options.node = node;
    options.join_timeout = std::chrono::seconds(30);
    options.on_all_met = [&, node](const std::vector<NodeRecord>& records) -> absl::Status {
      const bool told = store_.try_get(kNodesKey)->has_value();
      acts.push_back(absl::StrCat(node, told ? " told" : " first"));
      for (const NodeRecord& record : records)
        acts.back() += record.public_keys.empty() ? "" : " key";
      return acts.size() == 1 ? absl::DeadlineExceededError("slow") : absl::OkStatus();
    };
    return options;
  };
  const auto record_of = [](const char* token) {
    NodeRecord record = {.nodes = 2, .roles = {{"default", 1}}, .token = token};
    record.public_keys = {"key"};
    return record;
  };
  std::future<Joined> other = std::async(std::launch::async, [&] {
    return NodeGroup::join(store_, record_of("b"), options_of(1), [] { return false; });
  });
  const Joined joined =
      NodeGroup::join(store_, record_of("a"), options_of(0), [] { return false; });
  EXPECT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(other.get().ok());
  EXPECT_EQ(acts, (std::vector<std::string>{"0 first key key", "0 first key key", "1 told"}));
}

TEST_F(NodeGroupTest, AFailureToActEndsAllNodes) {
  NodeGroupOptions options;
  options.join_timeout = std::chrono::seconds(30);
  const auto record_of = [](const char* token) {
    return NodeRecord{.nodes = 2, .roles = {{"default", 1}}, .token = token};
  };
  std::future<Joined> first = std::async(std::launch::async, [&] {
    return NodeGroup::join(store_, record_of("a"), options, [] { return false; });
  });
  NodeGroupOptions failing = options;
  failing.node = 1;
  failing.on_all_met = [](const auto&) { return absl::InternalError("bad certificate"); };
  const Joined second = NodeGroup::join(store_, record_of("b"), failing, [] { return false; });
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("bad certificate"));
  const Joined met = first.get();
  ASSERT_TRUE(met.ok()) << met.status();
  EXPECT_THAT(await_failure(**met).text, HasSubstr("bad certificate"));
}

TEST_F(NodeGroupTest, TheFirstFailureIsEverybodys) {
  join(3);
  groups_[2]->fail(7, "rank 4 broke");
  groups_[2]->fail(8, "later");
  for (const auto& group : groups_) {
    EXPECT_EQ(await_failure(*group), (NodeFailure{2, 7, "rank 4 broke"}));
    EXPECT_EQ(group->exit_code(), 7);
  }
  groups_[0]->fail(9, "too late");
  EXPECT_EQ(groups_[0]->failure()->code, 7);
}

TEST_F(NodeGroupTest, TheFirstNodeWaitsForTheOthers) {
  join(3);
  groups_[0]->finish(0);
  groups_[1]->finish(0);
  await_leave(*groups_[1]);
  EXPECT_EQ(groups_[1]->exit_code(), 0);
  EXPECT_FALSE(groups_[0]->may_leave());
  groups_[2]->finish(5);  // its other processes went on after a failure
  await_leave(*groups_[2]);
  EXPECT_EQ(groups_[2]->exit_code(), 5);
  await_leave(*groups_[0]);
  EXPECT_EQ(groups_[0]->exit_code(), 5);
}

TEST_F(NodeGroupTest, ANodeThatIsNotHeardOfIsLost) {
  join(3);
  groups_.pop_back();  // as if its launcher was killed
  const NodeFailure failure = await_failure(*groups_[1]);
  EXPECT_EQ(failure, (NodeFailure{2, 1, "lost: its launcher has not been heard of"}));
  groups_[1]->finish(1);
  groups_[0]->finish(1);
  await_leave(*groups_[0]);
}

TEST_F(NodeGroupTest, ANodeThatHasFinishedIsNotMissed) {
  join(2);
  groups_[1]->finish(0);
  await_leave(*groups_[1]);
  groups_.pop_back();
  groups_[0]->finish(0);
  await_leave(*groups_[0]);
  EXPECT_FALSE(groups_[0]->failure());
  EXPECT_EQ(groups_[0]->exit_code(), 0);
}

TEST_F(NodeGroupTest, AStoreThatStaysAwayIsTheLossOfTheFirstNode) {
  join(2);
  store_.gone = true;
  const NodeFailure failure = await_failure(*groups_[1]);
  EXPECT_EQ(failure.node, 0u);
  EXPECT_THAT(failure.text, HasSubstr("lost: the store is gone"));
  groups_[1]->finish(1);
  EXPECT_TRUE(groups_[1]->may_leave());
}

TEST_F(NodeGroupTest, AStoreThatComesBackIsForgiven) {
  join(2);
  store_.gone = true;
  store_.gone = false;
  groups_[1]->finish(0);
  await_leave(*groups_[1]);
  EXPECT_FALSE(groups_[1]->failure());
}

// A node may fail while another one still reads that all have come.
TEST_F(NodeGroupTest, AFailureAfterAllHaveRegisteredIsNotOneOfJoining) {
  ASSERT_TRUE(store_
                  .set("weft/launch/nodes",
                       to_text(std::vector<NodeRecord>{record(0, 3), record(1, 3), record(2, 3)}))
                  .ok());
  ASSERT_TRUE(store_.set("weft/launch/failure", to_text(NodeFailure{1, 7, "broke"})).ok());
  Joined joined = NodeGroup::join(store_, record(2, 3), options(2), never);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(await_failure(**joined).code, 7);
}

TEST_F(NodeGroupTest, WhoEndsSaysWhyFirst) {
  join(2);
  groups_[1]->fail(3, "rank 3 broke");
  groups_[1]->finish(3);
  groups_.pop_back();
  EXPECT_EQ(await_failure(*groups_[0]).text, "rank 3 broke");
  groups_[0]->finish(3);
  await_leave(*groups_[0]);
}

// ---- joining

Joined join_one(RendezvousStore& store, const NodeRecord& self, uint32_t node,
                std::chrono::nanoseconds timeout = std::chrono::milliseconds(1)) {
  NodeGroupOptions one = options(node);
  one.join_timeout = timeout;
  return NodeGroup::join(store, self, one, never);
}

TEST(NodeGroupJoin, MissingNodesAreNamed) {
  MemoryStore store;
  const absl::Status status = join_one(store, record(1, 4), 1).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not come in time: 0, 2, 3"));
  // Who comes later need not wait.
  const absl::Status later = join_one(store, record(0, 4), 0, std::chrono::seconds(30)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
  EXPECT_THAT(std::string(later.message()), HasSubstr("did not come in time"));
}

TEST(NodeGroupJoin, ANodeThatDiesWhileItWaitsForOthersIsMissed) {
  MemoryStore store;
  ASSERT_TRUE(store.set("weft/launch/node/1", to_text(record(1, 3))).ok());
  const absl::Status status = join_one(store, record(0, 3), 0, std::chrono::minutes(5)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node 1 (host1) came and is lost"), HasSubstr("Missing: 2")));
}

TEST(NodeGroupJoin, ASecondLauncherOfANodeIsRefusedAndTheFirstGoesOn) {
  MemoryStore store;
  auto first = std::async(std::launch::async, [&] {
    return join_one(store, record(0, 2), 0, std::chrono::seconds(30));
  });
  ASSERT_TRUE(store.wait({"weft/launch/node/0"}, absl::Seconds(30)).ok());
  NodeRecord second = record(0, 2);
  second.host = "elsewhere";
  second.token = "other";
  const absl::Status status = join_one(store, second, 0).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("one on host0, one on elsewhere"));
  const Joined other = join_one(store, record(1, 2), 1, std::chrono::seconds(30));
  EXPECT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(first.get().ok());
}

TEST(NodeGroupJoin, DifferentNumbersOfNodesFailOnAllNodes) {
  MemoryStore store;
  auto first = std::async(std::launch::async, [&] {
    return join_one(store, record(0, 3), 0, std::chrono::seconds(30)).status();
  });
  const absl::Status second = join_one(store, record(1, 2), 1, std::chrono::seconds(30)).status();
  for (const absl::Status& status : {first.get(), second}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("different numbers of nodes: node "));
  }
}

TEST(NodeGroupJoin, LaunchersOfAnotherJobAreRefused) {
  MemoryStore store;
  auto first = std::async(std::launch::async, [&] {
    return join_one(store, record(0, 2), 0, std::chrono::seconds(30)).status();
  });
  NodeRecord other = record(1, 2);
  other.run_id = "another";
  const absl::Status second = join_one(store, other, 1, std::chrono::seconds(30)).status();
  for (const absl::Status& status : {first.get(), second}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("different run ids: node "));
  }
}

TEST_F(NodeGroupTest, AStrayLauncherDoesNotHarmARunningGroup) {
  join(2);
  EXPECT_FALSE(NodeGroup::join(store_, record(2, 3), options(2), never).ok());
  groups_[1]->finish(0);
  groups_[0]->finish(0);
  await_leave(*groups_[0]);
  EXPECT_FALSE(groups_[0]->failure());
}

TEST_F(NodeGroupTest, AFailureThatCannotBeReadEndsTheGroup) {
  join(2);
  ASSERT_TRUE(store_.set("weft/launch/failure", to_text(NodeFailure{7, 1, "no such node"})).ok());
  const NodeFailure failure = await_failure(*groups_[1]);
  EXPECT_EQ(failure.node, 1u);
  EXPECT_THAT(failure.text, HasSubstr("the group's failure: "));
}

// Node 0 may end with the store as soon as it knows that the others have ended.
TEST_F(NodeGroupTest, AStoreThatGoesAfterTheEndIsNoFailure) {
  join(2);
  store_.gone = true;
  groups_[1]->finish(0);
  await_leave(*groups_[1]);
  EXPECT_FALSE(groups_[1]->failure());
  EXPECT_EQ(groups_[1]->exit_code(), 0);
}

// It is not too late for the others to learn that a node has given up.
TEST_F(NodeGroupTest, ANodeThatGivesUpTellsAGroupThatHasJustMet) {
  ASSERT_TRUE(
      store_.set("weft/launch/nodes", to_text(std::vector<NodeRecord>{record(0, 2), record(1, 2)}))
          .ok());
  NodeRecord third = record(1, 3);
  EXPECT_FALSE(NodeGroup::join(store_, third, options(1), never).ok());
  EXPECT_TRUE(store_.try_get("weft/launch/failure")->has_value());
}

TEST(NodeGroupJoin, ASignalEndsTheWait) {
  MemoryStore store;
  const absl::Status status =
      NodeGroup::join(store, record(0, 2), options(0), [] { return true; }).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(NodeGroupJoin, AnotherProgramsValueIsRefused) {
  MemoryStore store;
  ASSERT_TRUE(store.set("weft/launch/node/1", "hello").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(join_one(store, record(0, 2), 0).status()));
}

}  // namespace
}  // namespace weft::launch
