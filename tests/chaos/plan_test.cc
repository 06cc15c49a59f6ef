// Plans depend only on their seed, and leave enough workers without a fault.
#include "weft/tests/chaos/plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/faults/fail_point.h"
#include "weft/tests/chaos/network/network.h"

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

PlanOptions options(uint64_t seed) {
  PlanOptions options;
  options.seed = seed;
  options.length = std::chrono::minutes(10);
  options.proxied = {0, 2};
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    options.kinds.push_back(static_cast<FaultKind>(kind));
  }
  return options;
}

TEST(PlanTest, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const auto shape = [](uint64_t seed) {
    std::string text;
    for (const Fault& fault : make_plan(options(seed))) {
      text += std::to_string(static_cast<int>(fault.kind)) + "@" +
              std::to_string(fault.at.count()) + " ";
    }
    return text;
  };
  EXPECT_EQ(shape(1), shape(1));
  EXPECT_NE(shape(1), shape(2));
}

TEST(PlanTest, HasEveryKindAndKeepsHalfOfTheWorkersWell) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const PlanOptions asked = options(seed);
    std::set<FaultKind> kinds;
    std::map<size_t, milliseconds> suffers_until;
    milliseconds last{0};
    for (const Fault& fault : make_plan(asked)) {
      kinds.insert(fault.kind);
      EXPECT_GE(fault.at, last);
      last = fault.at;
      EXPECT_LE(fault.at + fault.length, asked.length) << "seed " << seed;
      EXPECT_LE(suffers_until[fault.slot], fault.at) << "seed " << seed;
      suffers_until[fault.slot] = fault.at + fault.length;
      const auto suffering =
          std::count_if(suffers_until.begin(), suffers_until.end(),
                        [&](const auto& slot) { return slot.second > fault.at; });
      EXPECT_LE(2 * static_cast<size_t>(suffering), asked.workers) << "seed " << seed;
      const bool proxy = fault.kind == FaultKind::kProxyDelay ||
                         fault.kind == FaultKind::kProxyTruncate ||
                         fault.kind == FaultKind::kProxyHang || fault.kind == FaultKind::kProxyFlip;
      EXPECT_TRUE(!proxy || fault.slot == 0 || fault.slot == 2);
    }
    // kFailPoint is not in plans.
    EXPECT_EQ(kinds.size(), static_cast<size_t>(kFaultKinds) - 1) << "seed " << seed;
  }
}

TEST(PlanTest, KeepsFaultsApart) {
  PlanOptions asked = options(1);
  asked.kinds = {FaultKind::kStop, FaultKind::kIsolate};
  asked.apart = milliseconds(4000);
  const std::vector<Fault> plan = make_plan(asked);
  ASSERT_GT(plan.size(), 20u);
  for (size_t i = 1; i < plan.size(); ++i) {
    EXPECT_GE(plan[i].at - (plan[i - 1].at + plan[i - 1].length), *asked.apart) << i;
  }
}

TEST(PlanTest, NamesEveryKindThatCanBeHadAlone) {
  const std::vector<std::string> names = fault_names();
  EXPECT_EQ(names.size(), static_cast<size_t>(kFaultKinds) - 2);
  std::set<FaultKind> kinds;
  for (const std::string& name : names) {
    ASSERT_TRUE(named_fault(name).has_value()) << name;
    kinds.insert(*named_fault(name));
  }
  EXPECT_EQ(kinds.size(), names.size());
  EXPECT_EQ(kinds.count(FaultKind::kFailPoint) + kinds.count(FaultKind::kProxyFlip), 0u);
  EXPECT_EQ(named_fault("stop"), FaultKind::kStop);
  EXPECT_EQ(named_fault(""), std::nullopt);
  EXPECT_EQ(named_fault("flood"), std::nullopt);
}

TEST(PlanTest, ArmsFailPointsThatCanBeRead) {
  size_t armed = 0;
  for (uint64_t spawn = 0; spawn < 300; ++spawn) {
    const std::optional<std::string> variable = fail_point_for(1, spawn);
    if (!variable) continue;
    ++armed;
    EXPECT_TRUE(base_internal::parse_fail_point(*variable).has_value()) << *variable;
  }
  EXPECT_GT(armed, 150u);
  EXPECT_LT(armed, 250u);
}

// The list and the code name the same fail points.
TEST(PlanTest, KnowsEveryFailPointOfTheTree) {
  std::set<std::string> found;
  const std::regex point("WEFT_FAIL_POINT\\(\"([^\"]+)\"\\)");
  for (const char* room : {"base", "async", "shm", "checkpoint", "comm", "rpc", "rref",
                           "dist_autograd", "dist_optim", "ddp", "worker"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(WEFT_SOURCE_DIR) / room)) {
      if (entry.path().extension() != ".cc") continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string source = text.str();
      for (std::sregex_iterator match(source.begin(), source.end(), point), end; match != end;
           ++match) {
        EXPECT_TRUE(found.insert((*match)[1]).second) << (*match)[1] << " is in two places";
      }
    }
  }
  const std::set<std::string> listed(fail_points().begin(), fail_points().end());
  EXPECT_EQ(found, listed);
}

TEST(NftScriptTest, ReplacesWhatWasThereAndSaysWhatIsDropped) {
  EXPECT_THAT(nft_script({}), Not(HasSubstr("chain")));
  const std::string both = nft_script({.peers = {"10.0.0.1", "10.0.0.2"}});
  EXPECT_THAT(both, HasSubstr("delete table inet chaos"));
  EXPECT_THAT(both, HasSubstr("ip saddr { 10.0.0.1, 10.0.0.2 } drop"));
  EXPECT_THAT(both, HasSubstr("ip daddr { 10.0.0.1, 10.0.0.2 } drop"));
  EXPECT_THAT(nft_script({.peers = {"10.0.0.1"}, .in = false}), Not(HasSubstr("saddr")));
  EXPECT_THAT(nft_script({.peers = {"10.0.0.1"}, .permille = 50}),
              HasSubstr("numgen random mod 1000 < 50 drop"));
  const std::string reset = nft_script({.peers = {"10.0.0.1"}, .reset = true});
  EXPECT_THAT(reset, HasSubstr("reject with tcp reset"));
  EXPECT_THAT(reset, Not(HasSubstr("daddr")));
}

}  // namespace
}  // namespace weft::chaos
