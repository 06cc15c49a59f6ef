#include "weft/ddp/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "weft/base/mutex.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/tests/comm/failure_of.h"
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
using ::testing::ElementsAre;
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
  std::string place(const std::string& name = "run") const { return folder_ / name; }

  fs::path folder_;
};

Sequential make_net(uint64_t seed) {
  static Mutex mutex;  // the seed belongs to the process
  const MutexLock lock(mutex);
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
    save_checkpoint(*group, place(), *net, &optimizer, kProgress);

    Sequential resumed = make_net(100 + static_cast<uint64_t>(group->rank()));
    torch::optim::Adam resumed_optimizer(resumed->parameters(), 0.7);
    const Tensor weight = resumed->parameters()[0];
    EXPECT_EQ(load_checkpoint(*group, place(), *resumed, &resumed_optimizer), kProgress);
    EXPECT_TRUE(resumed->parameters()[0].is_same(weight));
    EXPECT_TRUE(weight.requires_grad());
    expect_equal(*resumed, *net);
    train(net, optimizer, 3);
    train(resumed, resumed_optimizer, 3);
    expect_equal(*resumed, *net);
  });
}

// Trains, saves, loads into another optimizer of the kind, and compares what both do next.
template <class Optimizer, class Options>
void expect_goes_on(const std::string& path, const Options& options, const Options& others) {
  run_ranks(1, [&](const Group& group) {
    SCOPED_TRACE(path);
    Sequential net = make_net(1);
    Optimizer optimizer(net->parameters(), options);
    const auto train_with = [](Sequential& own, Optimizer& with, int steps) {
      for (int step = 0; step < steps; ++step) {
        with.step([&] {
          with.zero_grad();
          const Tensor loss =
              own->forward(at::linspace(0, 1 + step, 12).view({4, 3}).sin()).pow(2).sum();
          loss.backward();
          return loss;
        });
      }
    };
    train_with(net, optimizer, 3);
    save_checkpoint(*group, path, *net, &optimizer, kProgress);
    Sequential resumed = make_net(9);
    Optimizer resumed_optimizer(resumed->parameters(), others);
    load_checkpoint(*group, path, *resumed, &resumed_optimizer);
    train_with(net, optimizer, 3);
    train_with(resumed, resumed_optimizer, 3);
    expect_equal(*resumed, *net);
  });
}

TEST_F(DdpCheckpoint, RestoresTheStateAndTheOptionsOfEveryOptimizer) {
  namespace optim = torch::optim;
  expect_goes_on<optim::SGD>(place("sgd"), optim::SGDOptions(0.001).momentum(0.9).nesterov(true),
                             optim::SGDOptions(0.3));
  expect_goes_on<optim::Adam>(place("adam"),
                              optim::AdamOptions(0.1).betas({0.7, 0.8}).weight_decay(0.1),
                              optim::AdamOptions(0.3));
  expect_goes_on<optim::AdamW>(place("adamw"), optim::AdamWOptions(0.1).amsgrad(true),
                               optim::AdamWOptions(0.3));
  expect_goes_on<optim::Adagrad>(place("adagrad"), optim::AdagradOptions(0.1).lr_decay(0.01),
                                 optim::AdagradOptions(0.3));
  expect_goes_on<optim::RMSprop>(place("rmsprop"),
                                 optim::RMSpropOptions(0.01).momentum(0.5).centered(true),
                                 optim::RMSpropOptions(0.3));
  expect_goes_on<optim::LBFGS>(place("lbfgs"), optim::LBFGSOptions(0.1).max_iter(5).history_size(2),
                               optim::LBFGSOptions(0.3));
}

TEST_F(DdpCheckpoint, RestoresAnOptimizerThatHasNotStepped) {
  run_ranks(1, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    save_checkpoint(*group, place(), *net, &optimizer, {});
    Sequential resumed = make_net(2);
    torch::optim::SGD other(resumed->parameters(), 0.7);
    load_checkpoint(*group, place(), *resumed, &other);
    train(net, optimizer, 2);
    train(resumed, other, 2);
    expect_equal(*resumed, *net);
  });
}

// The format is that of checkpoint/, so other programs can read it.
TEST_F(DdpCheckpoint, IsAFolderOfSafetensorsWithAManifest) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::Adam optimizer(net->parameters(), 0.1);
    train(net, optimizer, 2);
    for (int save = 0; save < 3; ++save) {
      save_checkpoint(*group, place(), *net, &optimizer, kProgress);
    }
    if (group->rank() != 0) return;
    const CheckpointFolder folder(place());
    EXPECT_THAT(*folder.steps(), ElementsAre(3)) << "older checkpoints are removed";
    const Checkpoint saved = *folder.load_newest();
    EXPECT_EQ(saved.info.epoch, kProgress.epoch);
    EXPECT_EQ(saved.info.world_size, 2);
    EXPECT_EQ(saved.info.metadata.at("step"), "1200");
    EXPECT_TRUE(saved.shards.at("model").tensors.at("0.weight").equal(net->parameters()[0]));
    const StateFile& state = saved.shards.at("optimizer");
    EXPECT_EQ(state.tensors.count("state.0.exp_avg"), 1u) << "by the parameter's index";
    EXPECT_EQ(state.metadata.at("state.0.step"), "int 2");
  });
}

TEST_F(DdpCheckpoint, IsThereWhenAnyRankReturns) {
  run_ranks(4, [&](const Group& group) {
    const Sequential net = make_net(1);
    for (int step = 0; step < 5; ++step) {
      const std::string path = place(std::to_string(step));
      save_checkpoint(*group, path, *net, nullptr, {.step = step});
      EXPECT_THAT(*CheckpointFolder(path).steps(), ElementsAre(1)) << "rank " << group->rank();
    }
  });
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

TEST_F(DdpCheckpoint, WritesRankZerosModel) {
  run_ranks(2, [&](const Group& group) {
    const Sequential net = make_net(static_cast<uint64_t>(group->rank()));
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    Sequential loaded = make_net(7);
    load_checkpoint(*group, place(), *loaded, nullptr);
    expect_equal(*loaded, *make_net(0));
  });
}

TEST_F(DdpCheckpoint, FailsOnEveryRankWhenRankZeroCannotWrite) {
  std::ofstream(place("plain")) << "a file, not a folder";
  run_ranks(3, [&](const Group& group) {
    const Sequential net = make_net(1);
    EXPECT_THAT(value_error_of(
                    [&] { save_checkpoint(*group, place("plain/run"), *net, nullptr, kProgress); }),
                AllOf(HasSubstr("plain/run"), HasSubstr("rank 0: ")));
  });
}

TEST_F(DdpCheckpoint, KeepsTheOldCheckpointWhenAModuleCannotBeSaved) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    auto broken = std::make_shared<torch::nn::Module>();
    broken->register_buffer("no_data", at::empty({2}, at::TensorOptions(at::kMeta)));
    EXPECT_THAT(value_error_of([&] { save_checkpoint(*group, place(), *broken, nullptr, {}); }),
                AllOf(HasSubstr("rank 0: "), HasSubstr("no_data")));
    Sequential loaded = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, place(), *loaded, nullptr), kProgress);
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
    save_checkpoint(*group, place(), Wrapper(net), nullptr, kProgress);
    load_checkpoint(*group, place(), *other, nullptr);
    expect_equal(*other, *net);

    Sequential third = make_net(3);
    Wrapper wrapper(third);
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    load_checkpoint(*group, place(), wrapper, nullptr);
    expect_equal(*third, *net);
  });
}

TEST_F(DdpCheckpoint, NamesWhatDoesNotFitAndChangesNothing) {
  run_ranks(2, [&](const Group& group) {
    const Sequential net = make_net(1);
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    const auto error_for = [&](Sequential& other) {
      const Tensor before = other->parameters()[0].detach().clone();
      std::string error =
          value_error_of([&] { load_checkpoint(*group, place(), *other, nullptr); });
      EXPECT_TRUE(other->parameters()[0].equal(before));
      return error;
    };
    Sequential wide(Linear(3, 4), BatchNorm1d(4), Linear(4, 5));
    EXPECT_THAT(error_for(wide),
                AllOf(HasSubstr("'2.weight' is [2, 4] in the checkpoint and [5, 4]"),
                      HasSubstr("'2.bias' is [2]"), HasSubstr("rank 1: ")));
    Sequential deep(Linear(3, 4), BatchNorm1d(4), Linear(4, 2), Linear(2, 2));
    EXPECT_THAT(error_for(deep), HasSubstr("the checkpoint has no '3.weight'"));
    Sequential shallow(Linear(3, 4), BatchNorm1d(4));
    EXPECT_THAT(error_for(shallow), HasSubstr("the module has no '2.weight'"));
  });
}

TEST_F(DdpCheckpoint, FailsOnEveryRankWhenOneFindsNoOrAnotherCheckpoint) {
  run_ranks(3, [&](const Group& group) {
    Sequential net = make_net(1);
    save_checkpoint(*group, place("a"), *net, nullptr, {.step = 1});
    save_checkpoint(*group, place("b"), *net, nullptr, {.step = 2});
    Sequential other = make_net(2);
    const auto error_with = [&](const std::string& on_rank_two) {
      const std::string path = group->rank() == 2 ? on_rank_two : place("a");
      return value_error_of([&] { load_checkpoint(*group, path, *other, nullptr); });
    };
    EXPECT_THAT(error_with(place("b")),
                AllOf(HasSubstr("different checkpoints: rank 0: epoch 0 step 1 sample 0 ("),
                      HasSubstr("; rank 2: epoch 0 step 2 sample 0 (")));
    EXPECT_THAT(error_with(place("none")), HasSubstr("rank 2: "));
    if (group->rank() == 2) std::ofstream(place("cut")) << "not an archive";
    EXPECT_THAT(error_with(place("cut")), HasSubstr("rank 2: "));
    expect_equal(*other, *make_net(2));
  });
}

// Ranks load checkpoints of two runs that were saved at the same step.
TEST_F(DdpCheckpoint, NamesTheRanksWhoseCheckpointDiffersInItsValuesAlone) {
  run_ranks(4, [&](const Group& group) {
    save_checkpoint(*group, place("a"), *make_net(1), nullptr, kProgress);
    save_checkpoint(*group, place("b"), *make_net(2), nullptr, kProgress);
    Sequential net = make_net(3);
    const std::string path = place(group->rank() % 2 == 0 ? "a" : "b");
    EXPECT_THAT(
        value_error_of([&] { load_checkpoint(*group, path, *net, nullptr); }),
        AllOf(HasSubstr("different checkpoints: rank 0: epoch 3"), HasSubstr("; rank 1: epoch 3"),
              HasSubstr("; rank 3: epoch 3"), Not(HasSubstr("rank 2: "))));
    expect_equal(*net, *make_net(3));
    load_checkpoint(*group, place("b"), *net, nullptr);
    expect_equal(*net, *make_net(2));
  });
}

TEST_F(DdpCheckpoint, NamesAnOptimizerThatIsNotTheOneSaved) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto error = [&] {
      return value_error_of([&] { load_checkpoint(*group, place(), *net, &optimizer); });
    };
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    EXPECT_THAT(error(), HasSubstr("saved without an optimizer"));
    torch::optim::SGD other({net->parameters()[0]}, 0.1);
    save_checkpoint(*group, place(), *net, &other, kProgress);
    EXPECT_THAT(error(), HasSubstr("parameter group that has a different size"));
  });
}

// A checkpoint without its manifest does not count as complete, so that one is not removed here.
TEST_F(DdpCheckpoint, NamesADamagedFileAndChangesNothing) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::Adam optimizer(net->parameters(), 0.1);
    train(net, optimizer, 1);
    Sequential other = make_net(2);
    torch::optim::Adam other_optimizer(other->parameters(), 0.1);
    for (const char* const name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
      for (const std::string damage : {"cut", "changed", "missing"}) {
        if (damage == "missing" && name == std::string("manifest.json")) continue;
        const std::string path = place(name + (" " + damage));
        save_checkpoint(*group, path, *net, &optimizer, kProgress);
        if (group->rank() == 0) {
          const fs::path file = fs::path(path) / "step-000001" / name;
          const auto size = fs::file_size(file);
          if (damage == "missing") {
            fs::remove(file);
          } else if (damage == "cut") {
            fs::resize_file(file, size / 2);
          } else {
            std::fstream open(file, std::ios::in | std::ios::out | std::ios::binary);
            open.seekg(static_cast<std::streamoff>(size - 20));
            const char changed = static_cast<char>(open.get() ^ 1);
            open.seekp(static_cast<std::streamoff>(size - 20));
            open.put(changed);
          }
        }
        group->barrier();
        EXPECT_THAT(
            value_error_of([&] { load_checkpoint(*group, path, *other, &other_optimizer); }),
            AllOf(HasSubstr(name), HasSubstr("rank 0: "), HasSubstr("rank 1: ")));
      }
    }
    expect_equal(*other, *make_net(2));
    EXPECT_TRUE(other_optimizer.state().empty());
  });
}

// The files of another room's checkpoint, and an optimizer's state that no optimizer has written.
TEST_F(DdpCheckpoint, RefusesCheckpointsOfOtherPrograms) {
  run_ranks(1, [&](const Group& group) {
    Sequential net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto error_of = [&](const std::string& path) {
      return value_error_of([&] { load_checkpoint(*group, path, *net, &optimizer); });
    };
    const CheckpointFolder foreign(place("a"));
    ASSERT_TRUE(foreign.save({.step = 5}, {}).ok());
    EXPECT_THAT(error_of(place("a")), HasSubstr("was not written by save_checkpoint"));
    EXPECT_THAT(
        value_error_of([&] { save_checkpoint(*group, place("a"), *net, nullptr, kProgress); }),
        HasSubstr("save_checkpoint did not write"));
    EXPECT_THAT(*foreign.steps(), ElementsAre(5));
    EXPECT_THAT(value_error_of([&] { save_checkpoint(*group, "", *net, nullptr, kProgress); }),
                HasSubstr("empty"));

    const CheckpointInfo info = {.step = 1, .metadata = {{"step", "1"}, {"sampler_position", "0"}}};
    ASSERT_TRUE(CheckpointFolder(place("b")).save(info, {{"owner", {}}}).ok());
    EXPECT_THAT(error_of(place("b")), HasSubstr("no shard 'model'"));

    TensorMap model;
    for (const auto& item : net->named_parameters()) model.emplace(item.key(), item.value());
    for (const auto& item : net->named_buffers()) model.emplace(item.key(), item.value());
    const std::vector<std::pair<Metadata, std::string>> states = {
        {{{"x\"]; import os #", "int 1"}}, "a name that no optimizer gives"},
        {{{"a..b", "int 1"}}, "a name that no optimizer gives"},
        {{{"a", "int one"}}, "which is no value"},
        {{{"a", "code"}}, "which is no value"},
        {{{"a.b", "int 1"}}, "is missing"},
        {{{"a", "tuple 2"}, {"a.0", "int 1"}}, "not all of its elements"},
        {{{"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a", "int 1"}}, "levels"}};
    int number = 0;
    for (const auto& [metadata, expected] : states) {
      const CheckpointFolder folder(place(std::to_string(number++)));
      std::vector<ShardRecord> shards = {*folder.save_shard(1, "model", model),
                                         *folder.save_shard(1, "optimizer", {}, metadata)};
      ASSERT_TRUE(folder.commit(info, shards).ok());
      EXPECT_THAT(error_of(folder.root()), HasSubstr(expected));
    }
  });
}

// A rank that dies while it saves leaves a step without a manifest.
TEST_F(DdpCheckpoint, KeepsTheOldCheckpointWhenTheWriterDies) {
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(1);
    save_checkpoint(*group, place(), *net, nullptr, kProgress);
    if (group->rank() == 0) {
      const fs::path died = fs::path(place()) / "step-000002";
      fs::create_directory(died);
      fs::copy(fs::path(place()) / "step-000001" / "model.safetensors", died);
      std::ofstream(died / "manifest.json.0.tmp") << "{";
    }
    group->barrier();
    Sequential loaded = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, place(), *loaded, nullptr), kProgress);
    expect_equal(*loaded, *net);
    group->barrier();
    save_checkpoint(*group, place(), *make_net(3), nullptr, {.epoch = 4});
    EXPECT_EQ(load_checkpoint(*group, place(), *loaded, nullptr), (CheckpointProgress{.epoch = 4}));
    expect_equal(*loaded, *make_net(3));
    EXPECT_FALSE(fs::exists(fs::path(place()) / "step-000002")) << "the remains are removed";
  });
}

}  // namespace
}  // namespace weft::testing
