#include "weft/dist_autograd/graph/local_pass.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/pass_hold.h"
#include "weft/rpc/user_call.h"

namespace weft::dist_autograd_internal {
namespace {

// Gradients for other workers wait until the running action is done. Past this size they are sent
// earlier.
constexpr size_t kFlushBytes = size_t{256} << 10;

LocalGraphOptions graph_options(LocalPass::Setup& setup, ObservedPass& pass,
                                std::atomic<bool>& observed,
                                absl::AnyInvocable<void(RecvAnswer)> on_answer) {
  LocalGraphOptions options;
  options.retain_graph = setup.retain_graph;
  options.caller = std::exchange(setup.caller, std::nullopt);
  if (setup.observer != nullptr) {
    options.on_leaf = [observer = setup.observer, &pass, &observed](const at::Tensor& variable,
                                                                    at::Tensor& gradient) {
      observed.store(true);
      if (!gradient.defined()) return observer->leaf_without_gradient(pass, variable);
      return observer->leaf_final(pass, variable, gradient);
    };
  }
  options.on_answer = std::move(on_answer);
  return options;
}

}  // namespace

class LocalPass::Held final : public HeldPass {
 public:
  explicit Held(const std::shared_ptr<LocalPass>& pass)
      : pass_(pass), id_(pass->pass_), listener_(pass->listener_) {
    listener_->begin_work();
    listener_->on_hold(id_);
  }
  ~Held() override { listener_->end_work(); }

  void replace(const at::Tensor& variable, at::Tensor gradient) override {
    const auto pass = pass_.lock();
    if (pass == nullptr) return;
    pass->queue(Answer::kNone,
                [pass = pass.get(), variable, gradient = std::move(gradient)]() mutable {
                  return pass->graph_.replace(variable, std::move(gradient));
                });
  }
  void give(const at::Tensor& variable, at::Tensor gradient) override {
    const auto pass = pass_.lock();
    if (pass == nullptr) return;
    pass->queue(Answer::kNone,
                [pass = pass.get(), variable, gradient = std::move(gradient)]() mutable {
                  return pass->graph_.give(variable, std::move(gradient));
                });
  }
  // Queued on the strand behind the replacements, so that a commit includes them.
  void end(absl::Status outcome) override {
    if (!outcome.ok()) {
      listener_->on_failure(id_, {.status = std::move(outcome), .node = "LeafObserver"});
    } else if (const auto pass = pass_.lock()) {
      pass->queue(Answer::kHoldReleased, [] { return absl::OkStatus(); });
    }
  }

 private:
  const std::weak_ptr<LocalPass> pass_;  // weak: a hold must not keep the graph of an ended pass
  const PassId id_;
  const std::shared_ptr<Listener> listener_;
};

PassHold LocalPass::hold() { return PassHold(std::make_unique<Held>(shared_from_this())); }

LocalPass::LocalPass(Setup setup, std::weak_ptr<RpcRuntime> runtime,
                     std::shared_ptr<Listener> listener)
    : pass_(setup.pass),
      runtime_(std::move(runtime)),
      listener_(std::move(listener)),
      strand_(*setup.executor),
      setup_(std::move(setup)),
      graph_(graph_options(setup_, *this, observed_,
                           [this](RecvAnswer answer) { collect(std::move(answer)); })) {}

void LocalPass::queue(Answer answer, absl::AnyInvocable<absl::Status()> body) {
  queued_.fetch_add(1);
  listener_->begin_work();
  strand_.schedule([self = shared_from_this(), answer, body = std::move(body)]() mutable {
    absl::Status status;
    if (!self->stopped_.load()) {
      CallScope scope;
      scope.runtime = self->runtime_.lock();
      scope.context = self->pass_.context;
      CallScopeGuard guard(std::move(scope));
      absl::Status thrown = rpc_internal::run_user_code([&] { status = body(); });
      if (!thrown.ok()) status = std::move(thrown);
    }
    self->report(answer, std::move(status));
    self->listener_->end_work();
  });
}

// A piece of work uses the graph here for the last time. After `queued_` is decreased, another
// thread may take the staged gradients.
void LocalPass::report(Answer answer, absl::Status status) {
  PassFailure failure{.status = std::move(status), .node = graph_.failed_node(), .call = current_};
  LocalProgress progress{.outputs = take_outputs(), .done = true, .waiting = graph_.waiting()};
  std::vector<PeerSends> reached;
  for (auto& [peer, sends] : std::exchange(reached_, {}))
    reached.push_back({peer, std::move(sends)});
  queued_.fetch_sub(1);
  if (stopped_.load()) return;
  if (!failure.status.ok()) {
    listener_->on_failure(pass_, std::move(failure));
  } else if (answer == Answer::kProgress) {
    listener_->on_progress(pass_, std::move(progress));
  } else if (answer == Answer::kDiscovered) {
    listener_->on_discovered(pass_, std::move(reached));
  } else if (answer == Answer::kHoldReleased) {
    listener_->on_hold_released(pass_);
  }
}

void LocalPass::engage() {
  queue(Answer::kNone, [this] {
    std::vector<const SendRecord*> sends;
    sends.reserve(setup_.sends.size());
    for (const SendRecord& send : setup_.sends) sends.push_back(&send);
    absl::Status status = graph_.engage(setup_.roots, sends);
    setup_.roots.clear();
    setup_.sends.clear();
    return status;
  });
}

void LocalPass::feed_roots() {
  queue(Answer::kProgress, [this] { return graph_.feed_roots(); });
}

void LocalPass::feed(std::vector<GradEntry> entries) {
  queue(Answer::kProgress, [this, entries = std::move(entries)]() mutable {
    for (GradEntry& entry : entries) {
      current_ = entry.send;
      WEFT_RETURN_IF_ERROR(feed_one(entry));
    }
    current_ = {};
    return absl::OkStatus();
  });
}

absl::Status LocalPass::feed_one(GradEntry& entry) {
  std::vector<at::Tensor> gradients(entry.slots);
  if (!entry.present.empty()) {
    auto* payload = dynamic_cast<TensorPayload*>(entry.gradients.get());
    if (payload == nullptr || payload->tensors.size() != entry.present.size()) {
      return absl::InternalError(absl::StrCat("the gradients of ", entry.send.to_string(),
                                              " are not those that its message announced"));
    }
    for (size_t i = 0; i < entry.present.size(); ++i) {
      gradients.at(entry.present[i]) = std::move(payload->tensors[i]);
    }
  }
  return graph_.feed(entry.send, std::move(gradients));
}

void LocalPass::discover(bool from_roots, std::vector<SendId> sources) {
  queue(Answer::kDiscovered, [this, from_roots, sources = std::move(sources)] {
    if (from_roots) WEFT_RETURN_IF_ERROR(note_reached(graph_.reach_roots()));
    for (const SendId& source : sources) WEFT_RETURN_IF_ERROR(note_reached(graph_.reach(source)));
    return absl::OkStatus();
  });
}

absl::Status LocalPass::note_reached(absl::StatusOr<std::vector<SendId>> sends) {
  if (!sends.ok()) return std::move(sends).status();
  for (const SendId& send : *sends) reached_[send.creator].push_back(send);
  return absl::OkStatus();
}

void LocalPass::cancel_sends(std::vector<SendId> sources) {
  queue(Answer::kProgress, [this, sources = std::move(sources)] {
    for (const SendId& source : sources) WEFT_RETURN_IF_ERROR(graph_.cancel(source));
    return absl::OkStatus();
  });
}

void LocalPass::stop() {
  const bool first = !stopped_.exchange(true);
  graph_.stop();
  if (first && observed_.load()) setup_.observer->pass_failed(pass_.context);
}

void LocalPass::take_leaves(absl::AnyInvocable<void(std::vector<LeafGradient>)> take) {
  if (queued_.load() == 0) {
    take(graph_.take_leaves());
    return;
  }
  // Work is queued. This happens only if a peer breaks the protocol: it commits a pass on which
  // this worker still works.
  strand_.schedule([self = shared_from_this(), take = std::move(take)]() mutable {
    take(self->graph_.take_leaves());
  });
}

// The graph calls this inside feed and cancel.
void LocalPass::collect(RecvAnswer answer) {
  GradEntry entry{.send = answer.send, .slots = static_cast<uint32_t>(answer.gradients.size())};
  output_bytes_ += answer.bytes();
  std::vector<at::Tensor> tensors;
  for (uint32_t slot = 0; slot < entry.slots; ++slot) {
    if (!answer.gradients[slot].defined()) continue;
    entry.present.push_back(slot);
    tensors.push_back(std::move(answer.gradients[slot]));
  }
  if (!tensors.empty()) entry.gradients = std::make_unique<TensorPayload>(std::move(tensors));
  outputs_[answer.send.creator].push_back(std::move(entry));
  if (output_bytes_ < kFlushBytes || stopped_.load()) return;
  listener_->on_progress(pass_, {.outputs = take_outputs(), .done = false});
}

std::vector<PeerGradients> LocalPass::take_outputs() {
  output_bytes_ = 0;
  std::vector<PeerGradients> all;
  for (auto& [peer, entries] : std::exchange(outputs_, {})) {
    all.push_back({peer, std::move(entries)});
  }
  return all;
}

}  // namespace weft::dist_autograd_internal
