// The collectives of a process group; every backend must give the same results.
#include <gmock/gmock.h>

#include "weft/tests/comm/group_kinds.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

class ProcessGroupConformance : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, ProcessGroupConformance, ::testing::ValuesIn(all_kinds()), name_of);

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                     at::kByte,  at::kBool,   at::kInt,  at::kLong};
constexpr Op kOps[] = {Op::SUM, Op::AVG,  Op::PRODUCT, Op::MIN,
                       Op::MAX, Op::BAND, Op::BOR,     Op::BXOR};

bool makes_sense(Op op, at::ScalarType type) {
  const bool whole = at::isIntegralType(type, /*includeBool=*/true);
  if (op == Op::AVG) return !whole;
  return whole || (op != Op::BAND && op != Op::BOR && op != Op::BXOR);
}

// Computes in one process what the collective must give from all ranks' values.
at::Tensor reduced(const Tensors& values, Op op) {
  const at::ScalarType type = values[0].scalar_type();
  const at::ScalarType wide = at::isFloatingType(type) ? at::kDouble : at::kLong;
  at::Tensor result = values[0].to(wide);
  for (size_t i = 1; i < values.size(); ++i) {
    const at::Tensor one = values[i].to(wide);
    switch (op) {
      case Op::PRODUCT:
        result = result * one;
        break;
      case Op::MIN:
        result = at::minimum(result, one);
        break;
      case Op::MAX:
        result = at::maximum(result, one);
        break;
      case Op::BAND:
        result = result.bitwise_and(one);
        break;
      case Op::BOR:
        result = result.bitwise_or(one);
        break;
      case Op::BXOR:
        result = result.bitwise_xor(one);
        break;
      default:
        result = result + one;
    }
  }
  if (op == Op::AVG) result = result / static_cast<double>(values.size());
  return type == at::kBool ? result.ne(0) : result.to(type);
}

Tensors values_of_all(int size, at::IntArrayRef shape, at::ScalarType type) {
  Tensors all;
  for (int rank = 0; rank < size; ++rank) all.push_back(values_of(rank, shape, type));
  return all;
}

// Averages may differ a little, since backends round them once or twice.
bool equals(const at::Tensor& got, const at::Tensor& wanted, Op op) {
  if (op != Op::AVG) return same_bits(got, wanted);
  const double tolerance = got.scalar_type() == at::kBFloat16 ? 1e-2 : 1e-3;
  return at::allclose(got.to(at::kDouble), wanted.to(at::kDouble), tolerance);
}

void for_each_reduction(const std::function<void(Op, at::ScalarType)>& check) {
  for (const at::ScalarType type : kTypes) {
    for (const Op op : kOps) check(op, type);
  }
}

std::string what(Op op, at::ScalarType type) {
  return std::string(c10::toString(type)) + " op " + std::to_string(static_cast<int>(op));
}

TEST_P(ProcessGroupConformance, ReducesEveryTypeForAll) {
  run([&](Group group) {
    for_each_reduction([&](Op op, at::ScalarType type) {
      const at::Tensor tensor = values_of(group->rank(), {3, 5}, type);
      if (!makes_sense(op, type)) {
        EXPECT_THAT(failure_of([&] { group->all_reduce(tensor, op); }),
                    HasSubstr(c10::toString(type)));
        return;
      }
      group->all_reduce(tensor, op);
      EXPECT_TRUE(equals(tensor, reduced(values_of_all(size(), {3, 5}, type), op), op))
          << what(op, type) << ": " << tensor;
    });
  });
}

TEST_P(ProcessGroupConformance, ReducesEveryTypeForOne) {
  run([&](Group group) {
    for_each_reduction([&](Op op, at::ScalarType type) {
      const int root = static_cast<int>(type) % size();
      const at::Tensor tensor = values_of(group->rank(), {7}, type);
      if (!makes_sense(op, type)) {
        EXPECT_THAT(failure_of([&] { group->reduce(tensor, root, op); }),
                    HasSubstr(c10::toString(type)));
        return;
      }
      group->reduce(tensor, root, op);
      if (group->rank() != root) return;
      EXPECT_TRUE(equals(tensor, reduced(values_of_all(size(), {7}, type), op), op))
          << what(op, type) << ": " << tensor;
    });
  });
}

TEST_P(ProcessGroupConformance, ReducesEachRanksShare) {
  run([&](Group group) {
    for_each_reduction([&](Op op, at::ScalarType type) {
      const at::Tensor input = values_of(group->rank(), {2 * size(), 3}, type);
      const at::Tensor output = at::empty({2, 3}, type);
      if (!makes_sense(op, type)) {
        EXPECT_THAT(failure_of([&] { group->reduce_scatter(output, input, op); }),
                    HasSubstr(c10::toString(type)));
        return;
      }
      group->reduce_scatter(output, input, op);
      const at::Tensor all = reduced(values_of_all(size(), {2 * size(), 3}, type), op);
      EXPECT_TRUE(equals(output, all.narrow(0, 2 * group->rank(), 2), op)) << what(op, type);
    });
  });
}

TEST_P(ProcessGroupConformance, GivesAllRanksTheSameBits) {
  run([&](Group group) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const Op op : {Op::SUM, Op::AVG, Op::PRODUCT}) {
        auto random = at::make_generator<at::CPUGeneratorImpl>(100 + group->rank());
        const at::Tensor tensor = at::randn({1001}, random, at::kDouble).to(type);
        group->all_reduce(tensor, op);
        for (const at::Tensor& other : group->all_gather(tensor)) {
          EXPECT_TRUE(same_bits(other, tensor)) << what(op, type);
        }
      }
    }
  });
}

TEST_P(ProcessGroupConformance, MovesEveryType) {
  run([&](Group group) {
    const int rank = group->rank();
    std::vector<at::ScalarType> types(std::begin(kTypes), std::end(kTypes));
    types.insert(types.end(), {at::kShort, at::kComplexFloat, at::kComplexDouble});
    for (const at::ScalarType type : types) {
      SCOPED_TRACE(c10::toString(type));
      const int root = static_cast<int>(type) % size();
      const auto of = [&](int one) { return values_of(one, {size(), 3}, type); };
      const at::Tensor told = of(rank);
      group->broadcast(told, root);
      EXPECT_TRUE(same_bits(told, of(root)));

      const Tensors all = group->all_gather(of(rank));
      const Tensors gathered = group->gather(of(rank), root);
      EXPECT_EQ(gathered.size(), rank == root ? static_cast<size_t>(size()) : 0);
      for (int other = 0; other < size(); ++other) {
        EXPECT_TRUE(same_bits(all.at(other), of(other)));
        if (rank == root) {
          EXPECT_TRUE(same_bits(gathered.at(other), of(other)));
        }
      }

      Tensors given;
      if (rank == root) {
        for (int other = 0; other < size(); ++other) given.push_back(of(other));
      }
      const at::Tensor mine = at::zeros({size(), 3}, type);
      group->scatter(mine, given, root);
      EXPECT_TRUE(same_bits(mine, of(rank)));

      const at::Tensor exchanged = at::zeros({size(), 3}, type);
      group->all_to_all(exchanged, of(rank));
      for (int other = 0; other < size(); ++other) {
        EXPECT_TRUE(same_bits(exchanged[other], of(other)[rank]));
      }
    }
  });
}

TEST_P(ProcessGroupConformance, ReducesTypesThatGlooLacks) {
  run([&](Group group) {
    const int rank = group->rank();
    const at::Tensor small = values_of(rank, {5}, at::kShort);
    if (GetParam().backend == "gloo") {
      EXPECT_THAT(failure_of([&] { group->all_reduce(small); }), HasSubstr("Gloo cannot"));
    } else {
      group->all_reduce(small);
      EXPECT_TRUE(same_bits(small, reduced(values_of_all(size(), {5}, at::kShort), Op::SUM)));
    }
    const at::Tensor complex = at::complex(values_of(rank, {5}), values_of(rank + 1, {5}));
    group->all_reduce(complex);
    at::Tensor wanted = at::zeros({5}, at::kComplexFloat);
    for (int one = 0; one < size(); ++one) {
      wanted += at::complex(values_of(one, {5}), values_of(one + 1, {5}));
    }
    EXPECT_TRUE(same_bits(complex, wanted));
  });
}

TEST_P(ProcessGroupConformance, TakesTensorsWithGapsAndInOtherOrders) {
  run([&](Group group) {
    const int rank = group->rank(), n = size();
    at::Tensor whole = at::full({4, 6}, 9.0);
    whole.slice(1, 0, 3).copy_(values_of(rank, {4, 3}));
    group->all_reduce(whole.slice(1, 0, 3));
    EXPECT_TRUE(
        at::equal(whole.slice(1, 0, 3), reduced(values_of_all(n, {4, 3}, at::kFloat), Op::SUM)));
    EXPECT_TRUE(at::equal(whole.slice(1, 3, 6), at::full({4, 3}, 9.0)));  // neighbours untouched

    whole.fill_(9.0);
    whole.slice(1, 0, 3).copy_(values_of(rank, {4, 3}));
    group->broadcast(whole.slice(1, 0, 3), 0);
    EXPECT_TRUE(at::equal(whole.slice(1, 0, 3), values_of(0, {4, 3})));
    EXPECT_TRUE(at::equal(whole.slice(1, 3, 6), at::full({4, 3}, 9.0)));
    for (const auto& one : group->all_gather(whole.slice(1, 0, 3))) {
      EXPECT_TRUE(at::equal(one, values_of(0, {4, 3})));
    }
    if (GetParam().backend == "gloo" && n > 1) {
      EXPECT_THAT(failure_of([&] { group->all_reduce_async(whole.slice(1, 0, 3)); }),
                  HasSubstr("without gaps"));
    }

    const at::Tensor turned = values_of(rank, {3, 4}).t();
    group->broadcast(turned, n - 1);
    EXPECT_TRUE(at::equal(turned, values_of(n - 1, {3, 4}).t()));
    const Tensors all = group->all_gather(values_of(rank, {3, 4}).t());
    for (int one = 0; one < n; ++one) EXPECT_TRUE(at::equal(all[one], values_of(one, {3, 4}).t()));

    const at::Tensor from = values_of(rank, {3, 2 * n}).t(), to = at::zeros({3, 2 * n}).t();
    group->all_to_all(to, from);
    for (int one = 0; one < n; ++one) {
      EXPECT_TRUE(at::equal(to.narrow(0, 2 * one, 2),
                            values_of(one, {3, 2 * n}).t().narrow(0, 2 * rank, 2)));
    }
    const at::Tensor share = at::zeros({3, 2}).t();
    group->reduce_scatter(share, from);
    EXPECT_TRUE(at::equal(
        share,
        reduced(values_of_all(n, {3, 2 * n}, at::kFloat), Op::SUM).t().narrow(0, 2 * rank, 2)));
  });
}

TEST_P(ProcessGroupConformance, BroadcastsManyTensorsOfMixedTypesInFewOperations) {
  run([&](Group group) {
    const int rank = group->rank(), root = size() - 1;
    const auto of = [](int one) {
      return Tensors{values_of(one, {3, 4}),
                     values_of(one, {5}),
                     values_of(one, {}, at::kDouble),
                     values_of(one, {2, 3}, at::kLong),
                     values_of(one, {0}),
                     values_of(one, {6, 2}).t(),
                     values_of(one, {64}),
                     values_of(one, {7}, at::kBool)};
    };
    for (const int64_t bytes : {1, 70, 1 << 20}) {
      const Tensors tensors = of(rank);
      tensors[0].requires_grad_();  // as parameters of a module do
      group->broadcast_coalesced(tensors, root, bytes);
      const Tensors wanted = of(root);
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i], wanted[i])) << "tensor " << i << ", " << bytes;
      }
    }
    group->broadcast_coalesced({}, root);
  });
}

// The tensors contribute nothing, but all ranks take part: the next operation must meet its own
// kind. The results have the shape and type of the arguments.
TEST_P(ProcessGroupConformance, TakesTensorsWithoutElements) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    const auto none_of = [](at::ScalarType type) { return at::empty({0, 3}, type); };
    const auto goes_on = [&](const std::string& after) {
      const at::Tensor sum = values_of(rank, {3});
      group->all_reduce(sum);
      EXPECT_TRUE(same_bits(sum, reduced(values_of_all(n, {3}, at::kFloat), Op::SUM))) << after;
    };
    const auto expect_none = [&](const Tensors& got, size_t count, at::ScalarType type) {
      ASSERT_EQ(got.size(), count);
      for (const at::Tensor& one : got) {
        EXPECT_EQ(one.sizes(), (std::vector<int64_t>{0, 3}));
        EXPECT_EQ(one.scalar_type(), type);
      }
    };
    const size_t all = static_cast<size_t>(n), at_root = rank == 0 ? all : 0;
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kShort}) {
      const std::string what = c10::toString(type);
      const at::Tensor none = none_of(type), other = none_of(type);
      if (type != at::kShort || !GetParam().gloo()) {  // Gloo reduces no int16
        group->all_reduce(none);
        goes_on("all_reduce of " + what);
        group->reduce(none, 0);
        goes_on("reduce of " + what);
        group->reduce_scatter(other, none);
        goes_on("reduce_scatter of " + what);
      }
      group->broadcast(none, n - 1);
      goes_on("broadcast of " + what);
      expect_none(group->all_gather(none), all, type);
      goes_on("all_gather of " + what);
      expect_none(group->gather(none, 0), at_root, type);
      goes_on("gather of " + what);
      group->scatter(other, Tensors(at_root, none), 0);
      goes_on("scatter of " + what);
      group->all_to_all(other, none);
      goes_on("all_to_all of " + what);
      if (n > 1 && rank == 0) group->send(none, n - 1);
      if (n > 1 && rank == n - 1) {
        EXPECT_EQ(group->recv(other, 0), 0);
      }
      goes_on("a message of " + what);
      EXPECT_EQ(other.sizes(), none.sizes());
    }
  });
}

TEST_P(ProcessGroupConformance, MovesLargeTensors) {
  run([&](Group group) {
    const int n = size(), rank = group->rank();
    const int64_t count = (5 << 20) / 4 + 3;  // not a multiple of any chunk or rank count
    const at::Tensor sum = values_of(rank, {count});
    group->all_reduce(sum);
    EXPECT_TRUE(at::equal(sum, reduced(values_of_all(n, {count}, at::kFloat), Op::SUM)));
    const at::Tensor told = values_of(rank, {count});
    group->broadcast(told, n - 1);
    EXPECT_TRUE(at::equal(told, values_of(n - 1, {count})));
    const Tensors all = group->all_gather(values_of(rank, {count}));
    for (int one = 0; one < n; ++one) EXPECT_TRUE(at::equal(all[one], values_of(one, {count})));
  });
}

TEST_P(ProcessGroupConformance, AddsSparseTensors) {
  run([&](Group group) {
    const int n = size();
    const auto of = [](int one) {  // rank 1 has no entries at all
      at::Tensor dense = at::zeros({6, 2});
      if (one != 1) dense[one].fill_(one + 1);
      if (one != 1) dense[5].fill_(1);
      return dense;
    };
    at::Tensor wanted = at::zeros({6, 2});
    for (int one = 0; one < n; ++one) wanted += of(one);
    const at::Tensor sum = of(group->rank()).to_sparse(1);
    group->all_reduce(sum);
    EXPECT_TRUE(at::equal(sum.to_dense(), wanted));
    const at::Tensor average = of(group->rank()).to_sparse(1);
    if (GetParam().backend == "gloo") {
      EXPECT_THAT(failure_of([&] { group->all_reduce(average, Op::AVG); }), HasSubstr("sparse"));
    } else {
      group->all_reduce(average, Op::AVG);
      EXPECT_TRUE(at::allclose(average.to_dense(), wanted / n));
    }
    EXPECT_NE(failure_of([&] { group->all_reduce(of(0).to_sparse(1), Op::MAX); }), "");
  });
}

}  // namespace
}  // namespace weft::testing
