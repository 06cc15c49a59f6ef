// The training thread: backward passes with known gradients, and steps that are counted.
#include "weft/tests/chaos/worker/workload_training.h"

#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/verbs.h"

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCall{5000};
constexpr milliseconds kPassTimeout{5000};
// Includes a call, a pass, and the optimizer's questions to its owners with the worker's default of
// 10 s.
constexpr milliseconds kPassAllowed{25'000};
constexpr milliseconds kStepAllowed{45'000};

}  // namespace

void Workload::as_pass(WorkerId whom, Milliseconds allowed, const std::function<void()>& body) {
  const uint64_t token = tracker_.call(Flavour::kPass, whom, allowed);
  try {
    body();
  } catch (const RpcError& failed) {
    tracker_.told(token, failed.status());
    throw;
  } catch (const std::exception& failed) {
    tracker_.told(token, absl::UnknownError(failed.what()));
    throw;
  }
  tracker_.told(token, absl::OkStatus());
}

void Workload::train(Dice& dice) {
  if (dice.one_in(2)) {
    check_a_gradient(dice);
    return;
  }
  try {
    if (training_ == nullptr || training_->steps_left == 0) begin_training(dice);
    --training_->steps_left;
    step();
  } catch (...) {
    training_.reset();  // perhaps of dead owners
    throw;
  }
}

// The loss is the sum of x, which one or two workers scale by small whole numbers. So the gradient
// is exactly their product.
void Workload::check_a_gradient(Dice& dice) {
  const WorkerId first = somebody(dice), second = somebody_else(dice);
  const bool both = dice.one_in(2);
  const auto width = static_cast<int64_t>(dice.spread(4, 4096));
  const auto a = static_cast<double>(dice.between(2, 9)),
             b = static_cast<double>(dice.between(2, 9));
  as_pass(first, kPassAllowed, [&] {
    const dist_autograd::Context context;
    const at::Tensor x = at::ones({width}).requires_grad_();
    const Future<at::Tensor> scaled = tracked(Flavour::kCall, first, kCall, [&](uint64_t token) {
      if (!both) return rpc_async(at_most(first, kCall), scale, token, x, a);
      return rpc_async(at_most(first, kCall), scale_twice, token, x, a, second.bits(), b,
                       static_cast<uint32_t>(kCall.count()));
    });
    context.backward({scaled.wait().sum()}, {.timeout = kPassTimeout});
    const at::Tensor gradient = context.gradient(x);
    const at::Tensor expected = at::full({width}, both ? a * b : a);
    if (!gradient.defined() || !at::equal(gradient, expected)) {
      tracker_.broken(Broken::kGradient, context.id().number);
    }
  });
}

void Workload::begin_training(Dice& dice) {
  auto training = std::make_unique<Training>();
  training->servers = {somebody(dice)};
  const WorkerId other = somebody_else(dice);
  if (dice.one_in(2) && other != training->servers[0]) training->servers.push_back(other);
  std::vector<RRef<ParameterSet>> sets;
  for (const WorkerId server : training->servers) {
    const Future<HostedModule<CounterModule>> found = tracked(
        Flavour::kCall, server, kCall,
        [&](uint64_t token) { return rpc_async(at_most(server, kCall), find_counter, token); });
    training->counters.push_back(found.wait());
    sets.push_back(training->counters.back().parameters());
  }
  as_pass(training->servers[0], kPassAllowed, [&] {
    training->optimizer = std::make_unique<DistributedOptimizer<torch::optim::SGD>>(
        std::move(sets), torch::optim::SGDOptions(1.0));
  });
  training->steps_left = dice.between(1, 20);
  training_ = std::move(training);
}

// One step: each counter falls by one, or none does.
void Workload::step() {
  std::vector<uint64_t> tokens;
  for (const WorkerId server : training_->servers) {
    tokens.push_back(tracker_.call(Flavour::kStep, server, kStepAllowed));
  }
  // If it fails before the step itself, nothing is applied.
  absl::Status outcome = with_ran(absl::AbortedError("not begun"), Ran::kNo);
  const auto tell = [&] {
    for (const uint64_t token : tokens) tracker_.told(token, outcome);
  };
  try {
    const dist_autograd::Context context;
    const at::Tensor ones = at::ones({CounterModule::kWidth});
    at::Tensor loss;
    for (const HostedModule<CounterModule>& counter : training_->counters) {
      const at::Tensor part = counter.forward(ones);
      loss = loss.defined() ? loss + part : part;
    }
    context.backward({loss}, {.timeout = kPassTimeout});
    outcome = with_ran(absl::UnknownError("not told"), Ran::kMaybe);
    const StepResult result =
        training_->optimizer->step_async(context, {.timeout = kPassTimeout}).wait();
    switch (result.outcome) {
      case StepResult::Outcome::kApplied:
        outcome = absl::OkStatus();
        break;
      case StepResult::Outcome::kNotApplied:
        outcome = with_ran(result.status, Ran::kNo);
        break;
      case StepResult::Outcome::kDataLoss:
        outcome = with_ran(result.status, Ran::kMaybe);
        break;
    }
  } catch (...) {
    tell();
    throw;
  }
  tell();
  if (!outcome.ok()) throw RpcError(outcome);  // begins again, with owners that live
}

}  // namespace weft::chaos
