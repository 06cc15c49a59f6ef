#include "weft/examples/pipeline_resnet50/partition.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/async/future.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/resnet50.h"

namespace weft::examples {

std::vector<size_t> cut_by_cost(const std::vector<double>& costs, size_t parts) {
  const size_t layers = costs.size();
  if (parts == 0 || parts > layers) {
    throw std::invalid_argument(
        absl::StrCat(layers, " layers cannot be cut into ", parts, " shards"));
  }
  std::vector<double> sums(layers + 1, 0.0);
  for (size_t i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  // slowest[p][n]: the cost of the slowest of the first p parts when they cover the first n layers.
  // begin[p][n]: the first layer of the last one of these parts.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> slowest(parts + 1, std::vector<double>(layers + 1, none));
  std::vector<std::vector<size_t>> begin(parts + 1, std::vector<size_t>(layers + 1, 0));
  slowest[0][0] = 0;
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t n = p; n <= layers; ++n) {
      for (size_t from = p - 1; from < n; ++from) {
        const double here = std::max(slowest[p - 1][from], sums[n] - sums[from]);
        if (here < slowest[p][n]) {
          slowest[p][n] = here;
          begin[p][n] = from;
        }
      }
    }
  }
  std::vector<size_t> cuts{layers};
  for (size_t p = parts; p > 0; --p) cuts.push_back(begin[p][cuts.back()]);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

Cuts parse_cuts(const std::string& text) {
  Cuts cuts{0};
  for (const absl::string_view place : absl::StrSplit(text, ',')) {
    if (int64_t cut; absl::SimpleAtoi(place, &cut)) {
      cuts.push_back(cut);
    } else {
      throw std::invalid_argument(
          absl::StrCat("'", place, "' in the cuts '", text, "' is no number of a layer"));
    }
  }
  cuts.push_back(kResNet50Layers);
  for (size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i - 1] < cuts[i]) continue;
    throw std::invalid_argument(absl::StrCat("cuts '", text, "': each shard needs a layer of the ",
                                             kResNet50Layers, ", so they must grow from 1 to ",
                                             kResNet50Layers - 1));
  }
  return cuts;
}

Cuts cuts_for(const std::string& text, const std::vector<std::string>& workers,
              const Pictures& micro_batch, int64_t classes, double seconds) {
  Cuts cuts;
  if (text == "auto") {
    cut_by_cost(std::vector<double>(kResNet50Layers, 1), workers.size());  // refuses too many
    const auto costs = profile_layers(workers, micro_batch, classes, seconds);
    for (const size_t cut : cut_by_cost(costs, workers.size())) {
      cuts.push_back(static_cast<int64_t>(cut));
    }
    return cuts;
  }
  cuts = parse_cuts(text);
  if (cuts.size() == workers.size() + 1) return cuts;
  throw std::invalid_argument(absl::StrCat("cuts '", text, "' make ", cuts.size() - 1,
                                           " shards, for ", workers.size(), " workers"));
}

std::vector<double> profile_layers(const std::vector<std::string>& workers, const Pictures& sample,
                                   int64_t classes, double seconds) {
  std::vector<Future<std::vector<double>>> running;
  for (const std::string& worker : workers) {
    running.push_back(remote<ResNetShard>(worker, 0, kResNet50Layers, classes, 1)
                          .rpc_async(&ResNetShard::profile, sample.images, seconds));
  }
  std::vector<double> means(kResNet50Layers, 0.0);
  for (const std::vector<double>& one : collect_all(std::move(running)).wait()) {
    for (size_t i = 0; i < one.size(); ++i) {
      means[i] += one[i] / static_cast<double>(workers.size());
    }
  }
  return means;
}

std::vector<StageTime> measure_stages(const std::vector<std::string>& workers, const Cuts& cuts,
                                      const Pictures& micro_batch, int64_t classes,
                                      double seconds) {
  const RemoteResNet50 model(workers, cuts, classes, 1);
  const std::vector<RRef<ResNetShard>>& shards = model.shards();
  std::vector<at::Tensor> inputs{micro_batch.images};  // inputs[i] is the input of shard i
  for (size_t i = 0; i + 1 < shards.size(); ++i) {
    inputs.push_back(shards[i].rpc_sync(&ResNetShard::forward, make_rref(inputs[i]), 0).detach());
  }
  std::vector<Future<StageTime>> running;
  for (size_t i = 0; i < shards.size(); ++i) {
    running.push_back(shards[i].rpc_async(&ResNetShard::measure, inputs[i], seconds));
  }
  return collect_all(std::move(running)).wait();
}

}  // namespace weft::examples
