// Random programs over several workers, compared with the same program in one graph under
// LibTorch's engine.
#include <gtest/gtest.h>

#include "weft/tests/dist_autograd/graph/local_world.h"

namespace weft::dist_autograd_internal {
namespace {

// One value of the program, twice: as `worker` holds it, and in the one graph of the oracle.
struct Twin {
  int worker = 0;
  at::Tensor there;
  at::Tensor oracle;
};

// The gradients that a hook saw, in order, on either side.
struct HookLog {
  std::vector<double> there;
  std::vector<double> oracle;
};

using Operation = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

class RandomProgram {
 public:
  RandomProgram(uint32_t seed, int workers) : random_(seed), workers_(workers), world_(workers) {
    torch::manual_seed(seed);
    for (int worker = 0; worker < workers; ++worker) {
      add_leaf(worker, /*requires_grad=*/true);
      add_leaf(worker, chance(0.7));
    }
    const int steps = 5 + pick(30);
    for (int step = 0; step < steps; ++step) {
      if (chance(0.4)) {
        call();
      } else {
        compute();
      }
    }
  }

  // Fails the test if the gradients differ. `retain`: the pass runs once more before.
  void check(PassOptions options, bool retain) {
    const int root_worker = pick(workers_);
    const Twin root = make_root(root_worker);
    if (!root.there.requires_grad()) return;
    options.shuffle = options.shuffle != nullptr ? &random_ : nullptr;
    std::vector<at::Tensor> whole;  // gradients of the leaves, without the split
    if (retain) {
      PassOptions first = options;
      first.retain_graph = true;
      first.split = false;
      expect_ok(world_.backward(root_worker, {root.there}, first));
      root.oracle.backward({}, /*retain_graph=*/true);
      for (const Twin& leaf : leaves_) {
        whole.push_back(world_.last_gradient(leaf.worker, leaf.there));
      }
    }
    expect_ok(world_.backward(root_worker, {root.there}, options));
    root.oracle.backward();
    compare();
    if (retain && options.split) expect_same_bits(whole);
    discovered = world_.activations > 0;
  }

  bool discovered = false;  // a gradient waited, so the last pass walked and cancelled

 private:
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int pick(int below) { return static_cast<int>(random_() % below); }

  void add_leaf(int worker, bool requires_grad) {
    const at::Tensor data = torch::randn({3, 4}, torch::kDouble);
    Twin leaf{worker, data.clone(), data.clone()};
    leaf.there.set_requires_grad(requires_grad);
    leaf.oracle.set_requires_grad(requires_grad);
    leaves_.push_back(leaf);
    keep(leaf);
  }

  void keep(Twin value) {
    EXPECT_TRUE(torch::equal(value.there, value.oracle));
    EXPECT_EQ(value.there.requires_grad(), value.oracle.requires_grad());
    if (value.there.requires_grad() && chance(0.15)) {
      auto log = std::make_shared<HookLog>();
      logs_.push_back(log);
      const auto hook = [](std::vector<double>* seen) {
        return [seen](const at::Tensor& gradient) {
          seen->push_back(gradient.sum().item<double>());
          return gradient.clamp(-0.5, 0.5) * 1.5;  // not linear: it needs the whole gradient
        };
      };
      value.there.register_hook(hook(&log->there));
      value.oracle.register_hook(hook(&log->oracle));
    }
    if (value.there.requires_grad() && !value.there.is_leaf() && chance(0.15)) {
      value.there.retain_grad();
      value.oracle.retain_grad();
      retained_.push_back(value);
    }
    values_.push_back(std::move(value));
  }

  Twin any_at(int worker) {
    std::vector<const Twin*> candidates;
    for (const Twin& value : values_) {
      if (value.worker == worker) candidates.push_back(&value);
    }
    return *candidates[pick(static_cast<int>(candidates.size()))];
  }

  std::vector<Twin> apply(int worker, const std::vector<Twin>& inputs, const Operation& operation) {
    std::vector<at::Tensor> there, oracle;
    for (const Twin& input : inputs) {
      there.push_back(input.there);
      oracle.push_back(input.oracle);
    }
    there = operation(there);
    oracle = operation(oracle);
    std::vector<Twin> results;
    for (size_t i = 0; i < there.size(); ++i) results.push_back({worker, there[i], oracle[i]});
    return results;
  }

  void compute() {
    using List = std::vector<at::Tensor>;
    static const std::vector<Operation> kOperations = {
        [](const List& in) -> List { return {in[0].tanh()}; },
        [](const List& in) -> List { return {in[0] * in[1]}; },
        [](const List& in) -> List { return {in[0] + in[1]}; },
        [](const List& in) -> List { return {in[0].sin() * 0.7}; },
        [](const List& in) -> List { return {in[0].sum(0, true).expand_as(in[0])}; },
        [](const List& in) -> List { return {in[0].matmul(in[1].t()).matmul(in[0]) * 0.1}; },
        [](const List& in) -> List {
          at::Tensor out = in[0].clone();
          out.mul_(in[1]).add_(0.1);
          return {out};
        },
        [](const List& in) -> List {
          at::Tensor out = in[0] * 1.0;
          out.select(0, 1).add_(in[1].select(0, 0));
          out.narrow(1, 0, 2).mul_(in[1].narrow(1, 2, 2));
          return {out};
        },
        [](const List& in) -> List {
          const auto parts = in[0].chunk(2, 1);
          return {torch::cat({parts[1], parts[0]}, 1)};
        },
        [](const List& in) -> List {
          const auto parts = in[0].unbind(0);  // the second part stays unused
          return {torch::stack({parts[0], parts[2], parts[0]})};
        },
        [](const List& in) -> List {
          return {in[0].reshape({4, 3}).t().contiguous(), in[0].exp().clamp_max(2)};
        },
    };
    const int worker = pick(workers_);
    std::vector<Twin> results;
    if (chance(0.1)) {
      results = embed(worker);
    } else {
      results = apply(worker, {any_at(worker), any_at(worker)},
                      kOperations[pick(static_cast<int>(kOperations.size()))]);
    }
    for (Twin& result : results) keep(std::move(result));
  }

  std::vector<Twin> embed(int worker) {
    const at::Tensor table = torch::randn({5, 4}, torch::kDouble);
    Twin weight{worker, table.clone().set_requires_grad(true),
                table.clone().set_requires_grad(true)};
    leaves_.push_back(weight);
    const at::Tensor rows = torch::randint(0, 5, {3});
    return apply(worker, {weight}, [&](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{torch::embedding(in[0], rows, -1, false, /*sparse=*/true)};
    });
  }

  // Sends one message with 1 to 3 tensors, some of them twice, between two that need no gradient.
  // In `call`, a fifth of the messages is lost, and the receiver drops the tensors of a fifth of
  // the others.
  std::vector<Twin> move(const std::vector<Twin>& values, int from, int to, bool lost) {
    std::vector<at::Tensor> message = {torch::arange(3)};
    for (const Twin& value : values) message.push_back(value.there);
    message.emplace_back(torch::ones({3, 4}, torch::kDouble));
    const std::vector<at::Tensor> received = world_.transfer(from, to, message, lost);
    std::vector<Twin> results;
    if (lost) return results;
    EXPECT_FALSE(received.front().requires_grad());
    EXPECT_FALSE(received.back().requires_grad());
    for (size_t i = 0; i < values.size(); ++i) {
      results.push_back({to, received[i + 1], values[i].oracle.clone()});
    }
    return results;
  }

  void call() {
    const int from = pick(workers_);
    const int to = pick(workers_);
    std::vector<Twin> values;
    const int count = 1 + pick(3);
    for (int i = 0; i < count; ++i) values.push_back(any_at(from));
    std::vector<Twin> results = move(values, from, to, chance(0.2));
    if (chance(0.2)) return;
    for (Twin& result : results) {
      if (result.there.requires_grad() && chance(0.3)) {
        const Twin factor = any_at(to);  // in place on the tensor, or on a view of it
        if (chance(0.5)) {
          result.there.mul_(factor.there);
          result.oracle.mul_(factor.oracle);
        } else {
          result.there.select(0, 2).add_(factor.there.select(0, 1));
          result.oracle.select(0, 2).add_(factor.oracle.select(0, 1));
        }
      }
      keep(std::move(result));
    }
  }

  Twin make_root(int worker) {
    Twin sum{worker, torch::zeros({}, torch::kDouble), torch::zeros({}, torch::kDouble)};
    const int terms = 1 + pick(4);
    for (int term = 0; term < terms; ++term) {
      Twin value = values_[pick(static_cast<int>(values_.size()))];
      if (value.worker != worker) value = move({value}, value.worker, worker, false).at(0);
      sum.there = sum.there + (value.there * value.there).sum();
      sum.oracle = sum.oracle + (value.oracle * value.oracle).sum();
    }
    return sum;
  }

  static void expect_close(const at::Tensor& there, const at::Tensor& oracle, const char* what) {
    ASSERT_EQ(there.defined(), oracle.defined()) << what;
    if (!there.defined()) return;
    ASSERT_EQ(there.layout(), oracle.layout()) << what;
    const at::Tensor a = there.to_dense(), b = oracle.to_dense();
    ASSERT_EQ(a.sizes(), b.sizes()) << what;
    const double error = (a - b).abs().max().item<double>();
    ASSERT_LE(error, 1e-10 * (1 + b.abs().max().item<double>())) << what;
  }

  // The last pass has computed exactly these gradients.
  void expect_same_bits(const std::vector<at::Tensor>& whole) {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const at::Tensor now = world_.last_gradient(leaves_[i].worker, leaves_[i].there);
      ASSERT_EQ(now.defined(), whole[i].defined()) << "leaf " << i;
      if (now.defined()) EXPECT_TRUE(torch::equal(now.to_dense(), whole[i].to_dense())) << i;
    }
  }

  void compare() {
    for (const Twin& leaf : leaves_) {
      if (!leaf.there.requires_grad()) continue;
      expect_close(world_.gradient(leaf.worker, leaf.there), leaf.oracle.grad(), "leaf");
      EXPECT_FALSE(leaf.there.grad().defined());
    }
    for (const Twin& value : retained_) {
      expect_close(value.there.grad(), value.oracle.grad(), "retain_grad");
    }
    for (const auto& log : logs_) {
      ASSERT_EQ(log->there.size(), log->oracle.size()) << "calls of a hook";
      for (size_t i = 0; i < log->there.size(); ++i) {
        ASSERT_NEAR(log->there[i], log->oracle[i], 1e-9 * (1 + std::abs(log->oracle[i])));
      }
    }
  }

  std::mt19937 random_;
  const int workers_;
  std::vector<Twin> values_;
  std::vector<Twin> leaves_;
  std::vector<Twin> retained_;
  std::vector<std::shared_ptr<HookLog>> logs_;
  LocalWorld world_;
};

constexpr uint32_t kSeeds = 300;

void run_programs(uint32_t first_seed, const PassOptions& options, bool retain) {
  uint32_t discoveries = 0;
  for (uint32_t seed = first_seed; seed < first_seed + kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomProgram program(seed, 2 + static_cast<int>(seed % 3));
    program.check(options, retain);
    if (::testing::Test::HasFailure()) return;
    discoveries += program.discovered;
  }
  EXPECT_GT(discoveries, kSeeds / 10) << "the programs are too tame";
}

TEST(LocalGraphRandom, EqualsOneGraphWhenMessagesKeepTheirOrder) { run_programs(1000, {}, false); }

TEST(LocalGraphRandom, EqualsOneGraphWhenMessagesComeInAnyOrder) {
  std::mt19937 any;
  run_programs(2000, {.shuffle = &any}, false);
}

TEST(LocalGraphRandom, EqualsOneGraphWhenDiscoveryGoesFirst) {
  std::mt19937 any;
  run_programs(3000, {.eager = true, .shuffle = &any}, false);
}

TEST(LocalGraphRandom, EqualsOneGraphInsideLibTorchsEngine) {
  std::mt19937 any;
  run_programs(4000, {.engine_scope = true, .shuffle = &any}, false);
}

TEST(LocalGraphRandom, EqualsOneGraphWhenItIsSplit) {
  std::mt19937 any;
  run_programs(6000, {.split = true, .shuffle = &any}, false);
  run_programs(6500, {.engine_scope = true, .split = true, .shuffle = &any}, false);
}

TEST(LocalGraphRandom, HasTheBitsOfTheWholeBackwardWhenItIsSplit) {
  run_programs(7000, {.split = true}, true);
}

TEST(LocalGraphRandom, AddsUpOverPassesThatRetainTheGraph) {
  std::mt19937 any;
  run_programs(5000, {.shuffle = &any}, true);
}

}  // namespace
}  // namespace weft::dist_autograd_internal
