#include "weft/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TensorMap tensors(double value) { return {{"w", at::full({3}, value, at::kFloat)}}; }

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_checkpoint_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  std::string root() const { return (folder_ / "run" / "checkpoints").string(); }
  fs::path step(const std::string& name) const { return fs::path(root()) / name; }
  CheckpointFolder folder(int keep = 3) const { return CheckpointFolder(root(), {.keep = keep}); }
  void save(int64_t step) const {
    const absl::Status saved =
        folder().save({.step = step, .epoch = step / 10, .world_size = 3, .seed = 42},
                      {{"server", tensors(step)}, {"trainer", tensors(-step)}});
    ASSERT_TRUE(saved.ok()) << saved;
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string load_error() const {
    const absl::StatusOr<Checkpoint> loaded = folder().load_newest();
    return loaded.ok() ? "loaded" : loaded.status().ToString();
  }

  fs::path folder_;
};

TEST_F(CheckpointTest, GivesBackTheNewestStep) {
  save(10);
  save(123);
  EXPECT_TRUE(fs::exists(step("step-000123") / "manifest.json"));
  const absl::StatusOr<Checkpoint> loaded = folder().load_newest();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->info.step, 123);
  EXPECT_EQ(loaded->info.epoch, 12);
  EXPECT_EQ(loaded->info.world_size, 3);
  EXPECT_EQ(loaded->info.seed, 42u);
  EXPECT_EQ(loaded->shards.at("server").tensors.at("w")[0].item<float>(), 123);
  EXPECT_EQ(loaded->shards.at("trainer").tensors.at("w")[2].item<float>(), -123);
  EXPECT_EQ(folder().load(10)->info.step, 10);
}

TEST_F(CheckpointTest, AFolderOfANegativeStepIsNone) {
  save(10);
  fs::create_directories(step("step--00007"));
  std::ofstream(step("step--00007") / "manifest.json") << "{}";
  EXPECT_EQ(folder().steps().value(), std::vector<int64_t>{10});
}

TEST_F(CheckpointTest, SaysThatThereIsNothingYet) {
  EXPECT_THAT(load_error(), AllOf(HasSubstr("NOT_FOUND"), HasSubstr(root())));
  EXPECT_THAT(folder().steps().value(), IsEmpty());
  EXPECT_EQ(folder().load(5).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, AStepWithoutManifestDoesNotCount) {
  save(1);
  ASSERT_TRUE(folder().save_shard(2, "server", tensors(2)).ok());
  EXPECT_EQ(folder().load_newest()->info.step, 1);
}

TEST_F(CheckpointTest, SeveralWritersShareOneStep) {
  const absl::StatusOr<ShardRecord> server = folder().save_shard(7, "server", tensors(1));
  const absl::StatusOr<ShardRecord> trainer =
      folder().save_shard(7, "trainer", tensors(2), {{"position", "640"}});
  ASSERT_TRUE(server.ok() && trainer.ok());
  ASSERT_TRUE(folder().commit({.step = 7}, {*server, *trainer}).ok());
  EXPECT_EQ(folder().load_shard(7, "trainer")->metadata.at("position"), "640");
  EXPECT_THAT(folder().load_shard(7, "other").status().ToString(), HasSubstr("other.safetensors"));
}

TEST_F(CheckpointTest, KeepsTheLastStepsAndSweepsUnfinishedOnes) {
  ASSERT_TRUE(folder().save_shard(5, "server", tensors(5)).ok());   // its writer crashed
  ASSERT_TRUE(folder().save_shard(99, "server", tensors(9)).ok());  // is still being written
  fs::create_directories(step("notes"));
  fs::create_directories(step("step-1"));  // not a name that CheckpointFolder gives
  for (const int64_t n : {10, 20, 30, 40}) save(n);
  EXPECT_THAT(folder().steps().value(), ElementsAre(20, 30, 40));
  EXPECT_FALSE(fs::exists(step("step-000005")));
  EXPECT_FALSE(fs::exists(step("step-000010")));
  EXPECT_TRUE(fs::exists(step("step-000099")));
  EXPECT_TRUE(fs::exists(step("notes")));
  EXPECT_TRUE(fs::exists(step("step-1")));
}

TEST_F(CheckpointTest, KeepsAllWhenToldTo) {
  for (int64_t n = 1; n <= 5; ++n) {
    ASSERT_TRUE(folder(0).save({.step = n}, {{"server", tensors(n)}}).ok());
  }
  EXPECT_EQ(folder(0).steps()->size(), 5u);
}

TEST_F(CheckpointTest, RefusesToWriteIntoACompleteStep) {
  save(3);
  EXPECT_EQ(folder().save_shard(3, "server", tensors(0)).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(folder().commit({.step = 3}, {}).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CheckpointTest, NoticesEverySingleBitFlipInAnyFile) {
  ASSERT_TRUE(folder().save({.step = 1}, {{"server", tensors(1)}}).ok());
  for (const char* file : {"manifest.json", "server.safetensors"}) {
    const fs::path path = step("step-000001") / file;
    const std::string whole = read(path);
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      std::ofstream(path, std::ios::binary) << flipped;
      ASSERT_THAT(load_error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(path.string())))
          << "bit " << bit;
    }
    std::ofstream(path, std::ios::binary) << whole;
  }
  EXPECT_EQ(load_error(), "loaded");
}

TEST_F(CheckpointTest, NamesTheShardThatIsMissingCutOffOrALink) {
  save(1);
  save(2);
  const fs::path shard = step("step-000002") / "trainer.safetensors";
  fs::resize_file(shard, 20);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("trainer.safetensors"), HasSubstr("20 bytes")));
  fs::remove(shard);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("trainer.safetensors"), HasSubstr("missing")));
  fs::create_symlink(step("step-000001") / "trainer.safetensors", shard);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("trainer.safetensors"), HasSubstr("link")));
  EXPECT_TRUE(folder().load(1).ok());  // the older step loads if it is asked for
}

TEST_F(CheckpointTest, NoticesAManifestOfAnotherStep) {
  save(1);
  save(2);
  fs::copy_file(step("step-000001") / "manifest.json", step("step-000002") / "manifest.json",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(load_error(), HasSubstr("belongs to step 1"));
}

TEST_F(CheckpointTest, RefusesShardNamesThatLeaveTheFolder) {
  for (const char* name : {"../outside", "/tmp/outside", "", ".hidden", "a/b"}) {
    EXPECT_EQ(folder().save_shard(1, name, tensors(1)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
    EXPECT_EQ(folder().commit({.step = 1}, {{std::string(name) + ".safetensors", 0, 0}}).code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(CheckpointTest, DoesNotCommitAShardThatIsNotThere) {
  EXPECT_FALSE(folder().commit({.step = 1}, {{"server.safetensors", 8, 0}}).ok());
  absl::StatusOr<ShardRecord> record = folder().save_shard(1, "server", tensors(1));
  ASSERT_TRUE(record.ok());
  record->bytes += 1;
  EXPECT_EQ(folder().commit({.step = 1}, {*record}).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(folder().steps().value(), IsEmpty());
}

}  // namespace
}  // namespace weft
