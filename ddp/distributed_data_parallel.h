// Trains copies of one module, one on each rank of a group, as if one module saw all ranks' inputs.
// Gradients are averaged over the ranks while backward still runs.
//
//   auto group = weft::init_process_group();
//   weft::DistributedDataParallel ddp(std::make_shared<NetImpl>(), group);   // or a ModuleHolder
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   for (auto& [x, y] : batches) {
//     optimizer.zero_grad();
//     loss(ddp(x), y).backward();
//     optimizer.step();
//   }
//
// The rules are those of torch.nn.parallel.DistributedDataParallel in torch 2.11. docs/ddp.md
// states them and lists the differences. Construction, forward and backward are collective: all
// ranks do them in the same order. If the batches have equal sizes, the average is the gradient of
// the mean loss over all of them.
//
// Thread safety: one thread at a time.
// Lifetime: when it is destroyed, no backward pass of its outputs may run.
// Blocking: construction, forward and backward, no longer than the group's timeout.
// Errors: c10::ValueError for a module, options or ranks that do not fit together, on every rank
// (if init_sync is set). Also c10::Error for a pass that was not complete, a parameter that got its
// gradient twice, or a static graph that changed. Also c10::DistBackendError if a rank is lost or a
// bucket could not be reduced. After a pass that failed half-way the ranks cannot go on: forward
// throws until update_process_group.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/join.h"
#include "weft/ddp/output_tensors.h"

namespace weft {

class DistributedGradients;

struct DdpOptions {
  // The device of this rank's copy, where its parameters must be already. Arguments of forward that
  // are tensors are moved there; tensors inside containers and structs are not. At most one. If
  // there is none, inputs stay where they are, and the module may span several devices.
  std::vector<at::Device> device_ids = {};
  bool broadcast_buffers = true;  // rank 0's buffers, before each forward
  bool init_sync = true;          // false: the program knows that the copies are equal
  // A bucket closes once it holds so many MiB, so it may exceed this by one gradient. Not set: 25,
  // and 1 for the first bucket. One value, {4}: for all buckets. Several: for the first, second,
  // ... bucket; the last one repeats.
  std::vector<double> bucket_cap_mb = {};
  // Allows outputs that do not depend on all parameters. Costs a walk over the graph and an
  // all_reduce.
  bool find_unused_parameters = false;
  // Gradients are slices of the buckets. So they have no memory of their own, and nothing is copied
  // out after the reduction.
  bool gradient_as_bucket_view = true;
  // The graph has the same nodes and the same unused parameters in all iterations. Then backward
  // passes inside a backward pass work too.
  bool static_graph = false;
  // With find_unused_parameters or static_graph, outputs pass through a node that copies them. So
  // outputs that the loss does not use deliver undefined gradients. False: the node does not copy,
  // and the program must not change outputs in place.
  bool clone_outputs = true;
  // After each pass, an averaged gradient that is not finite is an error that names the parameter.
  bool check_nans = false;
  std::vector<std::string> ignored = {};  // names of parameters and buffers to leave alone
  std::vector<std::string> sparse_parameters = {};  // in addition to those of sparse embeddings
  // kInfo: logs (base/log.h, level info) the buckets, and the times of passes 1, 10, 100, 1000 and
  // every 1000th. kDetail: also compares the copies before each step that is reduced.
  DebugLevel debug = debug_level_of_environment();
  // For distributed autograd: the same object as WorkerOptions::leaf_observer, one for each worker
  // (dist_autograd_bridge.h).
  std::shared_ptr<DistributedGradients> distributed_gradients = nullptr;
};

// Describes the group, the buckets and the last complete pass. Times are in seconds.
struct DdpLogging {
  int rank = 0;
  int world_size = 1;
  std::string backend;
  std::vector<uint64_t> bucket_bytes;  // of the buckets as they are now
  std::vector<std::vector<size_t>> bucket_parameters;
  bool has_rebuilt_buckets = false;
  std::vector<size_t> ready_order;  // of the parameters, in the previous pass
  size_t unused_parameters = 0;
  uint64_t reduced_passes = 0;
  std::string error;  // of the last pass; empty if it did not fail
  double forward_seconds = 0;
  double backward_seconds = 0;
  double communication_seconds = 0;
  double overlap_seconds = 0;  // of communication and backward

  std::map<std::string, std::string> as_map() const;
};

namespace ddp_internal {

class Reducer;
struct CopyDescription;

// The part of DistributedDataParallel that does not depend on the module's type.
class DataParallelCore : public Joinable {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
                   DdpOptions options);
  ~DataParallelCore() override;

  void before_forward();
  // Replaces the outputs' tensors if they have to pass through the sink.
  void after_forward(std::vector<at::Tensor*> outputs);
  at::Tensor to_device(const at::Tensor& input) const;

  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  void update_group(std::shared_ptr<ProcessGroup> group);
  DdpLogging logging() const;
  const DdpOptions& options() const { return options_; }

  const std::shared_ptr<ProcessGroup>& join_group() const override { return group_; }
  at::Device join_device() const override;
  void check_join(const JoinOptions& options) const override;
  void shadow_step() override;
  void end_join(bool last) override;

 private:
  // What follows a forward of the ranks that still train in a join.
  enum class Forward : int { kNoGraph, kLocal, kReduced };

  void collect();
  void settle();
  void check_arguments() const;
  CopyDescription description() const;
  void tell_others(const std::string& refusal) const;
  at::Device exchange_device() const;
  void broadcast_state(int root);
  bool broadcasts_buffers() const { return options_.broadcast_buffers && buffers_last_sync_; }
  void broadcast_buffers();
  Forward forward_of_others(Forward mine);
  void verify_step(bool shadows);
  void rebuild_buckets();
  void tell_buckets() const;
  void tell_times();
  int common_rank(bool candidate);

  const std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  const DdpOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> variables_;
  std::vector<bool> sparse_;
  std::vector<std::string> frozen_names_;
  std::vector<at::Tensor> frozen_;  // parameters that require no gradients; they are state too
  std::vector<std::string> buffer_names_;
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<Reducer> reducer_;
  bool sync_ = true;
  uint64_t passes_told_ = 0;       // the passes whose times were logged or skipped
  uint64_t passes_before_ = 0;     // passes with earlier groups
  bool buffers_last_sync_ = true;  // the pass of the previous forward is reduced
};

}  // namespace ddp_internal

template <class Net>
class DistributedDataParallel : public torch::nn::Module {
 public:
  DistributedDataParallel(std::shared_ptr<Net> module, std::shared_ptr<ProcessGroup> group,
                          DdpOptions options = {})
      : torch::nn::Module("DistributedDataParallel"),
        module_(std::move(module)),
        core_(std::make_shared<ddp_internal::DataParallelCore>(module_, std::move(group),
                                                               std::move(options))) {
    register_module("module", module_);
  }
  DistributedDataParallel(const torch::nn::ModuleHolder<Net>& module,
                          std::shared_ptr<ProcessGroup> group, DdpOptions options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), std::move(options)) {}

  // Calls module->forward(inputs...). Tensors among the inputs are moved to the device first.
  // Collective, also in eval mode and without gradients. To evaluate on some ranks only, call
  // module()->forward(x).
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    core_->before_forward();
    auto output = module_->forward(moved(std::forward<Inputs>(inputs))...);
    std::vector<at::Tensor*> tensors;
    visit_tensors(output, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
    core_->after_forward(std::move(tensors));
    return output;
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  // The copy itself, for example to save it on one rank: torch::save(ddp.module(), "net.pt").
  const std::shared_ptr<Net>& module() const { return module_; }

  //   { const auto local = ddp.no_sync(); loss(ddp(x), y).backward(); }
  //
  // While a NoSync lives, passes only add to this rank's gradients. The first pass after it reduces
  // the sum. The forwards of such passes must be inside its lifetime too.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<ddp_internal::DataParallelCore> core)
        : core_(std::move(core)), before_(core_->sync()) {
      core_->set_sync(false);
    }
    ~NoSync() { core_->set_sync(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    const std::shared_ptr<ddp_internal::DataParallelCore> core_;
    const bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(core_); }

  // For weft::join.
  Joinable& joinable() { return *core_; }
  void join(const std::function<void()>& body, const JoinOptions& options = {}) {
    weft::join({core_.get()}, body, options);
  }

  // Reduces each full bucket by `hook` in place of the average by all_reduce (comm_hooks.h), as in
  // ddp.register_comm_hook(fp16_compress_hook(group)). Call it once, before the first backward
  // pass.
  void register_comm_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
    core_->set_hook(std::move(hook));
  }

  // Goes on with another group, for example a smaller one after a loss. All its ranks must call
  // this. It gives up the current pass, so call zero_grad() before the next one. Parameters are
  // neither compared nor sent. If one rank has made a step that the others have not, the caller
  // must repair that. A communication hook keeps the group with which it was made.
  void update_process_group(std::shared_ptr<ProcessGroup> group) {
    core_->update_group(std::move(group));
  }
  const std::shared_ptr<ProcessGroup>& process_group() const { return core_->join_group(); }

  DdpLogging logging_data() const { return core_->logging(); }

 private:
  template <class Input>
  decltype(auto) moved(Input&& input) const {
    if constexpr (std::same_as<std::remove_cvref_t<Input>, at::Tensor>) {
      return core_->to_device(input);
    } else {
      return std::forward<Input>(input);
    }
  }

  const std::shared_ptr<Net> module_;
  const std::shared_ptr<ddp_internal::DataParallelCore> core_;
};

}  // namespace weft
