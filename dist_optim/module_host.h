// Runs a HostedModule on its owner: holds one module, and a replica of it for each context that
// runs it.
//
// LibTorch modules keep their parameters in members. So a forward at an older version needs a
// module whose members are that version's aliases. The module's own constructor makes such a
// replica. A context gets it at its first forward, and it is used again when the context is over.
// LibTorch's random state is put back after the constructor; other threads that draw meanwhile may
// see the same numbers twice. All replicas share the buffers, so every forward sees what another
// one writes into them, as on one machine.
//
// Thread safety: all methods may be called from any thread; forwards run concurrently.
// Lifetime: the ParameterSet may outlive this object.
// Errors: what the module throws; InvalidArgument (number of inputs, or a state that does not fit).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/dist_optim/internal/optimizer_shard.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/rpc/class.h"

namespace torch::nn {
class Module;
}

namespace weft::dist_optim_internal {

// How the host makes modules of the type and runs their forward.
struct ModuleType {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<std::vector<at::Tensor>(torch::nn::Module&, std::vector<at::Tensor>)> forward;
};

class ModuleHost : public std::enable_shared_from_this<ModuleHost> {
 public:
  explicit ModuleHost(ModuleType type);
  ~ModuleHost();

  // Under a context, the forward uses the version that the context reads. Without a context, it
  // uses the current values and records no gradient.
  std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) ABSL_LOCKS_EXCLUDED(mutex_);
  // The replica of the current context. While somebody holds it, its parameters stay as they are,
  // also if the context ends. For backwards that run outside of a pass.
  std::shared_ptr<void> hold();
  std::shared_ptr<ParameterSet> parameters() const { return set_; }
  void train(bool on) { training_.store(on); }
  // Parameters and buffers by name.
  TensorMap state() const;
  absl::Status load_state(TensorMap state);

  ParameterSet& set() const { return *set_; }
  size_t replicas() const ABSL_LOCKS_EXCLUDED(mutex_);  // made so far and not destroyed

 private:
  struct Replica;
  struct Lease;
  using ReplicaPtr = std::shared_ptr<Replica>;  // shared by its context and the forwards that run

  ReplicaPtr take_spare() ABSL_LOCKS_EXCLUDED(mutex_);
  ReplicaPtr replica_of(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);
  void give_back(ReplicaPtr replica) ABSL_LOCKS_EXCLUDED(mutex_);
  void end_context(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);

  const ModuleType type_;
  std::shared_ptr<torch::nn::Module> module_;  // holds the live parameters and the buffers
  std::shared_ptr<ParameterSet> set_;          // shared with the optimizer shards
  std::vector<NamedParameter> buffers_;
  std::string layout_;  // names, types and shapes that every replica must have
  std::atomic<bool> training_{true};
  mutable Mutex mutex_;  // locked before the set's lock
  std::map<ContextId, ReplicaPtr> in_use_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReplicaPtr> spares_ ABSL_GUARDED_BY(mutex_);
};

WEFT_DECLARE_CLASS(ModuleHost, &ModuleHost::forward, &ModuleHost::parameters, &ModuleHost::train,
                   &ModuleHost::state, &ModuleHost::load_state);

}  // namespace weft::dist_optim_internal
