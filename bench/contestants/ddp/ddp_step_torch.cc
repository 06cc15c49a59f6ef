#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "weft/bench/contestants/ddp/ddp_net.h"
#include "weft/bench/contestants/ddp/ddp_step.h"

namespace weft::bench {
namespace {

class BareReplica final : public Replica {
 public:
  at::Tensor forward(const at::Tensor& input) override { return net_.forward(input); }
  std::vector<at::Tensor> parameters() const override { return net_.parameters(); }

 private:
  Net net_;
};

c10::intrusive_ptr<c10d::ProcessGroup> group_of(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                const c10::intrusive_ptr<c10d::Store>& store) {
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

// The fastest setting of torch: with gradient_as_bucket_view, gradients stay in the buckets and are
// not copied back out. Without unused parameters Python's DDP begins with one bucket, because the
// order of the gradients is not known yet. The reducer makes buckets of 1 MiB and 25 MiB before the
// second step.
std::shared_ptr<c10d::Reducer> reducer_of(const std::vector<at::Tensor>& parameters,
                                          const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::vector<bool> sparse(parameters.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {std::numeric_limits<size_t>::max()}, sparse);
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < parameters.size(); ++i) names[i] = "parameter" + std::to_string(i);
  return std::make_shared<c10d::Reducer>(
      parameters, buckets, group, sparse, c10d::kDefaultBucketBytesCap,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, names,
      c10d::kDefaultFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>());
}

class TorchReplica final : public Replica {
 public:
  TorchReplica(const c10::intrusive_ptr<c10d::Backend>& backend,
               const c10::intrusive_ptr<c10d::Store>& store)
      : reducer_(reducer_of(net_.parameters(), group_of(backend, store))),
        logger_(std::make_shared<c10d::Logger>(reducer_)) {
    reducer_->set_logger(logger_);
  }
  at::Tensor forward(const at::Tensor& input) override {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    at::Tensor output = net_.forward(input);
    reducer_->prepare_for_backward({});
    return output;
  }
  std::vector<at::Tensor> parameters() const override { return net_.parameters(); }

 private:
  Net net_;
  const std::shared_ptr<c10d::Reducer> reducer_;
  const std::shared_ptr<c10d::Logger> logger_;  // the reducer only refers to it
};

}  // namespace

std::unique_ptr<Replica> bare_replica() { return std::make_unique<BareReplica>(); }

std::unique_ptr<Replica> torch_replica(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       const c10::intrusive_ptr<c10d::Store>& store) {
  return std::make_unique<TorchReplica>(backend, store);
}

}  // namespace weft::bench
