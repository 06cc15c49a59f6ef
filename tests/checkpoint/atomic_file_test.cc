#include "weft/checkpoint/atomic_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_atomic_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = (folder_ / "state").string();
    std::ofstream(path_) << "old";
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder_), {})); }
  // Checks that the old file is whole and that no other file lies beside it.
  void expect_untouched() const {
    EXPECT_EQ(read(path_), "old");
    EXPECT_EQ(files(), 1);
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(AtomicFileTest, ReplacesTheContentAndLeavesNoTemporaryFile) {
  ASSERT_TRUE(write_file_atomically(path_, "new").ok());
  EXPECT_EQ(read(path_), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, ShowsNothingBeforeCommit) {
  absl::StatusOr<AtomicFile> file = AtomicFile::create(path_);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("ne").ok());
  EXPECT_EQ(read(path_), "old");
  ASSERT_TRUE(file->append("w").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(read(path_), "new");
}

TEST_F(AtomicFileTest, RemovesTheTemporaryFileWhenAbandoned) {
  {
    absl::StatusOr<AtomicFile> file = AtomicFile::create(path_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append("half").ok());
    EXPECT_EQ(files(), 2);
  }
  expect_untouched();
}

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFile) {
  FileCalls calls = FileCalls::system();
  calls.write = [](int descriptor, const void* data, size_t size) -> ssize_t {
    if (size > 4) return ::write(descriptor, data, 4);  // room for four bytes, then none
    errno = ENOSPC;
    return -1;
  };
  absl::Status status = write_file_atomically(path_, "longer", calls);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("No space left"), absl::string_view::npos) << status;
  expect_untouched();
}

TEST_F(AtomicFileTest, ABrokenDiskAtWriteFlushOrRenameLeavesTheOldFile) {
  const auto broken = [](auto...) {
    errno = EIO;
    return -1;
  };
  FileCalls write = FileCalls::system();
  write.write = [](int, const void*, size_t) -> ssize_t {
    errno = EIO;
    return -1;
  };
  FileCalls flush = FileCalls::system();
  flush.fsync = [](int) {
    errno = EIO;
    return -1;
  };
  FileCalls rename = FileCalls::system();
  rename.rename = broken;
  for (const FileCalls& calls : {write, flush, rename}) {
    absl::Status status = write_file_atomically(path_, "new", calls);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    expect_untouched();
  }
}

TEST_F(AtomicFileTest, FinishesShortAndInterruptedWrites) {
  static int calls_made;
  calls_made = 0;
  FileCalls calls = FileCalls::system();
  calls.write = [](int descriptor, const void* data, size_t) -> ssize_t {
    if (++calls_made % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    return ::write(descriptor, data, 1);
  };
  ASSERT_TRUE(write_file_atomically(path_, "letter by letter", calls).ok());
  EXPECT_EQ(read(path_), "letter by letter");
}

TEST_F(AtomicFileTest, SaysThatTheFileIsInPlaceWhenOnlyTheFolderFlushFails) {
  static int flushes;
  flushes = 0;
  FileCalls calls = FileCalls::system();
  calls.fsync = [](int descriptor) {
    if (++flushes == 1) return ::fsync(descriptor);
    errno = EIO;
    return -1;
  };
  absl::Status status = write_file_atomically(path_, "new", calls);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("is written but"), absl::string_view::npos) << status;
  EXPECT_EQ(read(path_), "new");
}

TEST_F(AtomicFileTest, FlushesTheFileBeforeTheRenameAndTheFolderAfterIt) {
  static std::string order;
  order.clear();
  FileCalls calls;
  calls.write = [](int descriptor, const void* data, size_t size) {
    order += "w";
    return ::write(descriptor, data, size);
  };
  calls.fsync = [](int descriptor) {
    order += "f";
    return ::fsync(descriptor);
  };
  calls.rename = [](const char* from, const char* to) {
    order += "r";
    return ::rename(from, to);
  };
  ASSERT_TRUE(write_file_atomically(path_, "new", calls).ok());
  EXPECT_EQ(order, "wfrf");
}

TEST_F(AtomicFileTest, WhatMayNotReplaceTheOldFileLeavesItWhenAllIsFlushed) {
  static bool flushed;
  flushed = false;
  FileCalls calls = FileCalls::system();
  calls.fsync = [](int descriptor) {
    flushed = true;
    return ::fsync(descriptor);
  };
  absl::StatusOr<AtomicFile> file = AtomicFile::create(path_, calls);
  ASSERT_TRUE(file.ok() && file->append("new").ok());
  const absl::Status refused = file->commit([&] {
    EXPECT_TRUE(flushed);
    EXPECT_EQ(read(path_), "old");
    return absl::FailedPreconditionError("not yours");
  });
  EXPECT_EQ(refused, absl::FailedPreconditionError("not yours"));
  expect_untouched();
}

TEST_F(AtomicFileTest, NamesTheFolderThatIsMissingAndThePathThatIsNoFile) {
  absl::Status missing = write_file_atomically((folder_ / "none" / "x").string(), "");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("none"), absl::string_view::npos) << missing;
  EXPECT_EQ(write_file_atomically("", "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(write_file_atomically(folder_.string() + "/", "").code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft
