#include <memory>
#include <numeric>

#include "weft/bench/contestants/ddp/ddp_net.h"
#include "weft/bench/contestants/ddp/ddp_step.h"
#include "weft/comm/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"

namespace weft::bench {
namespace {

std::shared_ptr<ProcessGroup> group_of(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       const c10::intrusive_ptr<c10d::Store>& store) {
  std::vector<int> ranks(backend->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  ProcessGroupOptions options;
  options.rank = backend->getRank();
  options.world_size = backend->getSize();
  options.store = store;
  return std::make_shared<ProcessGroup>(backend, store, options, ranks);
}

class WeftReplica final : public Replica {
 public:
  explicit WeftReplica(std::shared_ptr<ProcessGroup> group)
      : ddp_(net_, std::move(group), DdpOptions{}) {}
  at::Tensor forward(const at::Tensor& input) override { return ddp_(input); }
  std::vector<at::Tensor> parameters() const override { return net_->parameters(); }

 private:
  const std::shared_ptr<Net> net_ = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp_;
};

}  // namespace

std::unique_ptr<Replica> weft_replica(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      const c10::intrusive_ptr<c10d::Store>& store) {
  return std::make_unique<WeftReplica>(group_of(backend, store));
}

}  // namespace weft::bench
