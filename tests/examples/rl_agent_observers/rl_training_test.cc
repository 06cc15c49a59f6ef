// The agent's main thread: an observer that goes while it is idle, and runs that are under way when
// enough has been learned.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/examples/rl_agent_observers/training.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/worker_world.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using weft::testing::eventually;
using weft::testing::WorkerWorld;

// Two observers take part in a lockstep of three: they wait.
TEST(RlTraining, AnObserverThatGoesWhileItWaitsEndsTheLockstepByName) {
  WorkerWorld world(3);
  {
    const WorkerScope scope(world[0]);
    TrainingOptions options;
    options.agent.lockstep = 3;
    options.deterministic = true;
    Training training(world[0], options);
    std::thread killer([&] {  // once the observer takes part
      EXPECT_TRUE(eventually([&] { return world[1].debug_info().owned_values == 1; }));
      world.kill(1);
    });
    EXPECT_THAT([&] { training.run(); },
                ThrowsMessage<std::runtime_error>(HasSubstr("the lockstep has lost worker1")));
    killer.join();
  }
  wait_all<void>({world[0].shutdown_async(), world[2].shutdown_async()});
}

TEST(RlTraining, RunsThatDoNotComeBackAreCancelledAtTheEnd) {
  WorkerWorld world(3);
  {
    const WorkerScope scope(world[0]);
    TrainingOptions options;
    options.updates = 1;
    options.grace_seconds = 0;
    options.steps = 100'000'000;
    Training training(world[0], options);
    training.run();
  }
  world.shutdown_all();
}

}  // namespace
}  // namespace weft::examples
