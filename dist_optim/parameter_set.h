// Holds the named parameters of one owner in versions: a forward keeps the weights that it began
// with while optimizer steps go on.
//
// A forward under a context gets aliases of the parameters. The context's first read fixes them.
// The gradients of that context belong to these aliases and are exact for the weights that were
// read. If a step is about to write storage that somebody still reads, the parameter first gets
// fresh storage. So at most (live contexts + 1) versions exist.
//
// In mode hogwild steps write the live storage, so none of this holds. A set with Reading::kLeaves
// hands out the parameters themselves. A step writes their storage, so the graphs of earlier
// forwards then fail in backward with an error.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the object that owns the parameters and by optimizer shards. A reader under a
// context must call release when the context is over. An alias keeps its storage alive by itself.
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

// How steps run beside forwards and beside each other.
enum class UpdateMode : uint8_t {
  kLocked = 0,   // one whole step at a time, one version per context
  kHogwild = 1,  // in place, at the same time as everything else
};

struct NamedParameter {
  std::string name;
  at::Tensor value;
};

// Returns each parameter once, although tied ones have several names.
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

  // Takes leaves with distinct names. While this object lives, nothing else may write them. Throws
  // std::invalid_argument: a name twice, an undefined or non-leaf tensor.
  explicit ParameterSet(std::vector<NamedParameter> parameters,
                        Reading reading = Reading::kVersions);
  // A module's parameters, with Reading::kLeaves. The module's forwards use the parameters
  // directly, so no step may run between a forward and its backward pass.
  static std::shared_ptr<ParameterSet> of(const torch::nn::Module& module);
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  size_t size() const { return names_.size(); }
  const std::vector<std::string>& names() const { return names_; }
  // The text of NotFound names the parameter and those that exist.
  absl::StatusOr<size_t> index_of(std::string_view name) const;

  // The context's leaves, in order. The first read fixes their version. If the context is invalid:
  // the current values, without gradient.
  std::vector<at::Tensor> read(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);
  // As read, but if the context has no leaves yet, it gets `leaves`, which must have the same
  // shapes and types. Their data is replaced by the current version. Returns the context's leaves.
  std::vector<at::Tensor> bind(const ContextId& context, std::vector<at::Tensor> leaves)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The leaves that the context has read; empty if it has read nothing.
  std::vector<at::Tensor> leaves(const ContextId& context) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The context is over and needs its version no longer. Idempotent.
  void release(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of distinct versions, including the current one.
  size_t live_versions() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t live_contexts() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The first caller fixes the mode; another mode is FailedPrecondition.
  absl::Status fix_mode(UpdateMode mode) ABSL_LOCKS_EXCLUDED(mutex_);

  // Optimizers that share their state get one object for each name. `make` makes it for the first
  // of them. The object dies with its last user.
  std::shared_ptr<void> shared(const std::string& name,
                               const std::function<std::shared_ptr<void>()>& make)
      ABSL_LOCKS_EXCLUDED(shared_mutex_);

  // The keeper that makes the steps durable; held weakly. FailedPrecondition: the set has an
  // optimizer already.
  absl::Status keep_steps(const std::shared_ptr<dist_optim_internal::StepKeeper>& keeper)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<dist_optim_internal::StepKeeper> keeper() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies of all current values by name. They are of one version.
  TensorMap state() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces all values or none. As in a step, contexts keep what they have read. InvalidArgument:
  // a parameter is missing, unknown, or has another shape or type; the text names it.
  absl::Status load_state(const TensorMap& state) ABSL_LOCKS_EXCLUDED(mutex_);

  // For optimizer shards. `body` changes the parameters of `touched` in place. If the storage of
  // one has other readers, the parameter first moves into its spare, which is undefined afterwards.
  // `spares` is parallel to `touched`, with the same shapes and types. The lock is held meanwhile,
  // so other steps and reads wait.
  void update(const std::vector<size_t>& touched, std::vector<at::Tensor>& spares,
              const std::function<void()>& body) ABSL_LOCKS_EXCLUDED(mutex_);
  // The parameters themselves. Only `update` may write them, or a step in mode hogwild at any time.
  const std::vector<at::Tensor>& live() const { return live_; }
  Reading reading() const { return reading_; }
  // Shape and type of a parameter. Unlike those of `live`, they may be read while a step runs.
  ParameterKind kind(size_t place) const ABSL_LOCKS_EXCLUDED(mutex_);
  // An uninitialized tensor like the parameter.
  at::Tensor make_spare(size_t place) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Read {
    uint64_t version = 0;
    std::vector<at::Tensor> leaves;
  };

  std::vector<at::Tensor> aliases(bool requires_grad) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Reading reading_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> live_;  // handles never change; their storage does, under the lock
  mutable Mutex mutex_;
  bool mode_fixed_ ABSL_GUARDED_BY(mutex_) = false;
  UpdateMode mode_ ABSL_GUARDED_BY(mutex_) = UpdateMode::kLocked;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<ContextId, Read> reads_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<dist_optim_internal::StepKeeper> keeper_ ABSL_GUARDED_BY(mutex_);
  Mutex shared_mutex_;  // locked before mutex_
  std::map<std::string, std::weak_ptr<void>> shared_ ABSL_GUARDED_BY(shared_mutex_);
};

}  // namespace weft
