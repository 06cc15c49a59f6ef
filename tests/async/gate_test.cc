#include "weft/async/gate.h"

#include <memory>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "weft/async/future.h"

namespace weft::rpc_internal {
namespace {

struct Driver {
  int visits = 0;
};

TEST(GateTest, LetsNobodyInOnceItIsClosed) {
  Driver driver;
  async_internal::Gate<Driver> gate(driver);
  gate.enter([](Driver& inside) { ++inside.visits; });
  gate.close();
  gate.enter([](Driver& inside) { ++inside.visits; });
  EXPECT_EQ(driver.visits, 1);
}

TEST(GateTest, AVisitorThatThrowsHasLeft) {
  Driver driver;
  const auto gate =
      std::make_shared<async_internal::Gate<Driver>>(driver);  // outlives a close() that hangs
  EXPECT_THROW(gate->enter([](Driver&) { throw std::runtime_error("in the gate"); }),
               std::runtime_error);
  Promise<void> closed(nullptr);
  const Future<void> done = closed.future();
  std::thread([gate, closed = std::move(closed)]() mutable {
    gate->close();
    closed.set_value();
  }).detach();
  EXPECT_TRUE(done.wait_for(std::chrono::seconds(60))) << "close() waits for the one that threw";
}

}  // namespace
}  // namespace weft::rpc_internal
