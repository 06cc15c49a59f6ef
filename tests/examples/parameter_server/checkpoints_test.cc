#include "weft/examples/parameter_server/checkpoints.h"

#include <optional>
#include <string>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/tests/base/temporary_folder.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class JobCheckpointsTest : public ::testing::Test {
 protected:
  JobCheckpointsTest() {
    options_.checkpoint = folder_.path() + "/saved";
    options_.run = "this";
  }

  // A checkpoint of 30 steps after one epoch. With pictures it lies inside the second one.
  static JobCheckpoints::Moment moment(int64_t pictures) {
    const TensorMap weights{{"weight", at::ones({2})}};
    return {.step = 30, .epoch = 1, .pictures = pictures, .state = {weights, weights, weights}};
  }
  JobCheckpoints with_epochs(int64_t epochs) const {
    JobOptions options = options_;
    options.epochs = epochs;
    return JobCheckpoints(options);
  }

  const testing::TemporaryFolder folder_;
  JobOptions options_;
};

TEST_F(JobCheckpointsTest, InsideAnEpochTheJobIsNotOverAndGoesOnWithItsPictures) {
  with_epochs(3).save(moment(8), std::nullopt, 3);
  EXPECT_FALSE(with_epochs(3).is_over());
  const JobCheckpoints::Moment saved = with_epochs(3).load_newest();
  EXPECT_EQ(saved.step, 30);
  EXPECT_EQ(saved.epoch, 1);
  EXPECT_EQ(saved.pictures, 8);
}

TEST_F(JobCheckpointsTest, ACheckpointBehindTheLastEpochIsRefusedAndIsNoEnd) {
  with_epochs(3).save(moment(8), std::nullopt, 3);
  EXPECT_FALSE(with_epochs(1).is_over());
  EXPECT_THAT([&] { with_epochs(1).load_newest(); },
              ThrowsMessage<RpcError>(HasSubstr("is of epoch 2, behind --epochs 1")));
  EXPECT_EQ(with_epochs(2).load_newest().step, 30);
}

TEST_F(JobCheckpointsTest, AfterTheLastEpochTheJobIsOver) {
  with_epochs(1).save(moment(0), 0.5, 3);
  EXPECT_TRUE(with_epochs(1).is_over());
  EXPECT_FALSE(with_epochs(2).is_over());
  EXPECT_EQ(with_epochs(1).load_newest().pictures, 0);
}

TEST_F(JobCheckpointsTest, AnEarlierVersionSavedNoPicturesAndABadNumberIsNamed) {
  const TensorMap weights{{"weight", at::ones({2})}};
  const auto save = [&](int64_t step, const Metadata& metadata) {
    const absl::Status saved =
        CheckpointFolder(options_.checkpoint_folder())
            .save({.step = step, .epoch = 1, .seed = options_.seed, .metadata = metadata},
                  {{"trainer", weights}, {"server", weights}, {"optimizer", weights}});
    EXPECT_TRUE(saved.ok()) << saved;
  };
  save(30, {});
  EXPECT_EQ(with_epochs(3).load_newest().pictures, 0);
  save(31, {{"pictures", "many"}});
  EXPECT_THAT([&] { with_epochs(3).load_newest(); },
              ThrowsMessage<RpcError>(HasSubstr("pictures=many")));
}

}  // namespace
}  // namespace weft::examples
