#include "weft/dist_autograd/passes/pass_core.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "weft/tests/dist_autograd/passes/backward_world.h"

namespace weft::dist_autograd_internal {
namespace {

using Counts = std::map<std::string, int>;
using Options = BackwardWorld::Options;
using StartOptions = ContextCore::StartOptions;

// A call chain through workers 0, 1, ... and back.
Program chain(int workers) {
  Program program;
  int value = program.leaf(0);
  for (int w = 0; w + 1 < workers; ++w) {
    const int received = program.send(w, w + 1, {value})[0];
    value = program.op(w + 1, {{received, 2}, {program.leaf(w + 1), 3}});
  }
  for (int w = workers - 1; w > 0; --w) {
    const int received = program.send(w, w - 1, {value})[0];
    value = program.op(w - 1, {{received, 5}});
  }
  program.roots = {{value, 1}};
  return program;
}

Counts messages_of(Program program, int workers, BackwardMode mode = BackwardMode::kDefault) {
  BackwardWorld world({.workers = workers, .in_order = true});
  const ContextId context = world.record(std::move(program), 0);
  const auto pass = world.start(context, {.mode = mode});
  world.run();
  EXPECT_EQ(world.broken(), "");
  EXPECT_TRUE(pass.ok() && world.committed(*pass));
  world.check_gradients(context);
  EXPECT_EQ(world.broken(), "");
  Counts counts = world.sent();
  counts.erase("PUBLISH");  // nobody waits for it; one per engaged worker, in every case
  return counts;
}

TEST(PassCore, TwoWorkersNeedTwoMessages) {
  EXPECT_EQ(messages_of(chain(2), 2), (Counts{{"GRAD", 2}}));
}

TEST(PassCore, AChainNeedsOneMessagePerHopAndNoReportOfItsOwn) {
  for (int workers = 3; workers <= 6; ++workers) {
    EXPECT_EQ(messages_of(chain(workers), workers), (Counts{{"GRAD", 2 * (workers - 1)}}));
  }
}

TEST(PassCore, APassOnOneWorkerSendsNothing) {
  Program program;
  const int leaf = program.leaf(0);
  program.send(0, 1, {leaf}, false);  // a call that failed
  const int twice = program.op(0, {{leaf, 2}, {program.send(0, 0, {leaf})[0], 3}});
  program.roots = {{twice, 1}};
  EXPECT_EQ(messages_of(std::move(program), 2), Counts{});
}

TEST(PassCore, AParameterServerCallWhoseInputNeedsNoGradientTakesOneReport) {
  Program program;  // the server's parameters get gradients, the caller's input none
  const int parameter = program.leaf(1);
  program.roots = {{program.op(0, {{program.send(1, 0, {parameter})[0], 1}}), 1}};
  EXPECT_EQ(messages_of(std::move(program), 2), (Counts{{"GRAD", 1}, {"REPORT", 1}}));
}

TEST(PassCore, ADiamondOverAThirdWorkerTakesOneGradPerEdge) {
  Program program;  // 0 -> 1 -> 2 -> 0 and 0 -> 2
  const int x = program.leaf(0);
  const int at1 = program.op(1, {{program.send(0, 1, {x})[0], 2}});
  const int left = program.send(1, 2, {at1})[0];
  const int right = program.send(0, 2, {x})[0];
  const int joined = program.op(2, {{left, 3}, {right, 5}});
  program.roots = {{program.op(0, {{program.send(2, 0, {joined})[0], 7}}), 1}};
  EXPECT_EQ(messages_of(std::move(program), 3), (Counts{{"GRAD", 4}}));
}

// An unused call on the path of a used one: x goes to worker 1 twice, and one result is thrown
// away.
Program unused_call() {
  Program program;
  const int x = program.leaf(0);
  const int used = program.op(1, {{program.send(0, 1, {x})[0], 2}});
  program.send(1, 0, {used});
  const int unused = program.op(1, {{program.send(0, 1, {x})[0], 9}});
  program.send(1, 0, {unused});
  program.roots = {{program.op(0, {{program.transfers[1].recvs[0], 3}}), 1}};
  return program;
}

TEST(PassCore, AnUnusedCallCostsOneDiscoveryWaveAndASeal) {
  // GRAD 0->1 and 1->0; the leaf waits for the unused call. ACTIVATE 0->1 and 1->0. SEAL to worker
  // 1, which cancels the unused reply and reports.
  EXPECT_EQ(messages_of(unused_call(), 2),
            (Counts{{"GRAD", 2}, {"ACTIVATE", 2}, {"SEAL", 1}, {"REPORT", 1}}));
}

TEST(PassCore, EagerModeDiscoversBeforeItFeeds) {
  EXPECT_EQ(messages_of(unused_call(), 2, BackwardMode::kEager),
            (Counts{{"GRAD", 2}, {"ACTIVATE", 2}, {"SEAL", 1}, {"REPORT", 1}}));
  EXPECT_EQ(messages_of(chain(3), 3, BackwardMode::kEager)["ACTIVATE"], 4);
}

TEST(PassCore, AllSendsModeNamesTheCallsThatGotNothing) {
  BackwardWorld world({.workers = 2, .in_order = true});
  const ContextId context = world.record(unused_call(), 0);
  const auto pass = world.start(context, {.mode = BackwardMode::kAllSends});
  world.run();
  const PassFailure& failure = world.ended().at(*pass);
  EXPECT_EQ(failure.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(failure.status.message().find("send(w0.1,3) on w0.1"), std::string::npos)
      << failure.status;
  EXPECT_EQ(world.sent().count("ACTIVATE"), 0u);
  EXPECT_TRUE(world.readable(1, context).empty());
  EXPECT_EQ(messages_of(chain(3), 3, BackwardMode::kAllSends), (Counts{{"GRAD", 4}}));
}

TEST(PassCore, AFailedNodeIsNamedAndNothingIsReadable) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    BackwardWorld world({.workers = 3, .seed = seed, .node_failures = 100});
    const ContextId context = world.record(chain(3), 0);
    const auto pass = world.start(context, {.retain_graph = true});
    world.run();
    const PassFailure& failure = world.ended().at(*pass);
    if (failure.status.ok()) continue;  // the pass never reached the node that was to fail
    EXPECT_EQ(failure.status.code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(failure.node, "Boom");
    EXPECT_TRUE(failure.worker.valid());
    for (int worker = 0; worker < 3; ++worker) {
      EXPECT_TRUE(world.readable(worker, context).empty());
    }
    // The context is still usable: the next pass works.
    const auto again = world.start(context, {.retain_graph = true});
    world.run();
    EXPECT_TRUE(world.committed(*again));
    world.check_gradients(context);
    EXPECT_EQ(world.broken(), "") << "seed " << seed;
  }
}

TEST(PassCore, ASecondBackwardNeedsRetainGraph) {
  BackwardWorld world({.workers = 2, .in_order = true});
  const ContextId context = world.record(chain(2), 0);
  for (bool retain : {true, false}) {
    const auto pass = world.start(context, {.retain_graph = retain});
    world.run();
    EXPECT_TRUE(world.committed(*pass));
  }
  world.check_gradients(context);  // two passes add up
  const auto third = world.start(context, {});
  world.run();
  EXPECT_EQ(world.ended().at(*third).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world.broken(), "");
}

TEST(PassCore, TheDeadlineSaysWhomItWaitedFor) {
  BackwardWorld world({.workers = 2, .in_order = true});
  const ContextId context = world.record(chain(2), 0);
  const auto pass = world.start(context, {.budget = absl::Seconds(1)});
  world.work(0);  // the GRAD is in flight and stays there
  world.fire_deadline(0, *pass);
  const absl::Status status = world.ended().at(*pass).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("waiting for w0.1, w1.1"), std::string::npos) << status;
  world.run();  // the abort reaches worker 1, in whatever order it comes
  EXPECT_EQ(world.core(1).standing(*pass), ContextCore::PassStanding::kUnknown);
  EXPECT_EQ(world.broken(), "");
}

TEST(PassCore, AWorkerWithoutADecisionDropsThePassAndSaysSo) {
  BackwardWorld world({.workers = 2, .in_order = true});
  const ContextId context = world.record(chain(2), 0);
  const auto pass = world.start(context, {.budget = absl::Seconds(1)});
  world.work(0);
  world.deliver(0);
  world.work(1);
  world.fire_deadline(1, *pass);  // its part fails; the initiator may still have committed
  EXPECT_EQ(world.core(1).standing(*pass), ContextCore::PassStanding::kRunning);
  world.fire_deadline(1, *pass);  // a second later
  EXPECT_EQ(world.core(1).standing(*pass), ContextCore::PassStanding::kDropped);
  EXPECT_TRUE(world.core(1).check_settled(context).ok()) << "nothing says that it was committed";
  AutogradActions out;
  AutogradMetadata metadata = *world.core(0).metadata(context);
  metadata.histories = {{.initiator = pass->initiator, .decided = pass->k}};
  world.core(1).on_call(pass->initiator, metadata, out).IgnoreError();
  const absl::Status lost = world.core(1).check_settled(context);
  EXPECT_EQ(lost.code(), absl::StatusCode::kFailedPrecondition) << lost;
  EXPECT_NE(lost.message().find(context.to_string()), std::string::npos) << lost;
}

// ---- a core alone: what another worker or the local graph must not do

constexpr WorkerId kMe{0, 1}, kPeer{1, 1};
const ContextId kPeersContext{kPeer, 1};
const SendId kSend{kPeer, 1};

template <class Action>
size_t count_of(const AutogradActions& actions) {
  return std::count_if(actions.begin(), actions.end(),
                       [](const auto& action) { return std::holds_alternative<Action>(action); });
}

// The walk reached nothing more, so nothing can release the gradient that the local graph still
// holds.
TEST(PassCore, NothingIsReadableIfAGradientIsHeldUpAfterTheSeal) {
  const PassId pass{kPeersContext, kMe, 1};
  PassCore core({.pass = pass, .self = kMe, .sources = {}});
  AutogradActions out;
  core.start(absl::InfiniteDuration(), out);
  LocalProgress held{.done = true, .waiting = true};
  core.on_local_progress(held, out);
  ASSERT_EQ(count_of<backward::Discover>(out), 1u);
  core.on_discovered({}, out);
  EXPECT_EQ(core.state(), PassCore::State::kAborted);
  EXPECT_TRUE(absl::IsInternal(core.failure().status)) << core.failure().status;
  EXPECT_EQ(count_of<backward::StageMerge>(out), 0u);
}

// A second message with another number, not a repetition of the first. Feeding both would count the
// gradient twice.
TEST(PassCore, GradientsForOneSendAreFedOnce) {
  const PassId pass{kPeersContext, kPeer, 1};
  PassCore core({.pass = pass, .self = kMe, .sources = {{kSend, kPeer}}});
  AutogradActions out;
  core.engage(absl::InfiniteDuration(), out);
  for (const uint64_t number : {1, 2}) {
    GradMessage grad{.header = {.pass = pass}, .number = number};
    grad.entries.push_back({.send = kSend, .slots = 1, .present = {0}});
    core.on_message(kPeer, grad, out);
  }
  EXPECT_EQ(count_of<backward::Feed>(out), 1u);
  EXPECT_EQ(core.state(), PassCore::State::kFailed);
  EXPECT_TRUE(absl::IsInternal(core.failure().status)) << core.failure().status;
}

TEST(PassCore, NoGradientsAreFedToACancelledSend) {
  const PassId pass{kPeersContext, kPeer, 1};
  PassCore core({.pass = pass, .self = kMe, .sources = {{kSend, kPeer}}});
  AutogradActions out;
  core.engage(absl::InfiniteDuration(), out);
  SealMessage seal{pass, 1};
  core.on_message(kPeer, seal, out);
  GradMessage grad{.header = {.pass = pass}, .number = 2};
  grad.entries.push_back({.send = kSend, .slots = 1, .present = {0}});
  core.on_message(kPeer, grad, out);
  EXPECT_EQ(count_of<backward::Feed>(out), 0u);
  EXPECT_TRUE(absl::IsInternal(core.failure().status)) << core.failure().status;
}

TEST(PassCore, AFailureAfterTheCommitIsVoid) {
  BackwardWorld world({.workers = 2, .in_order = true});
  const ContextId context = world.record(chain(2), 0);
  const auto pass = world.start(context, {.budget = absl::Seconds(1)});
  world.work(0);
  world.deliver(0);
  world.work(1);
  world.deliver(0);
  world.work(0);  // commits; PUBLISH is in flight
  ASSERT_TRUE(world.committed(*pass));
  world.fire_deadline(1, *pass);
  world.run();
  EXPECT_TRUE(world.ended().at(*pass).status.ok());
  world.check_gradients(context);
  EXPECT_EQ(world.broken(), "");
}

// ---- random schedules

struct Profile {
  const char* name;
  Options options;
};

uint64_t first_seed() {
  const char* text = std::getenv("WEFT_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}
// With a seed from the environment, only that seed runs.
uint64_t runs() {
  if (std::getenv("WEFT_TEST_SEED") != nullptr) return 1;
  const char* text = std::getenv("WEFT_TEST_RUNS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 4000;
}

std::string run_once(const Profile& profile, uint64_t seed, int* committed) {
  Random random(seed);
  Options options = profile.options;
  options.seed = seed;
  options.workers = 2 + static_cast<int>(below(random, 4));
  BackwardWorld world(options);
  std::map<ContextId, std::vector<StartOptions>> passes;
  for (size_t i = 0, contexts = 1 + below(random, 2); i < contexts; ++i) {
    Program program = Program::random(random, options.workers);
    const int creator =
        chance(random, 70) ? program.initiator : static_cast<int>(below(random, options.workers));
    std::vector<StartOptions>& list = passes[world.record(std::move(program), creator)];
    for (size_t k = 0, n = 1 + below(random, 3); k < n; ++k) {
      StartOptions start{.retain_graph = k + 1 < n};
      const unsigned mode = below(random, 10);
      if (mode < 3) start.mode = BackwardMode::kEager;
      if (mode == 3) start.mode = BackwardMode::kAllSends;
      if (options.deadlines > 0) start.budget = absl::Seconds(10);
      list.push_back(start);
    }
  }
  world.run_passes(passes);
  if (!world.broken().empty()) return world.broken();
  for (const auto& [pass, failure] : world.ended()) {
    if (failure.status.ok()) ++*committed;
    const bool faults = options.kills + options.node_failures + options.cancels +
                            options.deadlines + options.closes >
                        0;
    if (!failure.status.ok() && !faults &&
        failure.status.code() != absl::StatusCode::kFailedPrecondition) {
      return "failed without a fault: " + failure.status.ToString();
    }
    if (failure.status.code() == absl::StatusCode::kInternal) return failure.status.ToString();
  }
  return "";
}

class PassCoreSchedules : public testing::TestWithParam<Profile> {};

TEST_P(PassCoreSchedules, KeepAllInvariants) {
  const auto begin = std::chrono::steady_clock::now();
  int committed = 0;
  for (uint64_t seed = first_seed(); seed < first_seed() + runs(); ++seed) {
    const std::string broken = run_once(GetParam(), seed, &committed);
    ASSERT_EQ(broken, "") << "repeat with WEFT_TEST_SEED=" << seed;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << runs() << " runs from seed " << first_seed() << ", " << committed
            << " passes committed, " << static_cast<int>(runs() / took.count()) << " runs/s\n";
}

INSTANTIATE_TEST_SUITE_P(
    Profiles, PassCoreSchedules,
    testing::Values(Profile{"calm", {}}, Profile{"duplicates", {.duplicates = 30, .holds = 10}},
                    Profile{"failures", {.duplicates = 10, .node_failures = 70, .cancels = 30}},
                    Profile{"deaths", {.duplicates = 5, .kills = 80, .holds = 5}},
                    Profile{"deadlines", {.duplicates = 5, .deadlines = 90}},
                    Profile{"everything",
                            {.duplicates = 10,
                             .kills = 25,
                             .node_failures = 20,
                             .cancels = 20,
                             .deadlines = 25,
                             .holds = 10,
                             .closes = 15}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::dist_autograd_internal
