// The membership core of worker 0 in a group of four; the test speaks for the other three.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/membership/internal/membership_core.h"

namespace weft::rpc_internal {

inline constexpr WorkerId kSelf{0, 1};
inline constexpr WorkerId kOne{1, 1};
inline constexpr WorkerId kTwo{2, 1};
inline constexpr WorkerId kThree{3, 1};

inline std::string text(const absl::Status& status) { return std::string(status.message()); }
inline absl::Status silent() { return absl::UnavailableError("cannot be reached"); }
inline absl::Status unheard() {
  return absl::DeadlineExceededError("no answer before the deadline");
}

class MembershipGroup : public ::testing::Test {
 protected:
  MembershipGroup() {
    core_.add({kOne, "one", "a1"});
    core_.add({kTwo, "two", "a2"});
    core_.add({kThree, "three", "a3"});
    core_.established();
  }

  // A later incarnation of a peer dials, and the group's records name it.
  void restart(const WorkerInfo& later, MembershipActions& out) {
    EXPECT_TRUE(absl::IsAborted(core_.admit(later, out)));
    EXPECT_TRUE(core_.compared(later, later, out));
  }

  TimePoint now_ = TimePoint() + std::chrono::seconds(100);
  MembershipCore core_{{kSelf, "me", "a0"}, LeaseOptions{}, now_};
};

}  // namespace weft::rpc_internal
