// An owner and the workers that hold its values: quotas, creations that it waits for, deaths.
#include <vector>

#include <gtest/gtest.h>

#include "weft/rref/internal/ownership_core.h"
#include "weft/tests/rref/core_world.h"

namespace weft::rref_internal {
namespace {

constexpr WorkerId kOwner{0, 1}, kGreedy{1, 1}, kModest{2, 1};
const TypeTag kType{77, "at::Tensor"};

Acceptance create(OwnershipCore& owner, WorkerId from, uint64_t number, Actions& out) {
  const RRefId rref{from, number};
  return owner.accept_creation(from, {rref, {from, number}, kType, key_for(rref)}, out);
}

TEST(RRefQuota, WhoHoldsAsMuchAsOneMayCreatesNoMore) {
  OwnershipCore owner(kOwner, key_for, {.forks_per_worker = 2});
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

// A fork that a worker asks for with a guessed key is not listed, so it keeps nothing alive.
TEST(RRefKeys, NobodyGetsAForkWithAGuessedKey) {
  OwnershipCore owner(kOwner, key_for);
  Actions out;
  const RRefId rref{kModest, 1};
  // The first two requests come before the creation, the others after it.
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, {kModest, 11}, 0, 0}, out);
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, {kModest, 12}, 0, key_for(rref)}, out);
  out.clear();
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, {kModest, 13}, 0, key_for(rref) + 1}, out);
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, {kModest, 14}, 0, key_for(rref)}, out);
  std::vector<uint64_t> accepted, rejected;
  for (const Action& action : out) {
    const Message& message = std::get<Send>(action).message;
    if (const auto* accept = std::get_if<ForkAccept>(&message)) {
      accepted.push_back(accept->fork.number);
    } else if (const auto* reject = std::get_if<ForkReject>(&message)) {
      EXPECT_EQ(reject->reason, RejectReason::kWrongKey);
      rejected.push_back(reject->fork.number);
    }
  }
  EXPECT_EQ(accepted, (std::vector<uint64_t>{1, 12, 14}));
  EXPECT_EQ(rejected, (std::vector<uint64_t>{11, 13}));
  EXPECT_EQ(owner.gauges().forks, 3u);
  EXPECT_EQ(owner.gauges().refused_messages, 1u);
  EXPECT_EQ(owner.gauges().parked_forks, 0u);
}

TEST(RRefKeys, NobodyGetsAValueWithAGuessedKey) {
  OwnershipCore owner(kOwner, key_for);
  Actions out;
  const RRefId rref{kModest, 1};
  owner.fetch(kGreedy, rref, 0, 1, out);  // before the creation
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  owner.fetch(kGreedy, rref, key_for(rref) + 1, 2, out);  // before the value
  owner.fetch(kModest, rref, key_for(rref), 3, out);
  owner.set_value(rref, absl::OkStatus(), out);
  owner.fetch(kGreedy, rref, 0, 4, out);
  owner.fetch(kOwner, rref, 0, 5, out);  // the owner itself needs no key
  std::vector<FetchTicket> ready, failed;
  for (const Action& action : out) {
    if (const auto* answer = std::get_if<FetchReady>(&action)) ready.push_back(answer->ticket);
    if (const auto* answer = std::get_if<FetchFailed>(&action)) {
      EXPECT_EQ(answer->status.code(), absl::StatusCode::kPermissionDenied);
      failed.push_back(answer->ticket);
    }
  }
  EXPECT_EQ(ready, (std::vector<FetchTicket>{3, 5}));
  EXPECT_EQ(failed, (std::vector<FetchTicket>{1, 2, 4}));
  EXPECT_EQ(owner.gauges().parked_fetches, 0u);
}

// Fork ids are as easy to guess as those of RRefs. A request with a wrong key, which waits for the
// creation, must not take the place of the holder's.
TEST(RRefKeys, ARequestWithAGuessedKeyDisplacesNobody) {
  OwnershipCore owner(kOwner, key_for);
  Actions out;
  const RRefId rref{kModest, 1};
  const WorkerId holder{3, 1};
  const ForkId fork{kModest, 2}, own_fork{kModest, 3};
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, fork, 0, 0}, out);
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, own_fork, 0, 0}, out);
  owner.on_message(holder, kOwner, ForkRequest{rref, fork, 0, key_for(rref)}, out);
  const Reference reference{kOwner, rref, own_fork, {kModest, 1}, kType, key_for(rref)};
  EXPECT_EQ(owner.receive(kModest, {&reference, 1}, 1, out).front().status, absl::OkStatus());
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  size_t accepted = 0, rejected = 0, confirmed = 0;
  for (const Action& action : out) {
    if (const auto* send = std::get_if<Send>(&action)) {
      accepted += send->to == holder && std::holds_alternative<ForkAccept>(send->message) ? 1 : 0;
      rejected += send->to == kGreedy && std::holds_alternative<ForkReject>(send->message) ? 1 : 0;
    }
    if (const auto* told = std::get_if<AllConfirmed>(&action)) confirmed += told->status.ok();
  }
  EXPECT_EQ(accepted, 1u);
  EXPECT_EQ(rejected, 2u);
  EXPECT_EQ(confirmed, 1u);
  EXPECT_EQ(owner.gauges().parked_forks, 0u);
}

TEST(RRefKeys, AForkRequestForItKeepsNoFailedCreationAlive) {
  OwnershipCore owner(kOwner, key_for);
  Actions out;
  const RRefId rref{kModest, 1};
  owner.on_message(kGreedy, kOwner, ForkRequest{rref, {kModest, 1}, 0, 0}, out);
  owner.fetch(kGreedy, rref, key_for(rref), 1, out);
  EXPECT_TRUE(out.empty());
  CancelFork cancel{kOwner, rref, {kModest, 1}, true};
  cancel.error = absl::DeadlineExceededError("creation timed out");
  owner.on_message(kModest, kOwner, cancel, out);
  const auto* answer = std::get_if<CancelAck>(&std::get<Send>(out.back()).message);
  ASSERT_NE(answer, nullptr);
  EXPECT_FALSE(answer->registered);
  EXPECT_EQ(owner.gauges().parked_forks, 0u);
  EXPECT_EQ(owner.gauges().parked_fetches, 0u);
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRefused);
}

// Otherwise the owner's own handler would use a value for a worker that it was not given to.
TEST(RRefKeys, TheOwnerTakesNoReferenceWithAGuessedKey) {
  OwnershipCore owner(kOwner, key_for);
  Actions out;
  const RRefId rref{kModest, 1};
  const auto receive = [&](uint64_t fork, RRefKey key, WaiterId waiter) {
    const Reference reference{kOwner, rref, {kGreedy, fork}, {kModest, 9}, kType, key};
    return owner.receive(kGreedy, {&reference, 1}, waiter, out).front().status;
  };
  EXPECT_EQ(receive(1, 0, 1), absl::OkStatus());  // before the creation it cannot know
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  const auto* told = std::get_if<AllConfirmed>(&out[1]);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->status.code(), absl::StatusCode::kPermissionDenied) << told->status;
  EXPECT_EQ(receive(2, 0, 2).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(receive(3, key_for(rref), 3), absl::OkStatus());
}

// If the owner refused a reference, it would be lost. A creation is refused before it has begun.
TEST(RRefQuota, ReferencesThatOthersSendAreTakenAllTheSame) {
  OwnershipCore owner(kOwner, key_for, {.forks_per_worker = 1});
  Actions out;
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  EXPECT_EQ(create(owner, kGreedy, 1, out), Acceptance::kRun);
  owner.on_message(kGreedy, kOwner,
                   ForkRequest{{kModest, 1}, {kModest, 2}, 0, key_for({kModest, 1})}, out);
  EXPECT_EQ(owner.gauges().forks, 3u);
}

// The worker that is to create such a value may die before it has sent anything to this owner. So
// membership is asked about it (MembershipCore::settle_ended).
TEST(RRefTies, NameWhoseCreationsAreWaitedFor) {
  OwnershipCore owner(kOwner, key_for);
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
  OwnershipCore owner(kOwner, key_for, {.errors_per_creator = 1});
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
  OwnershipCore user(kModest, key_for, {.withdrawn_per_owner = 1});
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
  OwnershipCore owner(kOwner, key_for);
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
