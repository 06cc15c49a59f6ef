// Checkpoints of earlier releases: LibTorch archives, which this release still reads.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/ddp/checkpoint.h"
#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

namespace fs = std::filesystem;
using torch::nn::Linear;
using torch::nn::Sequential;
using Group = std::shared_ptr<ProcessGroup>;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CheckpointProgress kProgress = {.epoch = 3, .step = 1200, .sampler_position = 64};

Sequential make_net(uint64_t seed) {
  static Mutex mutex;  // the seed belongs to the process
  const MutexLock lock(mutex);
  torch::manual_seed(seed);
  return Sequential(Linear(3, 4), Linear(4, 2));
}

void train(Sequential& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net->forward(at::linspace(0, 1 + step, 12).view({4, 3}).sin()).pow(2).sum().backward();
    optimizer.step();
  }
}

void expect_equal(const Sequential& actual, const Sequential& expected) {
  const auto mine = actual->parameters();
  const auto theirs = expected->parameters();
  ASSERT_EQ(mine.size(), theirs.size());
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(mine[i].equal(theirs[i])) << i;
}

// As the release before this one wrote it.
void write_archive(const std::string& path, const Sequential& net,
                   const torch::optim::Optimizer* optimizer) {
  torch::serialize::OutputArchive archive;
  archive.write("epoch", c10::IValue(kProgress.epoch));
  archive.write("step", c10::IValue(kProgress.step));
  archive.write("sampler_position", c10::IValue(kProgress.sampler_position));
  c10::Dict<std::string, at::Tensor> tensors;
  for (const auto& item : net->named_parameters()) {
    tensors.insert(item.key(), item.value().detach().cpu());
  }
  archive.write("model", c10::IValue(tensors));
  if (optimizer != nullptr) {
    torch::serialize::OutputArchive state(archive.compilation_unit());
    optimizer->save(state);
    archive.write("optimizer", state);
  }
  archive.save_to(path);
}

// Collects the warnings that Weft logs.
class OldCheckpoint : public ::testing::Test {
 protected:
  OldCheckpoint() {
    std::string name = (fs::temp_directory_path() / "weft_old_checkpoint_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    set_log_sink([this](LogLevel, std::string_view line) {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~OldCheckpoint() override {
    set_log_sink(nullptr);
    fs::remove_all(folder_);
  }
  std::string place() const { return folder_ / "run.pt"; }
  std::string moved() const { return place() + ".old-archive"; }
  std::vector<std::string> lines() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    return std::exchange(lines_, {});
  }

  fs::path folder_;

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(OldCheckpoint, IsReadWithOneWarningThatSaysWhatToDo) {
  Sequential net = make_net(1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
  train(net, optimizer, 3);
  write_archive(place(), net, &optimizer);
  std::vector<Sequential> resumed = {make_net(8), make_net(9)};
  run_ranks(2, [&](const Group& group) {
    Sequential& own = resumed[static_cast<size_t>(group->rank())];
    torch::optim::Adam other(own->parameters(), 0.7);
    EXPECT_EQ(load_checkpoint(*group, place(), *own, &other), kProgress);
    train(own, other, 3);
  });
  EXPECT_THAT(lines(), ElementsAre(AllOf(HasSubstr(place()), HasSubstr("save_checkpoint"))));
  train(net, optimizer, 3);
  for (const Sequential& own : resumed) expect_equal(own, net);
}

TEST_F(OldCheckpoint, IsReplacedByAFolderAtTheSamePath) {
  write_archive(place(), make_net(1), nullptr);
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(2);
    load_checkpoint(*group, place(), *net, nullptr);
    save_checkpoint(*group, place(), *net, nullptr, {.epoch = 4});
    EXPECT_TRUE(fs::is_directory(place()));
    EXPECT_FALSE(fs::exists(moved()));
  });
  EXPECT_EQ(lines().size(), 1u);
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, place(), *net, nullptr), (CheckpointProgress{.epoch = 4}));
    expect_equal(net, make_net(1));
  });
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(OldCheckpoint, CountsNoLongerWhenTheFolderIsComplete) {
  run_ranks(1, [&](const Group& group) {
    save_checkpoint(*group, place(), *make_net(3), nullptr, {.epoch = 5});
  });
  write_archive(moved(), make_net(1), nullptr);  // its remover died
  run_ranks(1, [&](const Group& group) {
    Sequential net = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, place() + "/", *net, nullptr),
              (CheckpointProgress{.epoch = 5}));
    save_checkpoint(*group, place(), *net, nullptr, {.epoch = 6});
    EXPECT_FALSE(fs::exists(moved()));
  });
}

TEST_F(OldCheckpoint, IsBackAfterASaveThatFailed) {
  write_archive(place(), make_net(1), nullptr);
  run_ranks(1, [&](const Group& group) {
    Sequential net = make_net(2);
    EXPECT_ANY_THROW(save_checkpoint(*group, place(), *net, nullptr, {.epoch = -1}));
    EXPECT_TRUE(fs::is_regular_file(place()));
    EXPECT_EQ(load_checkpoint(*group, place(), *net, nullptr), kProgress);
  });
}

// The archive is away while the folder is made, and a writer may die at any moment.
TEST_F(OldCheckpoint, IsReadWhenTheWriterOfTheFolderDies) {
  write_archive(moved(), make_net(1), nullptr);
  const auto expect_read = [&] {
    run_ranks(1, [&](const Group& group) {
      Sequential net = make_net(2);
      EXPECT_EQ(load_checkpoint(*group, place(), *net, nullptr), kProgress);
      expect_equal(net, make_net(1));
    });
    EXPECT_THAT(lines(), ElementsAre(HasSubstr(moved())));
  };
  expect_read();
  fs::create_directory(place());
  expect_read();
  fs::create_directory(fs::path(place()) / "step-000001");
  std::ofstream(fs::path(place()) / "step-000001" / "model.safetensors") << "a part";
  expect_read();
}

TEST_F(OldCheckpoint, IsReadAfterASaveThatFailed) {
  write_archive(place(), make_net(1), nullptr);
  run_ranks(1, [&](const Group& group) {
    auto broken = std::make_shared<torch::nn::Module>();
    broken->register_buffer("no_data", at::empty({2}, at::TensorOptions(at::kMeta)));
    EXPECT_THAT(value_error_of([&] { save_checkpoint(*group, place(), *broken, nullptr, {}); }),
                HasSubstr("no_data"));
    Sequential net = make_net(2);
    EXPECT_EQ(load_checkpoint(*group, place(), *net, nullptr), kProgress);
    expect_equal(net, make_net(1));
    save_checkpoint(*group, place(), *net, nullptr, {.epoch = 4});
    EXPECT_EQ(load_checkpoint(*group, place(), *net, nullptr), (CheckpointProgress{.epoch = 4}));
  });
  EXPECT_FALSE(fs::exists(moved()));
}

TEST_F(OldCheckpoint, ADamagedOneIsRefusedOnEveryRank) {
  write_archive(place(), make_net(1), nullptr);
  fs::resize_file(place(), fs::file_size(place()) / 2);
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(2);
    EXPECT_THAT(value_error_of([&] { load_checkpoint(*group, place(), *net, nullptr); }),
                AllOf(HasSubstr(place()), HasSubstr("no whole archive of an earlier release"),
                      HasSubstr("rank 1: ")));
    expect_equal(net, make_net(2));
  });
  EXPECT_THAT(lines(), IsEmpty());
}

// Ranks of a job whose hosts do not share their files.
TEST_F(OldCheckpoint, DiffersFromAnotherOne) {
  const std::string other = folder_ / "other.pt";
  write_archive(place(), make_net(1), nullptr);
  write_archive(other, make_net(2), nullptr);
  run_ranks(2, [&](const Group& group) {
    Sequential net = make_net(3);
    const std::string path = group->rank() == 0 ? place() : other;
    EXPECT_THAT(value_error_of([&] { load_checkpoint(*group, path, *net, nullptr); }),
                HasSubstr("different checkpoints: rank 0: epoch 3 step 1200 sample 64 ("));
    expect_equal(net, make_net(3));
  });
}

}  // namespace
}  // namespace weft::testing
