#include "weft/dist_autograd/graph/local_graph.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_buffer.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/dist_autograd/graph/internal/graph_nodes.h"
#include "weft/dist_autograd/graph/internal/graph_sources.h"
#include "weft/dist_autograd/graph/internal/split_node.h"
#include "weft/dist_autograd/graph/recv_node.h"
#include "weft/dist_autograd/graph/send_record.h"

namespace weft::dist_autograd_internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr uint32_t kNoTarget = GraphNodes::kNoTarget;

// As LibTorch's engine does.
variable_list call_node(Node& node, variable_list inputs) {
  variable_list outputs = node(std::move(inputs));
  torch::autograd::validate_outputs(node.next_edges(), outputs, [](const std::string& text) {
    return absl::StrCat("returned an ", text);
  });
  return outputs;
}

}  // namespace

class LocalGraph::Impl {
 public:
  explicit Impl(LocalGraphOptions options) : options_(std::move(options)) {}

  absl::Status engage(c10::ArrayRef<at::Tensor> roots, absl::Span<const SendRecord* const> sends);
  absl::Status feed_roots();
  absl::Status feed(SendId send, variable_list gradients);
  absl::Status cancel(SendId send);
  absl::Status run_weights();
  absl::StatusOr<std::vector<SendId>> reach(SendId send);
  const at::Tensor* staged(const at::Tensor& variable) { return stage_.find(variable); }
  absl::Status replace(const at::Tensor& variable, at::Tensor gradient) {
    if (!status_.ok()) return status_;
    absl::Status status = stage_.replace(variable, std::move(gradient));
    return status.ok() ? status : fail(std::move(status), "LeafObserver");
  }

  absl::Status give(const at::Tensor& variable, at::Tensor gradient) {
    if (!status_.ok()) return status_;
    absl::Status status = stage_.give(variable, std::move(gradient));
    return status.ok() ? status : fail(std::move(status), "LeafObserver");
  }

  bool waiting() const { return buffered_ + answers_.held() > 0; }
  std::vector<SendId> unanswered() const { return sources_.unanswered(); }
  bool fed(SendId send) const {
    const GraphSource* const source = sources_.find(send);
    return source != nullptr && source->state == GraphSource::State::kFed;
  }
  std::vector<LeafGradient> take_leaves() { return stage_.take(); }
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  const std::string& failed_node() const { return failed_node_; }
  const Node* oldest_node() const { return nodes_.oldest(); }
  size_t nodes() const { return nodes_.size(); }
  size_t executed() const { return executed_; }

 private:
  // What run_weights() has to do, in the order in which a whole backward does it. So sums are made
  // in the same order.
  struct Left {
    enum class What : uint8_t { kGradient, kNode, kWeightsOfNode };
    What what;
    uint32_t node;
    uint32_t input = 0;  // kGradient: the input of the node for which it is
    variable_list tensors =
        {};  // the gradient, or the inputs of a node that has run for its inputs
  };

  absl::Status add_source(GraphSource source);
  // The reason why no gradients can be computed now, if there is one.
  absl::Status usable() const;
  absl::Status feed_source(GraphSource& source, variable_list gradients);

  absl::Status run(absl::FunctionRef<absl::Status()> body);
  absl::Status drain();
  absl::Status execute(uint32_t index);
  bool splitting() const { return options_.split && !in_weights_; }
  void postpone(uint32_t index);
  absl::Status run_left(Left left);
  variable_list call(NodeState& state, variable_list inputs, bool has_post_hooks);
  variable_list call_part(NodeState& state, variable_list inputs, bool weights);
  absl::Status failed_in(Node& node);
  absl::Status finish_leaf(const at::Tensor& variable);
  absl::Status miss_leaf(const at::Tensor& variable);
  void pass_on(uint32_t index, variable_list outputs);
  absl::Status die(uint32_t index);
  // `split`: run_weights() may bring this node a gradient, so it waits as if the gradient was
  // there.
  void promise(uint32_t index);
  void buffer(uint32_t index, uint32_t input, at::Tensor gradient);
  void resolve_recv(const NodeState& state, at::Tensor gradient);
  absl::Status fail(absl::Status status, std::string_view node = {});

  LocalGraphOptions options_;
  std::atomic<bool> stopped_{false};
  absl::Status status_;
  std::string failed_node_;
  bool engaged_ = false;
  bool running_ = false;

  GraphSources sources_;
  RecvAnswers answers_;
  GraphNodes nodes_{answers_};
  std::vector<Left> left_;
  bool in_weights_ = false;  // run_weights() was called
  LeafStage stage_;
  size_t buffered_ = 0;  // nodes that hold a gradient and have not run
  size_t executed_ = 0;
};

absl::Status LocalGraph::Impl::engage(c10::ArrayRef<at::Tensor> roots,
                                      absl::Span<const SendRecord* const> sends) {
  if (engaged_) return absl::FailedPreconditionError("the local graph is engaged already");
  engaged_ = true;
  sources_.reserve(sends.size() + 1);
  GraphSource root_source;
  for (const at::Tensor& root : roots) {
    if (!root.defined() || !root.requires_grad() || root.is_leaf()) {
      return fail(absl::InvalidArgumentError("a root of backward() has no grad_fn"));
    }
    if (root.numel() != 1) {
      return fail(absl::InvalidArgumentError(
          absl::StrCat("a root of backward() has ", root.numel(), " elements, not 1")));
    }
    root_source.edges.push_back(torch::autograd::impl::gradient_edge(root));
  }
  if (!roots.empty()) WEFT_RETURN_IF_ERROR(add_source(std::move(root_source)));
  for (const SendRecord* send : sends) {
    WEFT_RETURN_IF_ERROR(
        add_source({.send = send->id, .peer = send->peer, .edges = send->edges, .targets = {}}));
  }
  nodes_.walk();
  if (options_.split) nodes_.mark_for_inputs();
  if (nodes_.has_hooked_leaf() && options_.leaf_hooks) options_.engine_scope = true;
  if (Node* const foreign = nodes_.foreign()) {
    return fail(
        absl::UnimplementedError(absl::StrCat("distributed backward runs on CPU only, and ",
                                              foreign->name(), " is on ", foreign->device().str())),
        foreign->name());
  }
  return absl::OkStatus();
}

absl::Status LocalGraph::Impl::add_source(GraphSource source) {
  source.targets.reserve(source.edges.size());
  for (const Edge& edge : source.edges) source.targets.push_back(nodes_.add(edge));
  const absl::Status added = sources_.add(std::move(source));
  return added.ok() ? added : fail(added);
}

absl::Status LocalGraph::Impl::usable() const {
  if (!status_.ok()) return status_;
  if (running_) return absl::FailedPreconditionError("a hook called back into its own pass");
  if (in_weights_) {
    return absl::FailedPreconditionError("the weight gradients were computed already");
  }
  return absl::OkStatus();
}

absl::Status LocalGraph::Impl::feed_roots() {
  WEFT_RETURN_IF_ERROR(usable());
  WEFT_ASSIGN_OR_RETURN(GraphSource * source, sources_.open(SendId()));
  variable_list ones;
  for (const Edge& edge : source->edges) {
    ones.push_back(edge.function->input_metadata(edge.input_nr).zeros_like().fill_(1));
  }
  return feed_source(*source, std::move(ones));
}

absl::Status LocalGraph::Impl::feed(SendId send, variable_list gradients) {
  WEFT_RETURN_IF_ERROR(usable());
  WEFT_ASSIGN_OR_RETURN(GraphSource * source, sources_.open(send));
  return feed_source(*source, std::move(gradients));
}

absl::Status LocalGraph::Impl::feed_source(GraphSource& source, variable_list gradients) {
  return run([&]() -> absl::Status {
    if (absl::Status fits = source.check(gradients); !fits.ok()) return fail(std::move(fits));
    source.state = GraphSource::State::kFed;
    for (size_t slot = 0; slot < gradients.size(); ++slot) {
      const uint32_t target = source.targets[slot];
      if (target == kNoTarget) continue;
      if (gradients[slot].defined()) {
        buffer(target, source.edges[slot].input_nr, std::move(gradients[slot]));
      }
      nodes_.resolve(target);
    }
    return drain();
  });
}

absl::Status LocalGraph::Impl::cancel(SendId send) {
  WEFT_RETURN_IF_ERROR(usable());
  WEFT_ASSIGN_OR_RETURN(GraphSource * source, sources_.open(send));
  source->state = GraphSource::State::kCancelled;
  answers_.source_cancelled();
  return run([&] {
    for (const uint32_t target : source->targets) {
      if (target != kNoTarget) nodes_.resolve(target);
    }
    return drain();
  });
}

absl::StatusOr<std::vector<SendId>> LocalGraph::Impl::reach(SendId send) {
  if (!status_.ok()) return status_;
  const GraphSource* const source = sources_.find(send);
  if (source == nullptr) {
    return absl::NotFoundError(absl::StrCat(send.to_string(), " is no part of this pass"));
  }
  return nodes_.reach(source->targets);
}

// Runs `body`, which enters the graph. Gradient recording is off, and the state is that of the
// thread that called backward(). If a hook may need it, `body` runs inside LibTorch's engine.
absl::Status LocalGraph::Impl::run(absl::FunctionRef<absl::Status()> body) {
  thread_local const bool threads_initialised = (at::init_num_threads(), true);
  (void)threads_initialised;
  // execute() catches exceptions of hooks and nodes. This one catches those of the sums between
  // them.
  const auto guarded = [&]() -> absl::Status {
    try {
      return body();
    } catch (...) {
      return fail(absl::UnknownError(absl::StrCat("backward: ", text_of_current_exception())));
    }
  };
  running_ = true;
  absl::Status status;
  {
    std::optional<at::ThreadLocalStateGuard> caller;
    if (options_.caller) caller.emplace(*options_.caller);
    at::AutoGradMode no_recording(false);
    status = options_.engine_scope ? run_in_engine(guarded) : guarded();
    if (!status.ok() && status_.ok()) status = fail(status);
  }
  running_ = false;
  return status;
}

absl::Status LocalGraph::Impl::drain() {
  while (nodes_.has_ready()) {
    if (stopped_.load(std::memory_order_relaxed)) {
      return fail(absl::CancelledError("the backward pass was stopped"));
    }
    const uint32_t index = nodes_.take_ready();
    if (!nodes_[index].for_inputs) {
      postpone(index);
    } else if (nodes_[index].present) {
      WEFT_RETURN_IF_ERROR(execute(index));
    } else {
      WEFT_RETURN_IF_ERROR(die(index));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalGraph::Impl::execute(uint32_t index) {
  NodeState& state = nodes_[index];
  Node& node = *state.node;
  if (!in_weights_) --buffered_;
  ++executed_;
  try {
    variable_list inputs = std::exchange(state.inputs, {});
    const bool hooks = state.kind != NodeKind::kLeaf || options_.leaf_hooks;
    if (hooks) {
      for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
      for (const auto& [output, hook] : node.retains_grad_hooks()) inputs = (*hook)(inputs);
      for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
    }

    bool mixed = false;
    for (size_t edge = 0; splitting() && edge < node.num_outputs(); ++edge) {
      mixed = mixed || nodes_.to_weights(state, edge);
    }
    if (mixed && can_split(node)) {
      left_.push_back({Left::What::kWeightsOfNode, index, 0, inputs});
      variable_list outputs = call_part(state, std::move(inputs), /*weights=*/false);
      pass_on(index, std::move(outputs));
      return absl::OkStatus();
    }
    const bool has_post_hooks = hooks && !node.post_hooks().empty();
    variable_list seen;  // by post hooks
    if (has_post_hooks) seen = inputs;
    variable_list outputs = call(state, std::move(inputs), has_post_hooks);
    if (has_post_hooks) {
      for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, seen);
    }
    if (outputs.size() != node.num_outputs()) {
      throw std::runtime_error(absl::StrCat("a post hook returned ", outputs.size(),
                                            " gradients instead of ", node.num_outputs()));
    }
    if (!options_.retain_graph) node.release_variables();
    seen.clear();

    if (state.kind == NodeKind::kLeaf) {
      return finish_leaf(static_cast<const AccumulateGrad&>(node).variable);
    }
    pass_on(index, std::move(outputs));
  } catch (...) {
    return failed_in(node);
  }
  return absl::OkStatus();
}

// For use in a catch block.
absl::Status LocalGraph::Impl::failed_in(Node& node) {
  const std::string text = text_of_current_exception();
  const std::string name = node.name();
  if (torch::autograd::AnomalyMode::is_enabled()) node.metadata()->print_stack(name);
  return fail(absl::UnknownError(absl::StrCat(name, ": ", text)), name);
}

variable_list LocalGraph::Impl::call(NodeState& state, variable_list inputs, bool has_post_hooks) {
  Node& node = *state.node;
  if (state.kind == NodeKind::kLeaf) {
    stage_.add(static_cast<const AccumulateGrad&>(node).variable, std::move(inputs.at(0)),
               has_post_hooks);
    return {};
  }
  if (state.kind == NodeKind::kRecv) {
    resolve_recv(state, std::move(inputs.at(0)));
    return {};
  }
  if (!options_.retain_graph) node.will_release_variables();
  return call_node(node, std::move(inputs));
}

variable_list LocalGraph::Impl::call_part(NodeState& state, variable_list inputs, bool weights) {
  const EmptiedEdges others(*state.node,
                            [&](size_t edge) { return nodes_.to_weights(state, edge) == weights; });
  return call_node(*state.node, std::move(inputs));
}

// ---- split backward

// A node that leads to weights only. Its edges are resolved now, so that the order of all nodes is
// that of the whole backward.
void LocalGraph::Impl::postpone(uint32_t index) {
  NodeState& state = nodes_[index];
  if (state.promised) --buffered_;
  for (uint32_t edge = 0; edge < state.node->num_outputs(); ++edge) {
    const uint32_t target = nodes_.target(state, edge);
    if (target == kNoTarget) continue;
    if (state.promised) promise(target);
    nodes_.resolve(target);
  }
  left_.push_back({Left::What::kNode, index});
}

absl::Status LocalGraph::Impl::run_weights() {
  WEFT_RETURN_IF_ERROR(usable());
  if (!options_.split) return absl::FailedPreconditionError("this backward is not split");
  if (waiting()) {
    return absl::FailedPreconditionError(
        "gradients wait for a source that is neither fed nor cancelled");
  }
  in_weights_ = true;
  return run([&]() -> absl::Status {
    for (Left& left : std::exchange(left_, {})) {
      if (stopped_.load(std::memory_order_relaxed)) {
        return fail(absl::CancelledError("the backward pass was stopped"));
      }
      WEFT_RETURN_IF_ERROR(run_left(std::move(left)));
    }
    return absl::OkStatus();
  });
}

absl::Status LocalGraph::Impl::run_left(Left left) {
  NodeState& state = nodes_[left.node];
  switch (left.what) {
    case Left::What::kGradient:
      buffer(left.node, left.input, std::move(left.tensors.front()));
      break;
    case Left::What::kNode:
      if (state.present) return execute(left.node);
      if (state.kind != NodeKind::kLeaf) break;
      return miss_leaf(static_cast<const AccumulateGrad&>(*state.node).variable);
    case Left::What::kWeightsOfNode:
      try {
        if (!options_.retain_graph) state.node->will_release_variables();
        variable_list outputs = call_part(state, std::move(left.tensors), /*weights=*/true);
        if (!options_.retain_graph) state.node->release_variables();
        pass_on(left.node, std::move(outputs));
      } catch (...) {
        return failed_in(*state.node);
      }
  }
  return absl::OkStatus();
}

void LocalGraph::Impl::promise(uint32_t index) {
  if (!std::exchange(nodes_[index].promised, true)) ++buffered_;
}

absl::Status LocalGraph::Impl::finish_leaf(const at::Tensor& variable) {
  at::Tensor* gradient = stage_.finish(variable);
  if (gradient == nullptr) return miss_leaf(variable);
  if (options_.on_leaf == nullptr) return absl::OkStatus();
  const absl::Status status = options_.on_leaf(variable, *gradient);
  if (!status.ok()) return fail(status, "LeafObserver");
  // The observer may have assigned the gradient. replace() checks it, and copies it if it shares
  // memory, for example a bucket's.
  return replace(variable, std::move(*gradient));
}

absl::Status LocalGraph::Impl::miss_leaf(const at::Tensor& variable) {
  if (options_.on_leaf == nullptr) return absl::OkStatus();
  at::Tensor none;
  const absl::Status status = options_.on_leaf(variable, none);
  return status.ok() ? status : fail(status, "LeafObserver");
}

void LocalGraph::Impl::pass_on(uint32_t index, variable_list outputs) {
  const NodeState& state = nodes_[index];
  if (torch::autograd::AnomalyMode::is_enabled() &&
      torch::autograd::AnomalyMode::should_check_nan()) {
    for (size_t output = 0; output < outputs.size(); ++output) {
      if (outputs[output].defined() && outputs[output].isnan()._is_any_true().item<bool>()) {
        throw std::runtime_error(absl::StrCat("returned nan values in its ", output, "th output"));
      }
    }
  }
  for (size_t output = 0; output < outputs.size(); ++output) {
    const uint32_t target = nodes_.target(state, output);
    if (target == kNoTarget) continue;
    if (in_weights_ && !nodes_.to_weights(state, output)) continue;  // done before
    buffer(target, state.node->next_edge(output).input_nr, std::move(outputs[output]));
    if (!in_weights_) nodes_.resolve(target);
  }
}

// No gradient has entered this node. Its hooks do not run, and no gradient leaves it.
absl::Status LocalGraph::Impl::die(uint32_t index) {
  const NodeState& state = nodes_[index];
  if (state.kind == NodeKind::kRecv) resolve_recv(state, at::Tensor());
  for (uint32_t edge = 0; edge < state.node->num_outputs(); ++edge) {
    const uint32_t target = nodes_.target(state, edge);
    if (target != kNoTarget) nodes_.resolve(target);
  }
  if (state.kind != NodeKind::kLeaf) return absl::OkStatus();
  return miss_leaf(static_cast<const AccumulateGrad&>(*state.node).variable);
}

void LocalGraph::Impl::buffer(uint32_t index, uint32_t input, at::Tensor gradient) {
  NodeState& state = nodes_[index];
  if (!in_weights_ && !state.for_inputs) {
    promise(index);
    left_.push_back({Left::What::kGradient, index, input, {std::move(gradient)}});
    return;
  }
  if (!std::exchange(state.present, true)) {
    if (!in_weights_) ++buffered_;
    state.inputs.resize(state.node->num_inputs());
  }
  at::Tensor& place = state.inputs.at(input);
  if (!place.defined()) {
    place = std::move(gradient);
    return;
  }
  InputBuffer sum(std::move(state.inputs));  // adds as LibTorch's engine does
  sum.add(input, std::move(gradient), std::nullopt, std::nullopt, state.node);
  state.inputs = std::move(sum.buffer);
}

void LocalGraph::Impl::resolve_recv(const NodeState& state, at::Tensor gradient) {
  const uint32_t slot = static_cast<const RecvNode&>(*state.node).slot();
  std::optional<RecvAnswer> answer = answers_.resolve(state.answer, slot, std::move(gradient));
  if (answer && options_.on_answer) options_.on_answer(*std::move(answer));
}

// Keeps the first error and frees all gradients of the pass, because none of them will be used.
absl::Status LocalGraph::Impl::fail(absl::Status status, std::string_view node) {
  if (!status_.ok()) return status_;
  status_ = std::move(status);
  failed_node_ = node;
  stage_.take();
  answers_.clear();
  left_.clear();
  buffered_ = 0;
  nodes_.clear_inputs();
  return status_;
}

LocalGraph::LocalGraph(LocalGraphOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
LocalGraph::~LocalGraph() = default;

absl::Status LocalGraph::engage(c10::ArrayRef<at::Tensor> roots,
                                absl::Span<const SendRecord* const> sends) {
  return impl_->engage(roots, sends);
}
absl::Status LocalGraph::feed_roots() { return impl_->feed_roots(); }
absl::Status LocalGraph::feed(SendId send, std::vector<at::Tensor> gradients) {
  return impl_->feed(send, std::move(gradients));
}
absl::Status LocalGraph::cancel(SendId send) { return impl_->cancel(send); }
absl::Status LocalGraph::run_weights() { return impl_->run_weights(); }
absl::StatusOr<std::vector<SendId>> LocalGraph::reach_roots() { return impl_->reach(SendId()); }
absl::StatusOr<std::vector<SendId>> LocalGraph::reach(SendId send) { return impl_->reach(send); }
bool LocalGraph::waiting() const { return impl_->waiting(); }
std::vector<SendId> LocalGraph::unanswered() const { return impl_->unanswered(); }
bool LocalGraph::fed(SendId send) const { return impl_->fed(send); }
std::vector<LeafGradient> LocalGraph::take_leaves() { return impl_->take_leaves(); }
const at::Tensor* LocalGraph::staged(const at::Tensor& variable) { return impl_->staged(variable); }
absl::Status LocalGraph::give(const at::Tensor& variable, at::Tensor gradient) {
  return impl_->give(variable, std::move(gradient));
}
absl::Status LocalGraph::replace(const at::Tensor& variable, at::Tensor gradient) {
  return impl_->replace(variable, std::move(gradient));
}
void LocalGraph::stop() { impl_->stop(); }
const std::string& LocalGraph::failed_node() const { return impl_->failed_node(); }
const Node* LocalGraph::oldest_node() const { return impl_->oldest_node(); }
size_t LocalGraph::nodes() const { return impl_->nodes(); }
size_t LocalGraph::executed() const { return impl_->executed(); }

}  // namespace weft::dist_autograd_internal
