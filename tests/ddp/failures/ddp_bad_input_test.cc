// Checks what DistributedDataParallel refuses at construction: on every rank, with a name.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A module that has parameters and nothing else.
struct Bare : torch::nn::Module {
  explicit Bare(const std::vector<at::Tensor>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      register_parameter("p" + std::to_string(i), parameters[i]);
    }
  }
  at::Tensor forward() { return parameters()[0].sum(); }
};

// Checks what construction reports on each of three ranks.
void expect_refusal(const std::function<std::shared_ptr<Bare>(int)>& make,
                    const ::testing::Matcher<std::string>& matcher, DdpOptions options = {}) {
  run_ranks(3, [&](GroupPtr group) {
    auto model = make(group->rank());
    try {
      DistributedDataParallel ddp(model, group, options);
      ADD_FAILURE() << "rank " << group->rank() << " is content";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), matcher) << "rank " << group->rank();
    }
    group->barrier();  // the ranks still agree
  });
}

std::shared_ptr<Bare> bare(const std::vector<at::Tensor>& parameters) {
  return std::make_shared<Bare>(parameters);
}

TEST(DdpBadInputTest, ShapesThatDiffer) {
  expect_refusal(
      [](int rank) {
        return bare({torch::ones({2}), torch::ones({4, rank == 1 ? 3 : 2})});
      },
      AllOf(HasSubstr("'p1' differs"), HasSubstr("[4, 2]"), HasSubstr("on rank 0"),
            HasSubstr("[4, 3]"), HasSubstr("on rank 1")));
}

TEST(DdpBadInputTest, TypesThatDiffer) {
  expect_refusal(
      [](int rank) {
        return bare(
            {torch::ones({2}), torch::ones({2}, rank == 2 ? torch::kDouble : torch::kFloat)});
      },
      AllOf(HasSubstr("'p1' differs"), HasSubstr("Double"), HasSubstr("rank 2")));
}

TEST(DdpBadInputTest, DimensionsThatDiffer) {
  expect_refusal(
      [](int rank) {
        return bare({rank == 0 ? torch::ones({4}) : torch::ones({2, 2})});
      },
      AllOf(HasSubstr("'p0' differs"), HasSubstr("[4]"), HasSubstr("[2, 2]"), HasSubstr("rank 1")));
}

TEST(DdpBadInputTest, LayoutsThatDiffer) {
  expect_refusal(
      [](int rank) {
        const at::Tensor one = torch::ones({2, 3, 4, 5});
        return bare({rank == 1 ? one.contiguous(at::MemoryFormat::ChannelsLast) : one});
      },
      AllOf(HasSubstr("'p0' differs"), HasSubstr("strides"), HasSubstr("rank 1")));
}

TEST(DdpBadInputTest, CountsThatDiffer) {
  const auto refusal = [](int more) {
    return AllOf(HasSubstr("rank 1 has " + std::to_string(more) + " parameters, rank 0 has 2"),
                 HasSubstr("on rank 1"));
  };
  expect_refusal(
      [](int rank) {
        return rank == 1 ? bare({torch::ones({2})}) : bare({torch::ones({2}), torch::ones({3})});
      },
      refusal(1));
  expect_refusal(
      [](int rank) {
        return rank != 1 ? bare({torch::ones({2}), torch::ones({3})})
                         : bare({torch::ones({2}), torch::ones({3}), torch::ones({4})});
      },
      AllOf(refusal(3), HasSubstr("nothing on rank 0"), HasSubstr("[4]")));
}

TEST(DdpBadInputTest, OneThatIsFrozenOnOneRankOnly) {
  expect_refusal(
      [](int rank) {
        auto model = bare({torch::ones({2}), torch::ones({3})});
        model->parameters()[1].set_requires_grad(rank != 2);
        return model;
      },
      AllOf(HasSubstr("rank 2 has 1 parameters"), HasSubstr("'p1'")));
}

TEST(DdpBadInputTest, BuffersThatDiffer) {
  const auto make = [](int rank) {
    auto model = bare({torch::ones({2})});
    model->register_buffer("seen", torch::zeros({rank == 2 ? 4 : 3}));
    return model;
  };
  const auto differs = AllOf(HasSubstr("'seen' differs"), HasSubstr("rank 2"), HasSubstr("[4]"));
  expect_refusal(make, differs);
  DdpOptions options;
  options.broadcast_buffers = false;
  run_ranks(
      3, [&](GroupPtr group) { DistributedDataParallel ddp(make(group->rank()), group, options); });
}

TEST(DdpBadInputTest, OptionsThatDiffer) {
  run_ranks(3, [](GroupPtr group) {
    for (const std::string which : {"bucket_cap_mb", "static_graph", "find_unused_parameters"}) {
      DdpOptions options;
      if (group->rank() == 1) {
        if (which == "bucket_cap_mb") options.bucket_cap_mb = {3};
        options.static_graph = which == "static_graph";
        options.find_unused_parameters = which == "find_unused_parameters";
      }
      EXPECT_THAT(failure_of([&] {
                    DistributedDataParallel ddp(bare({torch::ones({2})}), group, options);
                  }),
                  AllOf(HasSubstr(which), HasSubstr("rank 1")));
    }
  });
}

TEST(DdpBadInputTest, NoParameterRequiresGradients) {
  expect_refusal(
      [](int) {
        auto model = bare({torch::ones({2})});
        model->parameters()[0].set_requires_grad(false);
        return model;
      },
      HasSubstr("no parameter of the module requires gradients"));
}

TEST(DdpBadInputTest, WhatOneRankRefusesAllLearn) {
  expect_refusal([](int rank) { return rank == 1 ? bare({}) : bare({torch::ones({2})}); },
                 HasSubstr("no parameter of the module requires gradients"));
  run_ranks(3, [](GroupPtr group) {
    const std::string failure = failure_of([&] {
      DistributedDataParallel ddp(group->rank() == 1 ? bare({}) : bare({torch::ones({2})}), group);
    });
    EXPECT_EQ(failure.find("rank 1 does not take part") != std::string::npos, group->rank() != 1)
        << failure;
  });
}

TEST(DdpBadInputTest, SeveralTypesOfDevices) {
  expect_refusal(
      [](int) {
        return bare({torch::ones({2}), torch::ones({2}, torch::Device(torch::kMeta))});
      },
      AllOf(HasSubstr("several types of devices"), HasSubstr("'p1' on meta")));
}

TEST(DdpBadInputTest, DeviceIds) {
  const auto make = [](int) { return bare({torch::ones({2})}); };
  DdpOptions options;
  options.device_ids = {torch::kCPU, torch::kCPU};
  expect_refusal(make, HasSubstr("device_ids names 2 devices"), options);
  run_ranks(1, [&](GroupPtr group) {
    options.device_ids = {torch::kMeta};
    options.init_sync = false;
    EXPECT_THAT(failure_of([&] { DistributedDataParallel ddp(make(0), group, options); }),
                AllOf(HasSubstr("device_ids says meta"), HasSubstr("'p0' is on cpu")));
  });
}

TEST(DdpBadInputTest, NamesThatAreNotThere) {
  const auto make = [](int) { return bare({torch::ones({2})}); };
  DdpOptions options;
  options.ignored = {"p0", "other"};
  expect_refusal(make, HasSubstr("no parameter or buffer 'other'"), options);
  options.ignored = {};
  options.sparse_parameters = {"table"};
  expect_refusal(make, HasSubstr("no parameter or buffer 'table'"), options);
  options.sparse_parameters = {};
  options.ignored = {"p0"};
  expect_refusal(make, HasSubstr("no parameter of the module"), options);
}

TEST(DdpBadInputTest, BucketCaps) {
  for (const double cap : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    DdpOptions options;
    options.bucket_cap_mb = {1, cap};
    expect_refusal([](int) { return bare({torch::ones({2})}); },
                   HasSubstr("bucket_cap_mb is positive"), options);
  }
}

TEST(DdpBadInputTest, AParameterThatIsNoLeaf) {
  expect_refusal(
      [](int) {
        auto model = bare({torch::ones({2})});
        auto parameter = model->named_parameters(false);
        const at::Tensor root = torch::ones({2}, torch::requires_grad());
        return bare({root * 2});
      },
      HasSubstr("'p0' is not a leaf"));
}

TEST(DdpBadInputTest, NullModuleOrGroup) {
  run_ranks(1, [](GroupPtr group) {
    EXPECT_THAT(failure_of([&] { DistributedDataParallel ddp(std::shared_ptr<MlpImpl>(), group); }),
                HasSubstr("no module"));
    EXPECT_THAT(failure_of([&] { DistributedDataParallel ddp(Mlp(1), nullptr); }),
                HasSubstr("no process group"));
    DistributedDataParallel ddp(Mlp(1), group);
    EXPECT_THAT(failure_of([&] { ddp.update_process_group(nullptr); }),
                HasSubstr("no process group"));
  });
}

TEST(DdpBadInputTest, HooksTwiceOrTooLate) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    DistributedDataParallel ddp(models[group->rank()], group);
    EXPECT_THAT(failure_of([&] { ddp.register_comm_hook(nullptr); }), HasSubstr("hook is null"));
    ddp.register_comm_hook(allreduce_hook(group));
    EXPECT_THAT(failure_of([&] { ddp.register_comm_hook(noop_hook()); }),
                HasSubstr("hook already"));
    DistributedDataParallel late(models[group->rank()], group);
    loss_of(late(input_of(0))).backward();
    EXPECT_THAT(failure_of([&] { late.register_comm_hook(noop_hook()); }),
                HasSubstr("before the first backward"));
  });
}

}  // namespace
}  // namespace weft::testing
