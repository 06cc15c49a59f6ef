// An owner and the workers that hold its values: quotas, creations that it waits for, deaths.
#include <gtest/gtest.h>

#include "weft/rref/internal/ownership_core.h"

namespace weft::rref_internal {
namespace {

constexpr WorkerId kOwner{0, 1}, kGreedy{1, 1}, kModest{2, 1};
const TypeTag kType{77, "at::Tensor"};

Acceptance create(OwnershipCore& owner, WorkerId from, uint64_t number, Actions& out) {
  return owner.accept_creation(from, {from, number}, {from, number}, kType, out);
}

TEST(RRefQuota, WhoHoldsAsMuchAsOneMayCreatesNoMore) {
  OwnershipCore owner(kOwner, {.forks_per_worker = 2});
  Actions out;
  EXPECT_EQ(create(owner, kGreedy, 1, out), Acceptance::kRun);
  EXPECT_EQ(create(owner, kGreedy, 2, out), Acceptance::kRun);
  EXPECT_EQ(create(owner, kGreedy, 3, out), Acceptance::kOverQuota);
  EXPECT_EQ(create(owner, kGreedy, 2, out), Acceptance::kDuplicate);
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  EXPECT_EQ(owner.gauges().owners, 3u);
  // A refused creation leaves nothing, and a dropped one makes room.
  owner.set_value({kGreedy, 1}, absl::OkStatus(), out);
  owner.on_message(kGreedy, kOwner, UserDelete{{kGreedy, 1}, {kGreedy, 1}, false, 2}, out);
  EXPECT_EQ(create(owner, kGreedy, 4, out), Acceptance::kRun);
}

// If the owner refused a reference, it would be lost. A creation is refused before it has begun.
TEST(RRefQuota, ReferencesThatOthersSendAreTakenAllTheSame) {
  OwnershipCore owner(kOwner, {.forks_per_worker = 1});
  Actions out;
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  EXPECT_EQ(create(owner, kGreedy, 1, out), Acceptance::kRun);
  owner.on_message(kGreedy, kOwner, ForkRequest{{kModest, 1}, {kModest, 2}, 0}, out);
  EXPECT_EQ(owner.gauges().forks, 3u);
}

// The worker that is to create such a value may die before it has sent anything to this owner. So
// membership is asked about it (MembershipCore::settle_ended).
TEST(RRefTies, NameWhoseCreationsAreWaitedFor) {
  OwnershipCore owner(kOwner);
  Actions out;
  const auto ties = [&] {
    std::vector<WorkerId> workers;
    owner.append_ties(workers);
    return workers;
  };
  owner.on_message(kModest, kOwner, ForkRequest{{kGreedy, 1}, {kModest, 2}, 0}, out);
  owner.on_message(kModest, kOwner, ForkRequest{{kGreedy, 2}, {kModest, 3}, 0}, out);
  EXPECT_EQ(ties(), std::vector<WorkerId>{kGreedy});
  out.clear();
  owner.peer_dead(kGreedy, out);
  ASSERT_EQ(out.size(), 2u);
  const auto* refused = std::get_if<ForkReject>(&std::get<Send>(out[0]).message);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reason, RejectReason::kCreatorDied);
  EXPECT_TRUE(ties().empty());
}

// Creations may fail in any order. The limit must not drop the error that has just come.
TEST(RRefErrors, ALateErrorOfAnEarlyCreationReachesItsReferences) {
  OwnershipCore owner(kOwner, {.errors_per_creator = 1});
  Actions out;
  const auto fail_creation = [&](uint64_t number) {
    CancelFork cancel{kOwner, {kGreedy, number}, {kGreedy, number}, true};
    cancel.error = absl::DeadlineExceededError("creation timed out");
    out.clear();
    owner.on_message(kGreedy, kOwner, cancel, out);
  };
  owner.on_message(kModest, kOwner, ForkRequest{{kGreedy, 1}, {kModest, 1}, 0}, out);
  fail_creation(2);
  fail_creation(1);
  ASSERT_FALSE(out.empty());
  const auto* refused = std::get_if<ForkReject>(&std::get<Send>(out[0]).message);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reason, RejectReason::kNotCreated);
  EXPECT_EQ(refused->error, absl::DeadlineExceededError("creation timed out"));
}

// The owner then keeps the fork, which is safe.
TEST(RRefRecalls, AUserWithoutRoomForAnotherTombstoneAnswersThatItHasTheFork) {
  OwnershipCore user(kModest, {.withdrawn_per_owner = 1});
  Actions out;
  for (uint64_t number = 1; number <= 3; ++number) {
    user.on_message(kOwner, kModest, CancelFork{kOwner, {kOwner, 1}, {kOwner, number}, false}, out);
  }
  ASSERT_EQ(out.size(), 3u);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto* answer = std::get_if<CancelAck>(&std::get<Send>(out[i]).message);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->registered, i > 0);
  }
}

// Death records may come in any order.
TEST(RRefDeaths, AnEarlierIncarnationEndsAlsoAfterALaterOneOfItsIndex) {
  OwnershipCore owner(kOwner);
  Actions out;
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  owner.peer_dead({kModest.index, 2}, out);
  EXPECT_EQ(owner.gauges().owners, 1u);
  owner.set_value({kModest, 1}, absl::OkStatus(), out);
  owner.peer_dead(kModest, out);
  EXPECT_EQ(owner.gauges().owners, 0u);
}

}  // namespace
}  // namespace weft::rref_internal
