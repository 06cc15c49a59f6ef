// A file shows that a worker is a member of its group.
#include "weft/worker/ready_file.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/tests/base/temporary_folder.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace ready_file_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using weft::ReadyFile;
using weft::Worker;
using weft::WorkerOptions;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

class ReadyFileTest : public ::testing::Test {
 protected:
  WorkerOptions options(const WorkerWorld& world) const {
    WorkerOptions options = world.options_of("alone");
    options.ready_file = file_;
    return options;
  }

  const weft::testing::TemporaryFolder folder_;
  std::string file_ = folder_.path() + "/ready";
};

TEST_F(ReadyFileTest, ItExistsFromTheJoinToTheShutdown) {
  WorkerWorld world(weft::testing::TransportKind::kInproc);
  Worker& worker = world.join(options(world));
  std::string line;
  std::getline(std::ifstream(file_), line);
  EXPECT_EQ(line, "alone");
  worker.shutdown();
  EXPECT_FALSE(fs::exists(file_));
}

// Between the end of the earlier process and the join, a probe must not see its file.
TEST_F(ReadyFileTest, AnOldFileIsGoneBeforeTheWorkerJoins) {
  std::ofstream(file_) << "of an earlier process";
  WorkerWorld world(weft::testing::TransportKind::kInproc);
  WorkerOptions again = options(world);
  bool looked = false;
  again.transport = [&, make = again.transport](weft::Clock& clock) {
    looked = true;
    EXPECT_TRUE(fs::is_empty(folder_.path()));
    return make(clock);
  };
  world.join(again);
  EXPECT_TRUE(looked);
  EXPECT_TRUE(fs::exists(file_));
}

// A handle may keep the parts of a worker alive while its process has joined again.
TEST_F(ReadyFileTest, TheEndOfAnEarlierWorkerLeavesTheFileOfTheNext) {
  auto earlier = std::make_unique<ReadyFile>();
  ASSERT_TRUE(earlier->prepare(file_).ok());
  ASSERT_TRUE(earlier->make("earlier").ok());
  earlier->remove();
  ReadyFile next;
  ASSERT_TRUE(next.prepare(file_).ok());
  ASSERT_TRUE(next.make("next").ok());
  earlier.reset();
  EXPECT_TRUE(fs::exists(file_));
}

TEST_F(ReadyFileTest, AWorkerThatCannotJoinLeavesNoFile) {
  WorkerWorld world(weft::testing::TransportKind::kInproc);
  WorkerOptions bad = options(world);
  bad.allow_operators = {"no operator"};
  EXPECT_THROW(Worker::join(bad), weft::RpcError);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(ReadyFileTest, AFileThatCannotBeMadeIsNamedBeforeTheWorkerJoins) {
  file_ = folder_.path() + "/missing/ready";
  WorkerWorld world(weft::testing::TransportKind::kInproc);
  const auto error = error_of([&] { Worker::join(options(world)); });
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(error.message()), HasSubstr(file_));
}

}  // namespace ready_file_test
