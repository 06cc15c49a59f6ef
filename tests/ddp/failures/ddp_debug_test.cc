// Checks what the debug levels log and check.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DdpOptions at_level(DebugLevel level) {
  DdpOptions options;
  options.debug = level;
  return options;
}

class Lines {
 public:
  Lines() {
    set_log_level(LogLevel::kInfo);
    set_log_sink([this](LogLevel, std::string_view line) {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Lines() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  std::vector<std::string> all() {
    const MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST(DebugLevelTest, IsNamedAsInPyTorch) {
  EXPECT_EQ(parse_debug_level("OFF"), DebugLevel::kOff);
  EXPECT_EQ(parse_debug_level("Info"), DebugLevel::kInfo);
  EXPECT_EQ(parse_debug_level("detail"), DebugLevel::kDetail);
  EXPECT_THAT(failure_of([] { parse_debug_level("DETAILS"); }),
              HasSubstr("TORCH_DISTRIBUTED_DEBUG is OFF, INFO or DETAIL, not 'DETAILS'"));
}

TEST(DebugLevelTest, InfoTellsOfBucketsAndTimes) {
  for (const DebugLevel level : {DebugLevel::kOff, DebugLevel::kInfo}) {
    Lines lines;
    const std::vector<Mlp> models = copies(2);
    run_ranks(2, [&](GroupPtr group) {
      DistributedDataParallel ddp(models[group->rank()], group, at_level(level));
      for (int step = 0; step < 3; ++step) loss_of(ddp(input_of(group->rank(), step))).backward();
    });
    if (level == DebugLevel::kOff) {
      EXPECT_THAT(lines.all(), IsEmpty());
      continue;
    }
    EXPECT_THAT(lines.all(),
                Contains(AllOf(HasSubstr("rank 1 of 2 on weft_same_host, 4 parameters, "
                                         "first buckets: 312 bytes in 4"),
                               HasSubstr("'first.weight' to 'second.bias'"))));
    EXPECT_THAT(lines.all(), Contains(HasSubstr("buckets by arrival: 312 bytes in 4")));
    EXPECT_THAT(lines.all(), Contains(HasSubstr("rank 0, pass 1: forward ")));
  }
}

TEST(DebugLevelTest, DetailNamesWhatDiffersBeforeAStep) {
  const std::vector<Mlp> models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DistributedDataParallel ddp(models[rank], group, at_level(DebugLevel::kDetail));
    const auto step = [&] { loss_of(ddp(input_of(rank))).backward(); };
    step();
    if (rank == 1) ddp.eval();
    EXPECT_THAT(failure_of(step), HasSubstr("training mode (1) or not (0) is 1 on rank 0 and 0 on "
                                            "rank 1"));
    ddp.train();
    if (rank == 0) models[rank]->second->bias.set_requires_grad(false);
    EXPECT_THAT(failure_of(step),
                HasSubstr("requires_grad of 'second.bias' is 0 on rank 0 and 1 on rank 1"));
    models[rank]->second->bias.set_requires_grad(true);
    EXPECT_EQ(failure_of(step), "");
    EXPECT_EQ(ddp.logging_data().reduced_passes, 2);
  });
}

TEST(DebugLevelTest, DetailGoesWithJoinAndNoSync) {
  const std::vector<Mlp> models = copies(3);
  run_ranks(3, [&](GroupPtr group) {
    DistributedDataParallel ddp(models[group->rank()], group, at_level(DebugLevel::kDetail));
    ddp.join([&] {
      for (int step = 0; step < 2 + group->rank(); ++step) {
        {
          const auto local = ddp.no_sync();
          loss_of(ddp(input_of(group->rank(), step))).backward();
        }
        loss_of(ddp(input_of(group->rank(), step))).backward();
      }
    });
  });
  const at::Tensor grad = models[2]->first->weight.grad();
  EXPECT_GT(grad.abs().sum().item<double>(), 0);
}

TEST(DebugLevelTest, RanksHaveOneLevel) {
  const std::vector<Mlp> models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    EXPECT_THAT(failure_of([&] {
                  DistributedDataParallel<MlpImpl> ddp(
                      models[group->rank()], group,
                      at_level(group->rank() == 0 ? DebugLevel::kOff : DebugLevel::kInfo));
                }),
                HasSubstr("option debug of rank 1"));
  });
}

// At lower levels Gloo aborts the process instead.
TEST(DebugLevelTest, DetailNamesWhatCollectivesDoNotMatchOnGloo) {
  run_ranks(
      2,
      [](GroupPtr group) {
        const at::Tensor sum = torch::full({4}, group->rank() + 1.0);
        group->all_reduce(sum);
        EXPECT_EQ(sum[3].item<double>(), 3);
        const std::string failure =
            failure_of([&] { group->all_reduce(torch::ones({group->rank() + 3})); });
        EXPECT_THAT(failure, HasSubstr("ALLREDUCE"));
        EXPECT_THAT(failure, HasSubstr("shape"));
        group->barrier();
      },
      [](ProcessGroupOptions& options) {
        options.backend = "gloo";
        options.debug = DebugLevel::kDetail;
      });
}

}  // namespace
}  // namespace weft::testing
