// Named parameters of one owner, read in versions: a forward keeps the weights it began with while
// optimizer steps go on.
//
// A forward under a context gets aliases, fixed at the context's first read; gradients of that
// context belong to these aliases and are exact for the weights that were read. A step on storage
// that somebody still reads first gives the parameter fresh storage, so at most (live contexts + 1)
// versions exist. In mode hogwild steps write the live storage and promise none of this. A set made
// with Reading::kLeaves hands out the parameters themselves: a step then makes the graphs of
// earlier forwards fail in backward, loudly, because their storage was written.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the object that owns the parameters and by optimizer shards. Whoever reads
// under a context releases it when the context ends; an alias keeps its storage by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/state_file.h"

namespace torch::nn {
class Module;
}

namespace weft {

namespace dist_optim_internal {
class StepKeeper;
}

// How steps meet forwards and each other.
enum class UpdateMode : uint8_t {
  kLocked = 0,   // whole steps, one at a time, one version per context
  kHogwild = 1,  // in place, concurrent with everything
};

struct NamedParameter {
  std::string name;
  at::Tensor value;
};

// Each parameter once: tied ones have several names.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module);

struct ParameterKind {
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
  bool fits(const at::Tensor& value) const {
    return value.defined() && value.sizes() == sizes && value.scalar_type() == type;
  }
};

class ParameterSet : public std::enable_shared_from_this<ParameterSet> {
 public:
  enum class Reading { kVersions, kLeaves };

  // Leaves with distinct names. Until it ends, only this set writes them.
  // Throws std::invalid_argument: a name twice, an undefined or non-leaf tensor.
  explicit ParameterSet(std::vector<NamedParameter> parameters,
                        Reading reading = Reading::kVersions);
  // A module's parameters, with Reading::kLeaves: its forwards use them themselves, so no step may
  // come between a forward and its backward pass.
  static std::shared_ptr<ParameterSet> of(const torch::nn::Module& module);
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  size_t size() const { return names_.size(); }
  const std::vector<std::string>& names() const { return names_; }
  // NotFound names the parameter and the ones there are.
  absl::StatusOr<size_t> index_of(std::string_view name) const;

  // The context's leaves, in order; the first read fixes their version. An invalid context gives
  // the current values without gradient.
  std::vector<at::Tensor> read(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but `leaves` (leaves of like shape and type) become the context's leaves if it has
  // none yet: their data is replaced by the current version. Returns the context's leaves.
  std::vector<at::Tensor> bind(const ContextId& context, std::vector<at::Tensor> leaves)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What the context has read; empty if nothing.
  std::vector<at::Tensor> leaves(const ContextId& context) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The context ended: its version is no longer needed. Idempotent.
  void release(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);

  // Distinct versions that contexts hold, and the current one.
  size_t live_versions() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t live_contexts() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The first caller fixes the mode; another mode is FailedPrecondition.
  absl::Status fix_mode(UpdateMode mode) ABSL_LOCKS_EXCLUDED(mutex_);

  // One object per name for optimizers that share their state; `make` makes the first. It dies with
  // its last user.
  std::shared_ptr<void> shared(const std::string& name,
                               const std::function<std::shared_ptr<void>()>& make)
      ABSL_LOCKS_EXCLUDED(shared_mutex_);

  // Who makes the steps durable; kept weakly. FailedPrecondition: there was an optimizer already.
  absl::Status keep_steps(const std::shared_ptr<dist_optim_internal::StepKeeper>& keeper)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<dist_optim_internal::StepKeeper> keeper() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies of all current values by name, of one version.
  TensorMap state() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces values, all or none; as a step does it, contexts keep what they read. InvalidArgument
  // (names the parameter: missing, unknown, other shape or type).
  absl::Status load_state(const TensorMap& state) ABSL_LOCKS_EXCLUDED(mutex_);

  // For optimizer shards. `body` changes the parameters of `touched` in place; each one whose
  // storage has other readers is moved first into its spare (parallel to `touched`, like shape and
  // type), which is then undefined. Holds the lock: other steps and reads wait.
  void update(const std::vector<size_t>& touched, std::vector<at::Tensor>& spares,
              const std::function<void()>& body) ABSL_LOCKS_EXCLUDED(mutex_);
  // The parameters themselves; written only inside `update`, or at any time under hogwild.
  const std::vector<at::Tensor>& live() const { return live_; }
  Reading reading() const { return reading_; }
  // `live` is not to be asked while others step.
  ParameterKind kind(size_t place) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Like the parameter, uninitialized.
  at::Tensor make_spare(size_t place) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Read {
    uint64_t version = 0;
    std::vector<at::Tensor> leaves;
  };

  std::vector<at::Tensor> aliases(bool requires_grad) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Reading reading_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> live_;  // the handles never change; their storage does, under the lock
  mutable Mutex mutex_;
  bool mode_fixed_ ABSL_GUARDED_BY(mutex_) = false;
  UpdateMode mode_ ABSL_GUARDED_BY(mutex_) = UpdateMode::kLocked;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<ContextId, Read> reads_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<dist_optim_internal::StepKeeper> keeper_ ABSL_GUARDED_BY(mutex_);
  Mutex shared_mutex_;  // taken before mutex_
  std::map<std::string, std::weak_ptr<void>> shared_ ABSL_GUARDED_BY(shared_mutex_);
};

}  // namespace weft
