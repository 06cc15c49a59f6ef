// The agent's main thread: an observer that goes while it is idle, and runs that are under way when
// enough has been learned.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/examples/rl_agent_observers/training.h"
#include "weft/tests/support/worker_world.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using weft::testing::WorkerWorld;

// Two observers take part in a lockstep of three: they wait.
TEST(RlTraining, AnObserverThatGoesWhileItWaitsEndsTheLockstepByName) {
  WorkerWorld world(3);
  {
    const WorkerScope scope(world[0]);
    TrainingOptions options;
    options.agent.lockstep = 3;
    options.deterministic = true;
    Events events;
    Training training(world[0], options, events);
    std::atomic<bool> over{false};
    std::thread others([&] {
      const Events::Event gone{Events::What::kGone, world[0].workers()[1],
                               absl::UnavailableError("killed")};
      while (!over) {  // until it has taken part
        events.push(gone);
        std::this_thread::yield();
      }
    });
    EXPECT_THAT([&] { training.run(); },
                ThrowsMessage<std::runtime_error>(HasSubstr("the lockstep has lost worker1")));
    over = true;
    others.join();
  }
  world.shutdown_all();
}

TEST(RlTraining, RunsThatDoNotComeBackAreCancelledAtTheEnd) {
  WorkerWorld world(3);
  {
    const WorkerScope scope(world[0]);
    TrainingOptions options;
    options.updates = 1;
    options.seconds = 3;
    options.steps = 100'000'000;
    Events events;
    Training training(world[0], options, events);
    training.run();
  }
  world.shutdown_all();
}

}  // namespace
}  // namespace weft::examples
