// Shows a training run to people: the progress bar, the curves, a line for each evaluation, the
// last line.
//
// Several trainers may each have a report of one run. Every trainer records its steps, so that each
// of them can take over. Only the leading trainer passes `show`, writes and prints.
//
// Thread safety: belongs to one thread.
// Lifetime: the clock outlives it.
// Blocking: file I/O.
// Errors: RpcError for files that cannot be written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/base/clock.h"
#include "weft/examples/support/curves.h"
#include "weft/examples/support/progress.h"

namespace weft::examples {

class TrainingReport {
 public:
  struct Options {
    std::string title;   // of the curves
    std::string folder;  // for curves.csv and curves.png
    int64_t epochs = 1;
    int64_t pictures = 0;  // that all trainers together train on in one epoch
  };
  TrainingReport(Options options, Clock& clock);

  // Continues the curves of an interrupted run, if its files still exist.
  void resume(int64_t step, double epochs_done);
  // Drops the points after `step`, because the run went back to it.
  void go_back(int64_t step) { curves_.drop_after(step); }
  // Records one training step. `epoch` is 1.5 in the middle of the second epoch.
  void note_step(int64_t step, double epoch, double loss, bool show);
  void note_accuracy(int64_t step, double epoch, double accuracy);
  // Writes curves.csv and curves.png.
  void write_curves() const;
  void finish_progress();

  // "test accuracy 0.9031 after 3 epochs, 3 workers, 61.2 s"
  std::string last_line(double accuracy, size_t workers) const;

 private:
  double seconds() const;

  const Options options_;
  Clock& clock_;
  const TimePoint begun_;
  double earlier_seconds_ = 0;  // of the interrupted run
  int64_t resumed_at_ = 0;      // pictures done before this run began
  Curves curves_;
  std::unique_ptr<Progress> progress_;
  double smooth_loss_ = 0;
};

}  // namespace weft::examples
