#include "weft/dist_optim/module_host.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/autograd_driver.h"

namespace weft::dist_optim_internal {
namespace {

// The destructor puts LibTorch's random state back. The lock is LibTorch's own std::mutex, which a
// caller of these methods of at::Generator must hold.
class KeepRandomState {
 public:
  KeepRandomState() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

std::vector<NamedParameter> buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  for (const auto& item : module.named_buffers()) result.push_back({item.key(), item.value()});
  return result;
}
// Names, types and shapes, for comparison.
std::string layout_of(const torch::nn::Module& module) {
  std::string layout;
  for (const auto& entries : {named_parameters(module), buffers_of(module)}) {
    for (const NamedParameter& entry : entries) {
      absl::StrAppend(&layout, entry.name, " ", c10::toString(entry.value.scalar_type()), "[",
                      absl::StrJoin(entry.value.sizes(), ","), "] ");
    }
    absl::StrAppend(&layout, "; ");
  }
  return layout;
}

}  // namespace

struct ModuleHost::Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> leaves;  // the module's own parameters, in the set's order
};

// The autograd driver keeps this object with a context. When it is destroyed, the host releases the
// context.
struct ModuleHost::Lease {
  std::weak_ptr<ModuleHost> host;
  std::shared_ptr<ParameterSet> set;
  ContextId context;
  ~Lease() {
    set->release(context);
    if (const auto live = host.lock()) live->end_context(context);
  }
};

ModuleHost::ModuleHost(ModuleType type) : type_(std::move(type)) {
  module_ = type_.make();
  set_ = std::make_shared<ParameterSet>(named_parameters(*module_));
  buffers_ = buffers_of(*module_);
  layout_ = layout_of(*module_);
}

ModuleHost::~ModuleHost() = default;

size_t ModuleHost::replicas() const {
  MutexLock lock(mutex_);
  return in_use_.size() + spares_.size();
}

ModuleHost::ReplicaPtr ModuleHost::take_spare() {
  {
    MutexLock lock(mutex_);
    if (!spares_.empty()) {
      ReplicaPtr spare = std::move(spares_.back());
      spares_.pop_back();
      return spare;
    }
  }
  auto replica = std::make_shared<Replica>();
  // The constructor draws initial values that are not needed. They must not change the random
  // numbers that the program draws.
  {
    const KeepRandomState keep;
    replica->module = type_.make();
  }
  if (layout_of(*replica->module) != layout_) {
    throw RpcError(absl::FailedPreconditionError(
        "a hosted module's constructor made other parameters or buffers than before"));
  }
  for (NamedParameter& parameter : named_parameters(*replica->module)) {
    replica->leaves.push_back(std::move(parameter.value));
  }
  const std::vector<NamedParameter> buffers = buffers_of(*replica->module);
  for (size_t i = 0; i < replica->leaves.size(); ++i) {
    replica->leaves[i].requires_grad_(set_->live()[i].requires_grad());
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    at::Tensor(buffers[i].value).set_data(buffers_[i].value);
  }
  return replica;
}

void ModuleHost::give_back(ReplicaPtr replica) {
  if (replica == nullptr || replica.use_count() != 1) return;  // a forward still uses it
  // A spare replica must not keep a version's storage alive.
  for (at::Tensor& leaf : replica->leaves) leaf.set_data(at::empty({0}, leaf.options()));
  MutexLock lock(mutex_);
  spares_.push_back(std::move(replica));
}

ModuleHost::ReplicaPtr ModuleHost::replica_of(const ContextId& context) {
  {
    MutexLock lock(mutex_);
    const auto found = in_use_.find(context);
    if (found != in_use_.end()) return found->second;
  }
  absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = rpc_internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  absl::StatusOr<std::shared_ptr<dist_autograd_internal::AutogradDriver>> driver =
      dist_autograd_internal::AutogradDriver::of(**runtime);
  if (!driver.ok()) throw RpcError(driver.status());
  ReplicaPtr made = take_spare();
  ReplicaPtr replica;
  {
    MutexLock lock(mutex_);
    const auto [place, first] = in_use_.try_emplace(context, made);
    replica = place->second;
    if (first) {
      const std::vector<at::Tensor> bound = set_->bind(context, made->leaves);
      if (!bound.empty() && !bound.front().is_same(made->leaves.front())) {
        in_use_.erase(place);
        throw RpcError(absl::FailedPreconditionError(
            "the context has read the parameters of this hosted module without it before"));
      }
    }
  }
  if (replica != made) {
    give_back(std::move(made));
    return replica;
  }
  auto lease = std::make_shared<Lease>();
  lease->host = weak_from_this();
  lease->set = set_;
  lease->context = context;
  // If the context is over already, the lease is destroyed here.
  if (absl::Status kept = (*driver)->keep_with(context, std::move(lease)); !kept.ok()) {
    throw RpcError(std::move(kept));
  }
  return replica;
}

void ModuleHost::end_context(const ContextId& context) {
  ReplicaPtr ended;
  {
    MutexLock lock(mutex_);
    const auto found = in_use_.find(context);
    if (found == in_use_.end()) return;
    ended = std::move(found->second);
    in_use_.erase(found);
  }
  give_back(std::move(ended));
}

std::shared_ptr<void> ModuleHost::hold() { return replica_of(CallScope::current().context); }

std::vector<at::Tensor> ModuleHost::forward(std::vector<at::Tensor> inputs) {
  const ContextId context = CallScope::current().context;
  const bool training = training_.load();
  if (context.valid()) {
    const ReplicaPtr replica = replica_of(context);
    if (replica->module->is_training() != training) replica->module->train(training);
    return type_.forward(*replica->module, std::move(inputs));
  }
  c10::AutoGradMode no_grad(false);
  ReplicaPtr replica = take_spare();
  (void)set_->bind({}, replica->leaves);
  if (replica->module->is_training() != training) replica->module->train(training);
  std::vector<at::Tensor> outputs = type_.forward(*replica->module, std::move(inputs));
  give_back(std::move(replica));
  return outputs;
}

TensorMap ModuleHost::state() const {
  TensorMap state = set_->state();
  for (const NamedParameter& buffer : buffers_) state[buffer.name] = buffer.value.clone();
  return state;
}

absl::Status ModuleHost::load_state(TensorMap state) {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;
  for (const NamedParameter& buffer : buffers_) {
    const auto found = state.find(buffer.name);
    if (found == state.end() || !found->second.defined() ||
        found->second.sizes() != buffer.value.sizes() ||
        found->second.scalar_type() != buffer.value.scalar_type()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the state lacks buffer ", buffer.name, " in its shape and type"));
    }
    buffers.emplace_back(buffer.value, std::move(found->second));
    state.erase(found);
  }
  const absl::Status loaded = set_->load_state(state);
  if (!loaded.ok()) return loaded;
  c10::AutoGradMode no_grad(false);
  for (auto& [buffer, value] : buffers) buffer.copy_(value);
  return absl::OkStatus();
}

WEFT_DEFINE_CLASS(ModuleHost);

}  // namespace weft::dist_optim_internal
