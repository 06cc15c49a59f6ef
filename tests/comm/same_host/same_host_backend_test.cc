#include "weft/comm/same_host_backend.h"

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/tests/comm/backend_ranks.h"

namespace weft {
namespace {

using testing::failure_of;
using ::testing::HasSubstr;
using testing::Tensors;
using testing::values;
using testing::with_ranks;

class EveryType : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(EveryType, AllReduceEqualsTheOperator) {
  const at::ScalarType type = GetParam();
  with_ranks(3, [&](int rank, c10d::Backend& backend) {
    const auto reduce = [&](c10d::ReduceOp::RedOpType op) {
      Tensors tensors = {values(rank, {7, 5}, type)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      backend.allreduce(tensors, options)->wait();
      return tensors[0];
    };
    const at::Tensor a = values(0, {7, 5}, type), b = values(1, {7, 5}, type),
                     c = values(2, {7, 5}, type);
    const bool boolean = type == at::kBool;
    EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::SUM), boolean ? (a | b | c) : a + b + c));
    EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::PRODUCT), boolean ? (a & b & c) : a * b * c));
    if (!at::isComplexType(type)) {
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::MIN), at::minimum(at::minimum(a, b), c)));
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::MAX), at::maximum(at::maximum(a, b), c)));
    }
    if (at::isIntegralType(type, /*includeBool=*/true)) {
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::BAND), a & b & c));
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::BOR), a | b | c));
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::BXOR), a ^ b ^ c));
    } else {
      const at::ScalarType wide = type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
      const at::Tensor sum = a.to(wide) + b.to(wide) + c.to(wide);
      const at::Tensor mean = at::isComplexType(type)
                                  ? at::view_as_complex(at::view_as_real(sum) / 3)
                                  : (sum / 3).to(type);
      EXPECT_TRUE(at::equal(reduce(c10d::ReduceOp::AVG), mean));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Backend, EveryType,
                         ::testing::Values(at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                                           at::kBool, at::kHalf, at::kBFloat16, at::kFloat,
                                           at::kDouble, at::kComplexFloat, at::kComplexDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(SameHostBackendTest, HalvesAreAddedUpInFp32) {
  with_ranks(4, [](int rank, c10d::Backend& backend) {
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      // If the sum were kept in the type itself, the small values would be lost: 2048 + 1 is 2048
      // in half (256 + 1 is 256 in bfloat16).
      const double large = type == at::kHalf ? 2048 : 256;
      Tensors tensors = {at::full({3}, rank == 0 ? large : 1.0, type)};
      c10d::AllreduceOptions options;
      backend.allreduce(tensors, options)->wait();
      const double exact = type == at::kHalf ? 2052 : 260;  // 2051 and 259, rounded to even
      EXPECT_EQ(tensors[0][0].item<double>(), exact);
    }
  });
}

TEST(SameHostBackendTest, MovesTensorsAsTheirNamesSay) {
  for (const int64_t count : {3, 100'000}) {
    with_ranks(3, [count](int rank, c10d::Backend& backend) {
      const auto of = [&](int one) { return values(one, {count, 2}); };
      {
        Tensors tensors = {rank == 1 ? of(1) : at::zeros({count, 2})};
        c10d::BroadcastOptions options;
        options.rootRank = 1;
        backend.broadcast(tensors, options)->wait();
        EXPECT_TRUE(at::equal(tensors[0], of(1)));
      }
      {
        Tensors tensors = {of(rank)};
        c10d::ReduceOptions options;
        options.rootRank = 2;
        backend.reduce(tensors, options)->wait();
        EXPECT_TRUE(at::equal(tensors[0], rank == 2 ? of(0) + of(1) + of(2) : of(rank)));
      }
      {
        std::vector<Tensors> outputs = {{}};
        for (int i = 0; i < 3; ++i) outputs[0].push_back(at::zeros({count, 2}));
        Tensors inputs = {of(rank)};
        backend.allgather(outputs, inputs, {})->wait();
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(outputs[0][i], of(i)));
      }
      {
        at::Tensor output = at::zeros({3 * count, 2}), input = of(rank);
        backend._allgather_base(output, input, {})->wait();
        EXPECT_TRUE(at::equal(output, at::cat({of(0), of(1), of(2)})));
      }
      {
        std::vector<Tensors> outputs;
        if (rank == 0)
          outputs = {{at::zeros({count, 2}), at::zeros({count, 2}), at::zeros({count, 2})}};
        Tensors inputs = {of(rank)};
        backend.gather(outputs, inputs, {})->wait();
        for (int i = 0; rank == 0 && i < 3; ++i) EXPECT_TRUE(at::equal(outputs[0][i], of(i)));
      }
      {
        std::vector<Tensors> inputs;
        if (rank == 0) inputs = {{of(0), of(1), of(2)}};
        Tensors outputs = {at::zeros({count, 2})};
        backend.scatter(outputs, inputs, {})->wait();
        EXPECT_TRUE(at::equal(outputs[0], of(rank)));
      }
      {
        std::vector<Tensors> inputs = {{}};
        for (int i = 0; i < 3; ++i) inputs[0].push_back(of(rank) * (i + 1));
        Tensors outputs = {at::zeros({count, 2})};
        backend.reduce_scatter(outputs, inputs, {})->wait();
        EXPECT_TRUE(at::equal(outputs[0], (of(0) + of(1) + of(2)) * (rank + 1)));
      }
      {
        at::Tensor input = at::cat({of(rank), of(rank) * 2, of(rank) * 3});
        at::Tensor output = at::zeros({count, 2});
        backend._reduce_scatter_base(output, input, {})->wait();
        EXPECT_TRUE(at::equal(output, (of(0) + of(1) + of(2)) * (rank + 1)));
      }
      {
        Tensors inputs, outputs;
        for (int i = 0; i < 3; ++i) {
          inputs.push_back(of(rank) * (i + 1));
          outputs.push_back(at::zeros({count, 2}));
        }
        backend.alltoall(outputs, inputs, {})->wait();
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(outputs[i], of(i) * (rank + 1)));
      }
      backend.barrier(c10d::BarrierOptions())->wait();
      backend.monitoredBarrier(c10d::BarrierOptions(), true);
    });
  }
}

TEST(SameHostBackendTest, AllToAllTakesSplitsOfAnySize) {
  with_ranks(3, [](int rank, c10d::Backend& backend) {
    // Rank r sends r * 3 + i rows to rank i.
    std::vector<int64_t> input_splits, output_splits;
    Tensors parts, expected;
    for (int i = 0; i < 3; ++i) {
      input_splits.push_back(rank * 3 + i);
      output_splits.push_back(i * 3 + rank);
      parts.push_back(at::full({rank * 3 + i, 2}, 10.0 * rank + i));
      expected.push_back(at::full({i * 3 + rank, 2}, 10.0 * i + rank));
    }
    at::Tensor input = at::cat(parts), truth = at::cat(expected), output = at::zeros_like(truth);
    backend.alltoall_base(output, input, output_splits, input_splits, {})->wait();
    EXPECT_TRUE(at::equal(output, truth));
  });
}

// Each rank sends to each other one with two tags and receives in the opposite order. Each pair and
// tag has its own content.
TEST(SameHostBackendTest, SendsAndReceives) {
  with_ranks(3, [](int rank, c10d::Backend& backend) {
    const auto content = [](int from, int to, int tag) {
      return at::arange(90'000, at::kFloat).reshape({300, 300}) +
             100'000 * (10 * tag + 3 * from + to);
    };
    std::vector<Tensors> out, in;
    std::vector<c10::intrusive_ptr<c10d::Work>> sends;
    for (const int tag : {4, 5}) {
      for (int to = 0; to < 3; ++to) {
        if (to == rank) continue;
        out.push_back({content(rank, to, tag)});
        sends.push_back(backend.send(out.back(), to, tag));
      }
    }
    for (const int tag : {5, 4}) {
      for (int from = 2; from >= 0; --from) {
        if (from == rank) continue;
        in.push_back({at::zeros({300, 300})});
        const auto receive = backend.recv(in.back(), from, tag);
        receive->wait();
        EXPECT_EQ(receive->sourceRank(), from);
        EXPECT_TRUE(at::equal(in.back()[0], content(from, rank, tag))) << from << " tag " << tag;
      }
    }
    for (const auto& send : sends) send->wait();
    // A receive from any rank does not take a message with another tag.
    Tensors other = {content(rank, rank, 6)}, mine = {content(rank, 0, 7)};
    if (rank != 0) {
      backend.send(other, 0, 6)->wait();
      backend.send(mine, 0, 7)->wait();
      return;
    }
    std::set<int> sources;
    for (const int tag : {7, 6, 7, 6}) {
      Tensors any = {at::zeros({300, 300})};
      const auto receive = backend.recvAnysource(any, tag);
      receive->wait();
      const int from = receive->sourceRank();
      if (tag == 7) sources.insert(from);
      EXPECT_TRUE(at::equal(any[0], content(from, tag == 6 ? from : 0, tag))) << from;
    }
    EXPECT_EQ(sources, (std::set<int>{1, 2}));
  });
}

TEST(SameHostBackendTest, ReducesManyTensorsAsOne) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {3}), values(rank + 5, {200, 200}), at::zeros({0})};
    backend.allreduce_coalesced(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensors[0], values(0, {3}) + values(1, {3})));
    EXPECT_TRUE(at::equal(tensors[1], values(5, {200, 200}) + values(6, {200, 200})));
  });
}

TEST(SameHostBackendTest, FuturesEndWithTheirWork) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {1000})};
    const auto future = backend.allreduce(tensors, {})->getFuture();
    future->wait();
    EXPECT_TRUE(
        at::equal(future->value().toTensorVector()[0], values(0, {1000}) + values(1, {1000})));
  });
}

TEST(SameHostBackendTest, WhatLiesInItsMemoryIsReducedInPlace) {
  for (const int size : {2, 3, 5}) {
    with_ranks(size, [size](int rank, c10d::Backend& backend) {
      const int64_t kCount = 300'007;
      ASSERT_TRUE(backend.supportsTensorAlloc(at::Device(at::kCPU).index()));
      at::Tensor truth = at::zeros({kCount}, at::kDouble);
      for (int one = 0; one < size; ++one) truth += values(one, {kCount}, at::kDouble) / 7;
      // Several rounds, so that blocks of many sizes are allocated and freed.
      for (int round = 0; round < 6; ++round) {
        Tensors tensors = {backend.allocateTensor(kCount, at::kDouble)};
        const at::Tensor other = backend.allocateTensor(round * 1000, at::kFloat);
        other.fill_(1);
        tensors[0].copy_(values(rank, {kCount}, at::kDouble) / 7);
        backend.allreduce(tensors, {})->wait();
        EXPECT_TRUE(at::equal(tensors[0], truth));
        c10d::BroadcastOptions options;
        options.rootRank = size - 1;
        if (rank == size - 1) tensors[0].add_(round);
        backend.broadcast(tensors, options)->wait();
        EXPECT_TRUE(at::equal(tensors[0], truth + round));
      }
      // One rank's tensor is in an arena, the others' are in private memory.
      Tensors mixed = {values(rank, {kCount}, at::kDouble) / 7};
      if (rank == 0) {
        const at::Tensor there = backend.allocateTensor(kCount, at::kDouble);
        there.copy_(mixed[0]);
        mixed[0] = there;
      }
      backend.allreduce(mixed, {})->wait();
      EXPECT_TRUE(at::equal(mixed[0], truth));
    });
  }
}

TEST(SameHostBackendTest, ItsMemoryOutlivesIt) {
  at::Tensor kept[2];
  with_ranks(2, [&](int rank, c10d::Backend& backend) {
    kept[rank] = backend.allocateTensor(100'000, at::kFloat);
    kept[rank].fill_(rank + 1);
    Tensors tensors = {kept[rank]};
    backend.allreduce(tensors, {})->wait();
  });
  EXPECT_EQ(kept[0].sum().item<double>(), 300'000);
  EXPECT_EQ(kept[1].sum().item<double>(), 300'000);
}

// A comm hook that reduces twice does this.
TEST(SameHostBackendTest, ACallbackOfAFutureMayStartAndWaitForMore) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors first = {values(rank, {100'000})}, second = {values(rank, {10})},
            third = {values(rank, {10})};
    const auto work = backend.allreduce(first, {});
    const auto sums = work->getFuture()->then(
        [&](c10::ivalue::Future&) {
          backend.allreduce(second, {})->wait();
          backend.allreduce(third, {})->getFuture()->wait();
          return c10::IValue(second[0] + third[0]);
        },
        c10::TensorType::get());
    sums->wait();
    EXPECT_TRUE(at::equal(sums->value().toTensor(), 2 * (values(0, {10}) + values(1, {10}))));
    work->wait();
    EXPECT_EQ(work->getFuture().get(), work->getFuture().get());
  });
}

TEST(SameHostBackendTest, MessagesGoOnThoughNobodyWaits) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors out = {values(rank, {1000, 1000})}, in = {at::zeros({1000, 1000})};
    const auto send = backend.send(out, 1 - rank, 4);
    backend.recv(in, 1 - rank, 4)->getFuture()->wait();
    EXPECT_TRUE(at::equal(in[0], values(1 - rank, {1000, 1000})));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!send->isCompleted() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(send->isSuccess());
  });
}

TEST(SameHostBackendTest, RefusesTensorsThatOverlap) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    at::Tensor all = at::zeros({4});
    std::vector<int64_t> none;
    EXPECT_THAT(failure_of([&] { backend.alltoall_base(all, all, none, none, {}); }),
                HasSubstr("overlap"));
    at::Tensor half = all.slice(0, 1, 3);
    EXPECT_THAT(failure_of([&] { backend._allgather_base(all, half, {}); }), HasSubstr("overlap"));
    EXPECT_THAT(failure_of([&] { backend._reduce_scatter_base(half, all, {}); }),
                HasSubstr("overlap"));
    // The input of an all_gather may be the rank's own part of the output.
    at::Tensor own = all.slice(0, 2 * rank, 2 * rank + 2);
    own.fill_(rank + 1);
    backend._allgather_base(all, own, {})->wait();
    EXPECT_TRUE(at::equal(all, at::tensor({1.F, 1.F, 2.F, 2.F})));
  });
}

TEST(SameHostBackendTest, ListsThatDifferBehindTheirFirstTensorAreNamed) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {at::zeros({4}), at::zeros({2, rank == 0 ? 2 : 4}),
                       at::zeros({2, rank == 0 ? 4 : 2})};
    EXPECT_THAT(failure_of([&] { backend.allreduce_coalesced(tensors, {})->wait(); }),
                HasSubstr("the ranks called different operations"));
  });
}

TEST(SameHostBackendTest, DifferentCallsAreNamedOnBothRanks) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {4}, rank == 0 ? at::kFloat : at::kDouble)};
    const std::string text = failure_of([&] { backend.allreduce(tensors, {})->wait(); });
    EXPECT_THAT(text, HasSubstr("all_reduce(sum, Float) of shape [4]"));
    EXPECT_THAT(text, HasSubstr("all_reduce(sum, Double) of shape [4]"));
    EXPECT_EQ(backend.getError(), c10d::ErrorType::COMM_ERROR);
  });
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {4})};
    const std::string text = failure_of([&] {
      if (rank == 0) {
        backend.allreduce(tensors, {})->wait();
      } else {
        backend.broadcast(tensors, {})->wait();
      }
    });
    EXPECT_THAT(text, HasSubstr("all_reduce(sum, Float) of shape [4]"));
    EXPECT_THAT(text, HasSubstr("broadcast(Float) of shape [4] with root 0"));
  });
}

TEST(SameHostBackendTest, RefusesWhatCannotBe) {
  with_ranks(1, [](int, c10d::Backend& backend) {
    Tensors tensors = {at::zeros({1, 3}).expand({2, 3})};
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, {}); }), HasSubstr("overlaps itself"));
    tensors = {};
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, {}); }),
                HasSubstr("takes one tensor, not 0"));
    tensors = {at::zeros({2, 2}).to_sparse_csr()};
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, {}); }),
                HasSubstr("takes strided CPU tensors"));
    tensors = {at::zeros({2})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::BAND;
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, options); }),
                HasSubstr("no bitwise and of Float tensors"));
    c10d::BroadcastOptions root;
    root.rootRank = 1;
    EXPECT_THAT(failure_of([&] { backend.broadcast(tensors, root); }),
                HasSubstr("no rank 1 in a group of 1"));
    EXPECT_THAT(failure_of([&] { backend.send(tensors, 0, 0); }), HasSubstr("has no peer 0"));
    at::Tensor out = at::zeros({3}), in = at::zeros({3});
    std::vector<int64_t> splits = {4};
    EXPECT_THAT(failure_of([&] { backend.alltoall_base(out, in, splits, splits, {}); }),
                HasSubstr("splits do not fit 3 rows"));
  });
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(failure_of([&] { create_same_host_backend(store, 2, 2); }), HasSubstr("no rank 2"));
}

TEST(SameHostBackendTest, WhoNeverComesIsNamed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  SameHostOptions options;
  options.timeout = std::chrono::milliseconds(50);
  EXPECT_THAT(failure_of([&] { create_same_host_backend(store, 1, 2, options); }),
              HasSubstr("rank 0: has not come"));
  EXPECT_THAT(failure_of([&] { create_same_host_backend(store, 0, 3, options); }),
              HasSubstr("rank 1, 2 of 3 not connected"));
}

TEST(SameHostBackendTest, WorkAndTensorsOutliveTheBackend) {
  c10::intrusive_ptr<c10d::Work> works[2];
  with_ranks(2, [&](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {200})};
    works[rank] = backend.allreduce(tensors, {});
    if (rank == 0) works[0]->wait();
  });
  EXPECT_TRUE(works[0]->isSuccess());
  EXPECT_TRUE(works[1]->isCompleted());
}

}  // namespace
}  // namespace weft
