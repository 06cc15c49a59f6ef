// Where to cut a chain of layers so that the slowest part is as fast as it can be.
//
// Thread safety: pure functions. Errors: std::invalid_argument, naming both numbers.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::examples {

// `costs` of the layers, any unit; returns the first layer of each part and behind them the number
// of layers: {0, 7, 18} are layers 0 to 6 and 7 to 17. Every part has a layer at least: more parts
// than layers are an error. O(parts * layers^2).
std::vector<size_t> cut_by_cost(const std::vector<double>& costs, size_t parts);

}  // namespace weft::examples
