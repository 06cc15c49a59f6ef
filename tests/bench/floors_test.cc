#include "weft/bench/contestants/floors/floors.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/bench/contestants/floors/stamps.h"

namespace weft::bench {
namespace {

constexpr int kCalls = 200;
constexpr int64_t kMegabyte = 1 << 20;

// Both sides of a floor in one process. The driver, too, tells the server to serve before the
// client connects, and waits for neither.
class ConnectedFloor {
 public:
  explicit ConnectedFloor(const Contestant& floor)
      : server(floor.make_server()), client(floor.make_client()) {
    const absl::StatusOr<std::string> address = server->listen();
    EXPECT_TRUE(address.ok()) << address.status();
    std::thread serving([&] { EXPECT_TRUE(server->serve().ok()); });
    EXPECT_TRUE(client->connect(*address).ok());
    serving.join();
  }
  ~ConnectedFloor() {
    client->close();
    server->close();
  }

  std::unique_ptr<Server> server;
  std::unique_ptr<Client> client;
};

TEST(Floors, MemcpySendsAndEchoesButMakesNoSmallCall) {
  ConnectedFloor floor(memcpy_floor());
  for (const int64_t bytes : {kMegabyte, 4 * kMegabyte, kMegabyte}) {
    EXPECT_TRUE(floor.client->send(bytes).ok());
    EXPECT_TRUE(floor.client->echo(bytes).ok());
  }
  EXPECT_TRUE(absl::IsUnimplemented(floor.client->add()));
}

TEST(Floors, FutexAnswersEveryCallAndStopsWhileItSleeps) {
  ConnectedFloor floor(futex_floor());
  for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(floor.client->add().ok());
  EXPECT_TRUE(absl::IsUnimplemented(floor.client->send(kMegabyte)));
}

TEST(Floors, RawTcpCallsAndSendsInBothVariants) {
  for (const Contestant& variant : {raw_tcp_blocking_floor(), raw_tcp_spinning_floor()}) {
    SCOPED_TRACE(variant.name);
    EXPECT_EQ(variant.variant_of, "raw tcp");
    ConnectedFloor floor(variant);
    for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(floor.client->add().ok());
    // A tensor that is no multiple of the chunk, and sizes that change.
    for (const int64_t bytes : {kMegabyte, 3 * kMegabyte + 4096, kMegabyte}) {
      ASSERT_TRUE(floor.client->send(bytes).ok());
    }
    ASSERT_TRUE(floor.client->add().ok());
  }
}

TEST(Floors, RawTcpClientLearnsThatTheServerIsGone) {
  ConnectedFloor floor(raw_tcp_blocking_floor());
  ASSERT_TRUE(floor.client->add().ok());
  floor.server->close();
  EXPECT_FALSE(floor.client->add().ok());
}

TEST(Floors, StampsFindOldAndMissingData) {
  Stamps stamps;
  std::vector<float> tensor(4 * kSampledElements);
  stamps.write(tensor);
  std::vector<float> copy = tensor;
  EXPECT_TRUE(stamps.check(copy, Stamps::stride_of(copy)).ok());
  float samples[kSampledElements];
  take_samples(copy, samples);
  EXPECT_TRUE(stamps.check(samples, 1).ok());
  stamps.write(tensor);
  EXPECT_TRUE(absl::IsDataLoss(stamps.check(copy, Stamps::stride_of(copy))));
  copy = tensor;
  copy[4 * (kSampledElements - 1)] += 1;
  EXPECT_TRUE(absl::IsDataLoss(stamps.check(copy, Stamps::stride_of(copy))));
}

}  // namespace
}  // namespace weft::bench
