// Gives the workers of a TestWorld distributed autograd.
//
// The TestWorld stops it before it stops the agents, and fails if it still holds something then.
//
// Thread safety: a free function.
#pragma once

#include <memory>

#include "weft/tests/support/autograd_left.h"
#include "weft/tests/support/test_world.h"

namespace weft::testing {

// Use it as `TestWorld::Options::make_autograd`.
inline std::shared_ptr<AutogradHook> attach_autograd(TestWorld::Node& node) {
  auto driver = dist_autograd_internal::AutogradDriver::attach(node.runtime);
  node.stop_autograd = [driver = driver.get()] { driver->stop(); };
  node.autograd_left = [driver = driver.get()] { return autograd_left(*driver); };
  return driver;
}

}  // namespace weft::testing
