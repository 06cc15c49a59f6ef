// Deals the samples of a data set to the replicas of a model. The rule is that of Python's
// torch.utils.data.DistributedSampler: the same seed and epoch give the same indices.
//
//   weft::DistributedSampler sampler(dataset.size().value(), {.num_replicas = group->size(),
//                                                             .rank = group->rank()});
//   auto loader = torch::data::make_data_loader(dataset, sampler, batch_size);
//   for (int64_t epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);  // also holds for the loader's copy
//     for (auto& batch : *loader) ...
//   }
//
// The order of an epoch is at::randperm of a generator seeded with seed + epoch (without `shuffle`:
// 0, 1, 2...). All replicas get equally many samples. For this, samples from the front of the order
// are repeated at its end. With `drop_last`, some samples at its end are left out instead. Replica
// r takes every num_replicas-th sample, from the r-th on.
//
// To go on inside an epoch, call save() or position(), and in the new run load() or seek(). A data
// loader calls reset() when it begins. The first reset() after load() or seek() keeps the position
// instead of starting the epoch again. A loader with workers asks for indices ahead of the batches
// that it returns. So seek() to the samples that were really used.
//
// Thread safety: belongs to one thread.
// Lifetime: copies share one state, so the one in a data loader can be steered from outside.
// Errors: c10::ValueError for invalid options, a position outside the epoch, and an archive of
// another data set or number of replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

namespace weft {

struct DistributedSamplerOptions {
  int64_t num_replicas = 1;
  int64_t rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;  // must be the same on all replicas
  bool drop_last = false;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(size_t dataset_size, const DistributedSamplerOptions& options);

  // Starts this epoch at its first sample. If load() or seek() has just set a position in this
  // epoch, it keeps that position.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const;

  size_t size() const;  // samples of this replica in an epoch, including repeated ones
  size_t batches(size_t batch_size) const;  // in an epoch, as many on each replica
  size_t position() const;                  // how many of them next() has returned
  // Goes to a position of an epoch: batch k of size b begins at position k * b.
  void seek(uint64_t epoch, size_t position);

  // `new_size` is the size of the data set.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // Returns up to `batch_size` indices, fewer at the end of the epoch, and then nothing.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared by the copies of one sampler
};

}  // namespace weft
