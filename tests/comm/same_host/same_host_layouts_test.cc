// Tensors of all layouts through the same-host backend: with gaps, lazy, sparse, empty.
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/comm/same_host_backend.h"
#include "weft/tests/comm/backend_ranks.h"

namespace weft {
namespace {

using testing::failure_of;
using ::testing::HasSubstr;
using testing::Tensors;
using testing::values;
using testing::with_ranks;

// A view of every second column of a tensor twice as wide. It holds `of`; the other columns hold
// 99.
at::Tensor with_gaps(const at::Tensor& of) {
  at::Tensor all = at::full({of.size(0), 2 * of.size(1)}, 99, of.options());
  at::Tensor part = all.slice(1, 0, 2 * of.size(1), 2);
  part.copy_(of);
  return part;
}

// Checks the columns between those of the view.
bool gaps_are_untouched(const at::Tensor& part) {
  const at::Tensor beside =
      part.as_strided(part.sizes(), part.strides(), part.storage_offset() + 1);
  return at::equal(beside, at::full_like(beside, 99));
}

class TensorsWithGaps : public ::testing::TestWithParam<int64_t> {};

TEST_P(TensorsWithGaps, AreFilledAsDenseOnesAre) {
  const int64_t rows = GetParam();
  with_ranks(3, [rows](int rank, c10d::Backend& backend) {
    const auto of = [&](int one) { return values(one, {rows, 3}); };
    const at::Tensor sum = of(0) + of(1) + of(2);
    const auto expect = [](const at::Tensor& result, const at::Tensor& truth) {
      EXPECT_TRUE(at::equal(result, truth));
      EXPECT_TRUE(gaps_are_untouched(result));
    };
    {
      // Only one rank's tensor has gaps; the others' are dense.
      Tensors tensors = {rank == 1 ? with_gaps(of(1)) : of(rank)};
      backend.allreduce(tensors, {})->wait();
      EXPECT_TRUE(at::equal(tensors[0], sum));
      if (rank == 1) expect(tensors[0], sum);
    }
    {
      Tensors tensors = {with_gaps(of(rank)), with_gaps(of(rank) + 1)};
      backend.allreduce_coalesced(tensors, {})->wait();
      expect(tensors[0], sum);
      expect(tensors[1], sum + 3);
    }
    {
      Tensors tensors = {with_gaps(of(rank))};
      c10d::BroadcastOptions options;
      options.rootRank = 2;
      backend.broadcast(tensors, options)->wait();
      expect(tensors[0], of(2));
    }
    {
      Tensors tensors = {with_gaps(of(rank))};
      backend.reduce(tensors, {})->wait();
      expect(tensors[0], rank == 0 ? sum : of(rank));
    }
    {
      std::vector<Tensors> outputs = {{}};
      for (int i = 0; i < 3; ++i) outputs[0].push_back(with_gaps(at::zeros({rows, 3})));
      Tensors inputs = {with_gaps(of(rank))};
      const auto work = backend.allgather(outputs, inputs, {});
      work->wait();
      for (int i = 0; i < 3; ++i) expect(outputs[0][i], of(i));
      if (rank != 0) outputs.clear();
      for (Tensors& all : outputs) {
        for (at::Tensor& one : all) one.zero_();
      }
      backend.gather(outputs, inputs, {})->wait();
      for (int i = 0; rank == 0 && i < 3; ++i) expect(outputs[0][i], of(i));
    }
    {
      at::Tensor output = with_gaps(at::zeros({3 * rows, 3})), input = with_gaps(of(rank));
      backend._allgather_base(output, input, {})->wait();
      expect(output, at::cat({of(0), of(1), of(2)}));
      at::Tensor part = with_gaps(at::zeros({rows, 3}));
      backend._reduce_scatter_base(part, output, {})->wait();
      expect(part, of(rank) * 3);
    }
    {
      std::vector<Tensors> inputs;
      if (rank == 0) inputs = {{with_gaps(of(0)), with_gaps(of(1)), with_gaps(of(2))}};
      Tensors outputs = {with_gaps(at::zeros({rows, 3}))};
      backend.scatter(outputs, inputs, {})->wait();
      expect(outputs[0], of(rank));
    }
    {
      std::vector<Tensors> inputs = {{with_gaps(of(rank)), of(rank), with_gaps(of(rank))}};
      Tensors outputs = {with_gaps(at::zeros({rows, 3}))};
      backend.reduce_scatter(outputs, inputs, {})->wait();
      expect(outputs[0], sum);
    }
    {
      at::Tensor input = with_gaps(at::cat({of(rank), of(rank) * 2, of(rank) * 3}));
      at::Tensor output = with_gaps(at::zeros({3 * rows, 3}));
      std::vector<int64_t> none;
      backend.alltoall_base(output, input, none, none, {})->wait();
      expect(output, at::cat({of(0), of(1), of(2)}) * (rank + 1));
    }
    {
      Tensors out = {with_gaps(of(rank))}, in = {with_gaps(at::zeros({rows, 3}))};
      const auto send = backend.send(out, (rank + 1) % 3, 0);
      const auto receive = backend.recv(in, (rank + 2) % 3, 0);
      send->wait();
      // The result must also be there for a caller that only polls.
      while (!receive->isCompleted()) std::this_thread::yield();
      expect(in[0], of((rank + 2) % 3));
    }
    {
      Tensors tensors = {with_gaps(of(rank))};
      backend.allreduce(tensors, {})->getFuture()->wait();
      expect(tensors[0], sum);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Layouts, TensorsWithGaps, ::testing::Values(2, 50'000));

TEST(SameHostLayoutsTest, LazyViewsAreWhatTheySay) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    const auto of = [](int one) {
      return values(one, {4}, at::kComplexFloat) * c10::complex<float>(1, 2);
    };
    Tensors tensors = {of(rank).conj()};
    ASSERT_TRUE(tensors[0].is_conj());
    const at::Tensor under = tensors[0].conj();
    backend.allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensors[0].resolve_conj(), (of(0) + of(1)).conj().resolve_conj()));
    EXPECT_TRUE(at::equal(under, of(0) + of(1)));
    // One rank's tensor is a lazy conjugate, the other's is not.
    Tensors one = {rank == 0 ? of(0).conj() : at::zeros({4}, at::kComplexFloat)};
    backend.broadcast(one, {})->wait();
    EXPECT_TRUE(at::equal(one[0].resolve_conj(), of(0).conj().resolve_conj()));
    Tensors negative = {at::imag(of(rank).conj())};
    ASSERT_TRUE(negative[0].is_neg());
    backend.allreduce(negative, {})->wait();
    EXPECT_TRUE(at::equal(negative[0].resolve_neg(), at::imag(of(0) + of(1)) * -1));
  });
}

TEST(SameHostLayoutsTest, ScalarsAndEmptyTensorsAreTensors) {
  with_ranks(3, [](int rank, c10d::Backend& backend) {
    Tensors scalar = {at::full({}, rank + 1.0)}, empty = {at::zeros({0, 5})};
    backend.allreduce(scalar, {})->wait();
    EXPECT_EQ(scalar[0].item<double>(), 6);
    backend.allreduce(empty, {})->wait();
    backend.broadcast(empty, {})->wait();
    std::vector<Tensors> outputs = {{at::zeros({0, 5}), at::zeros({0, 5}), at::zeros({0, 5})}};
    backend.allgather(outputs, empty, {})->wait();
    std::vector<Tensors> scalars = {{at::zeros({}), at::zeros({}), at::zeros({})}};
    scalar = {at::full({}, rank + 1.0F)};
    backend.allgather(scalars, scalar, {})->wait();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(scalars[0][i].item<float>(), i + 1);
    at::Tensor all = at::zeros({0}), part = at::zeros({0});
    backend._allgather_base(all, part, {})->wait();
    backend._reduce_scatter_base(part, all, {})->wait();
    const auto send = backend.send(empty, (rank + 1) % 3, 1);
    backend.recv(empty, (rank + 2) % 3, 1)->wait();
    send->wait();
    EXPECT_EQ(empty[0].sizes(), at::IntArrayRef({0, 5}));
  });
}

TEST(SameHostLayoutsTest, ChannelsLastOfAllRanksStays) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)};
    backend.allreduce(tensors, {})->wait();
    EXPECT_TRUE(tensors[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::equal(tensors[0], values(0, {2, 3, 4, 5}) + values(1, {2, 3, 4, 5})));
    // Contiguous outputs take a channels-last input as well.
    std::vector<Tensors> outputs = {{at::zeros({2, 3, 4, 5}), at::zeros({2, 3, 4, 5})}};
    Tensors inputs = {values(rank, {2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)};
    backend.allgather(outputs, inputs, {})->wait();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(outputs[0][i], values(i, {2, 3, 4, 5})));
  });
}

TEST(SameHostLayoutsTest, ChannelsLastOfOneRankAloneIsNamedOnAllRanks) {
  with_ranks(3, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {values(rank, {2, 3, 4, 5})};
    if (rank == 1) tensors[0] = tensors[0].contiguous(at::MemoryFormat::ChannelsLast);
    const std::string text = failure_of([&] { backend.allreduce(tensors, {})->wait(); });
    EXPECT_THAT(text, HasSubstr("the ranks called different operations"));
    EXPECT_THAT(text, HasSubstr("rank 1 all_reduce(sum, Float) strides [60, 1, 15, 3]"));
  });
}

// ---- sparse tensors

// The number of entries differs from rank to rank, and rank 3 has none. Some entries occur twice.
at::Tensor sparse_values(int rank, at::ScalarType type, int64_t rows) {
  const int64_t count = rank == 3 ? 0 : (rank + 1) * rows / 4;
  const at::Tensor indices = (at::arange(count, at::kLong) * 7 + rank) % rows;
  const at::Tensor entries = (values(rank, {count, 3}, at::kDouble) / 7).to(type);
  return at::sparse_coo_tensor(indices.reshape({1, count}), entries, {rows, 3});
}

class SparseTensors : public ::testing::TestWithParam<std::tuple<int64_t, at::ScalarType>> {};

TEST_P(SparseTensors, AreAddedUpAsDenseOnesAre) {
  const auto [rows, type] = GetParam();
  at::Tensor results[4];
  with_ranks(4, [&, rows = rows, type = type](int rank, c10d::Backend& backend) {
    for (const bool average : {false, true}) {
      c10d::AllreduceOptions options;
      if (average) options.reduceOp = c10d::ReduceOp::AVG;
      Tensors dense = {sparse_values(rank, type, rows).to_dense()};
      backend.allreduce(dense, options)->wait();
      Tensors sparse = {sparse_values(rank, type, rows)};
      const auto work =
          average ? backend.allreduce_sparse(sparse, options) : backend.allreduce(sparse, options);
      work->wait();
      EXPECT_TRUE(sparse[0].is_coalesced());
      EXPECT_EQ(sparse[0].scalar_type(), type);
      EXPECT_TRUE(at::equal(sparse[0].to_dense(), dense[0]));
      EXPECT_TRUE(at::equal(work->result()[0].to_dense(), dense[0]));
      results[rank] = sparse[0];
    }
  });
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_TRUE(at::equal(results[rank]._indices(), results[0]._indices()));
    EXPECT_TRUE(at::equal(results[rank]._values(), results[0]._values()));
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, SparseTensors,
                         ::testing::Combine(::testing::Values(8, 1'000, 300'000),
                                            ::testing::Values(at::kFloat, at::kDouble, at::kHalf,
                                                              at::kBFloat16)));

TEST(SameHostLayoutsTest, SparseSumsHaveFuturesAndNeedNoWait) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors sparse = {sparse_values(rank, at::kFloat, 100)};
    const auto future = backend.allreduce(sparse, {})->getFuture();
    future->wait();
    EXPECT_TRUE(at::equal(future->value().toTensorVector()[0].to_dense(),
                          sparse_values(0, at::kFloat, 100).to_dense() +
                              sparse_values(1, at::kFloat, 100).to_dense()));
    // Tensors with more than one sparse dimension, without dense dimensions, and without any entry.
    for (const at::Tensor& one : {values(rank, {3, 4}).to_sparse(), values(rank, {6}).to_sparse(),
                                  at::zeros({3, 4}).to_sparse()}) {
      Tensors tensors = {one.clone()};
      const at::Tensor before = one.to_dense();
      Tensors dense = {before.clone()};
      backend.allreduce(dense, {})->wait();
      backend.allreduce(tensors, {})->wait();
      EXPECT_TRUE(at::equal(tensors[0].to_dense(), dense[0]));
    }
  });
}

TEST(SameHostLayoutsTest, SparseTensorsThatDifferAreNamed) {
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {rank == 0 ? at::ones({4, 2}).to_sparse(1) : at::ones({4, 2}).to_sparse(2)};
    const std::string text = failure_of([&] { backend.allreduce(tensors, {})->wait(); });
    EXPECT_THAT(text, HasSubstr("sparse in 1 dims"));
    EXPECT_THAT(text, HasSubstr("sparse in 2 dims"));
  });
  with_ranks(2, [](int rank, c10d::Backend& backend) {
    Tensors tensors = {rank == 0 ? at::ones({4, 2}) : at::ones({4, 2}).to_sparse(2)};
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, {})->wait(); }),
                HasSubstr("the ranks called different operations"));
  });
  with_ranks(1, [](int, c10d::Backend& backend) {
    Tensors tensors = {at::ones({2}).to_sparse()};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    EXPECT_THAT(failure_of([&] { backend.allreduce(tensors, options); }),
                HasSubstr("of sparse tensors there are sum and average"));
  });
}

}  // namespace
}  // namespace weft
