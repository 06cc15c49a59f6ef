// The shapes that outputs and graphs may have: unused parts, passes inside a pass, accumulation.
#include <array>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {

struct Outputs {
  at::Tensor left;
  std::vector<at::Tensor> right;
  int other = 3;
};
auto weft_fields(Outputs& value) { return std::tie(value.left, value.right); }

namespace {

using ::testing::HasSubstr;

// Shape turns the two outputs into the form that forward returns.
template <class Shape>
struct Heads : LeftAndRight {
  explicit Heads(Shape shape) : shape(shape) {}
  auto forward(const at::Tensor& x) { return shape(left(x), right(x)); }
  const Shape shape;
};

// The loss uses the left output only. The right one's gradient is undefined, and must neither hang
// the pass nor fail it.
template <class Shape, class Left>
void expect_other_head_unused(Shape shape, Left left) {
  for (const bool fixed : {false, true}) {
    for (const bool clone : {false, true}) {
      run_ranks(2, [&](GroupPtr group) {
        auto model = std::make_shared<Heads<Shape>>(shape);
        DdpOptions options;
        options.static_graph = fixed;
        options.find_unused_parameters = !fixed;
        options.clone_outputs = clone;
        DistributedDataParallel ddp(model, group, options);
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          auto outputs = ddp(input_of(group->rank(), step));
          left(outputs).sum().backward();
          expect_close(
              model->left->weight.grad(),
              torch::cat({input_of(0, step), input_of(1, step)}).sum(0).expand({2, 5}) / 2);
          EXPECT_FALSE(model->right->weight.grad().defined());
        }
      });
    }
  }
}

using at::Tensor;
TEST(DdpGraphTest, OutputsThatTheLossDoesNotUse) {
  expect_other_head_unused(
      [](Tensor a, Tensor b) {
        return std::vector<Tensor>{b, a};
      },
      [](auto& all) { return all[1]; });
  expect_other_head_unused(
      [](Tensor a, Tensor b) {
        return std::array<Tensor, 2>{a, b};
      },
      [](auto& all) { return all[0]; });
  expect_other_head_unused([](Tensor a, Tensor b) { return std::tuple(1, a, std::pair(2, b)); },
                           [](auto& all) { return std::get<1>(all); });
  expect_other_head_unused([](Tensor a, Tensor b) { return std::pair(std::optional(a), b); },
                           [](auto& all) { return *all.first; });
  expect_other_head_unused(
      [](Tensor a, Tensor b) {
        return std::map<std::string, Tensor>{{"a", a}, {"b", b}, {"c", Tensor()}};
      },
      [](auto& all) { return all.at("a"); });
  expect_other_head_unused(
      [](Tensor a, Tensor b) {
        return std::list<std::variant<int, Tensor>>{3, a, b};
      },
      [](auto& all) { return std::get<Tensor>(*std::next(all.begin())); });
  expect_other_head_unused(
      [](Tensor a, Tensor b) {
        return Outputs{a, {b}};
      },
      [](auto& all) { return all.left; });
}

TEST(DdpGraphTest, CloneOutputsDecidesWhetherOutputsAreCopies) {
  struct Identity : torch::nn::Module {
    Identity() { weight = register_parameter("weight", torch::ones({3})); }
    Tensor forward() { return last = weight * 2; }
    Tensor weight, last;
  };
  run_ranks(1, [](GroupPtr group) {
    for (const bool clone : {true, false}) {
      auto model = std::make_shared<Identity>();
      DdpOptions options;
      options.find_unused_parameters = true;
      options.clone_outputs = clone;
      DistributedDataParallel ddp(model, group, options);
      Tensor output = ddp();
      EXPECT_EQ(output.data_ptr() == model->last.data_ptr(), !clone);
      if (clone) output.mul_(3);
      output.sum().backward();
      EXPECT_EQ(model->weight.grad()[0].item<double>(), clone ? 6 : 2);
    }
  });
}

// Runs a layer without a graph. The backward pass runs it again, and a pass inside that pass
// computes the gradients.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    return layer->forward(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    auto* const layer =
        reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode graph(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({layer->forward(x)}, gradients);
    return {x.grad(), Tensor()};
  }
};
struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(bool twice) : twice(twice) {
    torch::manual_seed(3);
    a = register_module("a", torch::nn::Linear(5, 5));
    b = register_module("b", torch::nn::Linear(5, 5));
    c = register_module("c", torch::nn::Linear(5, 2));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    Tensor hidden = torch::tanh(Checkpoint::apply(a(x), b.get()));
    if (twice) hidden = torch::tanh(Checkpoint::apply(hidden, b.get()));
    // The first gradient of the whole pass comes in an inner pass.
    return Checkpoint::apply(hidden, c.get());
  }
  const bool twice;
  torch::nn::Linear a = nullptr, b = nullptr, c = nullptr;
};
TORCH_MODULE(Checkpointed);

TEST(DdpGraphTest, PassesInsideAPass) {
  for (const bool twice : {false, true}) {
    Checkpointed whole(twice), one(twice), other(twice);
    loss_of(whole->forward(torch::cat({input_of(0), input_of(1)}))).backward();
    std::vector<Checkpointed> models = {one, other};
    for (const bool fixed : {false, true}) {
      if (twice && !fixed) continue;
      run_ranks(2, [&](GroupPtr group) {
        DdpOptions options;
        options.static_graph = fixed;
        options.bucket_cap_mb = {0.0001};
        auto& model = models[group->rank()];
        DistributedDataParallel ddp(model, group, options);
        for (int step = 0; step < 4; ++step) {
          ddp.zero_grad();
          loss_of(ddp(input_of(group->rank()))).backward();
          SCOPED_TRACE(step);
          expect_gradients(*model, *whole);
        }
      });
    }
    for (auto& model : models) model->zero_grad();
  }
  run_ranks(1, [](GroupPtr group) {
    DistributedDataParallel ddp(Checkpointed(true), group);
    EXPECT_THAT(failure_of([&] { loss_of(ddp(input_of(0))).backward(); }),
                HasSubstr("static_graph"));
  });
}

struct Accumulation {
  std::string name;
  bool views, find_unused, fixed;
  CommHook (*hook)(std::shared_ptr<ProcessGroup>);
  double tolerance;

  friend std::ostream& operator<<(std::ostream& out, const Accumulation& one) {
    return out << one.name;
  }
};
class Accumulations : public ::testing::TestWithParam<Accumulation> {};

TEST_P(Accumulations, NoSyncThenAReducedPassIsTheSum) {
  const Accumulation& how = GetParam();
  auto models = copies(2);
  const Mlp whole = whole_of({0, 1}, {0, 1, 2});
  const std::vector<Mlp> alone = {whole_of({0}), whole_of({1})};
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DdpOptions options;
    options.gradient_as_bucket_view = how.views;
    options.find_unused_parameters = how.find_unused;
    options.static_graph = how.fixed;
    options.bucket_cap_mb = {0.0001};
    DistributedDataParallel ddp(models[rank], group, options);
    if (how.hook != nullptr) ddp.register_comm_hook(how.hook(group));
    for (int round = 0; round < 3; ++round) {
      ddp.zero_grad();
      {
        const auto guard = ddp.no_sync();
        loss_of(ddp(input_of(rank, 0))).backward();
        expect_gradients(*models[rank], *alone[rank]);
        loss_of(ddp(input_of(rank, 1))).backward();
      }
      loss_of(ddp(input_of(rank, 2))).backward();
      SCOPED_TRACE(round);
      expect_gradients(*models[rank], *whole, how.tolerance);
    }
    EXPECT_EQ(ddp.logging_data().reduced_passes, 3u);
  });
}
INSTANTIATE_TEST_SUITE_P(
    How, Accumulations,
    ::testing::Values(Accumulation{"Copies", false, false, false, nullptr, 1e-12},
                      Accumulation{"Views", true, false, false, nullptr, 1e-12},
                      Accumulation{"FindUnused", true, true, false, nullptr, 1e-12},
                      Accumulation{"FindUnusedCopies", false, true, false, nullptr, 1e-12},
                      Accumulation{"StaticGraph", true, false, true, nullptr, 1e-12},
                      Accumulation{"Hook", true, false, false, allreduce_hook, 1e-12},
                      Accumulation{"HookCopies", false, false, false, allreduce_hook, 1e-12},
                      Accumulation{"HookStatic", true, false, true, allreduce_hook, 1e-12},
                      Accumulation{"Half", true, false, false, fp16_compress_hook, 2e-3},
                      Accumulation{"HalfFindUnused", false, true, false, fp16_compress_hook, 2e-3}),
    [](const auto& info) { return info.param.name; });

TEST(DdpGraphTest, GradientsOfSeveralReducedPassesAddUp) {
  for (const bool views : {false, true}) {
    auto models = copies(2);
    const std::vector<Mlp> wholes = {whole_of({0, 1}, {0}), whole_of({0, 1}, {0, 1}),
                                     whole_of({0, 1}, {0, 1, 2})};
    run_ranks(2, [&](GroupPtr group) {
      const int rank = group->rank();
      DdpOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel ddp(models[rank], group, options);
      for (int step = 0; step < 3; ++step) {
        loss_of(ddp(input_of(rank, step))).backward();
        expect_gradients(*models[rank], *wholes[static_cast<size_t>(step)]);
      }
    });
  }
}

// Each rank uses other layers. A layer that no rank uses keeps its old gradient.
TEST(DdpGraphTest, UnusedOnSomeRanksAndOnAll) {
  struct Branches : torch::nn::Module {
    Branches() {
      for (int i = 0; i < 3; ++i) {
        layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(5, 2)));
      }
      to(torch::kDouble);
    }
    Tensor forward(const Tensor& x, int which) { return layers[which](x); }
    std::vector<torch::nn::Linear> layers;
  };
  for (const bool views : {false, true}) {
    run_ranks(3, [&](GroupPtr group) {
      auto model = std::make_shared<Branches>();
      DdpOptions options;
      options.find_unused_parameters = true;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel ddp(model, group, options);
      model->layers[2]->weight.mutable_grad() = torch::full({2, 5}, 7, torch::kDouble);
      for (int step = 0; step < 3; ++step) {
        for (int i = 0; i < 2; ++i) model->layers[i]->zero_grad();
        ddp(torch::ones({1, 5}, torch::kDouble), group->rank() == 0 ? 0 : 1).sum().backward();
        EXPECT_NEAR(model->layers[0]->weight.grad()[0][0].item<double>(), 1 / 3.0, 1e-12);
        EXPECT_NEAR(model->layers[1]->weight.grad()[0][0].item<double>(), 2 / 3.0, 1e-12);
        EXPECT_EQ(model->layers[2]->weight.grad()[0][0].item<double>(), 7);
        EXPECT_FALSE(model->layers[2]->bias.grad().defined());
        EXPECT_EQ(ddp.logging_data().unused_parameters, 4u);
      }
    });
  }
}

}  // namespace
}  // namespace weft::testing
