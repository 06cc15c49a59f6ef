// Records when the stages of a pipeline worked on which micro-batch.
//
// Times are those of the machine's steady clock. Times from processes of one host may be compared,
// times from several hosts may not.
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
  // Records the backward pass of the graph behind `output` when it runs: each of its nodes reports
  // when it has finished.
  void watch_backward(const at::Tensor& output, int64_t micro_batch);
  std::vector<Span> take() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Extends the backward span of the micro-batch, or begins it.
  void backward_at(int64_t micro_batch, double when) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

// The middle of the values; of an even number, the higher of the middle two. `values` must not be
// empty.
double median(std::vector<double> values);

// The time of a pipeline without any waiting, for m micro-batches and all forwards before all
// backwards. The slowest stage works on m micro-batches, and the others, before and after it, on
// one: sum(t) + (m - 1) max(t). See Huang et al., "GPipe", 2019, section 2.3, for stages of equal
// length.
double ideal_seconds(const std::vector<StageTime>& stages, int64_t micro_batches);

}  // namespace weft::examples
