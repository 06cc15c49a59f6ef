// Which connection is given up when there are too many whose far ends have proven nothing.
#include "weft/rpc/transport/internal/unproven_connections.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kStart{};

TEST(UnprovenConnectionsTest, TheHostWithTheMostLosesItsOldest) {
  UnprovenConnections connections(4);
  EXPECT_EQ(connections.add(1, "10.0.0.1", kStart), std::nullopt);
  for (uint64_t i = 2; i <= 4; ++i) {
    EXPECT_EQ(connections.add(i, "10.0.0.2", kStart), std::nullopt);
  }
  EXPECT_EQ(connections.add(5, "10.0.0.2", kStart), 2u);
  EXPECT_EQ(connections.add(6, "10.0.0.3", kStart), 3u);
  EXPECT_EQ(connections.size(), 4u);
}

TEST(UnprovenConnectionsTest, AmongEqualHostsTheOldestConnectionGoes) {
  UnprovenConnections connections(2);
  (void)connections.add(1, "10.0.0.1", kStart);
  (void)connections.add(2, "10.0.0.2", kStart);
  EXPECT_EQ(connections.add(3, "10.0.0.3", kStart), 1u);
}

TEST(UnprovenConnectionsTest, OneThatHasProvenItselfMakesRoom) {
  UnprovenConnections connections(2);
  (void)connections.add(1, "10.0.0.1", kStart);
  (void)connections.add(2, "10.0.0.1", kStart);
  connections.remove(1);
  connections.remove(1);
  EXPECT_EQ(connections.add(3, "10.0.0.1", kStart), std::nullopt);
  EXPECT_EQ(connections.add(4, "10.0.0.1", kStart), 2u);
}

TEST(UnprovenConnectionsTest, TheAddressesOfOneIpv6NetworkAreOneHost) {
  UnprovenConnections connections(3);
  (void)connections.add(1, "2001:db8:0:2::1", kStart);
  (void)connections.add(2, "2001:db8:0:1::1", kStart);
  (void)connections.add(3, "2001:db8:0:1:ffff::2", kStart);
  EXPECT_EQ(connections.add(4, "2001:db8:0:2::9", kStart), 1u);  // two each, so the oldest
  EXPECT_EQ(connections.add(5, "2001:db8:0:1::3", kStart), 2u);
}

TEST(UnprovenConnectionsTest, WithoutRoomNobodyStays) {
  UnprovenConnections connections(0);
  EXPECT_EQ(connections.add(1, "10.0.0.1", kStart), 1u);
  EXPECT_EQ(connections.oldest(), std::nullopt);
}

TEST(UnprovenConnectionsTest, GivesUpThoseThatAreLate) {
  UnprovenConnections connections(9);
  for (uint64_t i = 1; i <= 3; ++i) {
    (void)connections.add(i, "10.0.0.1", kStart + seconds(i));
  }
  EXPECT_EQ(connections.oldest(), kStart + seconds(1));
  EXPECT_THAT(connections.take_until(kStart), IsEmpty());
  EXPECT_THAT(connections.take_until(kStart + seconds(2)), ElementsAre(1, 2));
  EXPECT_EQ(connections.oldest(), kStart + seconds(3));
  EXPECT_EQ(connections.size(), 1u);
}

}  // namespace
}  // namespace weft::rpc_internal
