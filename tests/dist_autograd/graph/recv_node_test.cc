#include "weft/dist_autograd/graph/recv_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/dist_autograd/graph/send_record.h"

namespace weft::dist_autograd_internal {
namespace {

using ::testing::HasSubstr;

const SendId kSend{{3, 1}, 17};
const WorkerId kForwarder{5, 2};

TEST(RecvNode, EachTensorThatRequiresAGradientHasItsOwnNode) {
  std::vector<at::Tensor> tensors = {torch::ones(2), torch::ones(3), torch::ones(4)};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true, false, true}).ok());
  EXPECT_FALSE(tensors[1].requires_grad());
  for (const uint32_t slot : {0u, 2u}) {
    const auto* node = dynamic_cast<const RecvNode*>(tensors[slot].grad_fn().get());
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->send(), kSend);
    EXPECT_EQ(node->slot(), slot);
    EXPECT_EQ(node->slots(), 3u);
    EXPECT_EQ(node->num_inputs(), 1u);
    EXPECT_EQ(node->num_outputs(), 0u);
  }
}

TEST(RecvNode, PlainBackwardThrowsAndPointsToTheContext) {
  std::vector<at::Tensor> tensors = {torch::ones(2)};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true}).ok());
  try {
    (tensors[0] * 2).sum().backward();
    FAIL() << "the gradient was lost in silence";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("worker w3.1"));
    EXPECT_THAT(error.what(), HasSubstr("plain backward() cannot cross workers"));
    EXPECT_THAT(error.what(), HasSubstr("context.backward"));
  }
}

TEST(RecvNode, SkipsWhatCannotHaveAGradient) {
  std::vector<at::Tensor> tensors = {torch::arange(3), at::Tensor(), torch::ones(1)};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true, true, true}).ok());
  EXPECT_FALSE(tensors[0].requires_grad());
  EXPECT_FALSE(tensors[1].defined());
  EXPECT_TRUE(tensors[2].requires_grad());
}

TEST(RecvNode, TensorThatStandsTwiceInTheMessageKeepsOneNode) {
  const at::Tensor tensor = torch::ones(2);
  std::vector<at::Tensor> tensors = {tensor, tensor};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true, true}).ok());
  EXPECT_EQ(tensors[0].grad_fn(), tensors[1].grad_fn());
  EXPECT_EQ(tensor.grad_fn()->num_inputs(), 1u);
}

TEST(RecvNode, RefusesTensorsOfAnotherGraph) {
  std::vector<at::Tensor> leaf = {torch::ones(2).set_requires_grad(true)};
  EXPECT_EQ(attach_recv(kSend, leaf, {true}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(leaf[0].grad_fn(), nullptr);
  std::vector<at::Tensor> result = {leaf[0] * 2};
  const auto before = result[0].grad_fn();
  EXPECT_EQ(attach_recv(kSend, result, {true}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(result[0].grad_fn(), before);
  std::vector<at::Tensor> fresh = {torch::ones(2)};
  EXPECT_EQ(attach_recv(kSend, fresh, {true, true}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RecvNode, SurvivesInPlaceOperationsOnTensorsThatShareABuffer) {
  const at::Tensor buffer = torch::ones(4);
  std::vector<at::Tensor> tensors = {buffer.narrow(0, 0, 2), buffer.narrow(0, 2, 2)};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true, true}).ok());
  const auto node = tensors[0].grad_fn();
  buffer.add_(1);  // on a view, LibTorch would rebuild grad_fn from the base
  EXPECT_EQ(tensors[0].grad_fn(), node);
  EXPECT_NE(dynamic_cast<const RecvNode*>(node.get()), nullptr);
  tensors[1].mul_(3);
  EXPECT_EQ(tensors[1].grad_fn()->next_edge(0).function->name(),
            "weft::RecvBackward(send(w3.1,17), tensor 1)");
  EXPECT_TRUE(torch::equal(buffer.narrow(0, 2, 2), torch::full({2}, 6.0f)));
}

TEST(RecvNode, KeepsStrides) {
  std::vector<at::Tensor> tensors = {torch::ones({2, 3}).t()};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true}).ok());
  EXPECT_EQ(tensors[0].strides(), c10::IntArrayRef({1, 3}));
  EXPECT_FALSE(tensors[0].is_leaf());
}

TEST(RecvNode, DroppedTensorFreesItsNode) {
  std::vector<at::Tensor> tensors = {torch::ones(2)};
  ASSERT_TRUE(attach_recv(kSend, tensors, {true}).ok());
  const std::weak_ptr<torch::autograd::Node> node = tensors[0].grad_fn();
  at::Tensor result = tensors[0] * 2;
  tensors.clear();
  EXPECT_FALSE(node.expired()) << "the result still needs it";
  result.reset();
  EXPECT_TRUE(node.expired());
}

TEST(SendRecord, HasOneSlotPerTensorThatRequiresAGradient) {
  const at::Tensor leaf = torch::ones(2).set_requires_grad(true);
  const at::Tensor result = leaf * 2;
  const SendRecord record = record_send(
      kSend, kForwarder, {leaf, torch::ones(2), result, at::Tensor(), torch::arange(2)});
  EXPECT_EQ(record.id, kSend);
  EXPECT_EQ(record.peer, kForwarder);
  ASSERT_EQ(record.edges.size(), 5u);
  EXPECT_EQ(record.slots(), 2u);
  EXPECT_EQ(record.edges[0].function, torch::autograd::impl::grad_accumulator(leaf));
  EXPECT_EQ(record.edges[2].function, result.grad_fn());
}

TEST(SendRecord, KeepsTheEdgesOfTheMomentOfSending) {
  at::Tensor result = torch::ones(2).set_requires_grad(true) * 2;
  const auto node = result.grad_fn();
  const SendRecord record = record_send(kSend, kForwarder, {result});
  result.mul_(3);
  EXPECT_NE(result.grad_fn(), node);
  EXPECT_EQ(record.edges[0].function, node);
}

TEST(SendRecord, IsEmptyWhenGradientsAreOff) {
  const at::Tensor leaf = torch::ones(2).set_requires_grad(true);
  torch::NoGradGuard off;
  EXPECT_EQ(record_send(kSend, kForwarder, {leaf}).slots(), 0u);
}

}  // namespace
}  // namespace weft::dist_autograd_internal
