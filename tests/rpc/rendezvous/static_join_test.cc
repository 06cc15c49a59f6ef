#include "weft/rpc/rendezvous/static_join.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/tests/base/captured_log.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JoinRequest request(uint32_t rank, uint32_t world_size) {
  JoinRequest result;
  result.name = absl::StrCat("worker", rank);
  result.rank = rank;
  result.world_size = world_size;
  result.address = absl::StrCat("host:", 7000 + rank);
  return result;
}

using Joining = std::future<absl::StatusOr<JoinResult>>;

Joining join_in_thread(RendezvousStore& store, const JoinRequest& request) {
  return std::async(std::launch::async,
                    [&store, request] { return join_static_group(store, request); });
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

// Says at once that a wait was in vain, so that a timeout of a minute takes no time.
class ImpatientStore final : public RendezvousStore {
 public:
  absl::Status set(const std::string& key, const std::string& value) override {
    return store_.set(key, value);
  }
  absl::StatusOr<std::string> get(const std::string& key, absl::Duration) override {
    return store_.get(key, absl::ZeroDuration());
  }
  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    return store_.try_get(key);
  }
  absl::StatusOr<int64_t> add(const std::string& key, int64_t amount) override {
    return store_.add(key, amount);
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    return store_.compare_set(key, expected, desired);
  }
  absl::Status wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    waited_ += timeout;
    return store_.wait(keys, absl::ZeroDuration());
  }
  std::string description() const override { return "impatient store"; }

  absl::Duration waited() const { return waited_; }

 private:
  MemoryStore store_;
  absl::Duration waited_;
};

TEST(StaticJoin, EveryRankLearnsEveryOther) {
  constexpr uint32_t kRanks = 5;
  MemoryStore store;
  std::vector<Joining> joining;
  for (uint32_t r = 0; r < kRanks; ++r)
    joining.push_back(join_in_thread(store, request(r, kRanks)));
  for (uint32_t r = 0; r < kRanks; ++r) {
    const absl::StatusOr<JoinResult> result = joining[r].get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->self, (WorkerId{r, 1}));
    ASSERT_EQ(result->members.size(), kRanks);
    for (uint32_t other = 0; other < kRanks; ++other) {
      EXPECT_EQ(result->members[other].id, (WorkerId{other, 1}));
      EXPECT_EQ(result->members[other].name, absl::StrCat("worker", other));
      EXPECT_EQ(result->members[other].rank, other);
      EXPECT_EQ(result->members[other].address, absl::StrCat("host:", 7000 + other));
    }
  }
}

TEST(StaticJoin, AGroupOfOneNeedsNobody) {
  ImpatientStore store;
  const auto result = join_static_group(store, request(0, 1));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->members.size(), 1u);
}

TEST(StaticJoin, KeepsAnAddressWithSpaces) {
  MemoryStore store;
  JoinRequest alone = request(0, 1);
  alone.address = "grpc 10.0.0.1:1 shm /weft.1";
  EXPECT_EQ(join_static_group(store, alone)->members[0].address, alone.address);
}

TEST(StaticJoin, ARestartedWorkerIsANewIncarnationAndTheNewestIsRead) {
  MemoryStore store;
  Joining zero = join_in_thread(store, request(0, 2));
  ASSERT_TRUE(join_static_group(store, request(1, 2)).ok());
  ASSERT_TRUE(zero.get().ok());

  JoinRequest again = request(1, 2);
  again.attempt = 1;
  again.address = "elsewhere:1";
  const auto one = join_static_group(store, again);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->self, (WorkerId{1, 2}));
  EXPECT_EQ(one->members[0].id, (WorkerId{0, 1}));

  JoinRequest zero_again = request(0, 2);
  zero_again.attempt = 1;
  const auto seen = join_static_group(store, zero_again);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->members[1].id, (WorkerId{1, 2}));
  EXPECT_EQ(seen->members[1].address, "elsewhere:1");
}

// A group of two whose rank 1 may be replaced.
class ReplacedRank : public ::testing::Test {
 protected:
  ReplacedRank() {
    Joining zero = join_in_thread(*store_, request(0, 2));
    EXPECT_TRUE(join_static_group(*store_, request(1, 2)).ok());
    EXPECT_TRUE(zero.get().ok());
    next_.replaces_the_dead = true;
  }
  // Returns once the next process waits for the end of the one before.
  Joining join_and_wait() {
    const size_t before = log_.lines_with("waits for a death").size();
    Joining joining = join_in_thread(*store_, next_);
    EXPECT_TRUE(
        testing::eventually([&] { return log_.lines_with("waits for a death").size() > before; }));
    return joining;
  }
  static void expect_life(Joining joining, uint32_t incarnation, uint32_t attempt) {
    const auto one = joining.get();
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->self, (WorkerId{1, incarnation}));
    EXPECT_EQ(one->attempt, attempt);
  }

  const testing::CapturedLog log_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  JoinRequest next_ = request(1, 2);
};

TEST_F(ReplacedRank, IsTakenOverOnceTheHolderIsDead) {
  DeathRecords records(store_, "weft", 0);
  for (uint32_t before = 1; before <= 3; ++before) {
    Joining waiting = join_and_wait();
    ASSERT_TRUE(records.declare_dead({0, 1}, {1, before}, "no answer").ok());
    expect_life(std::move(waiting), before + 1, before);
  }
}

TEST_F(ReplacedRank, IsTakenOverOnceTheHolderHasLeft) {
  Joining waiting = join_and_wait();
  ASSERT_TRUE(rpc_internal::mark_left(*store_, rpc_internal::JoinKeys("weft", 0), {1, 1}).ok());
  expect_life(std::move(waiting), 2, 1);
}

TEST_F(ReplacedRank, IsNotTakenFromAHolderThatMayLive) {
  next_.timeout = absl::Milliseconds(1);
  const absl::Status refused = join_static_group(*store_, next_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_THAT(message(refused), HasSubstr("declared that process dead"));
}

TEST_F(ReplacedRank, IsFreeInTheNextRound) {
  Joining waiting = join_and_wait();
  ASSERT_TRUE(mark_ended(*store_, "weft", 0, 0).ok());
  Joining zero = join_in_thread(*store_, request(0, 2));
  expect_life(std::move(waiting), 2, 0);
  EXPECT_EQ(zero.get()->round, 1u);
}

TEST_F(ReplacedRank, AFailureOfTheGroupEndsTheWait) {
  Joining waiting = join_and_wait();
  ASSERT_TRUE(store_->set(rpc_internal::JoinKeys("weft", 0).failure(), "3 no more").ok());
  EXPECT_EQ(message(waiting.get().status()), "no more");
}

// Nobody else would tell that no process stands behind the record.
TEST(StaticJoin, AJoinThatFailsLeavesTheRankToAReplacement) {
  auto store = std::make_shared<MemoryStore>();
  JoinRequest alone = request(1, 2);
  alone.timeout = absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(join_static_group(*store, alone).status()));
  JoinRequest next = request(1, 2);
  next.replaces_the_dead = true;
  Joining zero = join_in_thread(*store, request(0, 2));
  const auto one = join_static_group(*store, next);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->attempt, 1u);
  EXPECT_TRUE(zero.get().ok());
}

TEST(StaticJoin, OfTwoReplacementsOneTakesTheRank) {
  auto store = std::make_shared<MemoryStore>();
  ASSERT_TRUE(join_static_group(*store, request(0, 1)).ok());
  ASSERT_TRUE(DeathRecords(store, "weft", 0).declare_dead({7, 1}, {0, 1}, "no answer").ok());
  JoinRequest next = request(0, 1);
  next.replaces_the_dead = true;
  next.timeout = absl::Milliseconds(100);
  Joining one = join_in_thread(*store, next), other = join_in_thread(*store, next);
  EXPECT_EQ(one.get().ok() + other.get().ok(), 1);
}

TEST(StaticJoin, ANewEpochMeetsNobodyOfTheOldAndRepeatsNoIncarnation) {
  MemoryStore store;
  Joining zero = join_in_thread(store, request(0, 2));
  ASSERT_TRUE(join_static_group(store, request(1, 2)).ok());
  ASSERT_TRUE(zero.get().ok());

  JoinRequest next_zero = request(0, 2);
  next_zero.epoch = 1;
  JoinRequest next_one = request(1, 2);
  next_one.epoch = 1;
  next_one.timeout = absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(join_static_group(store, next_one).status()))
      << "rank 0 of the old epoch must not be met";
  next_one.attempt = 1;
  next_one.timeout = absl::Minutes(1);
  zero = join_in_thread(store, next_zero);
  const auto one = join_static_group(store, next_one);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->self, (WorkerId{1, 3}));
  EXPECT_EQ(one->members[0].id, (WorkerId{0, 2}));
  EXPECT_TRUE(zero.get().ok());
}

// A worker that leaves late must not end the round that others have begun meanwhile.
TEST(StaticJoin, AGroupThatHasEndedIsJoinedAgainWithTheSameRequestAndMeetsNobodyOfBefore) {
  MemoryStore store;
  for (uint32_t round = 0; round < 3; ++round) {
    JoinRequest early = request(1, 2);
    early.timeout = absl::Milliseconds(1);
    early.attempt = 1;
    const absl::Status alone = join_static_group(store, early).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(alone)) << "nobody of this round is there";
    EXPECT_EQ(message(alone).ends_with("have shut down"), round > 0) << alone;
    Joining zero = join_in_thread(store, request(0, 2));
    const auto one = join_static_group(store, request(1, 2));
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->round, round);
    EXPECT_EQ(one->members[0].id, (WorkerId{0, round + 1}));
    ASSERT_TRUE(zero.get().ok());
    EXPECT_TRUE(absl::IsAlreadyExists(join_static_group(store, request(1, 2)).status()));
    for (int member = 0; member < 2; ++member) {
      for (uint32_t ended = 0; ended <= round; ++ended) {
        ASSERT_TRUE(mark_ended(store, "weft", 0, ended).ok());
      }
    }
  }
}

TEST(StaticJoin, GroupsOnOneStoreDoNotMeet) {
  MemoryStore store;
  JoinRequest a = request(0, 1);
  a.group = "a";
  JoinRequest b = request(0, 1);
  b.group = "b";
  EXPECT_EQ(join_static_group(store, a)->self, (WorkerId{0, 1}));
  EXPECT_EQ(join_static_group(store, b)->self, (WorkerId{0, 1}));
}

TEST(StaticJoin, ListsTheMissingRanksAfterTheTimeout) {
  ImpatientStore store;
  JoinRequest late = request(0, 6);
  EXPECT_FALSE(join_static_group(store, request(2, 6)).ok());
  EXPECT_FALSE(join_static_group(store, request(5, 6)).ok());
  const absl::Duration before = store.waited();
  const absl::Status status = join_static_group(store, late).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(message(status), AllOf(HasSubstr("ranks 1, 3, 4 of 6"), HasSubstr("'weft'"),
                                     HasSubstr("1m"), HasSubstr("impatient store")));
  EXPECT_EQ(store.waited() - before, absl::Minutes(1));
}

TEST(StaticJoin, ListsAtMostSixteenMissingRanks) {
  ImpatientStore store;
  const absl::Status status = join_static_group(store, request(0, 100)).status();
  EXPECT_THAT(message(status), HasSubstr("15, 16 and 83 more of 100"));
}

TEST(StaticJoin, ATimeoutOfZeroIsNoLimit) {
  MemoryStore store;
  JoinRequest patient = request(0, 2);
  patient.timeout = absl::ZeroDuration();
  Joining zero = join_in_thread(store, patient);
  ASSERT_TRUE(join_static_group(store, request(1, 2)).ok());
  EXPECT_TRUE(zero.get().ok());
}

TEST(StaticJoin, ADuplicateNameFailsBothRanksAndNamesThem) {
  MemoryStore store;
  Joining zero = join_in_thread(store, request(0, 3));
  JoinRequest twin = request(2, 3);
  twin.name = "worker0";
  twin.timeout = absl::InfiniteDuration();
  // Rank 0 may not have taken the name yet. The second one to come finds it taken.
  const absl::Status second = join_static_group(store, twin).status();
  const absl::Status first = zero.get().status();
  EXPECT_TRUE(absl::IsAlreadyExists(first)) << first;
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_EQ(first.message(), second.message());
  EXPECT_THAT(message(first), AllOf(HasSubstr("'worker0'"), HasSubstr("ranks "), HasSubstr("0"),
                                    HasSubstr("and"), HasSubstr("2")));
}

TEST(StaticJoin, DifferentWorldSizesFailEveryRankAndAreNamed) {
  MemoryStore store;
  Joining zero = join_in_thread(store, request(0, 3));
  JoinRequest other = request(1, 4);
  const absl::Status second = join_static_group(store, other).status();
  const absl::Status first = zero.get().status();
  EXPECT_TRUE(absl::IsInvalidArgument(first)) << first;
  EXPECT_TRUE(absl::IsInvalidArgument(second)) << second;
  EXPECT_THAT(message(first), AllOf(HasSubstr("rank 0 has 3"), HasSubstr("rank 1 has 4")));
  EXPECT_EQ(first.message(), second.message());
}

TEST(StaticJoin, ASecondProcessWithOneRankIsRefusedAndTheFirstIsUnharmed) {
  MemoryStore store;
  Joining zero = join_in_thread(store, request(0, 2));
  Joining one = join_in_thread(store, request(1, 2));
  ASSERT_TRUE(zero.get().ok());
  ASSERT_TRUE(one.get().ok());
  JoinRequest impostor = request(1, 2);
  impostor.name = "other";
  const absl::Status status = join_static_group(store, impostor).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr("rank 1"), HasSubstr("'worker1' at host:7001")));
  EXPECT_EQ(*store.get("weft/weft/incarnation/1", absl::ZeroDuration()), "1");
}

TEST(StaticJoin, ALateEarlierIncarnationDoesNotHideTheLaterOne) {
  ImpatientStore store;
  ASSERT_TRUE(store.set("weft/weft/0/member/0", "9 0 worker0 newer:1").ok());
  const absl::Status status = join_static_group(store, request(0, 1)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(message(status), HasSubstr("newer:1"));
  EXPECT_EQ(**store.try_get("weft/weft/0/member/0"), "9 0 worker0 newer:1");
}

TEST(StaticJoin, RefusesBadRequestsBeforeTouchingTheStore) {
  MemoryStore store;
  const auto code = [&](const JoinRequest& bad) {
    return join_static_group(store, bad).status().code();
  };
  JoinRequest out_of_range = request(2, 2);
  EXPECT_EQ(code(out_of_range), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message(join_static_group(store, out_of_range).status()),
              AllOf(HasSubstr("rank 2"), HasSubstr("world size 2")));
  EXPECT_EQ(code(request(0, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(request(0, 1u << 20)), absl::StatusCode::kInvalidArgument);
  JoinRequest no_address = request(0, 1);
  no_address.address = "";
  EXPECT_EQ(code(no_address), absl::StatusCode::kInvalidArgument);
  JoinRequest no_group = request(0, 1);
  no_group.group = "";
  EXPECT_EQ(code(no_group), absl::StatusCode::kInvalidArgument);
  JoinRequest bad_name = request(0, 1);
  bad_name.name = "a b";
  EXPECT_EQ(code(bad_name), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*store.try_get("weft/weft/0/world_size"), std::nullopt);
}

TEST(StaticJoin, ADamagedRecordIsAnError) {
  for (const char* damage :
       {"", "x", "0 0 worker1 host:1", "1 0 bad/name host:1", "-1 0 worker1 h:1", "1 x worker1 h:1",
        "99999999999 0 worker1 host:1", "1 0 worker1"}) {
    ImpatientStore store;
    ASSERT_TRUE(store.set("weft/weft/0/member/1", damage).ok());
    const absl::Status status = join_static_group(store, request(0, 2)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << "'" << damage << "': " << status;
    EXPECT_THAT(message(status), HasSubstr("member/1"));
  }
}

TEST(StaticJoin, WorkerNames) {
  const std::string longest(127, 'a');
  for (const std::string& good :
       {std::string("a"), std::string("ps:0"), std::string("A_b-c.9"), longest}) {
    EXPECT_TRUE(check_worker_name(good).ok()) << good;
  }
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a/b"),
                                 std::string("\xc3\xa4"), std::string("a\0b", 3), longest + "a"}) {
    const absl::Status status = check_worker_name(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
  }
}

}  // namespace
}  // namespace weft
