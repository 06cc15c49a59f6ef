#include "weft/base/status.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(StatusTest, AStatusWithoutTheFactMayHaveRun) {
  EXPECT_EQ(ran_of(absl::UnavailableError("lost")), Ran::kMaybe);
}

TEST(StatusTest, RanTravelsWithTheStatusAndTheLastWordCounts) {
  for (Ran ran : {Ran::kNo, Ran::kYes, Ran::kMaybe}) {
    absl::Status status = with_ran(absl::InternalError("x"), ran);
    EXPECT_EQ(ran_of(status), ran) << to_string(ran);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status.message(), "x");
    EXPECT_EQ(ran_of(with_ran(status, Ran::kYes)), Ran::kYes);
  }
  EXPECT_EQ(to_string(Ran::kNo), "not executed");
  EXPECT_EQ(to_string(Ran::kYes), "executed");
  EXPECT_EQ(to_string(Ran::kMaybe), "may have executed");
}

TEST(StatusTest, TheWorkerWhereAnErrorAroseStays) {
  absl::Status status = raised_at(absl::AbortedError("x"), "w1");
  EXPECT_EQ(worker_of(status), "w1");
  EXPECT_EQ(worker_of(raised_at(status, "w2")), "w1");
  EXPECT_EQ(worker_of(raised_at(absl::AbortedError("x"), "")), "");
}

TEST(StatusTest, HopsAreListedInnermostFirst) {
  absl::Status status = absl::AbortedError("x");
  EXPECT_EQ(trail_of(status), "");
  status = add_hop(add_hop(status, "w2/inner"), "w1/outer");
  EXPECT_EQ(trail_of(status), "w2/inner < w1/outer");
}

TEST(StatusTest, PrependKeepsCodeAndFacts) {
  absl::Status status = with_ran(absl::NotFoundError("inner"), Ran::kNo);
  status = add_hop(raised_at(status, "w1"), "w1/f");
  const absl::Status longer = prepend("outer: ", status);
  EXPECT_EQ(longer.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(longer.message(), "outer: inner");
  EXPECT_EQ(ran_of(longer), Ran::kNo);
  EXPECT_EQ(worker_of(longer), "w1");
  EXPECT_EQ(trail_of(longer), "w1/f");
}

TEST(StatusTest, OkStaysOk) {
  EXPECT_TRUE(with_ran(absl::OkStatus(), Ran::kNo).ok());
  EXPECT_TRUE(raised_at(absl::OkStatus(), "w").ok());
  EXPECT_TRUE(add_hop(absl::OkStatus(), "w/f").ok());
  EXPECT_TRUE(prepend("text", absl::OkStatus()).ok());
}

absl::StatusOr<int> half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}
absl::StatusOr<int> quarter(int value) {
  WEFT_ASSIGN_OR_RETURN(const int once, half(value));
  WEFT_ASSIGN_OR_RETURN(const int again, half(once));
  WEFT_RETURN_IF_ERROR(half(again * 2).status());
  return again;
}

TEST(StatusTest, MacrosPassErrorsOnAndValuesThrough) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace weft
