// Draws the two panels of `Curves` as a PNG picture, by libgd.
//
// Text is set in DejaVu Sans where fontconfig finds it (libgd's Debian package brings it), else in
// libgd's own small font. Lines are drawn at three times the size and scaled down.
//
// Thread safety: one picture at a time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/examples/support/curves.h"

namespace weft::examples {

// The bytes of a PNG file of 1200 x 480 pixels. ResourceExhausted if there is no memory for it.
absl::StatusOr<std::string> draw_curves(const std::string& title,
                                        const std::vector<CurvePoint>& points);

// Round values inside [low, high] that divide it into about `wanted` steps: 0, 0.2, 0.4 ...
std::vector<double> axis_ticks(double low, double high, int wanted);

}  // namespace weft::examples
