#include "weft/examples/support/training_report.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/support/must.h"

namespace weft::examples {
namespace {

constexpr int64_t kCurveSpacing = 10;  // steps
constexpr double kSmoothing = 0.05;

}  // namespace

TrainingReport::TrainingReport(Options options, Clock& clock)
    : options_(std::move(options)), clock_(clock), begun_(clock.now()), curves_(options_.title) {}

void TrainingReport::resume(int64_t step, double epochs_done) {
  resumed_at_ = std::llround(epochs_done * static_cast<double>(options_.pictures));
  const std::string csv = options_.folder + "/curves.csv";
  if (!std::filesystem::exists(csv)) return;
  must(curves_.read_csv(csv, step));
  if (!curves_.points().empty()) earlier_seconds_ = curves_.points().back().seconds;
}

void TrainingReport::note_step(int64_t step, double epoch, double loss, bool show) {
  smooth_loss_ = smooth_loss_ == 0 ? loss : smooth_loss_ + kSmoothing * (loss - smooth_loss_);
  if (step % kCurveSpacing == 0) {
    curves_.add({step, epoch, loss, std::nullopt, seconds()});
  }
  if (!show) {
    progress_.reset();  // another trainer shows the bar now
    return;
  }
  if (progress_ == nullptr) {
    Progress::Options bar =
        Progress::Options::for_stdout("train", options_.epochs * options_.pictures);
    bar.start = resumed_at_;
    progress_ = std::make_unique<Progress>(std::move(bar), clock_);
  }
  progress_->update(std::llround(epoch * static_cast<double>(options_.pictures)),
                    absl::StrFormat("loss %.3f", smooth_loss_));
}

void TrainingReport::note_accuracy(int64_t step, double epoch, double accuracy) {
  curves_.add({step, epoch, std::nullopt, accuracy, seconds()});
  const std::string line =
      absl::StrFormat("epoch %d of %d: test accuracy %.4f, %.1f s", std::llround(epoch),
                      options_.epochs, accuracy, seconds());
  if (progress_ != nullptr) {
    progress_->print(line);
  } else {
    absl::PrintF("%s\n", line);
    std::fflush(stdout);
  }
}

void TrainingReport::write_curves() const {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (error) {
    throw RpcError(absl::NotFoundError(
        absl::StrCat("cannot make folder ", options_.folder, ": ", error.message())));
  }
  must(curves_.write_csv(options_.folder + "/curves.csv"));
  must(curves_.write_png(options_.folder + "/curves.png"));
}

void TrainingReport::finish_progress() {
  if (progress_ != nullptr) progress_->finish();
}

std::string TrainingReport::last_line(double accuracy, size_t workers) const {
  return absl::StrFormat("test accuracy %.4f after %d epochs, %d workers, %.1f s", accuracy,
                         options_.epochs, workers, seconds());
}

double TrainingReport::seconds() const {
  return earlier_seconds_ + std::chrono::duration<double>(clock_.now() - begun_).count();
}

}  // namespace weft::examples
