// Runs a torch::nn::Module that lives on its owner, from any worker.
//
//   class Head : public torch::nn::Module {
//    public:
//     explicit Head(int64_t width);
//     at::Tensor forward(at::Tensor x);
//   };
//   WEFT_REGISTER_MODULE(Head, int64_t);  // its constructor's parameters; under the class
//
//   weft::HostedModule<Head> head("server", 128);
//   at::Tensor scores = head.forward(features);   // under a context: recorded, one version
//   weft::DistributedOptimizer<torch::optim::SGD> optimizer({head.parameters()}, SGDOptions(0.05));
//
// A HostedModule is a value that may be sent: all workers that hold it run the same module.
// Forwards read versions (parameter_set.h), so the gradients of several trainers at the same time
// are exact. The owner constructs the class several times (module_host.h). So its
// constructor must make the same parameters and buffers each time, and a forward must not replace
// them. A forward takes tensors only. It returns a tensor, a std::vector of tensors or a std::tuple
// of tensors.
//
// Without a context a forward reads the current values and records no gradient. All forwards share
// the buffers, without a lock. A module that writes them in forward (BatchNorm) needs a single
// trainer at a time, or eval().
//
// Thread safety: all methods may be called from any thread; forwards run concurrently.
// Lifetime: the module lives until no worker refers to it.
// Blocking: forward, forward_all, train, eval, state and load_state wait for the owner.
// Errors: RpcError, with what the module threw; InvalidArgument (another number of inputs than
// forward takes; a state with a missing, misshapen or unknown entry).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/dist_optim/module_host.h"
#include "weft/rref/rref.h"

namespace weft {
namespace dist_optim_internal {

namespace check {

// Whether forward can take this argument from a tensor, by value or by reference.
template <class A>
inline constexpr bool kTakesTensor = std::is_constructible_v<std::remove_cvref_t<A>, at::Tensor>;

template <int number, class T>
struct ForwardTakesNoTensor {
  static_assert(number != 1,
                "weft: argument 1 of this module's forward is no tensor (ForwardTakesNoTensor<...> "
                "says what it is): give it to the constructor, or make a tensor of it");
  static_assert(number != 2,
                "weft: argument 2 of this module's forward is no tensor (ForwardTakesNoTensor<...> "
                "says what it is): give it to the constructor, or make a tensor of it");
  static_assert(number != 3,
                "weft: argument 3 of this module's forward is no tensor (ForwardTakesNoTensor<...> "
                "says what it is): give it to the constructor, or make a tensor of it");
  static_assert(number <= 3,
                "weft: an argument of this module's forward (ForwardTakesNoTensor<...> says which) "
                "is no tensor: give it to the constructor, or make a tensor of it");
};
template <int number, class T>
struct InputIsNoTensor {
  static_assert(number != 1,
                "weft: argument 1 of HostedModule::forward is no tensor (InputIsNoTensor<...> says "
                "what it is)");
  static_assert(number != 2,
                "weft: argument 2 of HostedModule::forward is no tensor (InputIsNoTensor<...> says "
                "what it is)");
  static_assert(
      number <= 2,
      "weft: an argument of HostedModule::forward (InputIsNoTensor<...> says which) is no "
      "tensor");
};

template <int number, class A>
constexpr void explain_forward_parameter() {
  if constexpr (!kTakesTensor<A>) {
    [[maybe_unused]] ForwardTakesNoTensor<number, std::remove_cvref_t<A>> mistake;
  }
}
template <int number, class A>
constexpr void explain_input() {
  if constexpr (!std::is_convertible_v<const A&, at::Tensor>) {
    [[maybe_unused]] InputIsNoTensor<number, A> mistake;
  }
}

}  // namespace check

template <class M, class... P>
struct ModuleInfo {};

// The inputs as tensors. If one is no tensor, the error at compile time tells which.
template <class... Input>
std::vector<at::Tensor> inputs_of(const Input&... input) {
  if constexpr ((std::is_convertible_v<const Input&, at::Tensor> && ...)) {
    return {input...};
  } else {
    [&]<size_t... i>(std::index_sequence<i...>) {
      (check::explain_input<static_cast<int>(i) + 1, Input>(), ...);
    }
    (std::index_sequence_for<Input...>());
    return {};
  }
}

inline std::vector<at::Tensor> outputs_of(at::Tensor output) { return {std::move(output)}; }
inline std::vector<at::Tensor> outputs_of(std::vector<at::Tensor> outputs) { return outputs; }
template <class... T>
std::vector<at::Tensor> outputs_of(std::tuple<T...> outputs) {
  return std::apply([](auto&... output) { return std::vector<at::Tensor>{output...}; }, outputs);
}

template <class... A, class Forward>
std::vector<at::Tensor> spread(const std::vector<at::Tensor>& inputs, const Forward& forward) {
  if (inputs.size() != sizeof...(A)) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("forward takes ", sizeof...(A), " tensors and was given ", inputs.size())));
  }
  return [&]<size_t... i>(std::index_sequence<i...>) {
    if constexpr ((check::kTakesTensor<A> && ...)) {
      return outputs_of(forward(std::remove_cvref_t<A>(inputs[i])...));
    } else {
      (check::explain_forward_parameter<static_cast<int>(i) + 1, A>(), ...);
      return std::vector<at::Tensor>();
    }
  }
  (std::index_sequence_for<A...>());
}
template <class M, class R, class C, class... A>
std::vector<at::Tensor> run_forward(M& module, R (C::*forward)(A...),
                                    const std::vector<at::Tensor>& inputs) {
  return spread<A...>(inputs, std::bind_front(forward, &module));
}
template <class M, class R, class C, class... A>
std::vector<at::Tensor> run_forward(M& module, R (C::*forward)(A...) const,
                                    const std::vector<at::Tensor>& inputs) {
  return spread<A...>(inputs, std::bind_front(forward, &module));
}

template <class M, class... P>
std::shared_ptr<ModuleHost> host_module(P... argument) {
  ModuleType type;
  type.make = [... argument = std::move(argument)]() -> std::shared_ptr<torch::nn::Module> {
    return std::make_shared<M>(argument...);
  };
  type.forward = [](torch::nn::Module& module, std::vector<at::Tensor> inputs) {
    return run_forward(static_cast<M&>(module), &M::forward, inputs);
  };
  return std::make_shared<ModuleHost>(std::move(type));
}

template <class M>
const std::string& module_name() {
  static const std::string name =
      "weft::HostedModule<" + std::string(rpc_internal::type_spelling<M>()) + ">";
  return name;
}
template <class M, class... P>
rpc_internal::Registration register_module(ModuleInfo<M, P...>, const char* file, int line) {
  return rpc_internal::register_function(module_name<M>(), file, line, &host_module<M, P...>);
}
template <class M, class... P>
RRef<ModuleHost> create_module(ModuleInfo<M, P...>, const Destination& to,
                               std::type_identity_t<P>... argument) {
  return remote(to, &host_module<M, P...>, std::move(argument)...);
}

}  // namespace dist_optim_internal

template <class M>
class HostedModule {
 public:
  HostedModule() = default;  // empty: every use throws
  // Constructs the module on `to`. The arguments convert as in a direct call.
  template <class... Argument>
  explicit HostedModule(const Destination& to, Argument&&... argument)
      : host_(dist_optim_internal::create_module(weft_module(type<M>{}), to,
                                                 std::forward<Argument>(argument)...)),
        parameters_(host_.remote(&dist_optim_internal::ModuleHost::parameters)) {}

  // Returns the first output. If the module returns several, forward_all returns them all.
  template <class... Tensor>
  at::Tensor forward(const Tensor&... input) const {
    return first(forward_all(input...));
  }
  template <class... Tensor>
  Future<at::Tensor> forward_async(const Tensor&... input) const {
    return host_
        .rpc_async(&dist_optim_internal::ModuleHost::forward,
                   dist_optim_internal::inputs_of(input...))
        .then([](const Future<std::vector<at::Tensor>>& outputs) { return first(outputs.wait()); });
  }
  template <class... Tensor>
  std::vector<at::Tensor> forward_all(const Tensor&... input) const {
    return host_.rpc_sync(&dist_optim_internal::ModuleHost::forward,
                          dist_optim_internal::inputs_of(input...));
  }

  // Give it to a DistributedOptimizer.
  const RRef<ParameterSet>& parameters() const { return parameters_; }
  // For Weft's own rooms: the module without its type.
  const RRef<dist_optim_internal::ModuleHost>& host() const { return host_; }
  WorkerId owner() const { return host_.owner(); }
  // Completes when the owner has accepted the creation. If the constructor throws there, the first
  // use tells it.
  Future<void> creation() const { return host_.creation(); }

  // Holds for all workers that run the module, from their next forward on.
  void train(bool on = true) const { host_.rpc_sync(&dist_optim_internal::ModuleHost::train, on); }
  void eval() const { train(false); }

  // Parameters and buffers by name.
  TensorMap state() const { return host_.rpc_sync(&dist_optim_internal::ModuleHost::state); }
  void load_state(TensorMap state) const {
    host_.rpc_sync(&dist_optim_internal::ModuleHost::load_state, std::move(state));
  }

  friend auto weft_fields(HostedModule& module) {
    return std::tie(module.host_, module.parameters_);
  }

 private:
  static at::Tensor first(const std::vector<at::Tensor>& outputs) {
    if (outputs.empty()) throw RpcError(absl::InvalidArgumentError("forward returned no tensor"));
    return outputs.front();
  }

  RRef<dist_optim_internal::ModuleHost> host_;
  RRef<ParameterSet> parameters_;
};

}  // namespace weft

// WEFT_REGISTER_MODULE(Module, types of the constructor's parameters...), in the module's
// namespace.
#define WEFT_REGISTER_MODULE(Module, ...)                                               \
  [[maybe_unused]] inline ::weft::dist_optim_internal::ModuleInfo<Module __VA_OPT__(, ) \
                                                                      __VA_ARGS__>      \
  weft_module(::weft::type<Module>) {                                                   \
    return {};                                                                          \
  }                                                                                     \
  WEFT_INTERNAL_REGISTRATION = ::weft::dist_optim_internal::register_module(            \
      weft_module(::weft::type<Module>{}), __FILE__, __LINE__)
