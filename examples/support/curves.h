// Records loss and accuracy of a training run, and writes them as CSV and as a picture.
//
// The picture has two panels over the training step: the loss (as measured, and smoothed) and the
// test accuracy. Both files are replaced atomically, so they may be rewritten during a run.
//
// Thread safety: belongs to one thread.
// Blocking: file I/O; drawing takes a fraction of a second.
// Errors: those of AtomicFile; DataLoss, naming file and line, for a CSV file in another format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::examples {

struct CurvePoint {
  int64_t step = 0;
  double epoch = 0;                // 1.5: in the middle of the second one
  std::optional<double> loss;      // of training batches
  std::optional<double> accuracy;  // on the test pictures, 0..1
  double seconds = 0;              // since the run began

  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

class Curves {
 public:
  // `title` stands above the picture.
  explicit Curves(std::string title) : title_(std::move(title)) {}

  void add(const CurvePoint& point) { points_.push_back(point); }
  // Drops the later points, because the run went back to `step`.
  void drop_after(int64_t step) {
    std::erase_if(points_, [step](const CurvePoint& point) { return point.step > step; });
  }
  const std::vector<CurvePoint>& points() const { return points_; }

  // Columns step,epoch,loss,accuracy,seconds. Values that were not measured are empty.
  absl::Status write_csv(const std::string& path) const;
  // 1200 x 480 pixels. Needs no display.
  absl::Status write_png(const std::string& path) const;
  // Adds the points up to `last_step` of a CSV file that an interrupted run has left.
  absl::Status read_csv(const std::string& path, int64_t last_step);

 private:
  std::string title_;
  std::vector<CurvePoint> points_;
};

}  // namespace weft::examples
