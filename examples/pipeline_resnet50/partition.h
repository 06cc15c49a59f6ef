// Finds where to cut a list of layers into parts so that the slowest part is as fast as possible.
//
// The costs are measured on the workers that will run the parts.
//
// Thread safety: functions without state.
// Blocking: those that take workers.
// Errors: std::invalid_argument, naming both numbers. Those that take workers: RpcError too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/examples/pipeline_resnet50/shard.h"

namespace weft::examples {

struct Pictures;  // pipeline.h

// `costs`: the cost of each layer, in any unit. Returns the first layer of each part and then the
// number of layers: {0, 7, 18} are layers 0 to 6 and 7 to 17. Every part has at least one layer, so
// more parts than layers are an error. O(parts * layers^2).
std::vector<size_t> cut_by_cost(const std::vector<double>& costs, size_t parts);

// The first layer of each shard, and 18 at the end.
using Cuts = std::vector<int64_t>;
// Parses "6" or "4,9,14". std::invalid_argument: not in order, or more shards than layers.
Cuts parse_cuts(const std::string& text);

// Returns parse_cuts(text), with one shard for each worker. For "auto" it makes the slowest shard
// as fast as possible. `micro_batch` must have the size used later, because it decides the cost of
// a layer.
Cuts cuts_for(const std::string& text, const std::vector<std::string>& workers,
              const Pictures& micro_batch, int64_t classes, double seconds);
// Returns the seconds of each layer while all workers are busy. Each worker profiles the whole
// model.
std::vector<double> profile_layers(const std::vector<std::string>& workers, const Pictures& sample,
                                   int64_t classes, double seconds);
// Returns the time of a micro-batch in each pipeline stage. Each stage is alone on its worker,
// while the other workers measure their stages.
std::vector<StageTime> measure_stages(const std::vector<std::string>& workers, const Cuts& cuts,
                                      const Pictures& micro_batch, int64_t classes, double seconds);

}  // namespace weft::examples
