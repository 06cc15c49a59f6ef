// Writes one row of a schedule. It counts the micro-batches of each stage and kind of action.
//
// Thread safety: none.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "weft/pipeline/schedules/schedule.h"

namespace weft::pipeline_internal {

class RowWriter {
 public:
  explicit RowWriter(int micro_batches) : micro_batches_(micro_batches) {}

  // Appends the next micro-batch of this stage. No effect: all of them are there.
  void add(StageWork work, int stage) {
    int& next = next_[{work, stage}];
    if (next < micro_batches_) row_.push_back({stage, work, next++});
  }
  void forward(int stage) { add(StageWork::kForward, stage); }
  // Appends the backward of the last micro-batch that has none.
  void last_backward(int stage) {
    int& done = next_[{StageWork::kBackward, stage}];
    row_.push_back({stage, StageWork::kBackward, micro_batches_ - ++done});
  }
  // A micro-batch has its backward as a whole, or in halves.
  void backward(int stage) {
    add(StageWork::kBackward, stage);
    next_[{StageWork::kInputGradients, stage}] = next_[{StageWork::kBackward, stage}];
    next_[{StageWork::kWeightGradients, stage}] = next_[{StageWork::kBackward, stage}];
  }
  void input_gradients(int stage) {
    add(StageWork::kInputGradients, stage);
    next_[{StageWork::kBackward, stage}] = next_[{StageWork::kInputGradients, stage}];
  }
  void weight_gradients(int stage) { add(StageWork::kWeightGradients, stage); }

  int count(StageWork work, int stage) const {
    const auto found = next_.find({work, stage});
    return found == next_.end() ? 0 : found->second;
  }
  std::vector<StageAction> take() { return std::move(row_); }

 private:
  const int micro_batches_;
  std::vector<StageAction> row_;
  std::map<std::pair<StageWork, int>, int> next_;
};

}  // namespace weft::pipeline_internal
