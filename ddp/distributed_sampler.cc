#include "weft/ddp/distributed_sampler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

void check(const DistributedSamplerOptions& options) {
  if (options.num_replicas < 1) {
    C10_THROW_ERROR(ValueError, absl::StrCat("DistributedSampler: num_replicas is at least 1, not ",
                                             options.num_replicas));
  }
  if (options.rank < 0 || options.rank >= options.num_replicas) {
    C10_THROW_ERROR(ValueError, absl::StrCat("DistributedSampler: there is no rank ", options.rank,
                                             " among ", options.num_replicas, " replicas"));
  }
}

// The order of all samples in an epoch.
std::vector<size_t> order_of(size_t samples, const DistributedSamplerOptions& options,
                             uint64_t epoch) {
  std::vector<size_t> order(samples);
  if (!options.shuffle) {
    std::iota(order.begin(), order.end(), size_t{0});
    return order;
  }
  const at::Generator generator = at::detail::createCPUGenerator(options.seed + epoch);
  const at::Tensor shuffled =
      at::randperm(static_cast<int64_t>(samples), generator, at::TensorOptions(at::kLong));
  const int64_t* indices = shuffled.const_data_ptr<int64_t>();
  std::copy(indices, indices + samples, order.begin());
  return order;
}

int64_t integer_of(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("DistributedSampler: the archive has no integer '", key, "'"));
  }
  return value.toInt();
}

}  // namespace

struct DistributedSampler::State {
  size_t samples = 0;  // in the data set
  DistributedSamplerOptions options;
  uint64_t epoch = 0;
  size_t position = 0;
  bool resumed = false;         // the next reset keeps the position
  bool dealt = false;           // `indices` are those of the epoch
  std::vector<size_t> indices;  // this replica's, in order

  size_t replicas() const { return static_cast<size_t>(options.num_replicas); }

  size_t share() const {
    return options.drop_last ? samples / replicas() : (samples + replicas() - 1) / replicas();
  }

  void deal() {
    const std::vector<size_t> order = order_of(samples, options, epoch);
    indices.clear();
    indices.reserve(share());
    for (size_t sample = 0; sample < share(); ++sample) {
      const size_t place = sample * replicas() + static_cast<size_t>(options.rank);
      indices.push_back(order[place % samples]);
    }
    dealt = true;
  }

  void move_to(uint64_t to_epoch, size_t to_position) {
    dealt = dealt && to_epoch == epoch;
    epoch = to_epoch;
    position = to_position;
  }
};

DistributedSampler::DistributedSampler(size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>()) {
  check(options);
  state_->samples = dataset_size;
  state_->options = options;
}

void DistributedSampler::set_epoch(uint64_t epoch) {
  // After load() or seek(), setting the same epoch again keeps the position.
  if (state_->resumed && epoch == state_->epoch) return;
  state_->resumed = false;
  state_->move_to(epoch, 0);
}
uint64_t DistributedSampler::epoch() const { return state_->epoch; }

size_t DistributedSampler::size() const { return state_->share(); }
size_t DistributedSampler::batches(size_t batch_size) const {
  return (size() + batch_size - 1) / batch_size;
}
size_t DistributedSampler::position() const { return state_->position; }

void DistributedSampler::seek(uint64_t epoch, size_t position) {
  if (position > size()) {
    C10_THROW_ERROR(ValueError, absl::StrCat("DistributedSampler: position ", position,
                                             " is outside an epoch of ", size(), " samples"));
  }
  state_->move_to(epoch, position);
  state_->resumed = true;
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  State& state = *state_;
  if (new_size && *new_size != state.samples) {
    state.samples = *new_size;
    state.dealt = false;
    state.resumed = false;  // the position refers to other samples
  }
  if (!state.resumed) state.position = 0;
  state.resumed = false;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  State& state = *state_;
  state.resumed = false;
  if (!state.dealt) state.deal();
  const size_t count = std::min(batch_size, state.indices.size() - state.position);
  if (count == 0) return std::nullopt;
  const auto begin = state.indices.begin() + static_cast<std::ptrdiff_t>(state.position);
  state.position += count;
  return std::vector<size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", c10::IValue(static_cast<int64_t>(state_->epoch)));
  archive.write("position", c10::IValue(static_cast<int64_t>(state_->position)));
  archive.write("samples", c10::IValue(static_cast<int64_t>(state_->samples)));
  archive.write("num_replicas", c10::IValue(state_->options.num_replicas));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const int64_t samples = integer_of(archive, "samples");
  const int64_t replicas = integer_of(archive, "num_replicas");
  if (samples != static_cast<int64_t>(state_->samples) ||
      replicas != state_->options.num_replicas) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("DistributedSampler: the archive is of ", samples, " samples and ",
                                 replicas, " replicas, this sampler has ", state_->samples, " and ",
                                 state_->options.num_replicas));
  }
  seek(static_cast<uint64_t>(integer_of(archive, "epoch")),
       static_cast<size_t>(integer_of(archive, "position")));
}

}  // namespace weft
