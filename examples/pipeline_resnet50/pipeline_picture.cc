#include "weft/examples/pipeline_resnet50/pipeline_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"
#include "weft/examples/support/canvas.h"

namespace weft::examples {
namespace {

constexpr int kWidth = 1200;
constexpr int kHeight = 480;
constexpr double kTop = 76, kBottom = 422;
constexpr double kLeft = 78, kLeftEnd = 508;      // the panel of the throughput
constexpr double kRight = 600, kRightEnd = 1176;  // the panel of the time line

void draw_throughput(Canvas& canvas, const std::vector<SweepPoint>& points, double pictures) {
  double highest = 0;
  for (const SweepPoint& point : points) {
    for (const double seconds : {point.ideal, point.seconds, point.threads, point.unsplit}) {
      if (seconds > 0) highest = std::max(highest, pictures / seconds);
    }
  }
  highest *= 1.1;
  const auto y = [&](double rate) { return kBottom - rate / highest * (kBottom - kTop); };
  for (const double tick : axis_ticks(0, highest, 6)) {
    canvas.line(kLeft, y(tick), kLeftEnd, y(tick), kGrid);
    canvas.text(absl::StrFormat("%g", tick), kLeft - 9, y(tick), Align::kRight, kGrey);
  }
  // Points have equal distances, because numbers of micro-batches are mostly powers of two.
  const double step = (kLeftEnd - kLeft) / static_cast<double>(points.size());
  const auto x = [&](size_t i) { return kLeft + (static_cast<double>(i) + 0.5) * step; };
  struct Curve {
    const char* name;
    double SweepPoint::*seconds;
    int color;
  };
  double legend = kLeft;
  for (const Curve& curve :
       {Curve{"unsplit", &SweepPoint::unsplit, kGrey},
        Curve{"threads", &SweepPoint::threads, kOrange}, Curve{"ideal", &SweepPoint::ideal, kPale},
        Curve{"pipeline", &SweepPoint::seconds, kBlue}}) {
    if (points.front().*curve.seconds <= 0) continue;  // was not measured
    for (size_t i = 0; i < points.size(); ++i) {
      const double here = y(pictures / (points[i].*curve.seconds));
      if (i > 0) {
        canvas.line(x(i - 1), y(pictures / (points[i - 1].*curve.seconds)), x(i), here, curve.color,
                    2);
      }
      canvas.disc(x(i), here, 8, curve.color);
    }
    canvas.box(legend, kTop - 17, legend + 22, kTop - 15, curve.color);
    canvas.text(curve.name, legend + 28, kTop - 15, Align::kLeft, kInk);
    legend += 108;
  }
  for (size_t i = 0; i < points.size(); ++i) {
    canvas.text(absl::StrCat(points[i].micro_batches), x(i), kBottom + 17, Align::kCentre, kGrey);
  }
  canvas.frame(kLeft, kTop, kLeftEnd, kBottom, kFrame);
  canvas.text("micro-batches", (kLeft + kLeftEnd) / 2, kBottom + 40, Align::kCentre, kInk,
              {.size = 11});
  canvas.text("pictures / s", kLeft - 60, (kTop + kBottom) / 2, Align::kCentre, kInk,
              {.size = 11, .angle = std::acos(0.0)});
}

void draw_time_line(Canvas& canvas, const SweepPoint& shown) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const auto& worker : shown.spans) {
    for (const Span& span : worker) {
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
  }
  canvas.frame(kRight, kTop, kRightEnd, kBottom, kFrame);
  if (!(begin < end)) return;
  const auto x = [&](double when) {
    return kRight + (when - begin) / (end - begin) * (kRightEnd - kRight);
  };
  for (const double tick : axis_ticks(0, end - begin, 6)) {
    canvas.line(x(begin + tick), kBottom, x(begin + tick), kBottom + 5, kFrame);
    canvas.text(absl::StrFormat("%g", tick), x(begin + tick), kBottom + 17, Align::kCentre, kGrey);
  }
  const double row = (kBottom - kTop) / static_cast<double>(shown.spans.size());
  for (size_t worker = 0; worker < shown.spans.size(); ++worker) {
    const double top = kTop + static_cast<double>(worker) * row + 0.15 * row;
    const double bottom = top + 0.7 * row;
    canvas.text(absl::StrCat("worker", worker + 1), kRight - 8, (top + bottom) / 2, Align::kRight,
                kGrey);
    for (const Span& span : shown.spans[worker]) {
      const double from = x(span.begin), to = x(span.end);
      canvas.box(from, top, to, bottom, span.backward ? kPaleOrange : kPale);
      canvas.frame(from, top, to, bottom, kWhite);
      if (to - from > 16) {
        canvas.text(absl::StrCat(span.micro_batch), (from + to) / 2, (top + bottom) / 2,
                    Align::kCentre, kInk);
      }
    }
  }
  canvas.box(kRight, kTop - 20, kRight + 14, kTop - 10, kPale);
  canvas.text("forward", kRight + 20, kTop - 15, Align::kLeft, kInk);
  canvas.box(kRight + 90, kTop - 20, kRight + 104, kTop - 10, kPaleOrange);
  canvas.text(absl::StrCat("backward; the numbers are micro-batches, of ", shown.micro_batches),
              kRight + 110, kTop - 15, Align::kLeft, kInk);
  canvas.text("seconds", (kRight + kRightEnd) / 2, kBottom + 40, Align::kCentre, kInk,
              {.size = 11});
}

}  // namespace

absl::StatusOr<std::string> draw_pipeline(const std::string& title,
                                          const std::vector<SweepPoint>& points,
                                          const SweepPoint& shown, int64_t pictures) {
  WEFT_ASSIGN_OR_RETURN(Canvas canvas, Canvas::make(kWidth, kHeight));
  if (!points.empty()) draw_throughput(canvas, points, static_cast<double>(pictures));
  draw_time_line(canvas, shown);
  canvas.text(title, kLeft, 27, Align::kLeft, kInk, {.size = 14, .bold = true});
  return canvas.png();
}

}  // namespace weft::examples
