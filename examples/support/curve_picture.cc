#include "weft/examples/support/curve_picture.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "weft/base/status.h"
#include "weft/examples/support/canvas.h"
#include "weft/examples/support/progress.h"

namespace weft::examples {
namespace {

constexpr int kWidth = 1200;
constexpr int kHeight = 480;
constexpr int kTop = 76;
constexpr int kBottom = 58;
constexpr int kPanelWidth = 490;
constexpr int kLeftPanel = 78;
constexpr int kRightPanel = 676;
constexpr size_t kMaxMarkers = 40;

struct Point {
  double x;
  double y;
};

struct Line {
  std::string name;
  std::vector<Point> points;
  int color;
  int width;     // in pixels of the picture
  bool markers;  // a dot at every point
};

struct Panel {
  int left;
  std::string y_label;
  bool percent;
  double low = 0;
  double high = 1;
  double last_x = 1;
  std::vector<Line> lines;
};

double x_of(const Panel& panel, double x) { return panel.left + x / panel.last_x * kPanelWidth; }
double y_of(const Panel& panel, double y) {
  const double share = (y - panel.low) / (panel.high - panel.low);
  return kHeight - kBottom - share * (kHeight - kTop - kBottom);
}

void draw_lines(Canvas& canvas, const Panel& panel) {
  const double right = panel.left + kPanelWidth;
  for (const double tick : axis_ticks(panel.low, panel.high, 6)) {
    canvas.line(panel.left, y_of(panel, tick), right, y_of(panel, tick), kGrid);
  }
  canvas.clip(panel.left, kTop, right + 6, kHeight - kBottom);
  for (const Line& line : panel.lines) {
    for (size_t i = 0; i < line.points.size(); ++i) {
      const double x = x_of(panel, line.points[i].x);
      const double y = y_of(panel, line.points[i].y);
      if (i > 0) {
        canvas.line(x_of(panel, line.points[i - 1].x), y_of(panel, line.points[i - 1].y), x, y,
                    line.color, line.width);
        // Fills the notch that two thick segments leave at their joint.
        canvas.disc(x, y, line.width, line.color);
      }
      if (line.markers || line.points.size() == 1) {
        canvas.disc(x, y, 9, line.color);
        canvas.disc(x, y, 4, kWhite);
      }
    }
  }
  canvas.clip_nothing();
  canvas.frame(panel.left, kTop, right, kHeight - kBottom, kFrame);
}

std::string value_text(double value, bool percent, double step) {
  if (percent) return absl::StrFormat("%.*f%%", step < 0.01 ? 1 : 0, 100 * value);
  return absl::StrFormat("%.*f", step < 0.1 ? 2 : 1, value);
}

void write_labels(Canvas& canvas, const Panel& panel) {
  const double bottom = kHeight - kBottom;
  const std::vector<double> ticks = axis_ticks(panel.low, panel.high, 6);
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (const double tick : ticks) {
    canvas.text(value_text(tick, panel.percent, step), panel.left - 9, y_of(panel, tick),
                Align::kRight, kGrey);
  }
  for (const double tick : axis_ticks(0, panel.last_x, 5)) {
    if (tick != std::floor(tick)) continue;  // only whole steps exist
    const double x = x_of(panel, tick);
    canvas.line(x, bottom, x, bottom + 5, kFrame);
    canvas.text(with_commas(std::llround(tick)), x, bottom + 17, Align::kCentre, kGrey);
  }
  const double middle = panel.left + kPanelWidth / 2.0;
  canvas.text("step", middle, kHeight - 18, Align::kCentre, kInk, {.size = 11});
  canvas.text(panel.y_label, panel.left - 65, (kTop + bottom) / 2, Align::kCentre, kInk,
              {.size = 11, .angle = std::acos(0.0)});

  double x = panel.left;
  for (const Line& line : panel.lines) {
    canvas.box(x, kTop - 17, x + 22, kTop - 17 + std::max(line.width, 2), line.color);
    canvas.text(line.name, x + 30, kTop - 15, Align::kLeft, kInk);
    x += 60 + 7.6 * static_cast<double>(line.name.size());
  }
  if (panel.lines.empty()) {
    canvas.text("nothing measured yet", middle, (kTop + bottom) / 2, Align::kCentre, kGrey,
                {.size = 11});
  }
}

// Replaces each value by a mean over its neighbours on both sides, fewer of them near the ends.
// Unlike a mean over the past, it does not lag behind a falling curve.
std::vector<Point> smoothed(const std::vector<Point>& points) {
  const size_t reach = std::max<size_t>(2, points.size() / 40);
  std::vector<double> sums(points.size() + 1, 0.0);
  for (size_t i = 0; i < points.size(); ++i) sums[i + 1] = sums[i] + points[i].y;
  std::vector<Point> result;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t side = std::min({reach, i, points.size() - 1 - i});
    const double mean = (sums[i + side + 1] - sums[i - side]) / static_cast<double>(2 * side + 1);
    result.push_back({points[i].x, mean});
  }
  return result;
}

Panel loss_panel(const std::vector<CurvePoint>& points) {
  Panel panel{.left = kLeftPanel, .y_label = "training loss", .percent = false, .lines = {}};
  std::vector<Point> measured;
  for (const CurvePoint& point : points) {
    if (point.loss && std::isfinite(*point.loss)) {
      measured.push_back({static_cast<double>(point.step), *point.loss});
    }
  }
  if (measured.empty()) return panel;
  std::vector<double> sorted;
  for (const Point& point : measured) sorted.push_back(point.y);
  std::sort(sorted.begin(), sorted.end());
  // The top is a quantile, because a first value far above the rest would press the curve flat.
  const double top = sorted[static_cast<size_t>(0.99 * static_cast<double>(sorted.size() - 1))];
  panel.low = std::min(0.0, sorted.front());
  panel.high = std::max(1.08 * top, panel.low + 1e-3);
  const bool noisy = measured.size() > 30;
  panel.lines.push_back(
      {noisy ? "as measured" : "loss", measured, noisy ? kPale : kBlue, noisy ? 1 : 2, false});
  if (noisy) panel.lines.push_back({"smoothed", smoothed(measured), kBlue, 2, false});
  return panel;
}

Panel accuracy_panel(const std::vector<CurvePoint>& points) {
  Panel panel{.left = kRightPanel, .y_label = "test accuracy", .percent = true, .lines = {}};
  std::vector<Point> measured;
  double lowest = 1;
  double highest = 0;
  for (const CurvePoint& point : points) {
    if (!point.accuracy || !std::isfinite(*point.accuracy)) continue;
    measured.push_back({static_cast<double>(point.step), *point.accuracy});
    lowest = std::min(lowest, *point.accuracy);
    highest = std::max(highest, *point.accuracy);
  }
  if (measured.empty()) return panel;
  const double margin = std::max(0.15 * (highest - lowest), 0.01);
  panel.low = std::max(0.0, lowest - margin);
  panel.high = std::min(1.0, highest + margin);
  const bool few = measured.size() <= kMaxMarkers;
  const std::string name =
      absl::StrFormat("last %.2f%%, best %.2f%%", 100 * measured.back().y, 100 * highest);
  panel.lines.push_back({name, std::move(measured), kOrange, 2, few});
  return panel;
}

}  // namespace

absl::StatusOr<std::string> draw_curves(const std::string& title,
                                        const std::vector<CurvePoint>& points) {
  WEFT_ASSIGN_OR_RETURN(Canvas canvas, Canvas::make(kWidth, kHeight));
  Panel panels[] = {loss_panel(points), accuracy_panel(points)};
  double last = 1;
  for (const CurvePoint& point : points) last = std::max(last, static_cast<double>(point.step));
  for (Panel& panel : panels) {
    panel.last_x = 1.02 * last;  // the last dot stays inside the frame
    draw_lines(canvas, panel);
    write_labels(canvas, panel);
  }
  canvas.text(title, kLeftPanel, 27, Align::kLeft, kInk, {.size = 14, .bold = true});
  return canvas.png();
}

}  // namespace weft::examples
