// LibTorch's own reducer over the same-host backend: gradients equal the mean of all ranks'.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "weft/comm/same_host_backend.h"
#include "weft/tests/comm/backend_ranks.h"

namespace weft {
namespace {

using testing::BackendPtr;
using testing::Tensors;

// Three layers; the first one's weight is an embedding if `sparse`.
struct Model {
  explicit Model(bool sparse) : sparse(sparse) {
    const auto weight = [](at::IntArrayRef shape) {
      const int64_t count = c10::multiply_integers(shape);
      return (at::arange(count, at::kDouble).reshape(shape) * 0.37).sin().requires_grad_();
    };
    weights = {weight({40, 8}), weight({8, 16}), weight({16, 1}), weight({1})};
  }
  at::Tensor loss(const at::Tensor& rows) const {
    const at::Tensor first = at::embedding(weights[0], rows, -1, false, sparse);
    return (at::mm(at::tanh(at::mm(first, weights[1])), weights[2]) + weights[3]).pow(2).mean();
  }
  bool sparse;
  Tensors weights;
};

at::Tensor batch_of(int rank, int step) {
  return (at::arange(6, at::kLong) * 5 + rank * 3 + step) % 40;
}

class Reducers : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Reducers, AverageOverOurBackend) {
  const auto [size, sparse] = GetParam();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::with_backends(
      size, [&, size = size, sparse = sparse](int rank, const BackendPtr& backend) {
        const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
        group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
        group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
        group->setGroupName("reducer_" + std::to_string(size) + std::to_string(rank));
        const Model model(sparse);
        // Sparse gradients have a bucket of their own.
        const std::vector<std::vector<size_t>> buckets = {{0}, {1, 2}, {3}};
        c10d::Reducer reducer(model.weights, buckets, group, {sparse, false, false, false},
                              /*bucket_bytes_cap=*/1 << 20, /*find_unused_parameters=*/false,
                              /*gradient_as_bucket_view=*/!sparse, {},
                              /*first_bucket_bytes_cap=*/1024, false, false, {});
        for (int step = 0; step < 3; ++step) {
          Tensors truth(model.weights.size());
          for (int one = 0; one < size; ++one) {
            const Model alone(false);
            const Tensors grads =
                torch::autograd::grad({alone.loss(batch_of(one, step))}, alone.weights);
            for (size_t i = 0; i < grads.size(); ++i) {
              truth[i] = truth[i].defined() ? truth[i] + grads[i] / size : grads[i] / size;
            }
          }
          for (const at::Tensor& weight : model.weights) weight.mutable_grad() = at::Tensor();
          reducer.prepare_for_forward();
          const at::Tensor loss = model.loss(batch_of(rank, step));
          reducer.prepare_for_backward({loss});
          torch::autograd::backward({loss}, {});
          for (size_t i = 0; i < truth.size(); ++i) {
            const at::Tensor grad = model.weights[i].grad();
            ASSERT_TRUE(grad.defined());
            EXPECT_EQ(grad.is_sparse(), sparse && i == 0);
            EXPECT_TRUE(at::allclose(grad.to_dense(), truth[i], 1e-12, 1e-14)) << i;
          }
        }
      });
}
INSTANTIATE_TEST_SUITE_P(SameHost, Reducers,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST(SameHostProcessGroupTest, SplitsThroughC10d) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::with_backends(3, [&](int rank, const BackendPtr& backend) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("whole", store), rank, 3);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    group->setGroupName("whole" + std::to_string(rank));
    const auto part = group->splitGroup({0, 2}, std::nullopt, std::nullopt,
                                        "part" + std::to_string(rank / 3), std::nullopt);
    if (rank == 1) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->getSize(), 2);
    Tensors tensors = {testing::values(rank, {5})};
    part->getBackend(c10::DeviceType::CPU)->allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensors[0], testing::values(0, {5}) + testing::values(2, {5})));
  });
}

}  // namespace
}  // namespace weft
