#include "weft/tests/dist_autograd/random_program.h"

#include <cstdlib>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"

namespace random_program {

using weft::testing::Ingredients;

constexpr int64_t kMaxDepth = 4;

// One function of a program: a few operations on its two arguments and on the parameter of the
// worker that runs it. Some of them are calls to other workers.
struct Step {
  uint64_t seed = 0;
  int64_t depth = 0;
  std::vector<std::string> workers;
  bool fails = false;
};
auto weft_fields(Step& s) { return std::tie(s.seed, s.depth, s.workers, s.fails); }

at::Tensor numbers(double from) {
  return at::arange(6, at::kDouble).add(from).sin().reshape({2, 3}).set_requires_grad(true);
}

// Every process has the parameters of all workers. One worker holds each; the others use it to
// compute the expected gradients.
const at::Tensor& parameter_of(const Step& step, const std::string& worker) {
  static const std::vector<at::Tensor> parameters = [] {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 8; ++i) all.push_back(numbers(10.5 * (i + 1)));
    return all;
  }();
  for (size_t i = 0; i < step.workers.size(); ++i) {
    if (step.workers[i] == worker) return parameters.at(i);
  }
  throw std::out_of_range("no worker " + worker);
}

at::Tensor join(const at::Tensor& a, const at::Tensor& b) { return a.mul(b).cos().add(a); }
WEFT_REGISTER_FUNCTION(join);
at::Tensor remote_step(Step step, const at::Tensor& a, const at::Tensor& b);
at::Tensor reference_step(Step step, weft::RRef<at::Tensor> a, const at::Tensor& b);

enum class Fate { kUsed, kUnused, kFails, kCancelled };

// Runs one step, with calls or, to get the expected gradients, without.
class Run {
 public:
  Run(std::string worker, const Step& step, bool calls, Ingredients* contents)
      : worker_(std::move(worker)),
        step_(step),
        calls_(calls),
        contents_(contents),
        random_(step.seed) {}

  at::Tensor operator()(const at::Tensor& a, const at::Tensor& b) {
    values_ = {a, b, parameter_of(step_, worker_)};
    const size_t operations = 2 + below(4);
    for (size_t i = 0; i < operations; ++i) operation(below(step_.depth < kMaxDepth ? 12 : 6));
    if (step_.fails) throw std::runtime_error("this call was meant to fail");
    return values_.back().tanh().add(pick());
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  const at::Tensor& pick() { return values_[below(values_.size())]; }
  const std::string& any_worker() { return step_.workers[below(step_.workers.size())]; }
  Step inner(bool fails) { return {random_(), step_.depth + 1, step_.workers, fails}; }

  void operation(size_t kind) {
    const at::Tensor x = pick(), y = pick();
    switch (kind) {
      case 0:
      case 1:
        return values_.push_back(x.add(y));
      case 2:
      case 3:
        return values_.push_back(x.mul(y).tanh());
      case 4:
        return values_.push_back(x.sub(y).sin());
      case 5:
        return values_.push_back(x.sigmoid());
      case 6:
        return diamond(x);
      case 7:
        return by_reference(x, y);
      default:
        return call(x, y);
    }
  }

  void call(const at::Tensor& x, const at::Tensor& y) {
    const size_t dice = below(20);
    const Fate fate = dice < 4    ? Fate::kFails
                      : dice < 8  ? Fate::kCancelled
                      : dice < 12 ? Fate::kUnused
                                  : Fate::kUsed;
    const std::string target = any_worker();
    const Step next = inner(fate == Fate::kFails);
    count(target, fate);
    if (!calls_) {
      if (fate == Fate::kUsed) values_.push_back(Run(target, next, false, contents_)(x, y));
      return;
    }
    const weft::Future<at::Tensor> result = weft::rpc_async(target, remote_step, next, x, y);
    switch (fate) {
      case Fate::kUsed:
        return values_.push_back(result.wait());
      case Fate::kUnused:
        return (void)result.wait();
      case Fate::kCancelled:
        return result.cancel();
      case Fate::kFails:
        if (result.result().ok()) throw std::logic_error("a call that must fail did not");
    }
  }

  // x goes to two workers at the same time, and their results go to a third.
  void diamond(const at::Tensor& x) {
    const std::string left = any_worker(), right = any_worker(), third = any_worker();
    const Step one = inner(false), two = inner(false);
    count(left, Fate::kUsed);
    count(right, Fate::kUsed);
    count(third, Fate::kUsed);
    if (contents_ != nullptr) {
      contents_->diamonds += left != right && third != left && third != right && third != worker_;
    }
    if (!calls_) {
      const at::Tensor a = Run(left, one, false, contents_)(x, x);
      const at::Tensor b = Run(right, two, false, contents_)(x, x);
      return values_.push_back(join(a, b));
    }
    const auto a = weft::rpc_async(left, remote_step, one, x, x);
    const auto b = weft::rpc_async(right, remote_step, two, x, x);
    values_.push_back(weft::rpc_sync(third, join, a.wait(), b.wait()));
  }

  // The argument stays on its owner until the user fetches it.
  void by_reference(const at::Tensor& x, const at::Tensor& y) {
    const std::string owner = any_worker(), user = any_worker();
    const Step one = inner(false), two = inner(false);
    count(owner, Fate::kUsed);
    count(user, Fate::kUsed);
    if (contents_ != nullptr) ++contents_->references;
    if (!calls_) {
      const at::Tensor a = Run(owner, one, false, contents_)(x, y);
      return values_.push_back(Run(user, two, false, contents_)(a, y));
    }
    const weft::RRef<at::Tensor> a = weft::remote(owner, remote_step, one, x, y);
    values_.push_back(weft::rpc_sync(user, reference_step, two, a, y));
  }

  void count(const std::string& target, Fate fate) {
    if (contents_ == nullptr) return;
    ++contents_->calls;
    contents_->unused += fate == Fate::kUnused;
    contents_->failed += fate == Fate::kFails;
    contents_->cancelled += fate == Fate::kCancelled;
    contents_->to_itself += target == worker_;
    if (fate == Fate::kUsed) {
      contents_->deepest = std::max(contents_->deepest, step_.depth + 1);
    }
  }

  const std::string worker_;
  const Step& step_;
  const bool calls_;
  Ingredients* const contents_;
  std::mt19937_64 random_;
  std::vector<at::Tensor> values_;
};

const std::string& this_worker() { return weft::CallScope::current().runtime->name(); }

at::Tensor remote_step(Step step, const at::Tensor& a, const at::Tensor& b) {
  return Run(this_worker(), step, true, nullptr)(a, b);
}
WEFT_REGISTER_FUNCTION(remote_step);
at::Tensor reference_step(Step step, weft::RRef<at::Tensor> a, const at::Tensor& b) {
  return Run(this_worker(), step, true, nullptr)(a.to_here(), b);
}
WEFT_REGISTER_FUNCTION(reference_step);

at::Tensor gradient_of_parameter(std::vector<std::string> workers) {
  Step step;
  step.workers = std::move(workers);
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(),
                                       parameter_of(step, this_worker()));
}
WEFT_REGISTER_FUNCTION(gradient_of_parameter);

// Returns how the tensors differ, or "".
std::string difference(const std::string& what, const at::Tensor& actual,
                       const at::Tensor& expected) {
  const at::Tensor& some = expected.defined() ? expected : actual;
  if (!some.defined()) return "";
  const at::Tensor right = expected.defined() ? expected : at::zeros_like(some);
  const at::Tensor is = actual.defined() ? actual : at::zeros_like(some);
  if (at::allclose(is, right, 1e-10, 1e-12)) return "";
  std::ostringstream text;
  text << "gradient of " << what << " is\n" << is << "\ninstead of\n" << right << "\n";
  return text.str();
}

}  // namespace random_program

namespace weft::testing {

using random_program::difference;
using random_program::Run;
using random_program::Step;

Ingredients& Ingredients::operator+=(const Ingredients& other) {
  programs += other.programs;
  calls += other.calls;
  unused += other.unused;
  failed += other.failed;
  cancelled += other.cancelled;
  to_itself += other.to_itself;
  diamonds += other.diamonds;
  references += other.references;
  deepest = std::max(deepest, other.deepest);
  return *this;
}

std::string Ingredients::to_string() const {
  std::ostringstream text;
  text << "contents: " << programs << " programs, " << calls << " calls, " << unused << " unused, "
       << failed << " failed, " << cancelled << " cancelled, " << to_itself << " to itself, "
       << diamonds << " diamonds, " << references << " references, depth " << deepest;
  return text.str();
}

Ingredients Ingredients::parse(const std::string& text) {
  static const std::regex line(
      "contents: (\\d+) programs, (\\d+) calls, (\\d+) unused, (\\d+) failed, (\\d+) cancelled, "
      "(\\d+) to itself, (\\d+) diamonds, (\\d+) references, depth (\\d+)");
  Ingredients sum;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
    const auto field = [&](int i) { return static_cast<int64_t>(std::stoll((*it)[i])); };
    sum +=
        {field(1), field(2), field(3), field(4), field(5), field(6), field(7), field(8), field(9)};
  }
  return sum;
}

std::string Ingredients::missing() const {
  if (5 * (unused + failed + cancelled) < calls) return "less than a fifth of the calls is lost";
  if (20 * failed < calls || 20 * cancelled < calls || 20 * unused < calls) {
    return "less than a twentieth of the calls is lost in one of the ways";
  }
  if (20 * to_itself < calls) return "too few calls of a worker to itself";
  if (20 * diamonds < programs) return "too few diamonds";
  if (4 * references < programs) return "too few references";
  if (deepest < random_program::kMaxDepth) return "no calls nested deep enough";
  return "";
}

std::string check_program(const std::vector<std::string>& names, uint64_t seed,
                          Ingredients& contents) {
  const std::string& here = random_program::this_worker();
  const at::Tensor a = random_program::numbers(static_cast<double>(seed % 1000));
  const at::Tensor b = random_program::numbers(static_cast<double>(seed % 777) + 0.5);
  const Step program{seed, 0, names, false};
  const int passes = 1 + static_cast<int>(seed % 2);

  ++contents.programs;
  std::vector<at::Tensor> variables = {a, b};
  for (const std::string& name : names) {
    variables.push_back(random_program::parameter_of(program, name));
  }
  const at::Tensor expected_loss = Run(here, program, false, &contents)(a, b).sum();
  auto expected = torch::autograd::grad({expected_loss}, variables, {}, std::nullopt,
                                        /*create_graph=*/false, /*allow_unused=*/true);
  for (at::Tensor& gradient : expected) {
    if (gradient.defined()) gradient = gradient.mul(passes);
  }

  const dist_autograd::Context context(CallScope::current().runtime);
  const at::Tensor loss = Run(here, program, true, nullptr)(a, b).sum();
  for (int pass = 0; pass < passes; ++pass) {
    context.backward({loss}, {.retain_graph = pass + 1 < passes,
                              .mode = seed % 3 == 0 ? dist_autograd::Mode::kEager
                                                    : dist_autograd::Mode::kDefault});
  }
  std::string wrong = difference("a", context.gradient(a), expected[0]) +
                      difference("b", context.gradient(b), expected[1]);
  for (size_t i = 0; i < names.size(); ++i) {
    wrong += difference("the parameter of " + names[i],
                        rpc_sync(names[i], random_program::gradient_of_parameter, names),
                        expected[2 + i]);
  }
  return wrong;
}

uint64_t number_from_environment(const char* variable, uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

}  // namespace weft::testing
