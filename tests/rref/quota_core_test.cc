// What one worker may hold of another's memory.
#include <gtest/gtest.h>

#include "weft/rref/internal/ownership_core.h"

namespace weft::internal {
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
  // What is refused leaves nothing, and what is let go makes room.
  owner.set_value({kGreedy, 1}, absl::OkStatus(), out);
  owner.on_message(kGreedy, kOwner, UserDelete{{kGreedy, 1}, {kGreedy, 1}, false, 2}, out);
  EXPECT_EQ(create(owner, kGreedy, 4, out), Acceptance::kRun);
}

// To refuse a reference would lose it; a creation is refused before it has begun.
TEST(RRefQuota, ReferencesThatOthersSendAreTakenAllTheSame) {
  OwnershipCore owner(kOwner, {.forks_per_worker = 1});
  Actions out;
  EXPECT_EQ(create(owner, kModest, 1, out), Acceptance::kRun);
  EXPECT_EQ(create(owner, kGreedy, 1, out), Acceptance::kRun);
  owner.on_message(kGreedy, kOwner, ForkRequest{{kModest, 1}, {kModest, 2}, 0}, out);
  EXPECT_EQ(owner.gauges().forks, 3u);
}

}  // namespace
}  // namespace weft::internal
