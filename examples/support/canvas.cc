#include "weft/examples/support/canvas.h"

#include <algorithm>
#include <cmath>
#include <gd.h>
#include <gdfontmb.h>
#include <utility>

namespace weft::examples {
namespace {

constexpr int kScale = 3;  // the large image is this much larger than the picture

int scaled(double value) { return static_cast<int>(std::lround(value * kScale)); }

}  // namespace

void Canvas::Deleter::operator()(gdImageStruct* image) const { gdImageDestroy(image); }

Canvas::Image Canvas::blank(int width, int height) {
  Image image(gdImageCreateTrueColor(width, height));
  if (image) gdImageFilledRectangle(image.get(), 0, 0, width - 1, height - 1, kWhite);
  return image;
}

absl::StatusOr<Canvas> Canvas::make(int width, int height) {
  gdFTUseFontConfig(1);
  Image large = blank(width * kScale, height * kScale);
  if (!large) return absl::ResourceExhaustedError("no memory for a picture");
  return Canvas(width, height, std::move(large));
}

void Canvas::line(double x0, double y0, double x1, double y1, int color, double width) {
  gdImageSetThickness(large_.get(), scaled(width));
  gdImageLine(large_.get(), scaled(x0), scaled(y0), scaled(x1), scaled(y1), color);
}

void Canvas::disc(double x, double y, double diameter, int color) {
  gdImageFilledEllipse(large_.get(), scaled(x), scaled(y), scaled(diameter), scaled(diameter),
                       color);
}

void Canvas::box(double left, double top, double right, double bottom, int color) {
  gdImageFilledRectangle(large_.get(), scaled(left), scaled(top), scaled(right), scaled(bottom),
                         color);
}

void Canvas::frame(double left, double top, double right, double bottom, int color) {
  gdImageSetThickness(large_.get(), kScale);
  gdImageRectangle(large_.get(), scaled(left), scaled(top), scaled(right), scaled(bottom), color);
}

void Canvas::clip(double left, double top, double right, double bottom) {
  gdImageSetClip(large_.get(), scaled(left), scaled(top), scaled(right), scaled(bottom));
}

void Canvas::clip_nothing() {
  gdImageSetClip(large_.get(), 0, 0, width_ * kScale - 1, height_ * kScale - 1);
}

void Canvas::text(std::string text, double x, double y, Align align, int color, Font font) {
  texts_.push_back({std::move(text), x, y, align, color, font});
}

void Canvas::write(gdImageStruct* image, const Text& text) {
  std::string font = text.font.bold ? "DejaVu Sans:bold" : "DejaVu Sans";
  std::string copy = text.text;
  const double size = text.font.size;
  const double angle = text.font.angle;
  const double shift = text.align == Align::kLeft ? 0 : text.align == Align::kCentre ? 0.5 : 1.0;
  int box[8];
  if (gdImageStringFT(nullptr, box, text.color, font.data(), size, 0, 0, 0, copy.data()) ==
      nullptr) {
    const double along = -shift * (box[2] - box[0]);
    // Capital height is about 0.73 of the size in points at 96 dots per inch.
    const double down = 0.49 * size;
    const auto x =
        static_cast<int>(std::lround(text.x + along * std::cos(angle) + down * std::sin(angle)));
    const auto y =
        static_cast<int>(std::lround(text.y - along * std::sin(angle) + down * std::cos(angle)));
    gdImageStringFT(image, box, text.color, font.data(), size, angle, x, y, copy.data());
    return;
  }
  gdFontPtr small = gdFontGetMediumBold();
  const int width = small->w * static_cast<int>(copy.size());
  auto* bytes = reinterpret_cast<unsigned char*>(copy.data());
  if (angle != 0) {
    gdImageStringUp(image, small, static_cast<int>(text.x) - small->h / 2,
                    static_cast<int>(text.y + shift * width), bytes, text.color);
  } else {
    gdImageString(image, small, static_cast<int>(text.x - shift * width),
                  static_cast<int>(text.y) - small->h / 2, bytes, text.color);
  }
}

absl::StatusOr<std::string> Canvas::png() const {
  const Image image = blank(width_, height_);
  if (!image) return absl::ResourceExhaustedError("no memory for a picture");
  gdImageCopyResampled(image.get(), large_.get(), 0, 0, 0, 0, width_, height_, width_ * kScale,
                       height_ * kScale);
  for (const Text& text : texts_) write(image.get(), text);
  int size = 0;
  const std::unique_ptr<void, void (*)(void*)> bytes(gdImagePngPtr(image.get(), &size), gdFree);
  if (!bytes) return absl::ResourceExhaustedError("cannot encode a picture");
  return std::string(static_cast<const char*>(bytes.get()), static_cast<size_t>(size));
}

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(wanted, 1);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  std::vector<double> ticks;
  // Multiplied, not added up: rounding errors would make 0.30000000000000004.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);  // never -0
  }
  return ticks;
}

}  // namespace weft::examples
