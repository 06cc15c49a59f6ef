#include "weft/rpc/membership/internal/membership_core.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/proto/weft.pb.h"
#include "weft/tests/rpc/membership/membership_group.h"

namespace weft::rpc_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembershipCoreTest : public MembershipGroup {
 protected:
  // Runs the next look, `step` later. `heard`: when the peer's last frame came.
  MembershipActions tick(bool busy, TimePoint heard, milliseconds step = milliseconds(200)) {
    now_ += step;
    MembershipActions out;
    core_.tick(now_, {{kOne, busy, heard}}, out);
    return out;
  }
  uint64_t suspect(WorkerId worker) {
    MembershipActions out;
    core_.suspect(worker, silent(), out);
    return out.questions.empty() ? 0 : out.questions.front().number;
  }
  MembershipActions answer(WorkerId worker, uint64_t question,
                           std::vector<DeathRecord> death_records) {
    MembershipActions out;
    core_.answer(worker, question, std::move(death_records), out);
    return out;
  }

  MembershipActions answer_heartbeat(WorkerId from, uint64_t number) {
    MembershipActions out;
    core_.on_heartbeat_answer(from, number, now_, out);
    return out;
  }
};

// A reason may be any text, cut anywhere. If a worker gets a post that it cannot read, it suspects
// the sender.
TEST(MembershipPost, ANoticeCarriesAReasonThatIsNoText) {
  wire::MembershipPost post, read;
  post.mutable_death()->set_reason("broke off inside \xc3");
  ASSERT_TRUE(read.ParseFromString(post.SerializeAsString()));
  EXPECT_EQ(read.death().reason(), "broke off inside \xc3");
}

TEST_F(MembershipCoreTest, APairWithNothingBetweenThemExchangesNothing) {
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(tick(false, TimePoint()).heartbeats.empty());
  EXPECT_EQ(core_.leases(), 0u);
  EXPECT_TRUE(core_.has_valid_lease(kOne, now_));
}

TEST_F(MembershipCoreTest, HeartbeatsGoOnForAWhileAfterTheLastCall) {
  EXPECT_EQ(tick(true, now_).heartbeats.size(), 1u);
  EXPECT_EQ(core_.leases(), 1u);
  const TimePoint last = now_;
  while (now_ < last + seconds(10) - milliseconds(200)) {
    EXPECT_EQ(tick(false, now_).heartbeats.size(), 1u);
  }
  EXPECT_TRUE(tick(false, now_).heartbeats.empty());
  EXPECT_EQ(core_.leases(), 0u);
}

TEST_F(MembershipCoreTest, SilenceIsSuspectOnceItLastsLongerThanSuspectAfter) {
  const TimePoint heard = now_;
  tick(true, heard);
  const TimePoint begun = now_;
  MembershipActions out;
  while (out.questions.empty()) out = tick(true, heard);
  EXPECT_EQ(now_ - begun, milliseconds(1800));
  ASSERT_EQ(out.questions.size(), 1u);
  EXPECT_EQ(out.questions[0].suspect, kOne);
  EXPECT_TRUE(out.questions[0].declare_dead);
  EXPECT_THAT(out.questions[0].reason,
              HasSubstr("was not heard of for 1.8s (1.8s of it without waits for a "
                        "processor; the limit is 1.8s)"));
  // The store is asked once.
  EXPECT_TRUE(tick(true, heard).questions.empty());
}

// A worker that hears none of its peers lets the others decide first.
TEST_F(MembershipCoreTest, WhoHearsNobodyWaitsLonger) {
  const TimePoint heard = now_;
  const auto both = [&](bool one_is_heard) {
    now_ += milliseconds(200);
    MembershipActions out;
    core_.tick(now_, {{kOne, true, one_is_heard ? now_ : heard}, {kTwo, true, heard}}, out);
    return out;
  };
  both(false);
  const TimePoint begun = now_;
  MembershipActions out;
  while (out.questions.empty()) out = both(false);
  EXPECT_EQ(now_ - begun, milliseconds(2200));
  EXPECT_EQ(out.questions.size(), 2u);
  // If one peer is heard, the other one is the silent one.
  MembershipCore other({kSelf, "me", "a0"}, LeaseOptions{}, now_);
  other.add({kOne, "one", "a1"});
  other.add({kTwo, "two", "a2"});
  other.established();
  const TimePoint start = now_;
  out = {};
  while (out.questions.empty()) {
    now_ += milliseconds(200);
    out = {};
    other.tick(now_, {{kOne, true, now_}, {kTwo, true, heard}}, out);
  }
  EXPECT_EQ(now_ - start, milliseconds(2000));
  ASSERT_EQ(out.questions.size(), 1u);
  EXPECT_EQ(out.questions[0].suspect, kTwo);
}

TEST_F(MembershipCoreTest, AnyFrameShowsThatItsSenderLives) {
  for (int i = 0; i < 100; ++i) {
    const TimePoint heard = now_;
    EXPECT_TRUE(tick(true, heard).questions.empty());
  }
}

// A frame shows that its sender lived when the frame came, not until this worker looks at it.
TEST_F(MembershipCoreTest, SilenceBeginsWithTheLastFrameNotWithTheNextLook) {
  tick(true, now_);
  const TimePoint heard = now_;
  MembershipActions out = tick(true, heard);
  while (out.questions.empty() && now_ < heard + seconds(10)) out = tick(true, heard);
  EXPECT_EQ(now_ - heard, milliseconds(1800));
}

TEST_F(MembershipCoreTest, WhoWasStoppedJudgesNobodyForIt) {
  const TimePoint heard = now_;
  tick(true, heard);
  EXPECT_TRUE(tick(true, heard, milliseconds(30000)).questions.empty());
  int more = 0;
  while (more < 100 && tick(true, heard).questions.empty()) ++more;
  EXPECT_EQ(more, 7);  // 200 ms of the stop count, then 200 each
}

// The times until which calls are sent, as far as the actions set them.
std::vector<TimePoint> lease_valid(const MembershipActions& out) {
  std::vector<TimePoint> until;
  for (const MembershipActions::Validity& validity : out.validities)
    until.push_back(validity.until);
  return until;
}

TEST_F(MembershipCoreTest, ASuspectReportThatIsOverTakesNoSuspicionBack) {
  MembershipCore joiner{{kSelf, "me", "a0"}, LeaseOptions{}, now_};
  joiner.add({kOne, "one", "a1"});
  MembershipActions out;
  joiner.unanswered(kOne, absl::DeadlineExceededError("does not answer"), out);
  const auto tick = [&](TimePoint heard) {
    now_ += milliseconds(200);
    joiner.tick(now_, {{kOne, true, heard}}, out);
  };
  for (int i = 0; i < 17; ++i) tick(TimePoint());
  ASSERT_TRUE(out.questions.empty());
  joiner.suspect(kOne, silent(), out);
  ASSERT_EQ(out.questions.size(), 1u);
  EXPECT_TRUE(out.questions[0].declare_dead);
  tick(TimePoint());
  tick(now_ + milliseconds(100));  // heard, but its heartbeats get no answer any more
  MembershipActions decided;
  joiner.answer(kOne, out.questions[0].number, absl::DeadlineExceededError("no store"), decided);
  ASSERT_EQ(decided.gone.size(), 1u);
  EXPECT_EQ(decided.gone[0].worker, kOne);
}

TEST_F(MembershipCoreTest, OnlySoManyUnknownAreLookedUpAtATime) {
  MembershipActions out;
  for (uint32_t index = 10; index < 10 + 5000; ++index) core_.meet({index, 1}, out);
  EXPECT_EQ(out.lookups.size(), 4096u);
  ASSERT_EQ(out.gone.size(), 5000u - 4096u);
  EXPECT_TRUE(absl::IsResourceExhausted(out.gone[0].reason)) << out.gone[0].reason;
  // A lookup that is finished, found or not, makes room.
  EXPECT_FALSE(core_.found({10, 1}, std::optional<WorkerInfo>(), out));
  MembershipActions more;
  core_.meet({9000, 1}, more);
  EXPECT_EQ(more.lookups.size(), 1u);
}

TEST_F(MembershipCoreTest, CallsAreSentWhileHeartbeatsAreAnsweredAndWhereThereIsNoLease) {
  EXPECT_THAT(lease_valid(tick(false, now_)), ElementsAre());
  const MembershipActions begun = tick(true, now_);
  EXPECT_THAT(lease_valid(begun), ElementsAre(now_ + milliseconds(1400)));
  const uint64_t second = tick(true, now_).heartbeats[0].number;
  const TimePoint sent = now_;
  EXPECT_THAT(lease_valid(tick(true, now_)), ElementsAre());
  EXPECT_THAT(lease_valid(answer_heartbeat(kOne, second)), ElementsAre(sent + milliseconds(1400)));
  EXPECT_THAT(lease_valid(answer_heartbeat(kOne, begun.heartbeats[0].number)), ElementsAre());
  for (int i = 0; i < 49; ++i) EXPECT_THAT(lease_valid(tick(false, now_)), ElementsAre());
  EXPECT_THAT(lease_valid(tick(false, now_)), ElementsAre(kNever));
  EXPECT_THAT(lease_valid(tick(false, now_)), ElementsAre());
}

TEST_F(MembershipCoreTest, ValidityCountsFromWhenTheAnsweredHeartbeatWasSent) {
  const uint64_t first = tick(true, now_).heartbeats[0].number;
  const TimePoint sent = now_;
  const uint64_t second = tick(true, now_).heartbeats[0].number;
  tick(true, now_);
  answer_heartbeat(kOne, second);
  EXPECT_TRUE(core_.has_valid_lease(kOne, sent + milliseconds(200 + 1399)));
  EXPECT_FALSE(core_.has_valid_lease(kOne, sent + milliseconds(200 + 1400)));
  answer_heartbeat(kOne, first);  // a late answer to an earlier heartbeat takes nothing back
  EXPECT_TRUE(core_.has_valid_lease(kOne, sent + milliseconds(200 + 1399)));
  answer_heartbeat(kOne, 1u << 30);  // this one was never sent
  EXPECT_FALSE(core_.has_valid_lease(kOne, sent + milliseconds(200 + 1400)));
}

TEST_F(MembershipCoreTest, TheWriterOfADeathRecordTellsAllOthers) {
  const uint64_t question = suspect(kOne);
  ASSERT_NE(question, 0u);
  const auto out = answer(kOne, question, {{kOne, kSelf, "cannot be reached"}});
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_EQ(out.gone[0].worker, kOne);
  EXPECT_EQ(out.gone[0].reason, silent());
  ASSERT_EQ(out.notices.size(), 2u);
  EXPECT_EQ(out.notices[0].to, kTwo);
  EXPECT_EQ(out.notices[1].to, kThree);
  EXPECT_EQ(out.notices[0].death_record, (DeathRecord{kOne, kSelf, "cannot be reached"}));
  EXPECT_FALSE(core_.is_live(kOne));
}

TEST_F(MembershipCoreTest, ADeathRecordOfAnotherIsNotRepeated) {
  const uint64_t question = suspect(kOne);
  const auto out = answer(kOne, question, {{kOne, kTwo, "was silent"}});
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_THAT(text(out.gone[0].reason),
              AllOf(HasSubstr("declared dead by worker 'two' (w2.1)"), HasSubstr("was silent")));
  EXPECT_TRUE(out.notices.empty());
}

// Its record reached the list. Another worker has read it and tells of it before the store answers.
TEST_F(MembershipCoreTest, AWorkerThatHearsOfItsOwnDeathRecordTellsAll) {
  const uint64_t question = suspect(kOne);
  const DeathRecord death_record{kOne, kSelf, "cannot be reached"};
  MembershipActions out;
  core_.on_notice(death_record, out);
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_EQ(out.notices.size(), 2u);
  EXPECT_TRUE(answer(kOne, question, {death_record}).notices.empty());
}

TEST_F(MembershipCoreTest, TheRecordsOfADeadWriterAreToldAlsoIfItIsHeardOfLater) {
  const uint64_t question = suspect(kTwo);
  const DeathRecord death_record{kTwo, kSelf, "cannot be reached"},
      before{kOne, kTwo, "was silent"};
  MembershipActions out;
  core_.on_notice(death_record, out);
  EXPECT_EQ(out.notices.size(), 2u);
  const auto told = answer(kTwo, question, {before, death_record}).notices;
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].to, kThree);
  EXPECT_EQ(told[0].death_record, before);
}

TEST_F(MembershipCoreTest, TheRecordsOfADeadWriterAreToldInItsPlace) {
  // Two declared One dead, and Three declared Two dead. Both died before they told anybody.
  const uint64_t question = suspect(kThree);
  const WorkerId four{4, 1};
  core_.add({four, "four", "a4"});
  const auto out =
      answer(kThree, question, {{kOne, kTwo, "x"}, {kTwo, kThree, "y"}, {kThree, kSelf, "z"}});
  EXPECT_EQ(out.gone.size(), 3u);
  std::vector<WorkerId> told;
  for (const auto& notice : out.notices) {
    EXPECT_EQ(notice.to, four);
    told.push_back(notice.death_record.dead);
  }
  EXPECT_THAT(told, ::testing::UnorderedElementsAre(kOne, kTwo, kThree));
}

TEST_F(MembershipCoreTest, WhoFindsItselfInTheListIsFenced) {
  const uint64_t question = suspect(kOne);
  const auto out = answer(kOne, question, {{kSelf, kOne, "was silent"}});
  EXPECT_TRUE(core_.is_fenced());
  EXPECT_THAT(text(out.fenced), AllOf(HasSubstr("'me' (w0.1) was declared dead by worker 'one'"),
                                      HasSubstr("was silent")));
  EXPECT_TRUE(out.gone.empty());
  // A fenced worker asks nothing, admits nobody and declares nobody dead.
  EXPECT_EQ(suspect(kTwo), 0u);
  MembershipActions none;
  EXPECT_TRUE(absl::IsPermissionDenied(core_.admit({{9, 1}, "nine", "a9"}, none)));
  EXPECT_TRUE(tick(true, TimePoint()).heartbeats.empty());
}

TEST_F(MembershipCoreTest, ANoticeAboutItselfFences) {
  MembershipActions out;
  core_.on_notice({kSelf, kTwo, "was silent"}, out);
  EXPECT_TRUE(core_.is_fenced());
  EXPECT_FALSE(out.fenced.ok());
}

TEST_F(MembershipCoreTest, WithoutTheStoreThePairAloneIsOver) {
  const uint64_t question = suspect(kOne);
  MembershipActions out;
  core_.answer(kOne, question, absl::DeadlineExceededError("no store"), out);
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_EQ(out.gone[0].reason, silent());
  EXPECT_TRUE(out.notices.empty());
  // The store's answer may come late. Then all are told.
  const auto late = answer(kOne, question, {{kOne, kSelf, "cannot be reached"}});
  EXPECT_TRUE(late.gone.empty());
  EXPECT_EQ(late.notices.size(), 2u);
}

// All the peers that it gave up may have declared it dead, and nobody is left who would tell it.
TEST_F(MembershipCoreTest, AWorkerThatGaveUpAPeerReadsTheListUntilItDecides) {
  MembershipActions out;
  core_.answer(kOne, suspect(kOne), absl::DeadlineExceededError("no store"), out);
  const TimePoint given_up = now_;
  const auto next_question = [&] {
    MembershipActions looked;
    while (looked.questions.empty() && now_ < given_up + seconds(60)) looked = tick(false, now_);
    return looked.questions;
  };
  const auto first = next_question();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].suspect, kSelf);
  EXPECT_FALSE(first[0].declare_dead);
  EXPECT_GE(now_ - given_up, milliseconds(1800));
  // It asks one question at a time. It reads the list again whether the store was silent or had
  // nothing new.
  EXPECT_TRUE(tick(false, now_, seconds(5)).questions.empty());
  MembershipActions unread;
  core_.answer(kSelf, first[0].number, absl::DeadlineExceededError("no store"), unread);
  const auto second = next_question();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_TRUE(answer(kSelf, second[0].number, {}).gone.empty());
  const TimePoint before = now_;
  const auto third = next_question();
  ASSERT_EQ(third.size(), 1u);
  EXPECT_GE(now_ - before, 4 * milliseconds(1800)) << "each pause is twice as long";
  EXPECT_FALSE(answer(kSelf, third[0].number, {{kSelf, kOne, "was silent"}}).fenced.ok());
  EXPECT_TRUE(tick(false, now_, seconds(5)).questions.empty());
}

TEST_F(MembershipCoreTest, ADeathRecordOfTheGivenUpPeerEndsTheReading) {
  MembershipActions out;
  core_.answer(kOne, suspect(kOne), absl::DeadlineExceededError("no store"), out);
  const auto read = tick(false, now_, seconds(5)).questions;
  ASSERT_EQ(read.size(), 1u);
  // Its own death record, which reached the list late. All are told of it, once.
  const std::vector<DeathRecord> list = {{kOne, kSelf, "cannot be reached"}};
  EXPECT_EQ(answer(kSelf, read[0].number, list).notices.size(), 2u);
  EXPECT_TRUE(tick(false, now_, seconds(5)).questions.empty());
  EXPECT_TRUE(answer(kTwo, suspect(kTwo), list).notices.empty());
}

TEST_F(MembershipCoreTest, ARefusedWorkerOnlyReads) {
  MembershipActions out;
  core_.refused(kOne, absl::PermissionDeniedError("was declared dead"), out);
  ASSERT_EQ(out.questions.size(), 1u);
  EXPECT_FALSE(out.questions[0].declare_dead);
  const auto after = answer(kOne, out.questions[0].number, {});
  ASSERT_EQ(after.gone.size(), 1u);
  EXPECT_TRUE(after.notices.empty());
}

// One lost packet may cost a dial. From then on the lease decides.
TEST_F(MembershipCoreTest, APeerThatDoesNotAnswerADialIsDialledAgainAndLeasedNotDeclaredDead) {
  (void)tick(false, now_);
  MembershipActions out;
  core_.unanswered(kOne, unheard(), out);
  EXPECT_TRUE(out.questions.empty());
  EXPECT_TRUE(out.suspect_reports.empty());
  EXPECT_EQ(out.redials, std::vector<WorkerId>{kOne});
  const TimePoint begun = now_, heard = now_;
  std::vector<MembershipActions::Question> questions;
  while (questions.empty() && now_ < begun + seconds(5)) questions = tick(false, heard).questions;
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_TRUE(questions[0].declare_dead);
  EXPECT_EQ(now_ - begun, milliseconds(2000));
}

// The redials of a peer that was never met take as long as a lease without shared state. Lags may
// keep silence from counting for that long, but no peer is silent for ever without being suspected.
TEST_F(MembershipCoreTest, SharedStateBeginsNoLeaseWithAPeerThatWasNeverMetAndKeepsOne) {
  const auto look = [this] {
    now_ += milliseconds(200);
    MembershipActions out;
    core_.tick(now_, {{.peer = kOne, .busy = true, .heard = now_, .met = false}}, out);
    return core_.leases();
  };
  for (int i = 0; i < 20; ++i) EXPECT_EQ(look(), 0u);
  MembershipActions out;
  core_.unanswered(kOne, unheard(), out);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(look(), 1u) << i;
}

TEST_F(MembershipCoreTest, AnUnknownThatIsGivenUpIsNotFoundAnymore) {
  MembershipActions out;
  core_.meet({5, 3}, out);
  core_.give_up({5, 3}, absl::ResourceExhaustedError("too many posts"), out);
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_FALSE(core_.found({5, 3}, WorkerInfo{{5, 3}, "five", "a5"}, out));
  EXPECT_FALSE(core_.is_live({5, 3}));
}

TEST_F(MembershipCoreTest, LooksAfterSomebodyWhomAJoinerSuspects) {
  EXPECT_TRUE(tick(false, now_).heartbeats.empty());
  MembershipActions out;
  core_.look_after(kOne, out);
  EXPECT_TRUE(out.lookups.empty());
  core_.look_after({9, 9}, out);
  EXPECT_EQ(out.lookups, (std::vector<WorkerId>{{9, 9}})) << "nobody else may know it";
  EXPECT_EQ(tick(false, now_).heartbeats.size(), 1u);
  size_t questions = 0;
  for (int i = 0; i < 12; ++i) questions += tick(false, TimePoint()).questions.size();
  EXPECT_EQ(questions, 1u);
}

constexpr WorkerId kUnknown{5, 3};

TEST_F(MembershipCoreTest, AnUnknownIsLookedUpOnceAndBecomesAMember) {
  MembershipActions out;
  core_.meet(kUnknown, out);
  core_.meet(kUnknown, out);
  EXPECT_THAT(out.lookups, ::testing::ElementsAre(kUnknown));
  EXPECT_TRUE(core_.found(kUnknown, WorkerInfo{kUnknown, "five", "a5"}, out));
  EXPECT_TRUE(core_.is_live(kUnknown));
  EXPECT_TRUE(out.gone.empty());
  // The timeout is reported after the answer.
  EXPECT_FALSE(core_.found(kUnknown, absl::DeadlineExceededError("late"), out));
  EXPECT_TRUE(core_.is_live(kUnknown));
}

TEST_F(MembershipCoreTest, AnUnknownWithoutARecordIsGone) {
  const std::vector<absl::StatusOr<std::optional<WorkerInfo>>> answers = {
      std::optional<WorkerInfo>(), absl::UnavailableError("no store"),
      WorkerInfo{kUnknown, "two", "a5"}};  // another worker has that name
  for (const auto& record : answers) {
    MembershipCore core({kSelf, "me", "a0"}, LeaseOptions{}, now_);
    core.add({kTwo, "two", "a2"});
    MembershipActions out;
    core.meet(kUnknown, out);
    EXPECT_FALSE(core.found(kUnknown, record, out));
    ASSERT_EQ(out.gone.size(), 1u);
    EXPECT_EQ(out.gone[0].worker, kUnknown);
    EXPECT_TRUE(absl::IsUnavailable(out.gone[0].reason));
    // From now on this is known without asking.
    MembershipActions again;
    core.meet(kUnknown, again);
    EXPECT_TRUE(again.lookups.empty());
    EXPECT_EQ(again.gone.size(), 1u);
  }
}

TEST_F(MembershipCoreTest, WhatIsHeardOfAnUnknownEndsItsLookup) {
  MembershipActions out;
  core_.meet(kUnknown, out);
  core_.on_notice({kUnknown, kOne, "was silent"}, out);
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_FALSE(core_.found(kUnknown, WorkerInfo{kUnknown, "five", "a5"}, out));
  EXPECT_FALSE(core_.is_live(kUnknown));
  // A fenced worker treats workers that it never met as dead too.
  const WorkerId other{6, 1};
  out = {};
  core_.meet(other, out);
  core_.on_notice({kSelf, kOne, "was silent"}, out);
  ASSERT_EQ(out.gone.size(), 1u);
  EXPECT_EQ(out.gone[0].worker, other);
}

// One of the two is declared dead. If it is the refusing one, its refusal means nothing.
TEST_F(MembershipCoreTest, OnlyAWorkerThatTheListDoesNotNameRefuses) {
  const auto refused = [&](WorkerId by, std::vector<DeathRecord> list) {
    MembershipActions out;
    core_.refused(by, absl::PermissionDeniedError("was declared dead itself"), out);
    EXPECT_TRUE(out.refused.ok());
    return answer(by, out.questions.front().number, std::move(list)).refused;
  };
  EXPECT_TRUE(refused(kOne, {{kOne, kTwo, "was silent"}}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(refused(kTwo, {})));
  EXPECT_TRUE(refused(kThree, {{kSelf, kTwo, "was silent"}}).ok());
}

TEST_F(MembershipCoreTest, AJoinerIsToldOfTheDeathsThatItMayHaveMissed) {
  MembershipActions out;
  core_.on_notice({kTwo, kOne, "was silent"}, out);
  core_.left(kThree);  // this is in the store
  out = {};
  ASSERT_TRUE(core_.admit({{4, 1}, "four", "a4"}, out).ok());
  ASSERT_EQ(out.notices.size(), 1u);
  EXPECT_EQ(out.notices[0].to, (WorkerId{4, 1}));
  EXPECT_EQ(out.notices[0].death_record, (DeathRecord{kTwo, kOne, "was silent"}));
}

TEST_F(MembershipCoreTest, EndedIncarnationsThatWereNeverPeersAreSettled) {
  const auto settled = [&](std::vector<WorkerId> tied) {
    MembershipActions out;
    core_.settle_ended(tied, out);
    std::vector<WorkerId> gone;
    for (const auto& one : out.gone) gone.push_back(one.worker);
    return gone;
  };
  MembershipActions out;
  core_.on_notice({{7, 2}, kOne, "was silent"}, out);
  EXPECT_TRUE(out.gone.empty());
  restart({{1, 3}, "one", "b"}, out);
  // A peer, this worker, and an incarnation of which nothing is known are left alone.
  EXPECT_TRUE(settled({kTwo, kSelf, {1, 3}, {8, 1}}).empty());
  const std::vector<WorkerId> over = {{7, 2}, {7, 1}, {1, 2}};
  EXPECT_EQ(settled(over), over);
  core_.on_notice({kSelf, kTwo, "was silent"}, out);
  EXPECT_EQ(settled({kTwo, {8, 1}}).size(), 2u);
}

TEST_F(MembershipCoreTest, ALeaseBeginsInvalid) {
  const uint64_t heartbeat = tick(true, now_).heartbeats[0].number;
  EXPECT_FALSE(core_.has_valid_lease(kOne, now_));
  answer_heartbeat(kOne, heartbeat);
  EXPECT_TRUE(core_.has_valid_lease(kOne, now_));
}

TEST_F(MembershipCoreTest, RefusesWhoCannotBeAMember) {
  const auto refusal = [&](const WorkerInfo& joiner) {
    MembershipActions out;
    const absl::Status status = core_.admit(joiner, out);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_TRUE(out.questions.empty());
    return text(status);
  };
  EXPECT_THAT(refusal({{7, 1}, "two", "b"}), HasSubstr("'two' (w2.1) has that name already"));
  EXPECT_THAT(refusal({{7, 1}, "me", "b"}), HasSubstr("has that name already"));
  EXPECT_THAT(refusal({{0, 2}, "me", "b"}), HasSubstr("has the place of"));
  MembershipActions out;
  restart({{1, 3}, "one", "b"}, out);
  EXPECT_THAT(refusal({{1, 2}, "one", "b"}), HasSubstr("an earlier incarnation"));
}

TEST_F(MembershipCoreTest, WhoLeftIsNotAdmittedAgain) {
  core_.left(kTwo);
  MembershipActions out;
  EXPECT_TRUE(absl::IsPermissionDenied(core_.admit({kTwo, "two", "a2"}, out)));
  restart({{2, 2}, "two", "a2"}, out);
  EXPECT_TRUE(core_.is_live({2, 2}));
  EXPECT_TRUE(out.questions.empty());
}

TEST(LeaseOptions, NamesWhatIsWrong) {
  EXPECT_TRUE(LeaseOptions{}.validate().ok());
  LeaseOptions bad;
  bad.valid_for = bad.suspect_after;
  EXPECT_THAT(text(bad.validate()), HasSubstr("valid_for 1.8s"));
  bad = {};
  bad.heartbeat_interval = milliseconds(0);
  EXPECT_FALSE(bad.validate().ok());
}

}  // namespace
}  // namespace weft::rpc_internal
