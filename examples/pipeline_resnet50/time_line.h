// When the stages of a pipeline worked on which micro-batch.
//
// Times are of the machine's steady clock: those of the processes of one host may be compared,
// those of several hosts may not.
//
// Thread safety: TimeLine's methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/base/mutex.h"

namespace weft::examples {

struct Span {
  int64_t micro_batch = 0;
  bool backward = false;
  double begin = 0;  // seconds
  double end = 0;
  friend auto weft_fields(Span& span) {
    return std::tie(span.micro_batch, span.backward, span.begin, span.end);
  }
};

struct StageTime {
  double forward = 0;  // seconds of one micro-batch
  double backward = 0;
  double both() const { return forward + backward; }
  friend auto weft_fields(StageTime& time) { return std::tie(time.forward, time.backward); }
};

double seconds_now();

class TimeLine : public std::enable_shared_from_this<TimeLine> {
 public:
  void add(const Span& span) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes down the backward pass of the graph behind `output` when it happens: each of its nodes
  // tells when it has ended.
  void watch_backward(const at::Tensor& output, int64_t micro_batch);
  std::vector<Span> take() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Prolongs the micro-batch's backward span, or begins it.
  void backward_at(int64_t micro_batch, double when) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

// The middle of the values, of an even number the higher one of two. Not of none.
double median(std::vector<double> values);

// What a pipeline without any waiting takes for m micro-batches, all forwards before all backwards:
// the slowest stage works on m of them, the others before and behind it on one, sum(t) + (m - 1)
// max(t) (Huang et al., "GPipe", 2019, section 2.3, for stages of equal length).
double ideal_seconds(const std::vector<StageTime>& stages, int64_t micro_batches);

}  // namespace weft::examples
