// Who may connect to a Worker, in each mode of WorkerOptions::security.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/tests/rpc/transport/recorder.h"
#include "weft/tests/support/worker_world.h"

namespace security_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;
using weft::WorkerOptions;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;
using Security = WorkerOptions::Security;

// How many TCP sockets of this process listen.
size_t listening_tcp_sockets() {
  std::set<std::string> inodes;
  for (const auto& descriptor : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(descriptor, gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  size_t count = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> fields(10);
      for (std::string& field : fields) words >> field;
      count += fields[3] == "0A" && inodes.contains(fields[9]);
    }
  }
  return count;
}

class WorkerSecurityTest : public testing::Test {
 protected:
  WorkerSecurityTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_security_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::ofstream(folder_ + "/secret") << "0123456789abcdef0123456789abcdef";
    fs::permissions(folder_ + "/secret", fs::perms::owner_read | fs::perms::owner_write);
    ::setenv("WEFT_SECRET_FILE", (folder_ + "/secret").c_str(), 1);
  }
  ~WorkerSecurityTest() override {
    ::unsetenv("WEFT_SECRET_FILE");
    ::unsetenv("WEFT_SECURITY");
    fs::remove_all(folder_);
  }

  static WorkerWorld::Customize with(Security security) {
    return WorkerWorld::over(TransportKind::kGrpc, [security](size_t, WorkerOptions& options) {
      options.security = security;
    });
  }
  // Dials worker1 without TLS, and says that it is worker0.
  absl::Status dial_in_clear(WorkerWorld& world, const std::string& security) {
    const std::vector<weft::WorkerInfo> workers = world[0].workers();
    weft::testing::Recorder sink;
    sink.expect_dialling();
    weft::GrpcTransport transport(clock_);
    EXPECT_TRUE(
        transport.start({"weft/0", workers[0].name, workers[0].id, "", security}, &sink).ok());
    weft::Promise<weft::ConnectionPtr> promise;
    const weft::Future<weft::ConnectionPtr> future = promise.future();
    transport.connect(
        workers[1].address, {"weft/0", workers[1].name, workers[1].id}, weft::kNever,
        [promise = std::move(promise)](auto result) { promise.set(std::move(result)); });
    const absl::Status status = future.result().status();
    transport.stop();
    return status;
  }

  std::string folder_;
  weft::SystemClock clock_;
};

TEST_F(WorkerSecurityTest, ByDefaultAGroupOnOneHostOpensNoTcpPort) {
  WorkerWorld world(2, with(Security::kAuto));
  for (const weft::WorkerInfo& worker : world[0].workers()) {
    EXPECT_THAT(worker.address, StartsWith("unix:"));
  }
  EXPECT_EQ(listening_tcp_sockets(), 0u);
  world.shutdown_all();
}

TEST_F(WorkerSecurityTest, WithMtlsAPeerInClearIsRefused) {
  WorkerWorld world(2, with(Security::kMtls));
  EXPECT_EQ(listening_tcp_sockets(), 2u);
  EXPECT_THAT(world[0].workers()[1].address, StartsWith("127.0.0.1:"));
  EXPECT_FALSE(dial_in_clear(world, "mtls").ok());
  world.shutdown_all();
}

TEST_F(WorkerSecurityTest, OnlyWithNoneAPeerInClearIsAccepted) {
  WorkerWorld world(2, with(Security::kNone));
  EXPECT_EQ(dial_in_clear(world, "none"), absl::OkStatus());
  world.shutdown_all();
}

// Shared memory would connect them.
TEST_F(WorkerSecurityTest, WorkersOfDifferentModesDoNotMeet) {
  WorkerWorld world(TransportKind::kSameHost);
  WorkerOptions first = world.options_of("first"), second = world.options_of("second");
  first.transport = second.transport = nullptr;
  second.security = Security::kNone;
  world.join(first);
  try {
    world.join(second);
    FAIL() << "it has joined";
  } catch (const weft::RpcError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(error.status().message()),
                HasSubstr("WEFT_SECURITY is auto here and none at the dialler"));
  }
  EXPECT_EQ(world[0].standing(), absl::OkStatus());
}

TEST_F(WorkerSecurityTest, TheVariableHasThreeValues) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    ::setenv(name, std::string(name) == "MASTER_ADDR" ? "127.0.0.1" : "1", 1);
  }
  ::setenv("RANK", "0", 1);
  EXPECT_EQ(WorkerOptions::from_env().security, Security::kAuto);
  ::setenv("WEFT_SECURITY", "mtls", 1);
  EXPECT_EQ(WorkerOptions::from_env().security, Security::kMtls);
  ::setenv("WEFT_SECURITY", "none", 1);
  EXPECT_EQ(WorkerOptions::from_env().security, Security::kNone);
  ::setenv("WEFT_SECURITY", "tls", 1);
  try {
    (void)WorkerOptions::from_env();
    FAIL() << "no error";
  } catch (const weft::RpcError& error) {
    EXPECT_THAT(std::string(error.status().message()),
                HasSubstr("WEFT_SECURITY='tls' is not auto, mtls or none"));
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
}

}  // namespace security_test
