// Finds where to cut a list of layers into parts so that the slowest part is as fast as possible.
//
// Thread safety: pure functions. Errors: std::invalid_argument, naming both numbers.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::examples {

// `costs`: the cost of each layer, in any unit. Returns the first layer of each part and then the
// number of layers: {0, 7, 18} are layers 0 to 6 and 7 to 17. Every part has at least one layer, so
// more parts than layers are an error. O(parts * layers^2).
std::vector<size_t> cut_by_cost(const std::vector<double>& costs, size_t parts);

}  // namespace weft::examples
