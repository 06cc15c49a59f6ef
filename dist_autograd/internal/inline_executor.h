// Runs the local work of backward passes inline while such work has been short lately.
//
// Inline means: on the serving thread that read the frame which brought the work, after that frame.
// If such work has not been short lately, it runs on a thread of the executor.
//
// Thread safety: schedule may be called from any thread.
// Lifetime: the executor outlives this object and its tasks.
#pragma once

#include <memory>
#include <utility>

#include "weft/async/executor.h"
#include "weft/async/run_lengths.h"

namespace weft::dist_autograd_internal {

class InlineExecutor final : public Executor {
 public:
  explicit InlineExecutor(Executor& executor) : executor_(executor) {}

  void schedule(Task task) override {
    Task measured = [lengths = lengths_, task = std::move(task)]() mutable {
      const async_internal::RunLengths::Measure measure(*lengths);
      task();
    };
    if (lengths_->short_lately()) {
      executor_.schedule_inline(std::move(measured), lengths_->usual());
    } else {
      executor_.schedule(std::move(measured));
    }
  }
  bool idle() const override { return executor_.idle(); }

 private:
  Executor& executor_;
  const std::shared_ptr<async_internal::RunLengths> lengths_ =
      std::make_shared<async_internal::RunLengths>();  // with queued tasks
};

}  // namespace weft::dist_autograd_internal
