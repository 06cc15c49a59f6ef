#include "weft/dist_autograd/passes/context_core.h"

#include <string>

#include <gtest/gtest.h>

#include "weft/base/status.h"
#include "weft/tests/dist_autograd/passes/backward_world.h"

namespace weft::dist_autograd_internal {
namespace {

using Standing = ContextCore::PassStanding;
using backward::CompleteBackward;
using backward::DropContext;
using backward::DropStage;
using backward::EngageLocal;
using backward::Send;

template <class Action>
int count(const AutogradActions& actions) {
  int n = 0;
  for (const AutogradAction& action : actions) n += std::holds_alternative<Action>(action) ? 1 : 0;
  return n;
}

// Returns the receivers of the messages of this type, in order.
template <class Message>
std::vector<WorkerId> receivers(const AutogradActions& actions) {
  std::vector<WorkerId> all;
  for (const AutogradAction& action : actions) {
    const auto* send = std::get_if<Send>(&action);
    if (send != nullptr && std::holds_alternative<Message>(send->message)) all.push_back(send->to);
  }
  return all;
}

const WorkerId kSelf = worker_id(0), kB = worker_id(1), kC = worker_id(2), kD = worker_id(3);
const ContextId kOfB{kB, 1};

AutogradMetadata metadata_of(const ContextId& context) { return {.context = context}; }

PassHeader header_for(const ContextId& context, WorkerId initiator, uint64_t k) {
  return {.pass = {context, initiator, k}};
}

TEST(ContextCore, ACallBringsTheContextAndItsCallerIsAPeer) {
  ContextCore core(kSelf);
  AutogradActions out;
  EXPECT_EQ(core.check(kOfB).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(core.on_call(kC, metadata_of(kOfB), out).ok());
  EXPECT_TRUE(core.check(kOfB).ok());
  EXPECT_TRUE(core.note_send(kOfB, {kSelf, 1}, kD).ok());
  EXPECT_TRUE(core.note_peer(kOfB, kSelf).ok());
  EXPECT_EQ(core.peers(kOfB), (std::vector<WorkerId>{kC, kD})) << "never oneself";
}

TEST(ContextCore, AReleaseGoesToEveryoneNotedExceptWhoSaidIt) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kC, metadata_of(kOfB), out).IgnoreError();
  core.note_peer(kOfB, kD).IgnoreError();
  core.on_message(kC, ReleaseContextMessage{kOfB, 0}, out);
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kD}));
  EXPECT_EQ(count<DropContext>(out), 1);
  EXPECT_EQ(core.size(), 0u);
  out.clear();
  core.on_message(kD, ReleaseContextMessage{kOfB, 0}, out);
  EXPECT_TRUE(out.empty()) << "the flood must end";
}

TEST(ContextCore, OnlyTheCreatorReleases) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kC, metadata_of(kOfB), out).IgnoreError();
  EXPECT_EQ(core.release(kOfB, out).code(), absl::StatusCode::kFailedPrecondition);
  const ContextId mine = core.create();
  EXPECT_TRUE(core.release(mine, out).ok());
  EXPECT_EQ(core.release(mine, out).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ContextCore, ALateCallForAReleasedContextIsNotExecuted) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_message(kC, ReleaseContextMessage{{kB, 5}, 3}, out);  // no call of it has come yet
  for (uint64_t number : {1, 2, 3, 5}) {
    const absl::Status status = core.on_call(kC, metadata_of({kB, number}), out);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << number;
    EXPECT_EQ(ran_of(status), Ran::kNo);
  }
  EXPECT_TRUE(core.on_call(kC, metadata_of({kB, 4}), out).ok()) << "not released";
  EXPECT_EQ(core.size(), 1u);
}

TEST(ContextCore, OwnContextsAreNeverRevivedByOthers) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId released = core.create();
  core.release(released, out).IgnoreError();
  EXPECT_EQ(core.on_call(kB, metadata_of(released), out).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core.on_call(kB, metadata_of({kSelf, 99}), out).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(core.on_call(kB, metadata_of({}), out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core.size(), 0u);
}

TEST(ContextCore, AReleaseSaysWhatElseIsReleased) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId first = core.create(), second = core.create(), third = core.create();
  core.note_peer(second, kB).IgnoreError();
  core.note_peer(first, kB).IgnoreError();
  core.release(second, out).IgnoreError();
  core.release(first, out).IgnoreError();
  std::vector<uint64_t> watermarks;
  for (const AutogradAction& action : out) {
    if (const auto* send = std::get_if<Send>(&action)) {
      watermarks.push_back(std::get<ReleaseContextMessage>(send->message).watermark);
    }
  }
  EXPECT_EQ(watermarks, (std::vector<uint64_t>{0, 2})) << "the first one lived, then two were gone";
  EXPECT_TRUE(core.check(third).ok());
}

TEST(ContextCore, AWatermarkReleasesWhatItCovers) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kB, metadata_of({kB, 1}), out).IgnoreError();
  core.on_call(kB, metadata_of({kB, 3}), out).IgnoreError();
  core.note_peer({kB, 1}, kC).IgnoreError();
  core.on_message(kB, ReleaseContextMessage{{kB, 2}, 2}, out);
  EXPECT_EQ(core.contexts(), (std::vector<ContextId>{{kB, 3}}));
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kC}));
}

TEST(ContextCore, OneCreatorHasSoManyOpenAndOthersAreNotConcerned) {
  ContextCore core(kSelf, 2);
  AutogradActions out;
  EXPECT_TRUE(core.on_call(kB, metadata_of({kB, 1}), out).ok());
  EXPECT_TRUE(core.on_call(kB, metadata_of({kB, 2}), out).ok());
  const absl::Status refused = core.on_call(kC, metadata_of({kB, 3}), out);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ran_of(refused), Ran::kNo);
  EXPECT_TRUE(core.on_call(kB, metadata_of({kB, 2}), out).ok()) << "it is open already";
  EXPECT_TRUE(core.on_call(kC, metadata_of({kC, 1}), out).ok());
  core.on_message(kB, ReleaseContextMessage{{kB, 1}, 0}, out);
  EXPECT_TRUE(core.on_call(kC, metadata_of({kB, 3}), out).ok());
}

TEST(ReleasedContexts, KeepsOneNumberPerCreatorWhenNothingOldLives) {
  ReleasedContexts released;
  for (uint64_t number = 1000; number > 0; --number) released.add({kB, number});
  EXPECT_EQ(released.watermark(kB), 1000u);
  EXPECT_EQ(released.above_watermark(kB), 0u);
  released.add({kB, 1005});
  EXPECT_TRUE(released.contains({kB, 1005}));
  EXPECT_FALSE(released.contains({kB, 1004}));
  EXPECT_FALSE(released.contains({kC, 1}));
  released.add_until(kB, 1006);
  EXPECT_EQ(released.above_watermark(kB), 0u);
}

TEST(ContextCore, TheCreatorsDeathReleasesItsContexts) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kC, metadata_of(kOfB), out).IgnoreError();
  core.on_call(kB, metadata_of({kB, 2}), out).IgnoreError();
  const ContextId mine = core.create();
  core.on_peer_dead(kB, out);
  EXPECT_EQ(core.contexts(), (std::vector<ContextId>{mine}));
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kC}))
      << "who was called through others may have no connection to the creator";
  out.clear();
  const absl::Status late = core.on_call(kC, metadata_of({kB, 3}), out);
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(core.size(), 1u);
}

TEST(ContextCore, WhoLosesAPeerRegistersWithTheCreator) {
  ContextCore core(kSelf), creator(kB);
  const ContextId context = creator.create();
  AutogradActions out;
  core.on_call(kC, metadata_of(context), out).IgnoreError();
  core.on_peer_dead(kC, out);
  ASSERT_EQ(receivers<HoldsContextMessage>(out), (std::vector<WorkerId>{kB}));
  out.clear();
  creator.on_message(kSelf, HoldsContextMessage{context}, out);
  EXPECT_EQ(creator.peers(context), (std::vector<WorkerId>{kSelf}));
  creator.release(context, out).IgnoreError();
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kSelf}));
  out.clear();
  creator.on_message(kSelf, HoldsContextMessage{context}, out);
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kSelf})) << "too late";
}

TEST(ContextCore, OnePassAtATimePerContextAndManyAcrossContexts) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId one = core.create(), two = core.create();
  ASSERT_TRUE(core.start(one, {}, out).ok());
  EXPECT_EQ(core.start(one, {}, out).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(core.start(two, {}, out).ok());
}

TEST(ContextCore, AnotherInitiatorsPassIsRefusedWhileOneRuns) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId context = core.create();
  core.start(context, {}, out).IgnoreError();
  out.clear();
  core.on_message(kB, GradMessage{.header = header_for(context, kB, 1), .number = 1}, out);
  EXPECT_EQ(receivers<FailMessage>(out), (std::vector<WorkerId>{kB}));
  EXPECT_EQ(count<EngageLocal>(out), 0);
}

TEST(ContextCore, APassOfAnUnknownContextIsRefusedToItsInitiator) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_message(kC, ActivateMessage{.header = header_for(kOfB, kB, 1), .number = 1}, out);
  EXPECT_EQ(receivers<FailMessage>(out), (std::vector<WorkerId>{kB}));
  EXPECT_EQ(core.size(), 0u);
}

TEST(ContextCore, GradientsForAReleasedContextAreAnsweredWithTheRelease) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_message(kB, ReleaseContextMessage{kOfB, 1}, out);
  core.on_message(kC, GradMessage{.header = header_for(kOfB, kC, 1), .number = 1}, out);
  EXPECT_EQ(receivers<ReleaseContextMessage>(out), (std::vector<WorkerId>{kC}));
  EXPECT_EQ(core.size(), 0u);
}

TEST(ContextCore, AnAbortThatOvertakesTheFirstGradientKeepsTheWorkerOut) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kB, metadata_of(kOfB), out).IgnoreError();
  core.on_message(kB, AbortMessage{{kOfB, kB, 1}, {absl::UnknownError("x"), kB}}, out);
  core.on_message(kC, GradMessage{.header = header_for(kOfB, kB, 1), .number = 1}, out);
  EXPECT_EQ(count<EngageLocal>(out), 0);
  core.on_message(kC, GradMessage{.header = header_for(kOfB, kB, 2), .number = 1}, out);
  EXPECT_EQ(count<EngageLocal>(out), 1) << "the next pass is welcome";
}

// The initiator aborted the pass before it knew that this worker takes part.
TEST(ContextCore, ALateMessageOfAnAbortedPassIsAnsweredWithTheAbort) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId context = core.create();
  ASSERT_TRUE(core.note_peer(context, kB).ok());
  const auto pass = core.start(context, {}, out);
  ASSERT_TRUE(pass.ok());
  core.on_local_failure(*pass, {.status = absl::UnknownError("x"), .worker = kSelf}, out);
  ASSERT_EQ(core.standing(*pass), Standing::kAborted);
  out.clear();
  core.on_message(kC, ReportMessage{.pass = *pass}, out);
  EXPECT_EQ(receivers<AbortMessage>(out), (std::vector<WorkerId>{kC}));
}

TEST(ContextCore, AHistoryThatKnowsAPassIsOverKeepsTheWorkerOut) {
  ContextCore core(kSelf);
  AutogradActions out;
  AutogradMetadata metadata = metadata_of(kOfB);
  metadata.histories = {{.initiator = kB, .decided = 1, .aborted = {1}}};
  core.on_call(kB, metadata, out).IgnoreError();
  core.on_message(kC, GradMessage{.header = header_for(kOfB, kB, 1), .number = 1}, out);
  EXPECT_EQ(count<EngageLocal>(out), 0);
  EXPECT_EQ(core.standing({kOfB, kB, 1}), Standing::kAborted);
}

TEST(ContextCore, AnAbortLearnedFromAHistoryFollowsTheGradients) {
  ContextCore core(kSelf);
  AutogradActions out;
  core.on_call(kB, metadata_of(kOfB), out).IgnoreError();
  const PassHeader header = header_for(kOfB, kB, 1);
  core.on_message(kB, GradMessage{.header = header, .number = 1}, out);
  LocalProgress progress{.done = false};
  progress.outputs.push_back({.peer = kC});
  progress.outputs.back().entries.push_back({.send = {kC, 1}, .slots = 1});
  core.on_local_progress(header.pass, std::move(progress), out);
  EXPECT_EQ(receivers<GradMessage>(out), (std::vector<WorkerId>{kC}));
  AutogradMetadata metadata = metadata_of(kOfB);
  metadata.histories = {{.initiator = kB, .decided = 1, .aborted = {1}}};
  core.on_call(kB, metadata, out).IgnoreError();
  EXPECT_EQ(receivers<AbortMessage>(out), (std::vector<WorkerId>{kC}));
  EXPECT_EQ(count<DropStage>(out), 1);
}

TEST(ContextCore, AnyLaterMessageOfTheContextPublishesTheGradients) {
  BackwardWorld world({.workers = 2, .in_order = true});
  Program program;
  const int x = program.leaf(1);
  program.roots = {{program.op(0, {{program.send(1, 0, {x})[0], 4}}), 1}};
  const ContextId context = world.record(std::move(program), 0);
  const auto pass = world.start(context, {});
  while (!world.committed(*pass)) {
    if (!world.work(0) && !world.work(1)) world.deliver(0);
  }
  EXPECT_EQ(world.core(1).standing(*pass), Standing::kRunning);
  AutogradActions out;
  const auto metadata = world.core(0).metadata(context);
  EXPECT_TRUE(world.core(1).on_call(kSelf, *metadata, out).ok());
  world.act(1, out);
  EXPECT_EQ(world.core(1).standing(*pass), Standing::kCommitted);
  EXPECT_EQ(world.readable(1, context), (std::map<int, uint64_t>{{x, 4}}));
  world.run();  // the PUBLISH itself comes later and changes nothing
  EXPECT_EQ(world.readable(1, context), (std::map<int, uint64_t>{{x, 4}}));
  EXPECT_EQ(world.broken(), "");
}

TEST(PassHistory, TellsCommittedAbortedAndTooOldApart) {
  PassHistory history{.initiator = kB};
  for (uint64_t k = 1; k <= 100; ++k) history.append(k % 2 == 0);
  EXPECT_EQ(history.aborted.size(), kMaxAbortedListed);
  EXPECT_EQ(history.outcome(99), PassHistory::Outcome::kAborted);
  EXPECT_EQ(history.outcome(100), PassHistory::Outcome::kCommitted);
  EXPECT_EQ(history.outcome(101), PassHistory::Outcome::kUnknown);
  EXPECT_EQ(history.outcome(history.complete_from), PassHistory::Outcome::kCommitted);
  EXPECT_EQ(history.outcome(history.complete_from - 1), PassHistory::Outcome::kUnknown);
}

TEST(ContextCore, ADeathInAPassFailsTheContextForGoodAndSaysWho) {
  BackwardWorld world({.workers = 3, .in_order = true});
  Program program;
  const int x = program.leaf(2);
  const int at1 = program.op(1, {{program.send(2, 1, {x})[0], 2}});
  program.roots = {{program.op(0, {{program.send(1, 0, {at1})[0], 3}}), 1}};
  const ContextId context = world.record(std::move(program), 0);
  const auto pass = world.start(context, {});
  world.work(0);
  world.deliver(0);
  world.work(1);  // its GRAD to worker 2 is in flight
  world.kill(2);
  world.run();
  const PassFailure& failure = world.ended().at(*pass);
  EXPECT_EQ(failure.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(failure.died, kC);
  for (int worker : {0, 1}) {
    AutogradActions out;
    const auto again = world.core(worker).start(context, {}, out);
    EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable) << worker;
    EXPECT_NE(again.status().message().find("w2.1"), std::string::npos) << again.status();
  }
  world.close_all();
  EXPECT_EQ(world.broken(), "");
}

TEST(ContextCore, ClosingAContextEndsItsRunningPass) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId context = core.create();
  core.start(context, {.budget = absl::Seconds(5)}, out).IgnoreError();
  out.clear();
  EXPECT_TRUE(core.release(context, out).ok());
  EXPECT_EQ(count<CompleteBackward>(out), 1);
  EXPECT_EQ(count<DropStage>(out), 1);
  EXPECT_EQ(count<backward::CancelDeadline>(out), 1);
  EXPECT_EQ(count<DropContext>(out), 1);
}

TEST(ContextCore, EventsOfAnEndedPassAreIgnored) {
  ContextCore core(kSelf);
  AutogradActions out;
  const ContextId context = core.create();
  const PassId pass = *core.start(context, {}, out);
  core.on_local_failure(pass, {.status = absl::CancelledError("stop")}, out);
  EXPECT_EQ(core.standing(pass), Standing::kAborted);
  out.clear();
  core.on_local_progress(pass, {}, out);
  core.on_discovered(pass, {}, out);
  core.on_deadline(pass, out);
  core.on_hold(pass);
  core.on_hold_released(pass, out);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace weft::dist_autograd_internal
