// Draws the two panels of `Curves` as a PNG picture (canvas.h).
//
// Thread safety: one picture at a time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/examples/support/curves.h"

namespace weft::examples {

// Returns the bytes of a PNG file of 1200 x 480 pixels. ResourceExhausted if there is no memory.
absl::StatusOr<std::string> draw_curves(const std::string& title,
                                        const std::vector<CurvePoint>& points);

}  // namespace weft::examples
