// Shared memory first, otherwise the other transport: which errors lead to the second way.
#include "weft/rpc/same_host/fallback_transport.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/tests/rpc/transport/recorder.h"

namespace weft {
namespace {

using testing::Recorder;

// A transport that keeps what it is asked for, and answers as the test says.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(std::string address) : address_(std::move(address)) {}

  struct Dial {
    std::string address;
    TimePoint deadline;
    ConnectCallback callback;
  };
  std::vector<Dial> dials;
  absl::Status listens;
  bool started = false;
  std::function<void()> on_stop = [] {};

  absl::Status listen() override { return listens; }
  std::string address() const override { return address_; }
  absl::Status start(PeerIdentity, TransportSink*) override {
    started = true;
    return absl::OkStatus();
  }
  void connect(const std::string& address, const PeerIdentity&, TimePoint deadline,
               ConnectCallback callback) override {
    dials.push_back({address, deadline, std::move(callback)});
  }
  void stop() override { on_stop(); }

 private:
  const std::string address_;
};

class FallbackTest : public ::testing::Test {
 protected:
  void start() {
    EXPECT_TRUE(transport_.listen().ok());
    EXPECT_TRUE(transport_.start({}, &sink_).ok());
  }
  void dial(const std::string& address, Nanoseconds patience = std::chrono::seconds(6)) {
    transport_.connect(
        address, {"group", "far", {1, 1}}, clock_.now() + patience,
        [this](absl::StatusOr<ConnectionPtr> result) { results_.push_back(result.status()); });
  }
  // Dials the address of a worker with shared memory, and answers the local dial.
  void dial_and_fail(absl::Status why) {
    start();
    dial("far:1;local");
    ASSERT_EQ(local_.dials.size(), 1u);
    EXPECT_TRUE(other_.dials.empty());
    local_.dials[0].callback(std::move(why));
  }

  ManualClock clock_;
  Recorder sink_;
  FakeTransport& local_ = *new FakeTransport("local");
  FakeTransport& other_ = *new FakeTransport("host:1");
  FallbackTransport transport_{clock_, std::unique_ptr<Transport>(&local_),
                               std::unique_ptr<Transport>(&other_)};
  std::vector<absl::Status> results_;
};

TEST_F(FallbackTest, TheAddressHasBothParts) {
  start();
  EXPECT_EQ(transport_.address(), "host:1;local");
  EXPECT_TRUE(local_.started && other_.started);
}

TEST_F(FallbackTest, WithoutSharedMemoryTheOtherTransportDoesAll) {
  local_.listens = absl::ResourceExhaustedError("no memory");
  start();
  EXPECT_EQ(transport_.address(), "host:1");
  EXPECT_FALSE(local_.started);
  dial("far:1;local");
  EXPECT_TRUE(local_.dials.empty());
  ASSERT_EQ(other_.dials.size(), 1u);
  EXPECT_EQ(other_.dials[0].address, "far:1");
}

TEST_F(FallbackTest, AWorkerMayUseNoSharedMemoryAmongOthersThatDo) {
  FakeTransport& other = *new FakeTransport("host:2");
  FallbackTransport transport(clock_, nullptr, std::unique_ptr<Transport>(&other));
  ASSERT_TRUE(transport.listen().ok());
  ASSERT_TRUE(transport.start({}, &sink_).ok());
  EXPECT_EQ(transport.address(), "host:2");
  transport.connect("far:1;local", {"group", "far", {1, 1}}, kNever,
                    [](absl::StatusOr<ConnectionPtr>) {});
  ASSERT_EQ(other.dials.size(), 1u);
  EXPECT_EQ(other.dials[0].address, "far:1");
}

TEST_F(FallbackTest, WhatTheOtherTransportCannotDoIsAnError) {
  other_.listens = absl::UnavailableError("no port");
  EXPECT_EQ(transport_.listen(), other_.listens);
}

TEST_F(FallbackTest, AnAddressWithoutALocalPartIsDialledTheOtherWay) {
  start();
  dial("far:1");
  EXPECT_TRUE(local_.dials.empty());
  ASSERT_EQ(other_.dials.size(), 1u);
  EXPECT_EQ(other_.dials[0].address, "far:1");
  EXPECT_EQ(other_.dials[0].deadline, clock_.now() + std::chrono::seconds(6));
}

TEST_F(FallbackTest, AConnectionOfSharedMemoryIsTheResult) {
  start();
  dial("far:1;local");
  ASSERT_EQ(local_.dials.size(), 1u);
  EXPECT_EQ(local_.dials[0].address, "local");
  local_.dials[0].callback(ConnectionPtr());
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_TRUE(results_[0].ok());
  EXPECT_TRUE(other_.dials.empty());
}

TEST_F(FallbackTest, ARefusalOfTheFarEndIsTheResult) {
  dial_and_fail(answer_of_peer(absl::PermissionDeniedError("not you")));
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_TRUE(absl::IsPermissionDenied(results_[0]));
  EXPECT_TRUE(other_.dials.empty());
}

TEST_F(FallbackTest, AnyOtherErrorLeadsToTheOtherTransport) {
  dial_and_fail(absl::PermissionDeniedError("another user's process"));
  EXPECT_TRUE(results_.empty());
  ASSERT_EQ(other_.dials.size(), 1u);
  EXPECT_EQ(other_.dials[0].address, "far:1");
  EXPECT_EQ(other_.dials[0].deadline, clock_.now() + std::chrono::seconds(6));
  other_.dials[0].callback(absl::UnavailableError("nobody there"));
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(results_[0]));
}

TEST_F(FallbackTest, SharedMemoryGetsHalfOfTheTimeAndAtMost10Seconds) {
  start();
  dial("far:1;local", std::chrono::seconds(6));
  dial("far:1;local", std::chrono::hours(1));
  transport_.connect("far:1;local", {}, kNever, [](absl::StatusOr<ConnectionPtr>) {});
  ASSERT_EQ(local_.dials.size(), 3u);
  EXPECT_EQ(local_.dials[0].deadline, clock_.now() + std::chrono::seconds(3));
  EXPECT_EQ(local_.dials[1].deadline, clock_.now() + std::chrono::seconds(10));
  EXPECT_EQ(local_.dials[2].deadline, clock_.now() + std::chrono::seconds(10));
}

TEST_F(FallbackTest, SharedMemoryStopsFirstBecauseItsDialsGoOnElsewhere) {
  start();
  std::string order;
  local_.on_stop = [&] { order += "local "; };
  other_.on_stop = [&] { order += "other "; };
  transport_.stop();
  EXPECT_EQ(order, "local other ");
  local_.on_stop = other_.on_stop = [] {};
}

}  // namespace
}  // namespace weft
