// Which connection is given up when there are too many whose far ends have proven nothing.
#include "weft/links/unproven_connections.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kStart{};
constexpr UnprovenConnections::Ages kAtOnce = {Nanoseconds(0), Nanoseconds(0)};

TEST(UnprovenConnectionsTest, TheHostWithTheMostLosesItsOldest) {
  UnprovenConnections connections(4, kAtOnce);
  EXPECT_EQ(connections.to_give_up(kStart), std::nullopt);
  connections.add(1, "10.0.0.1", kStart);
  for (uint64_t i = 2; i <= 4; ++i) {
    EXPECT_FALSE(connections.full());
    connections.add(i, "10.0.0.2", kStart);
  }
  EXPECT_TRUE(connections.full());
  EXPECT_EQ(connections.to_give_up(kStart), 2u);
  connections.remove(2);
  connections.remove(2);
  EXPECT_FALSE(connections.full());
  EXPECT_EQ(connections.to_give_up(kStart), 3u);
}

TEST(UnprovenConnectionsTest, AmongEqualHostsTheOldestConnectionGoes) {
  UnprovenConnections connections(2, kAtOnce);
  connections.add(1, "10.0.0.1", kStart);
  connections.add(2, "10.0.0.2", kStart);
  EXPECT_EQ(connections.to_give_up(kStart), 1u);
}

TEST(UnprovenConnectionsTest, AHostLosesItsSilentConnectionsFirst) {
  UnprovenConnections connections(4, kAtOnce);
  for (uint64_t i = 1; i <= 3; ++i) connections.add(i, "10.0.0.1", kStart);
  connections.add(4, "10.0.0.2", kStart);
  connections.speaks(1);
  EXPECT_EQ(connections.to_give_up(kStart), 2u);
  connections.speaks(2);
  connections.speaks(3);
  EXPECT_EQ(connections.to_give_up(kStart), 1u);  // not the silent one of the other host
  EXPECT_EQ(connections.silent_to_give_up(kStart), 4u);
}

TEST(UnprovenConnectionsTest, ThoseThatAreYoungOrSpeakMayStay) {
  UnprovenConnections connections(3, {.silent = seconds(1), .speaking = Nanoseconds::max()});
  for (uint64_t i = 1; i <= 2; ++i) connections.add(i, "10.0.0.1", kStart);
  connections.add(3, "10.0.0.2", kStart);
  connections.speaks(1);
  connections.speaks(2);
  EXPECT_EQ(connections.to_give_up(kStart), std::nullopt);
  EXPECT_EQ(connections.silent_to_give_up(kStart), std::nullopt);
  EXPECT_EQ(connections.to_give_up(kStart + seconds(1)), 3u);
  EXPECT_EQ(connections.silent_to_give_up(kStart + seconds(1)), 3u);
  connections.speaks(3);
  EXPECT_EQ(connections.to_give_up(kStart + seconds(1000)), std::nullopt);
}

TEST(UnprovenConnectionsTest, TheAddressesOfOneIpv6NetworkAreOneHost) {
  UnprovenConnections connections(3, kAtOnce);
  connections.add(1, "2001:db8:0:2::1", kStart);
  connections.add(2, "2001:db8:0:1::1", kStart);
  connections.add(3, "2001:db8:0:1:ffff::2", kStart);
  EXPECT_EQ(connections.to_give_up(kStart), 2u);
  connections.add(4, "fe80::1%eth0", kStart);
  connections.add(5, "fe80::2%eth0", kStart);
  connections.add(6, "fe80::3%eth1", kStart);
  EXPECT_EQ(connections.to_give_up(kStart), 4u);
}

TEST(UnprovenConnectionsTest, KnowsThoseThatAreLate) {
  UnprovenConnections connections(9, kAtOnce);
  for (uint64_t i = 1; i <= 3; ++i) connections.add(i, "10.0.0.1", kStart + seconds(i));
  EXPECT_EQ(connections.oldest(), kStart + seconds(1));
  EXPECT_THAT(connections.until(kStart), IsEmpty());
  EXPECT_THAT(connections.until(kStart + seconds(2)), ElementsAre(1, 2));
  for (uint64_t i = 1; i <= 3; ++i) connections.remove(i);
  EXPECT_EQ(connections.oldest(), std::nullopt);
}

}  // namespace
}  // namespace weft
