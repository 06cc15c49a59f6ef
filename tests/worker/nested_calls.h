// Shared parts of tests of calls inside calls: workers over each transport, and a call chain to and
// fro.
//
// Thread safety: free functions; `executed` is atomic and counts for the whole process.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"

namespace nested_calls {

class OverTransports : public ::testing::TestWithParam<weft::testing::TransportKind> {
 protected:
  static weft::testing::WorkerWorld::Customize over_transport(
      weft::testing::WorkerWorld::Customize customize) {
    return weft::testing::WorkerWorld::over(GetParam(), std::move(customize));
  }
};

inline std::atomic<int64_t> executed{0};  // counts the handlers of nest()

// Runs on worker `here`, which calls `there`, which calls back, `depth` levels deep. Returns
// `depth`.
inline int64_t nest(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(nest);
inline int64_t nest(const std::string& here, const std::string& there, int64_t depth) {
  executed.fetch_add(1);
  return depth == 0 ? 0 : 1 + weft::rpc_sync(there, nest, there, here, depth - 1);
}

}  // namespace nested_calls
