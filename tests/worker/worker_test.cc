#include "weft/worker/worker.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using testing::WorkerWorld;
using namespace std::chrono_literals;

int64_t plus_one(int64_t value) { return value + 1; }
WEFT_REGISTER_FUNCTION(plus_one);

// Goes back and forth between two workers.
int64_t bounce(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(bounce);
int64_t bounce(const std::string& here, const std::string& there, int64_t depth) {
  if (depth == 0) return 0;
  return 1 + rpc_sync(there, bounce, there, here, depth - 1);
}

TEST(WorkerTest, CallsItsPeersAndItself) {
  WorkerWorld world(3);
  for (size_t from = 0; from < 3; ++from) {
    for (size_t to = 0; to < 3; ++to) {
      EXPECT_EQ(rpc_sync(world[from].to(world.name(to)), plus_one, 41), 42);
    }
  }
  world.shutdown_all();
}

TEST(WorkerTest, AWorkerScopeChoosesTheCaller) {
  WorkerWorld world(2);
  EXPECT_THROW(rpc_sync("worker1", plus_one, 1), RpcError);
  WorkerScope scope(world[0]);
  EXPECT_EQ(rpc_sync("worker1", plus_one, 1), 2);
}

}  // namespace
}  // namespace weft
