// Tells where a job stands in its sequence of steps and rounds of averages. All trainers go through
// this sequence, so the position is the same for all. Only between two rounds one trainer may be
// some steps ahead.
//
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weft::examples {

struct Position {
  static constexpr int64_t kAverageEvery = 20;  // steps

  enum class Next : int64_t {
    kBegin,        // the trainers meet when all have looked at the folders
    kStep,         //
    kAverage,      // of the trainers' own layers
    kLastAverage,  // before an evaluation
    kEvaluate,     // one trainer evaluates and saves, the others wait
    kSave,         // the same without the evaluation, inside an epoch: the job stops
    kDone,
  };
  Next next = Next::kBegin;
  int64_t epoch = 0;  // the number of finished epochs
  int64_t step = 0;   // finished steps of each trainer in this epoch
  int64_t steps = 0;  // finished steps in all epochs
  int64_t round = 0;  // the last round that has completed
  bool stop = false;  // a trainer was asked to stop: the job ends at its next checkpoint

  // `length`: steps of one epoch.
  Position after_step(int64_t length) const {
    Position then = *this;
    ++then.steps;
    ++then.step;
    if (then.step % kAverageEvery == 0) {
      then.next = Next::kAverage;
    } else if (then.step == length) {
      then.end_epoch();
    }
    return then;
  }
  // `flag`, after averages: a trainer was asked to stop. After the other rounds: the trainer that
  // had to evaluate, to save or to make the folders has done it; otherwise another one will.
  Position after_round(bool flag, int64_t length, int64_t epochs) const {
    Position then = *this;
    ++then.round;
    if (next == Next::kAverage) {
      then.stop = flag;
      then.next = flag ? Next::kSave : Next::kStep;
      if (step == length) then.end_epoch();
    } else if (next == Next::kLastAverage) {
      then.stop = stop || flag;
      then.next = Next::kEvaluate;
    } else if (flag && epoch < epochs) {
      then.next = stop ? Next::kDone : Next::kStep;
    } else if (flag) {  // a resumed job may begin at the end; it evaluates again
      then.next = next == Next::kBegin ? Next::kLastAverage : Next::kDone;
    }
    return then;
  }
  // True of a job that has ended before its last epoch, because it was asked to stop.
  bool stopped(int64_t epochs) const { return next == Next::kDone && stop && epoch < epochs; }

  // The step of an epoch at which a resumed job goes on after so many pictures. If a step now takes
  // another number of pictures, up to one step of them comes a second time.
  static int64_t step_after(int64_t pictures, int64_t pictures_per_step, int64_t length) {
    return std::min(pictures / pictures_per_step, length - 1);
  }

  // The position as AveragingGroup sends it, and back.
  std::vector<int64_t> numbers() const {
    return {static_cast<int64_t>(next), epoch, step, steps, round, stop ? 1 : 0};
  }
  static Position of(const std::vector<int64_t>& numbers) {
    Position position;
    position.next = static_cast<Next>(numbers.at(0));
    position.epoch = numbers.at(1);
    position.step = numbers.at(2);
    position.steps = numbers.at(3);
    position.round = numbers.at(4);
    position.stop = numbers.at(5) != 0;
    return position;
  }

  friend bool operator==(const Position&, const Position&) = default;

 private:
  void end_epoch() {
    ++epoch;
    step = 0;
    next = Next::kLastAverage;
  }
};

}  // namespace weft::examples
