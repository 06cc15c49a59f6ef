// Draws a picture with lines, boxes and text, and gives it as PNG. It uses libgd.
//
// Positions are pixels from the upper left corner, and need not be whole. Shapes are drawn at three
// times the size and then scaled down. Text lies on top of them. Its font is DejaVu Sans if
// fontconfig finds it (libgd's Debian package brings it), otherwise libgd's own small font. Colours
// are 0xRRGGBB.
//
// Thread safety: belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct gdImageStruct;

namespace weft::examples {

inline constexpr int kWhite = 0xFFFFFF;
inline constexpr int kInk = 0x222222;
inline constexpr int kGrey = 0x666666;
inline constexpr int kGrid = 0xE4E4E4;
inline constexpr int kFrame = 0xB0B0B0;
inline constexpr int kPale = 0xA9C8E8;
inline constexpr int kBlue = 0x1F5FA8;
inline constexpr int kPaleOrange = 0xF3C39C;
inline constexpr int kOrange = 0xD4641C;

enum class Align { kLeft, kCentre, kRight };

class Canvas {
 public:
  // Makes a white picture. ResourceExhausted if there is no memory for it.
  static absl::StatusOr<Canvas> make(int width, int height);

  void line(double x0, double y0, double x1, double y1, int color, double width = 1);
  void disc(double x, double y, double diameter, int color);
  void box(double left, double top, double right, double bottom, int color);  // filled
  void frame(double left, double top, double right, double bottom, int color);
  // Shapes drawn after this call are cut at these edges.
  void clip(double left, double top, double right, double bottom);
  void clip_nothing();

  struct Font {
    double size = 10;  // in points
    bool bold = false;
    double angle = 0;  // counterclockwise, in radians
  };
  // The middle of the text is at height y.
  void text(std::string text, double x, double y, Align align, int color) {
    this->text(std::move(text), x, y, align, color, Font{});
  }
  void text(std::string text, double x, double y, Align align, int color, Font font);

  // Returns the bytes of a PNG file. ResourceExhausted if there is no memory.
  absl::StatusOr<std::string> png() const;

 private:
  struct Deleter {
    void operator()(gdImageStruct* image) const;
  };
  using Image = std::unique_ptr<gdImageStruct, Deleter>;
  struct Text {
    std::string text;
    double x, y;
    Align align;
    int color;
    Font font;
  };

  Canvas(int width, int height, Image large)
      : width_(width), height_(height), large_(std::move(large)) {}
  static Image blank(int width, int height);
  static void write(gdImageStruct* image, const Text& text);

  int width_, height_;
  Image large_;
  std::vector<Text> texts_;
};

// Round values inside [low, high] that divide it into about `wanted` steps: 0, 0.2, 0.4 ...
std::vector<double> axis_ticks(double low, double high, int wanted);

}  // namespace weft::examples
