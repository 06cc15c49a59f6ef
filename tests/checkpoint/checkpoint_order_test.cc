// Checks in which order a CheckpointFolder's changes reach the disk, and so what a power cut may
// leave.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "weft/checkpoint/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

// The file calls that were made, in order, and the call that is to fail with EIO.
struct Trail {
  std::vector<std::string> done;
  std::string failing;
};
Trail* trail = nullptr;

int note(const std::string& what, const std::function<int()>& call) {
  if (what == trail->failing) {
    errno = EIO;
    return -1;
  }
  trail->done.push_back(what);
  return call();
}

const FileCalls kNoted = {
    ::write,
    [](int file) {
      const fs::path path = fs::read_symlink(absl::StrCat("/proc/self/fd/", file));
      return note("flush " + path.string(), [&] { return ::fsync(file); });
    },
    [](const char* from, const char* to) {
      return note(absl::StrCat("rename to ", to), [&] { return ::rename(from, to); });
    },
    [](const char* path, mode_t mode) {
      return note(absl::StrCat("mkdir ", path), [&] { return ::mkdir(path, mode); });
    },
    [](const char* path) {
      return note(absl::StrCat("remove ", path), [&] { return ::remove(path); });
    },
};

class CheckpointOrderTest : public testing::Test {
 protected:
  CheckpointOrderTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_order_XXXXXX").string();
    scratch_ = ::mkdtemp(pattern.data());
    trail = &trail_;
  }
  ~CheckpointOrderTest() override {
    trail = nullptr;
    fs::remove_all(scratch_);
  }
  std::string root() const { return (scratch_ / "run").string(); }
  std::string step(int64_t step) const { return absl::StrCat(root(), "/step-00000", step); }
  absl::Status save(int64_t step) const {
    return CheckpointFolder(root(), {.keep = 1, .calls = &kNoted})
        .save({.step = step}, {{"server", {{"w", at::ones({2})}}}});
  }
  std::vector<std::string> done_in(const std::string& folder) const {
    std::vector<std::string> found;
    for (const std::string& one : trail_.done) {
      if (absl::StrContains(one, folder)) found.push_back(one);
    }
    return found;
  }

  fs::path scratch_;
  Trail trail_;
};

TEST_F(CheckpointOrderTest, FilesOfAnOldStepGoWhenTheRemovalOfItsManifestIsOnTheDisk) {
  ASSERT_EQ(save(1), absl::OkStatus());
  trail_.done.clear();
  ASSERT_EQ(save(2), absl::OkStatus());
  EXPECT_THAT(done_in(step(1)),
              ElementsAre("remove " + step(1) + "/manifest.json", "flush " + step(1),
                          "remove " + step(1) + "/server.safetensors", "remove " + step(1)));
}

TEST_F(CheckpointOrderTest, NoFileOfAnOldStepGoesIfItsManifestsRemovalMayNotBeOnTheDisk) {
  for (const char* failing : {"remove %/manifest.json", "flush %"}) {
    fs::remove_all(root());
    trail_.failing.clear();
    ASSERT_EQ(save(1), absl::OkStatus());
    trail_.failing = absl::StrReplaceAll(failing, {{"%", step(1)}});
    EXPECT_EQ(save(2).code(), absl::StatusCode::kAborted) << "saved, but not all is removed";
    EXPECT_TRUE(fs::exists(step(1) + "/server.safetensors")) << failing;
    trail_.failing.clear();
    ASSERT_EQ(save(3), absl::OkStatus());
    EXPECT_FALSE(fs::exists(step(1)));
    EXPECT_FALSE(fs::exists(step(2)));
  }
}

TEST_F(CheckpointOrderTest, AStepOfARemovalThatWasCutOffIsFlushedBeforeItsFilesGo) {
  ASSERT_EQ(save(1), absl::OkStatus());
  fs::remove(step(1) + "/manifest.json");  // as if the writer had died after this
  trail_.done.clear();
  ASSERT_EQ(save(2), absl::OkStatus());
  EXPECT_THAT(done_in(step(1)),
              ElementsAre("flush " + step(1), "remove " + step(1) + "/server.safetensors",
                          "remove " + step(1)));
}

TEST_F(CheckpointOrderTest, AFolderThatSomebodyElseMadeIsOnTheDiskBeforeTheManifestIs) {
  for (const std::string& folder : {scratch_.string(), root()}) {
    fs::remove_all(root());
    trail_.failing = "flush " + folder;  // the folder in it exists, but may not be on the disk
    ASSERT_FALSE(save(1).ok());
    ASSERT_TRUE(fs::exists(root()));
    ASSERT_FALSE(fs::exists(step(1) + "/manifest.json"));
    trail_ = {};
    ASSERT_EQ(save(1), absl::OkStatus());
    ASSERT_THAT(trail_.done, Contains("flush " + folder));
    const auto manifest = "rename to " + step(1) + "/manifest.json";
    ASSERT_THAT(trail_.done, Contains(manifest));
    EXPECT_LT(std::find(trail_.done.begin(), trail_.done.end(), "flush " + folder),
              std::find(trail_.done.begin(), trail_.done.end(), manifest));
  }
}

TEST_F(CheckpointOrderTest, AnEmptyFolderMadeByHandIsOnTheDiskBeforeTheManifestIs) {
  fs::create_directories(step(1));
  ASSERT_EQ(save(1), absl::OkStatus());
  EXPECT_THAT(trail_.done, Contains("flush " + root()));
  EXPECT_THAT(done_in("mkdir"), IsEmpty());
}

}  // namespace
}  // namespace weft
