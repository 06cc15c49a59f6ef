#include "weft/bench/contestants/child.h"

#include <stdexcept>
#include <sys/socket.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/bench/fake_client.h"
#include "weft/tests/bench/fake_rank.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;
constexpr double kPatience = 20;

class ThrowingServer final : public Server {
 public:
  absl::StatusOr<std::string> listen() override {
    throw std::runtime_error("no socket\nframe #0: somewhere");
  }
  absl::Status serve() override { return absl::OkStatus(); }
};

class Child : public testing::Test {
 protected:
  Child() : ends_(*Channel::make_pair()) {}

  Json ask(const Json& command) {
    EXPECT_TRUE(ends_.first.send(command).ok());
    auto answer = ends_.first.receive(kPatience);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : Json();
  }

  // Runs the child's side on a thread beside `script`, and joins it.
  template <class ChildSide, class Script>
  void run(ChildSide child_side, Script script) {
    std::thread child([&] { child_side(ends_.second); });
    script();
    child.join();
  }

  std::pair<Channel, Channel> ends_;
  ManualClock clock_;
  FakeClient client_{clock_};
};

TEST_F(Child, ServerTellsAddressUsageAndLiveObjectsUntilItQuits) {
  FakeServer server;
  server.live_objects_ = 7;
  run([&](Channel& driver) { run_server(driver, server); },
      [&] {
        EXPECT_EQ(ask({{"do", "listen"}}).at("address"), "the address");
        EXPECT_TRUE(status_of_answer(ask({{"do", "serve"}})).ok());
        EXPECT_EQ(ask({{"do", "live"}}).at("objects"), 7);
        EXPECT_GT(ask({{"do", "usage"}}).at("usage").get<Usage>().cpu_seconds, 0);
        EXPECT_FALSE(server.closed_);
        ask({{"do", "quit"}});
      });
  EXPECT_TRUE(server.closed_);
}

TEST_F(Child, ClientConnectsRunsAndReportsTheWholeBlock) {
  run([&](Channel& driver) { run_client(driver, client_, clock_); },
      [&] {
        ask({{"do", "connect"}, {"address", "somewhere"}});
        const BlockResult result =
            ask({{"do", "run"}, {"row", "send 1 MB"}, {"seconds", 0.05}}).at("result");
        EXPECT_EQ(result.all_calls, client_.sends_);
        EXPECT_DOUBLE_EQ(result.bytes, static_cast<double>(result.calls) * (1 << 20));
        EXPECT_GE(result.seconds, 0.05);
        EXPECT_GT(result.median_us, 0);
        EXPECT_GT(result.p99_us, 0);
        ask({{"do", "quit"}});
      });
  EXPECT_EQ(client_.address_, "somewhere");
  EXPECT_TRUE(client_.closed_);
}

TEST_F(Child, RankListensJoinsRunsWhatItIsToldAndQuits) {
  FakeRank rank(clock_);
  run([&](Channel& driver) { run_rank(driver, rank, ddp_rows(), clock_); },
      [&] {
        EXPECT_EQ(ask({{"do", "listen"}}).at("address"), "the address");
        const Json joined = ask({{"do", "join"}, {"address", "the address"}});
        EXPECT_TRUE(status_of_answer(joined).ok());
        EXPECT_NEAR(joined.at("end").get<double>() - joined.at("begin").get<double>(), 1.5, 1e-6);
        const auto run_row = [&](const char* row) {
          return ask({{"do", "run"}, {"row", row}, {"warm_up", 1}, {"timed", 3}});
        };
        const BlockResult sums = run_row("allreduce 2 ranks 1 MB").at("result");
        EXPECT_EQ(sums.calls, 3);
        EXPECT_EQ(rank.sums_, 4);
        const BlockResult steps = run_row("ddp step communication").at("result");
        EXPECT_NEAR(steps.local_us, 3000 + 100, 1e-6);
        EXPECT_NEAR(steps.communication_us, 500, 1e-6);
        EXPECT_TRUE(absl::IsInvalidArgument(status_of_answer(run_row("small call"))));
        rank.prepare_status_ = absl::UnimplementedError("");
        EXPECT_TRUE(absl::IsUnimplemented(status_of_answer(run_row("allreduce 2 ranks 1 MB"))));
        ask({{"do", "quit"}});
      });
  EXPECT_EQ(rank.address_, "the address");
  EXPECT_TRUE(rank.closed_);
}

// The result of another build of the program, which has no training steps yet.
TEST_F(Child, ResultWithoutAStepsTimesIsWhole) {
  BlockResult result;
  result.calls = 3;
  Json json = result;
  json.erase("local_us");
  json.erase("communication_us");
  EXPECT_EQ(json.get<BlockResult>().calls, 3);
}

TEST_F(Child, ResultTravelsWhole) {
  BlockResult sent;
  sent.small_call_us = 1;
  sent.stream_gb_per_s = 2;
  sent.stream_alone_gb_per_s = 3;
  sent.footprint = {.threads = 4, .descriptors = 5, .private_mib = 6, .shared_mib = 7};
  const BlockResult result = Json(sent).get<BlockResult>();
  EXPECT_EQ(result.small_call_us, 1);
  EXPECT_EQ(result.stream_gb_per_s, 2);
  EXPECT_EQ(result.stream_alone_gb_per_s, 3);
  EXPECT_EQ(result.footprint.threads, 4);
  EXPECT_EQ(result.footprint.descriptors, 5);
  EXPECT_EQ(result.footprint.private_mib, 6);
  EXPECT_EQ(result.footprint.shared_mib, 7);
  EXPECT_EQ(Json::parse(R"({"calls": 1, "seconds": 1, "median_us": 1, "p99_us": 1, "bytes": 1,
                            "all_calls": 1, "usage": {"cpu_seconds": 1, "page_faults": 1,
                            "switches": 1}})")
                .get<BlockResult>()
                .footprint.threads,
            0);
}

TEST_F(Child, ErrorsKeepTheirCodeAndTheProcessGoesOn) {
  client_.fail_at_ = 1;
  run([&](Channel& driver) { run_client(driver, client_, clock_); },
      [&] {
        const auto run_row = [&](const char* row) {
          return status_of_answer(ask({{"do", "run"}, {"row", row}, {"seconds", 0.001}}));
        };
        EXPECT_EQ(run_row("small call"), absl::DataLossError("wrong sum"));
        EXPECT_TRUE(absl::IsUnimplemented(run_row("rref life")));
        EXPECT_TRUE(absl::IsInvalidArgument(run_row("no such row")));
        EXPECT_TRUE(absl::IsInvalidArgument(status_of_answer(ask({{"do", "dance"}}))));
        EXPECT_FALSE(status_of_answer(ask({{"do", "run"}})).ok());
        EXPECT_TRUE(run_row("small call").ok());
        ask({{"do", "quit"}});
      });
}

TEST_F(Child, WhatIsThrownBecomesItsFirstLine) {
  ThrowingServer server;
  run([&](Channel& driver) { run_server(driver, server); },
      [&] {
        EXPECT_EQ(status_of_answer(ask({{"do", "listen"}})), absl::UnknownError("no socket"));
        ask({{"do", "quit"}});
      });
}

TEST_F(Child, EndsWhenTheDriverIsGone) {
  FakeServer server;
  run([&](Channel& driver) { run_server(driver, server); },
      [&] { shutdown(ends_.first.socket(), SHUT_RDWR); });
  EXPECT_FALSE(server.closed_);
}

TEST_F(Child, ChannelTellsSilenceFromDeathAndFromNoise) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(ends_.first.receive(0).status()));
  ASSERT_EQ(::send(ends_.second.socket(), "{]\n", 3, 0), 3);
  EXPECT_TRUE(absl::IsInternal(ends_.first.receive(kPatience).status()));
  // Two messages in one packet, then the connection closes.
  ASSERT_EQ(::send(ends_.second.socket(), "1\n2\n", 4, 0), 4);
  shutdown(ends_.second.socket(), SHUT_RDWR);
  EXPECT_EQ(*ends_.first.receive(kPatience), 1);
  EXPECT_EQ(*ends_.first.receive(kPatience), 2);
  EXPECT_TRUE(absl::IsUnavailable(ends_.first.receive(kPatience).status()));
  EXPECT_TRUE(absl::IsUnavailable(ends_.first.send({{"do", "quit"}})));
}

TEST_F(Child, WaitingForAnyFindsTheOneThatSpokeOrEnded) {
  auto others = *Channel::make_pair();
  const std::vector<const Channel*> channels = {&ends_.first, &others.first};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Channel::wait_for_any(channels, 0).status()));
  ASSERT_EQ(::send(others.second.socket(), "1\n2\n", 4, 0), 4);
  EXPECT_EQ(*Channel::wait_for_any(channels, kPatience), 1u);
  EXPECT_EQ(*others.first.receive(kPatience), 1);
  EXPECT_EQ(*Channel::wait_for_any(channels, kPatience), 1u);  // both messages came together
  shutdown(ends_.second.socket(), SHUT_RDWR);
  EXPECT_EQ(*Channel::wait_for_any({&ends_.first}, kPatience), 0u);
}

}  // namespace
}  // namespace weft::bench
