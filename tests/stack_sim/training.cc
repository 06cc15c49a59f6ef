#include "weft/tests/stack_sim/training.h"

#include <utility>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/rpc/class.h"
#include "weft/rpc/verbs.h"

namespace weft::sim {
namespace {

StepBook* book = nullptr;

}  // namespace

// The parameters of one training on one owner.
class Weights {
 public:
  explicit Weights(uint64_t training)
      : training_(training),
        home_(CallScope::current().runtime->id()),
        set_(std::make_shared<ParameterSet>(
            std::vector<NamedParameter>{{"w", at::zeros({2}, at::kDouble).requires_grad_(true)}})) {
  }
  ~Weights() {
    if (book == nullptr) return;
    const at::Tensor w = set_->state().at("w");
    const bool whole = w[0].item<double>() == w[1].item<double>();
    (*book)[training_].left[home_] = whole ? w[0].item<double>() : -1;
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Its gradient is -1 everywhere.
  at::Tensor forward() { return -set_->read(CallScope::current().context)[0].sum(); }
  std::shared_ptr<ParameterSet> parameters() { return set_; }

 private:
  const uint64_t training_;
  const WorkerId home_;
  const std::shared_ptr<ParameterSet> set_;  // shared with the optimizer's shard
};
WEFT_REGISTER_CLASS(Weights, weft::constructor<uint64_t>(), &Weights::forward,
                    &Weights::parameters);

StepBook::StepBook() { book = this; }
StepBook::~StepBook() { book = nullptr; }
StepBook* StepBook::open() { return book; }

std::vector<std::string> StepBook::violations(
    const std::function<bool(WorkerId)>& incarnations) const {
  std::vector<std::string> found;
  for (const auto& [number, entry] : entries_) {
    const std::string training =
        absl::StrCat("training ", number, " of ", entry.trainer.to_string());
    // A trainer that died during a step was told nothing of it.
    const uint64_t told = entry.applied + entry.not_applied + entry.unsure;
    const double most = static_cast<double>(entry.applied + entry.unsure + (entry.begun - told));
    std::map<double, WorkerId> values;
    for (const WorkerId owner : entry.owners) {
      const auto left = entry.left.find(owner);
      if (!entry.made.contains(owner) || !incarnations(owner)) continue;
      if (left == entry.left.end()) {
        found.push_back(absl::StrCat(training, ": ", owner.to_string(), " keeps its parameters"));
        continue;
      }
      values.emplace(left->second, owner);
      if (left->second < static_cast<double>(entry.applied) || left->second > most) {
        found.push_back(
            absl::StrCat(training, ": ", owner.to_string(), " has applied ", left->second,
                         " steps; told of as applied: ", entry.applied,
                         ", not known: ", entry.begun - entry.applied - entry.not_applied));
      }
    }
    if (values.size() > 1) {
      found.push_back(absl::StrCat(training, ": ", values.begin()->second.to_string(),
                                   " has applied ", values.begin()->first, " steps, ",
                                   values.rbegin()->second.to_string(), " ",
                                   values.rbegin()->first));
    }
  }
  return found;
}

Training::Training(Incarnation& incarnation, StepBook& book, Options options)
    : incarnation_(incarnation), book_(book), options_(std::move(options)) {
  book_[options_.number].trainer = incarnation_.info.id;
}

template <class T>
void Training::when(const std::vector<Future<T>>& futures, void (Training::*next)()) {
  if (futures.empty()) return later(next);
  const auto missing = std::make_shared<size_t>(futures.size());  // shared by the continuations
  for (const Future<T>& future : futures) {
    future.state()->on_complete_inline([self = shared_from_this(), missing, next] {
      if (--*missing == 0) self->later(next);
    });
  }
}

void Training::later(void (Training::*next)()) {
  if (ended()) return;
  incarnation_.executor.schedule([self = shared_from_this(), next] {
    CallScope scope;
    scope.runtime = self->incarnation_.runtime;
    CallScopeGuard guard(std::move(scope));
    try {
      (self.get()->*next)();
    } catch (const RpcError&) {  // it was not even sent
      self->options_.note("train: refused");
    }
  });
}

void Training::begin() {
  dist_optim_internal::StepCaller::Options steps;
  steps.runtime = incarnation_.runtime;
  steps.id = {incarnation_.info.id, options_.number};
  steps.rates = {1.0};
  const std::vector<dist_optim_internal::ShardGroup> groups = {{{}, SgdSettings{.lr = 1}}};
  for (const std::string& owner : options_.owners) {
    weights_.push_back(remote<Weights>(owner, options_.number));
    book_[options_.number].owners.push_back(weights_.back().owner());
    const RRef<ParameterSet> set = weights_.back().remote(&Weights::parameters);
    steps.shards.push_back({set.remote(&dist_optim_internal::make_optimizer_shard, groups,
                                       UpdateMode::kLocked, std::string()),
                            {0}});
  }
  steps_ = std::make_shared<dist_optim_internal::StepCaller>(std::move(steps));
  met_ = steps_->introduce_shards();
  when(met_, &Training::introduced);
}

void Training::introduced() {
  for (const Future<void>& one : met_) {
    if (!one.state()->result().ok()) return options_.note("train: no optimizer");
  }
  round();
}

void Training::round() {
  if (rounds_++ == options_.rounds) return options_.note("train: all rounds");
  const absl::StatusOr<ContextId> context = incarnation_.autograd->create_context();
  if (!context.ok()) return;
  context_ = *context;
  CallScope scope;
  scope.runtime = incarnation_.runtime;
  scope.context = context_;
  CallScopeGuard guard(std::move(scope));
  parts_.clear();
  for (const RRef<Weights>& weights : weights_) {
    parts_.push_back(weights.rpc_async(&Weights::forward));
  }
  when(parts_, &Training::forwarded);
}

void Training::forwarded() {
  at::Tensor loss;
  for (const Future<at::Tensor>& part : parts_) {
    const auto& result = part.state()->result();
    if (!result.ok()) {
      options_.note("train: a forward failed");
      return end_round();
    }
    loss = loss.defined() ? loss + *result : *result;
  }
  parts_.clear();
  dist_autograd_internal::AutogradDriver::PassOptions options;
  options.timeout = std::chrono::seconds(5);
  pass_ = {incarnation_.autograd->backward(context_, {loss}, options)};
  when(pass_, &Training::passed);
}

void Training::passed() {
  if (!pass_[0].state()->result().ok()) {
    options_.note("train: a backward failed");
    return end_round();
  }
  ++book_[options_.number].begun;
  StepOptions options;
  if (options_.step_timeout > Nanoseconds::zero()) options.timeout = options_.step_timeout;
  step_ = {steps_->start(context_, options)};
  when(step_, &Training::stepped);
}

void Training::stepped() {
  const auto& result = step_[0].state()->result();
  StepBook::Entry& entry = book_[options_.number];
  const auto outcome = result.ok() ? result->outcome : StepResult::Outcome::kNotApplied;
  switch (outcome) {
    case StepResult::Outcome::kApplied:
      ++entry.applied;
      options_.note("train: applied");
      break;
    case StepResult::Outcome::kNotApplied:
      ++entry.not_applied;
      options_.note("train: not applied");
      break;
    case StepResult::Outcome::kDataLoss:
      ++entry.unsure;
      options_.note("train: data loss");
      break;
  }
  end_round();
}

void Training::end_round() {
  incarnation_.autograd->release(context_);
  round();
}

}  // namespace weft::sim
