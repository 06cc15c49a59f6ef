#include "weft/ddp/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "weft/tests/ddp/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;
using Group = std::shared_ptr<ProcessGroup>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr CheckpointProgress kProgress = {.epoch = 3, .step = 1200, .sampler_position = 64};

class DdpCheckpoint : public ::testing::Test {
 protected:
  DdpCheckpoint() {
    std::string name = (fs::temp_directory_path() / "weft_ddp_checkpoint_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~DdpCheckpoint() override { fs::remove_all(folder_); }
  std::string file(const std::string& name = "run.pt") const { return folder_ / name; }

  fs::path folder_;
};

Sequential make_net(uint64_t seed) {
  static std::mutex mutex;  // the seed belongs to the process
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return Sequential(Linear(3, 4), BatchNorm1d(4), Linear(4, 2));
}

void train(Sequential& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net->forward(at::linspace(0, 1 + step, 12).view({4, 3}).sin()).pow(2).sum().backward();
    optimizer.step();
  }
}

void expect_equal(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto compare = [](const auto& mine, const auto& theirs) {
    ASSERT_EQ(mine.keys(), theirs.keys());
    for (const auto& item : mine) {
      EXPECT_TRUE(item.value().equal(theirs[item.key()])) << item.key();
    }
  };
  compare(actual.named_parameters(), expected.named_parameters());
  compare(actual.named_buffers(), expected.named_buffers());
}

TEST_F(DdpCheckpoint, GoesOnAsIfTheRunHadNotStopped) {
  run_ranks(3, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
    train(net, optimizer, 3);
    save_checkpoint(*group, file(), *net, &optimizer, kProgress);

    Sequential resumed = make_net(100 + static_cast<uint64_t>(group->rank()));
    torch::optim::Adam resumed_optimizer(resumed->parameters(), 0.7);
    const Tensor weight = resumed->parameters()[0];
    EXPECT_EQ(load_checkpoint(*group, file(), *resumed, &resumed_optimizer), kProgress);
    EXPECT_TRUE(resumed->parameters()[0].is_same(weight));
    EXPECT_TRUE(weight.requires_grad());
    expect_equal(*resumed, *net);
    train(net, optimizer, 3);
    train(resumed, resumed_optimizer, 3);
    expect_equal(*resumed, *net);
  });
}

TEST_F(DdpCheckpoint, IsThereWhenAnyRankReturns) {
  run_ranks(4, [&](const Group& group) {
    const Sequential net = make_net(1);
    for (int step = 0; step < 5; ++step) {
      const std::string path = file(std::to_string(step));
      save_checkpoint(*group, path, *net, nullptr, {.step = step});
      EXPECT_TRUE(fs::exists(path)) << "rank " << group->rank();
    }
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 5)
      << "and no temporary files";
}

TEST_F(DdpCheckpoint, WritesRankZerosModel) {
  run_ranks(2, [&](const Group& group) {
    const Sequential net = make_net(static_cast<uint64_t>(group->rank()));
    save_checkpoint(*group, file(), *net, nullptr, kProgress);
    Sequential loaded = make_net(7);
    load_checkpoint(*group, file(), *loaded, nullptr);
    expect_equal(*loaded, *make_net(0));
  });
}

TEST_F(DdpCheckpoint, FailsOnEveryRankWhenRankZeroCannotWrite) {
  run_ranks(3, [&](const Group& group) {
    const Sequential net = make_net(1);
    EXPECT_THAT(value_error_of([&] {
                  save_checkpoint(*group, file("missing/run.pt"), *net, nullptr, kProgress);
                }),
                AllOf(HasSubstr("missing/run.pt"), HasSubstr("rank 0: ")));
  });
}

TEST_F(DdpCheckpoint, KeepsTheOldFileWhenAModuleCannotBeSaved) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    save_checkpoint(*group, file(), *net, nullptr, kProgress);
    auto broken = std::make_shared<torch::nn::Module>();
    broken->register_buffer("no_data", at::empty({2}, at::TensorOptions(at::kMeta)));
    EXPECT_THAT(value_error_of([&] { save_checkpoint(*group, file(), *broken, nullptr, {}); }),
                HasSubstr("rank 0: "));
    Sequential loaded = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, file(), *loaded, nullptr), kProgress);
    expect_equal(*loaded, *net);
  });
}

struct Wrapper : torch::nn::Module {
  explicit Wrapper(const Sequential& net) { register_module("module", net); }
};

TEST_F(DdpCheckpoint, TakesAWrappedModelForTheModelItself) {
  run_ranks(1, [&](const Group& group) {
    Sequential net = make_net(1);
    Sequential other = make_net(2);
    save_checkpoint(*group, file(), Wrapper(net), nullptr, kProgress);
    load_checkpoint(*group, file(), *other, nullptr);
    expect_equal(*other, *net);

    Sequential third = make_net(3);
    Wrapper wrapper(third);
    save_checkpoint(*group, file(), *net, nullptr, kProgress);
    load_checkpoint(*group, file(), wrapper, nullptr);
    expect_equal(*third, *net);
  });
}

TEST_F(DdpCheckpoint, NamesWhatDoesNotFitAndChangesNothing) {
  run_ranks(2, [&](const Group& group) {
    const Sequential net = make_net(1);
    save_checkpoint(*group, file(), *net, nullptr, kProgress);
    const auto error_for = [&](Sequential& other) {
      const Tensor before = other->parameters()[0].detach().clone();
      std::string error = value_error_of([&] { load_checkpoint(*group, file(), *other, nullptr); });
      EXPECT_TRUE(other->parameters()[0].equal(before));
      return error;
    };
    Sequential wide(Linear(3, 4), BatchNorm1d(4), Linear(4, 5));
    EXPECT_THAT(error_for(wide), AllOf(HasSubstr("'2.weight' is [2, 4] in the file and [5, 4]"),
                                       HasSubstr("'2.bias' is [2]"), HasSubstr("rank 1: ")));
    Sequential deep(Linear(3, 4), BatchNorm1d(4), Linear(4, 2), Linear(2, 2));
    EXPECT_THAT(error_for(deep), HasSubstr("the file has no '3.weight'"));
    Sequential shallow(Linear(3, 4), BatchNorm1d(4));
    EXPECT_THAT(error_for(shallow), HasSubstr("the module has no '2.weight'"));
  });
}

TEST_F(DdpCheckpoint, FailsOnEveryRankWhenOneFindsNoOrAnotherFile) {
  run_ranks(3, [&](const Group& group) {
    Sequential net = make_net(1);
    save_checkpoint(*group, file("a"), *net, nullptr, {.step = 1});
    save_checkpoint(*group, file("b"), *net, nullptr, {.step = 2});
    Sequential other = make_net(2);
    const auto error_with = [&](const std::string& on_rank_two) {
      const std::string path = group->rank() == 2 ? on_rank_two : file("a");
      return value_error_of([&] { load_checkpoint(*group, path, *other, nullptr); });
    };
    EXPECT_THAT(error_with(file("b")),
                AllOf(HasSubstr("different files: rank 0: epoch 0 step 1 sample 0 ("),
                      HasSubstr("; rank 2: epoch 0 step 2 sample 0 (")));
    EXPECT_THAT(error_with(file("none")), HasSubstr("rank 2: "));
    if (group->rank() == 2) std::ofstream(file("cut")) << "not an archive";
    EXPECT_THAT(error_with(file("cut")), HasSubstr("rank 2: "));
    expect_equal(*other, *make_net(2));
  });
}

// Ranks load files of two runs that were saved at the same step.
TEST_F(DdpCheckpoint, NamesTheRanksWhoseFileDiffersInItsValuesAlone) {
  run_ranks(4, [&](const Group& group) {
    save_checkpoint(*group, file("a"), *make_net(1), nullptr, kProgress);
    save_checkpoint(*group, file("b"), *make_net(2), nullptr, kProgress);
    Sequential net = make_net(3);
    const std::string path = file(group->rank() % 2 == 0 ? "a" : "b");
    EXPECT_THAT(value_error_of([&] { load_checkpoint(*group, path, *net, nullptr); }),
                AllOf(HasSubstr("different files: rank 0: epoch 3"), HasSubstr("; rank 1: epoch 3"),
                      HasSubstr("; rank 3: epoch 3"), Not(HasSubstr("rank 2: "))));
    expect_equal(*net, *make_net(3));
    load_checkpoint(*group, file("b"), *net, nullptr);
    expect_equal(*net, *make_net(2));
  });
}

TEST_F(DdpCheckpoint, NamesAnOptimizerThatIsNotTheOneSaved) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto error = [&] {
      return value_error_of([&] { load_checkpoint(*group, file(), *net, &optimizer); });
    };
    save_checkpoint(*group, file(), *net, nullptr, kProgress);
    EXPECT_THAT(error(), HasSubstr("saved without an optimizer"));
    torch::optim::SGD other({net->parameters()[0]}, 0.1);
    save_checkpoint(*group, file(), *net, &other, kProgress);
    EXPECT_THAT(error(), HasSubstr("parameter group that has a different size"));
  });
}

}  // namespace
}  // namespace weft::testing
