#include "weft/examples/support/curve_picture.h"

#include <algorithm>
#include <cmath>
#include <gd.h>
#include <gdfontmb.h>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/examples/support/progress.h"

namespace weft::examples {
namespace {

constexpr int kWidth = 1200;
constexpr int kHeight = 480;
constexpr int kScale = 3;  // lines are drawn this much larger
constexpr int kTop = 76;
constexpr int kBottom = 58;
constexpr int kPanelWidth = 490;
constexpr int kLeftPanel = 78;
constexpr int kRightPanel = 676;
constexpr size_t kMaxMarkers = 40;

constexpr int kWhite = 0xFFFFFF;
constexpr int kInk = 0x222222;
constexpr int kGrey = 0x666666;
constexpr int kGrid = 0xE4E4E4;
constexpr int kFrame = 0xB0B0B0;
constexpr int kPale = 0xA9C8E8;
constexpr int kBlue = 0x1F5FA8;
constexpr int kOrange = 0xD4641C;

struct ImageDeleter {
  void operator()(gdImagePtr image) const { gdImageDestroy(image); }
};
using Image = std::unique_ptr<gdImage, ImageDeleter>;

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

enum class Align { kLeft, kCentre, kRight };

// Text with its middle at height y.
void write(gdImagePtr image, const std::string& text, double size, double x, double y, Align align,
           int color, bool bold = false, double angle = 0) {
  std::string font = bold ? "DejaVu Sans:bold" : "DejaVu Sans";
  std::string copy = text;
  int box[8];
  if (gdImageStringFT(nullptr, box, color, font.data(), size, 0, 0, 0, copy.data()) == nullptr) {
    const int width = box[2] - box[0];
    const double shift = align == Align::kLeft ? 0 : align == Align::kCentre ? 0.5 : 1.0;
    // Capital height is about 0.73 of the size in points at 96 dots per inch.
    const double along = -shift * width;
    const double down = 0.49 * size;
    const int px =
        static_cast<int>(std::lround(x + along * std::cos(angle) + down * std::sin(angle)));
    const int py =
        static_cast<int>(std::lround(y - along * std::sin(angle) + down * std::cos(angle)));
    gdImageStringFT(image, box, color, font.data(), size, angle, px, py, copy.data());
    return;
  }
  gdFontPtr small = gdFontGetMediumBold();
  const int width = small->w * static_cast<int>(text.size());
  const double shift = align == Align::kLeft ? 0 : align == Align::kCentre ? 0.5 : 1.0;
  auto* bytes = reinterpret_cast<unsigned char*>(copy.data());
  if (angle != 0) {
    gdImageStringUp(image, small, static_cast<int>(x) - small->h / 2,
                    static_cast<int>(y + shift * width), bytes, color);
  } else {
    gdImageString(image, small, static_cast<int>(x - shift * width),
                  static_cast<int>(y) - small->h / 2, bytes, color);
  }
}

double x_of(const Panel& panel, double x) { return panel.left + x / panel.last_x * kPanelWidth; }
double y_of(const Panel& panel, double y) {
  const double share = (y - panel.low) / (panel.high - panel.low);
  return kHeight - kBottom - share * (kHeight - kTop - kBottom);
}

int scaled(double value) { return static_cast<int>(std::lround(value * kScale)); }

void draw_lines(gdImagePtr large, const Panel& panel) {
  for (const double tick : axis_ticks(panel.low, panel.high, 6)) {
    gdImageSetThickness(large, kScale);
    const int y = scaled(y_of(panel, tick));
    gdImageLine(large, scaled(panel.left), y, scaled(panel.left + kPanelWidth), y, kGrid);
  }
  gdImageSetClip(large, scaled(panel.left), scaled(kTop), scaled(panel.left + kPanelWidth + 6),
                 scaled(kHeight - kBottom));
  for (const Line& line : panel.lines) {
    gdImageSetThickness(large, line.width * kScale);
    for (size_t i = 0; i < line.points.size(); ++i) {
      const int x = scaled(x_of(panel, line.points[i].x));
      const int y = scaled(y_of(panel, line.points[i].y));
      if (i > 0) {
        const int from_x = scaled(x_of(panel, line.points[i - 1].x));
        const int from_y = scaled(y_of(panel, line.points[i - 1].y));
        gdImageLine(large, from_x, from_y, x, y, line.color);
        // Fills the notch that two thick segments leave at their joint.
        gdImageFilledEllipse(large, x, y, line.width * kScale, line.width * kScale, line.color);
      }
      if (line.markers || line.points.size() == 1) {
        gdImageFilledEllipse(large, x, y, 9 * kScale, 9 * kScale, line.color);
        gdImageFilledEllipse(large, x, y, 4 * kScale, 4 * kScale, kWhite);
      }
    }
  }
  gdImageSetClip(large, 0, 0, kWidth * kScale - 1, kHeight * kScale - 1);
  gdImageSetThickness(large, kScale);
  gdImageRectangle(large, scaled(panel.left), scaled(kTop), scaled(panel.left + kPanelWidth),
                   scaled(kHeight - kBottom), kFrame);
}

std::string value_text(double value, bool percent, double step) {
  if (percent) return absl::StrFormat("%.*f%%", step < 0.01 ? 1 : 0, 100 * value);
  return absl::StrFormat("%.*f", step < 0.1 ? 2 : 1, value);
}

void write_labels(gdImagePtr image, const Panel& panel) {
  const std::vector<double> ticks = axis_ticks(panel.low, panel.high, 6);
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (const double tick : ticks) {
    write(image, value_text(tick, panel.percent, step), 10, panel.left - 9, y_of(panel, tick),
          Align::kRight, kGrey);
  }
  for (const double tick : axis_ticks(0, panel.last_x, 5)) {
    if (tick != std::floor(tick)) continue;  // there is no half step
    const double x = x_of(panel, tick);
    gdImageLine(image, static_cast<int>(x), kHeight - kBottom, static_cast<int>(x),
                kHeight - kBottom + 5, kFrame);
    write(image, with_commas(std::llround(tick)), 10, x, kHeight - kBottom + 17, Align::kCentre,
          kGrey);
  }
  write(image, "step", 11, panel.left + kPanelWidth / 2.0, kHeight - 18, Align::kCentre, kInk);
  write(image, panel.y_label, 11, panel.left - 65, (kTop + kHeight - kBottom) / 2.0, Align::kCentre,
        kInk, false, std::acos(0.0));

  double x = panel.left;
  for (const Line& line : panel.lines) {
    gdImageFilledRectangle(image, static_cast<int>(x), kTop - 17, static_cast<int>(x) + 22,
                           kTop - 17 + std::max(line.width, 2), line.color);
    write(image, line.name, 10, x + 30, kTop - 15, Align::kLeft, kInk);
    x += 60 + 7.6 * static_cast<double>(line.name.size());
  }
  if (panel.lines.empty()) {
    write(image, "nothing measured yet", 11, panel.left + kPanelWidth / 2.0,
          (kTop + kHeight - kBottom) / 2.0, Align::kCentre, kGrey);
  }
}

// Each value a mean over its neighbours on both sides, fewer of them near the ends: unlike a mean
// over the past, it does not trail behind a falling curve.
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
  // A first value far above the rest would press the curve flat: the top is a quantile's.
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

Image blank(int width, int height) {
  Image image(gdImageCreateTrueColor(width, height));
  if (image) gdImageFilledRectangle(image.get(), 0, 0, width - 1, height - 1, kWhite);
  return image;
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  std::vector<double> ticks;
  // Counted, not added up: rounding errors would make 0.30000000000000004.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);  // never -0
  }
  return ticks;
}

absl::StatusOr<std::string> draw_curves(const std::string& title,
                                        const std::vector<CurvePoint>& points) {
  const Image large = blank(kWidth * kScale, kHeight * kScale);
  const Image image = blank(kWidth, kHeight);
  if (!large || !image) return absl::ResourceExhaustedError("no memory for the curves' picture");
  gdFTUseFontConfig(1);

  Panel panels[] = {loss_panel(points), accuracy_panel(points)};
  double last = 1;
  for (const CurvePoint& point : points) last = std::max(last, static_cast<double>(point.step));
  for (Panel& panel : panels) {
    panel.last_x = 1.02 * last;  // the last dot stays inside the frame
    draw_lines(large.get(), panel);
  }
  gdImageCopyResampled(image.get(), large.get(), 0, 0, 0, 0, kWidth, kHeight, kWidth * kScale,
                       kHeight * kScale);
  for (const Panel& panel : panels) write_labels(image.get(), panel);
  write(image.get(), title, 14, kLeftPanel, 27, Align::kLeft, kInk, /*bold=*/true);

  int size = 0;
  const std::unique_ptr<void, void (*)(void*)> bytes(gdImagePngPtr(image.get(), &size), gdFree);
  if (!bytes) return absl::ResourceExhaustedError("cannot encode the curves' picture");
  return std::string(static_cast<const char*>(bytes.get()), static_cast<size_t>(size));
}

}  // namespace weft::examples
