#include "weft/examples/parameter_server/model.h"

#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace weft::examples {
namespace {

at::Tensor pictures(int64_t count) {
  at::manual_seed(5);
  return at::randn({count, 1, kImageSide, kImageSide});
}

TEST(ModelTest, PartsFitTogether) {
  FeatureLayers features(1);
  ClassifierLayers classifier(2);
  const at::Tensor cut = features.forward(pictures(3));
  EXPECT_EQ(cut.sizes(), (at::IntArrayRef{3, kFeatures}));
  const at::Tensor out = classifier.forward(cut);
  EXPECT_EQ(out.sizes(), (at::IntArrayRef{3, kClasses}));
  EXPECT_TRUE(out.exp().sum(1).allclose(at::ones({3})));
}

TEST(ModelTest, TheServerHoldsNineTenthsOfTheParameters) {
  int64_t on_trainer = 0;
  int64_t on_server = 0;
  for (const at::Tensor& parameter : FeatureLayers(1).parameters()) on_trainer += parameter.numel();
  for (const at::Tensor& parameter : ClassifierLayers(1).parameters()) {
    on_server += parameter.numel();
  }
  EXPECT_GT(on_server, 9 * on_trainer);
}

TEST(ModelTest, WeightsDependOnTheSeedAlone) {
  at::manual_seed(1);
  const auto a = FeatureLayers(7).parameters();
  at::manual_seed(2);
  const auto b = FeatureLayers(7).parameters();
  const auto c = FeatureLayers(8).parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i]));
  EXPECT_FALSE(a[0].equal(c[0]));
  EXPECT_TRUE(a[0].requires_grad());
}

TEST(ModelTest, EvaluationDropsNothing) {
  ClassifierLayers classifier(3);
  const at::Tensor cut = at::rand({4, kFeatures});
  EXPECT_FALSE(classifier.forward(cut).equal(classifier.forward(cut)));
  classifier.eval();
  EXPECT_TRUE(classifier.forward(cut).equal(classifier.forward(cut)));
}

// The test carries the gradient of the cut tensor over by hand, as the wire does.
TEST(ModelTest, GradientsThroughTheCutEqualThoseOfOneProcess) {
  const at::Tensor images = pictures(8);
  const at::Tensor labels = at::randint(kClasses, {8}, at::kLong);
  FeatureLayers whole(1);
  FeatureLayers cut(1);
  ClassifierLayers classifier(2, /*dropout=*/0);
  at::nll_loss(classifier.forward(whole.forward(images)), labels).backward();
  const at::Tensor sent = cut.forward(images);
  const at::Tensor received = sent.detach().requires_grad_();
  at::nll_loss(classifier.forward(received), labels).backward();
  sent.backward(received.grad());
  for (size_t i = 0; i < whole.parameters().size(); ++i) {
    EXPECT_TRUE(whole.parameters()[i].grad().allclose(cut.parameters()[i].grad(), 1e-6, 1e-8));
    EXPECT_GT(whole.parameters()[i].grad().abs().sum().item<float>(), 0);
  }
}

TEST(ModelTest, LearnsAHandfulOfPicturesByHeart) {
  const at::Tensor images = pictures(16);
  const at::Tensor labels = at::randint(kClasses, {16}, at::kLong);
  FeatureLayers features(1);
  ClassifierLayers classifier(2);
  std::vector<at::Tensor> parameters = features.parameters();
  for (const at::Tensor& parameter : classifier.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.02).momentum(0.9));
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::nll_loss(classifier.forward(features.forward(images)), labels).backward();
    optimizer.step();
  }
  classifier.eval();
  EXPECT_EQ(count_correct(classifier.forward(features.forward(images)), labels), 16);
}

}  // namespace
}  // namespace weft::examples
