// Groups on several hosts, whose tensors travel in clear: some warn, and some are refused.
#include "weft/comm/plain_traffic.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/tests/base/captured_log.h"
#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlainTrafficTest : public ::testing::Test {
 protected:
  // What each rank is told when it joins; "" if it has joined. `hosts` has one letter per rank.
  std::vector<std::string> join(const std::string& hosts, const std::vector<PlainTraffic>& traffic,
                                const std::string& backend = "weft") {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const int size = static_cast<int>(hosts.size());
    std::vector<std::string> failures(hosts.size());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto at = static_cast<size_t>(rank);
        ProcessGroupOptions options = group_options(rank, size, store);
        options.host = hosts.substr(at, 1);
        options.plain_traffic = traffic[at];
        options.backend = backend;
        failures[at] = failure_of([&] { init_process_group(options)->barrier(); });
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return failures;
  }
  std::vector<std::string> lines() { return log_.lines_with("in clear"); }

 private:
  const testing::CapturedLog log_;
};

constexpr PlainTraffic kAllow = PlainTraffic::kAllow, kWarn = PlainTraffic::kWarn,
                       kRefuse = PlainTraffic::kRefuse;

TEST_F(PlainTrafficTest, AGroupOnOneHostSendsNothingInClear) {
  EXPECT_THAT(join("aa", {kRefuse, kRefuse}), Each(""));
  EXPECT_THAT(join("aa", {kWarn, kWarn}), Each(""));
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(PlainTrafficTest, AGroupOnSeveralHostsWarnsOnceOnEachRank) {
  EXPECT_THAT(join("ab", {kWarn, kWarn}), Each(""));
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("between 2 hosts in clear"), HasSubstr("2 hosts")));
}

TEST_F(PlainTrafficTest, AllowedTrafficIsNotMentioned) {
  EXPECT_THAT(join("ab", {kAllow, kAllow}), Each(""));
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(PlainTrafficTest, IfOneRankRefusesNoRankJoins) {
  for (const std::string backend : {"weft", "gloo"}) {
    EXPECT_THAT(join("aba", {kAllow, kRefuse, kWarn}, backend),
                Each(AllOf(HasSubstr("on 2 hosts"), HasSubstr("rank 1 refuses that"),
                           HasSubstr("WEFT_PLAIN_COLLECTIVES=allow"))));
  }
}

}  // namespace
}  // namespace weft::testing
