// The model of the training step, 12 x Linear(1024, 1024): bare, and wrapped by torch's and Weft's
// DDP.
//
// Thread safety: one thread at a time; every rank constructs and calls its replica in the same
// order as the others.
// Lifetime: a replica keeps the backend and the store.
// Errors: c10::Error.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::bench {

inline constexpr int64_t kLayers = 12;
inline constexpr int64_t kFeatures = 1024;
inline constexpr int64_t kBatch = 32;

// All replicas of all ranks begin with the same parameters.
class Replica {
 public:
  virtual ~Replica() = default;
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;
};

std::unique_ptr<Replica> bare_replica();

// torch's c10d::Reducer on `backend`, called as Python's DistributedDataParallel calls it.
std::unique_ptr<Replica> torch_replica(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       const c10::intrusive_ptr<c10d::Store>& store);

// weft::DistributedDataParallel on `backend`.
std::unique_ptr<Replica> weft_replica(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace weft::bench
