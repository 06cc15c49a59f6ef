#include "weft/examples/parameter_server/position.h"

#include <gtest/gtest.h>

namespace weft::examples {
namespace {

using Next = Position::Next;

constexpr int64_t kLength = 40;  // steps of an epoch
constexpr int64_t kEpochs = 2;

Position after_steps(Position at, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) at = at.after_step(kLength);
  return at;
}
Position first() { return Position().after_round(/*flag=*/true, kLength, kEpochs); }

TEST(PositionTest, AJobThatIsAskedToStopSavesAfterTheAverageAndEnds) {
  Position at = after_steps(first(), Position::kAverageEvery);
  EXPECT_EQ(at.next, Next::kAverage);
  at = at.after_round(/*flag=*/true, kLength, kEpochs);
  EXPECT_EQ(at.next, Next::kSave);
  EXPECT_EQ(at.step, Position::kAverageEvery);
  const Position again = at.after_round(/*flag=*/false, kLength, kEpochs);
  EXPECT_EQ(again.next, Next::kSave) << "the trainer that saves has died: another one saves";
  EXPECT_FALSE(again.stopped(kEpochs));
  at = again.after_round(/*flag=*/true, kLength, kEpochs);
  EXPECT_EQ(at.next, Next::kDone);
  EXPECT_TRUE(at.stopped(kEpochs));
  EXPECT_EQ(at.epoch, 0);
}

// Asked in the last round inside the epoch. Nobody asks again, because that trainer has died.
TEST(PositionTest, AtTheEndOfAnEpochAJobEvaluatesBeforeItStops) {
  Position at = after_steps(first(), Position::kAverageEvery);
  at = after_steps(at.after_round(false, kLength, kEpochs), kLength - Position::kAverageEvery);
  at = at.after_round(/*flag=*/true, kLength, kEpochs);
  EXPECT_EQ(at.next, Next::kLastAverage);
  at = at.after_round(/*flag=*/false, kLength, kEpochs);
  EXPECT_EQ(at.next, Next::kEvaluate);
  at = at.after_round(/*flag=*/true, kLength, kEpochs);
  EXPECT_EQ(at.epoch, 1);
  EXPECT_TRUE(at.stopped(kEpochs));
}

TEST(PositionTest, AJobThatIsAskedInItsLastRoundOfAveragesIsDone) {
  Position at{.next = Next::kLastAverage, .epoch = kEpochs, .steps = kEpochs * kLength};
  at = at.after_round(/*flag=*/true, kLength, kEpochs).after_round(true, kLength, kEpochs);
  EXPECT_EQ(at.next, Next::kDone);
  EXPECT_FALSE(at.stopped(kEpochs));
}

TEST(PositionTest, APositionIsItsNumbers) {
  const Position at{
      .next = Next::kSave, .epoch = 1, .step = 2, .steps = 3, .round = 4, .stop = true};
  EXPECT_EQ(Position::of(at.numbers()), at);
}

TEST(PositionTest, AResumedJobGoesOnAfterThePicturesThatWereTrainedOn) {
  EXPECT_EQ(Position::step_after(0, 64, 10), 0);
  EXPECT_EQ(Position::step_after(320, 64, 10), 5);
  EXPECT_EQ(Position::step_after(320, 96, 10), 3) << "more trainers: 32 pictures come again";
  EXPECT_EQ(Position::step_after(320, 32, 10), 9) << "an epoch has a step left";
}

}  // namespace
}  // namespace weft::examples
