// Shows the run of a job on behalf of the leading trainer: the progress bar, the curves, the last
// line.
//
// Thread safety: belongs to one thread. Lifetime: the clock outlives it.
// Blocking: file I/O. Errors: RpcError for files that cannot be written.
#pragma once

#include <memory>
#include <string>

#include "weft/examples/parameter_server/options.h"
#include "weft/examples/support/curves.h"
#include "weft/examples/support/progress.h"

namespace weft::examples {

class Report {
 public:
  // `pictures`: the number of pictures that all trainers together train on in one epoch.
  Report(const JobOptions& options, int64_t pictures, Clock& clock);

  // Continues the curves of an interrupted run, if its files still exist.
  void resume(int64_t step, int64_t epochs_done);
  // Drops the points after `step`, because the job went back to it.
  void go_back(int64_t step) { curves_.drop_after(step); }
  // Records one training step of this trainer. `epoch` is 1.5 in the middle of the second epoch.
  // Every trainer records its steps, so that each of them can take over. Only the leading trainer
  // passes `show`.
  void note_step(int64_t step, double epoch, double loss, bool show);
  void note_accuracy(int64_t step, double epoch, double accuracy);
  // Writes curves.csv and curves.png.
  void write_curves() const;
  void finish_progress();

  std::string last_line(double accuracy, size_t workers) const;

 private:
  double seconds() const;

  const JobOptions options_;
  const int64_t pictures_;
  Clock& clock_;
  const TimePoint begun_;
  double earlier_seconds_ = 0;  // of the interrupted run
  int64_t resumed_at_ = 0;      // pictures done before this run began
  Curves curves_;
  std::unique_ptr<Progress> progress_;
  double smooth_loss_ = 0;
};

}  // namespace weft::examples
