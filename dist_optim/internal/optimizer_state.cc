#include "weft/dist_optim/internal/optimizer_state.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::dist_optim_internal {
namespace {

using torch::optim::AdagradParamState;
using torch::optim::AdamParamState;
using torch::optim::AdamWParamState;
using torch::optim::RMSpropParamState;
using torch::optim::SGDParamState;

template <class Settings>
struct StateOf;
template <>
struct StateOf<SgdSettings> {
  using Type = SGDParamState;
};
template <>
struct StateOf<AdamSettings> {
  using Type = AdamParamState;
};
template <>
struct StateOf<AdamWSettings> {
  using Type = AdamWParamState;
};
template <>
struct StateOf<AdagradSettings> {
  using Type = AdagradParamState;
};
template <>
struct StateOf<RmspropSettings> {
  using Type = RMSpropParamState;
};

// Calls `tensor(name, getter, setter)` for each tensor of the state and `count` for its step count.
template <class Visitor>
void visit_fields(SGDParamState& s, Visitor&& v) {
  v.tensor("momentum_buffer", s.momentum_buffer());
}
template <class State, class Visitor>
void visit_adam(State& s, Visitor&& v) {
  v.count(s.step());
  v.tensor("exp_avg", s.exp_avg());
  v.tensor("exp_avg_sq", s.exp_avg_sq());
  v.tensor("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visitor>
void visit_fields(AdamParamState& s, Visitor&& v) {
  visit_adam(s, v);
}
template <class Visitor>
void visit_fields(AdamWParamState& s, Visitor&& v) {
  visit_adam(s, v);
}
template <class Visitor>
void visit_fields(AdagradParamState& s, Visitor&& v) {
  v.count(s.step());
  v.tensor("sum", s.sum());
}
template <class Visitor>
void visit_fields(RMSpropParamState& s, Visitor&& v) {
  v.count(s.step());
  v.tensor("square_avg", s.square_avg());
  v.tensor("momentum_buffer", s.momentum_buffer());
  v.tensor("grad_avg", s.grad_avg());
}

at::Tensor zeros(const at::Tensor& like) {
  return at::zeros_like(like, at::MemoryFormat::Preserve);
}

struct SaveField {
  const std::string& name;
  TensorMap& out;
  void count(int64_t& value) const {
    out[absl::StrCat(name, "/step")] = at::full({}, value, at::TensorOptions().dtype(at::kLong));
  }
  void tensor(const char* field, at::Tensor& value) const {
    if (value.defined()) out[absl::StrCat(name, "/", field)] = value.detach().clone();
  }
};

// LibTorch's optimizer cannot go on without these fields. SGD needs none: it begins its momentum
// anew.
std::vector<const char*> needed_fields(const SgdSettings&) { return {}; }
template <class Settings>
std::vector<const char*> needed_by_adam(const Settings& s) {
  std::vector<const char*> fields = {"step", "exp_avg", "exp_avg_sq"};
  if (s.amsgrad) fields.push_back("max_exp_avg_sq");
  return fields;
}
std::vector<const char*> needed_fields(const AdamSettings& s) { return needed_by_adam(s); }
std::vector<const char*> needed_fields(const AdamWSettings& s) { return needed_by_adam(s); }
std::vector<const char*> needed_fields(const AdagradSettings&) { return {"step", "sum"}; }
std::vector<const char*> needed_fields(const RmspropSettings& s) {
  std::vector<const char*> fields = {"square_avg"};
  if (s.momentum > 0) fields.push_back("momentum_buffer");
  if (s.centered) fields.push_back("grad_avg");
  return fields;
}

struct CheckField {
  const std::string& name;
  const TensorMap& state;
  const ParameterKind& kind;
  std::set<std::string>& known;
  bool found = false;
  absl::Status status = {};

  const at::Tensor* entry(const char* field) {
    const auto [key, first] = known.insert(absl::StrCat(name, "/", field));
    const auto entry = state.find(*key);
    if (entry == state.end()) return nullptr;
    found = true;
    return &entry->second;
  }
  void count(int64_t&) {
    const at::Tensor* value = entry("step");
    if (value == nullptr) return;
    const bool one = value->defined() && value->numel() == 1 && value->scalar_type() == at::kLong;
    if (one && value->item<int64_t>() >= 0) return;
    status = absl::InvalidArgumentError(absl::StrCat(name, "/step is not one int64 from 0"));
  }
  void tensor(const char* field, at::Tensor&) {
    const at::Tensor* value = entry(field);
    if (value == nullptr || (kind.fits(*value) && value->layout() == at::kStrided)) return;
    status = absl::InvalidArgumentError(
        absl::StrCat(name, "/", field, " has another shape or type than the parameter"));
  }
};

struct LoadField {
  const std::string& name;
  const TensorMap& state;
  const at::Tensor& like;
  bool found = false;

  void count(int64_t& value) {
    const auto entry = state.find(absl::StrCat(name, "/step"));
    if (entry == state.end()) return;
    found = true;
    value = entry->second.item<int64_t>();
  }
  void tensor(const char* field, at::Tensor& value) {
    const auto entry = state.find(absl::StrCat(name, "/", field));
    if (entry == state.end()) return;
    found = true;
    value = zeros(like);
    value.copy_(entry->second);
  }
};

}  // namespace

void allocate_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                    const at::Tensor& parameter, const std::function<at::Tensor()>& spare) {
  if (optimizer.state().count(parameter.unsafeGetTensorImpl()) != 0) return;
  const auto zeros = [&] { return spare().zero_(); };
  std::unique_ptr<torch::optim::OptimizerParamState> made;
  const auto adam = [&](auto state, bool amsgrad) {
    state->step(0);
    state->exp_avg(zeros());
    state->exp_avg_sq(zeros());
    if (amsgrad) state->max_exp_avg_sq(zeros());
    made = std::move(state);
  };
  if (const auto* s = std::get_if<AdamSettings>(&settings)) {
    adam(std::make_unique<AdamParamState>(), s->amsgrad);
  } else if (const auto* s = std::get_if<AdamWSettings>(&settings)) {
    adam(std::make_unique<AdamWParamState>(), s->amsgrad);
  } else if (const auto* s = std::get_if<SgdSettings>(&settings)) {
    // LibTorch's first momentum buffer is the first gradient, without dampening. Without dampening,
    // a buffer of zeros gives the same.
    if (s->momentum == 0 || s->dampening != 0) return;
    auto state = std::make_unique<SGDParamState>();
    state->momentum_buffer(zeros());
    made = std::move(state);
  } else if (const auto* s = std::get_if<RmspropSettings>(&settings)) {
    auto state = std::make_unique<RMSpropParamState>();
    state->step(0);
    state->square_avg(zeros());
    if (s->momentum > 0) state->momentum_buffer(zeros());
    if (s->centered) state->grad_avg(zeros());
    made = std::move(state);
  } else {
    return;  // Adagrad makes its state in its constructor
  }
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
}

void save_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                const at::Tensor& parameter, const std::string& name, TensorMap& out) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return;
  std::visit(
      [&]<class Settings>(const Settings&) {
        visit_fields(static_cast<typename StateOf<Settings>::Type&>(*found->second),
                     SaveField{name, out});
      },
      settings);
}

absl::Status check_state(const OptimizerSettings& settings, const ParameterKind& kind,
                         const std::string& name, const TensorMap& state,
                         std::set<std::string>& known) {
  return std::visit(
      [&]<class Settings>(const Settings& own) {
        typename StateOf<Settings>::Type unused;
        CheckField field{name, state, kind, known};
        visit_fields(unused, field);
        WEFT_RETURN_IF_ERROR(field.status);
        for (const char* needed : needed_fields(own)) {
          if (field.found && !state.contains(absl::StrCat(name, "/", needed))) {
            return absl::InvalidArgumentError(absl::StrCat(name, "/", needed, " is missing"));
          }
        }
        return absl::OkStatus();
      },
      settings);
}

ParameterStatePtr make_state(const OptimizerSettings& settings, const std::string& name,
                             const TensorMap& state, const at::Tensor& like) {
  return std::visit(
      [&]<class Settings>([[maybe_unused]] const Settings& own) -> ParameterStatePtr {
        auto made = std::make_unique<typename StateOf<Settings>::Type>();
        LoadField field{name, state, like};
        visit_fields(*made, field);
        if constexpr (std::is_same_v<Settings, AdagradSettings>) {
          if (!field.found) {  // LibTorch makes this state together with the optimizer
            made->step(0);
            made->sum(zeros(like).fill_(own.initial_accumulator_value));
            field.found = true;
          }
        }
        if (!field.found) return nullptr;
        return made;
      },
      settings);
}

void replace_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                   ParameterStatePtr state) {
  void* const key = parameter.unsafeGetTensorImpl();
  if (state != nullptr) {
    optimizer.state()[key] = std::move(state);
  } else {
    optimizer.state().erase(key);
  }
}

}  // namespace weft::dist_optim_internal
