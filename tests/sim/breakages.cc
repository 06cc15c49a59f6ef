// The rules that can be broken, and the search for a run that notices a broken rule.
#include <algorithm>
#include <iomanip>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"
#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

constexpr Rule kRules[] = {
    // session and peer
    {"duplicates_accepted", "a frame that was seen before is let through"},
    {"gap_acknowledged", "a frame ahead acknowledges those before it"},
    {"gap_never_closes", "what came ahead is not acknowledged when the gap closes"},
    {"unacknowledged_forgotten", "one frame more than acknowledged is forgotten"},
    {"not_resent", "a new connection gets nothing again"},
    {"credit_lost_with_connection", "credit told on a lost frame is not told again",
     Profile::kEverything, "PeerTest.AResendHoldsAllThatMayBeLostAndCancelsAfterTheirCalls"},
    {"credit_not_returned", "the callee never gives credit back"},
    {"lost_result_says_not_run", "a result too large to keep is reported as not run"},
    {"sent_call_counts_as_unsent", "a call that left is called unsent when it fails"},
    {"cancelled_call_leaves_queue", "a call that was cancelled in the queue is sent"},
    {"answered_call_stays_open", "an ended call can end again"},
    // membership
    {"whole_tick_heard", "a frame counts as heard until the next look", Profile::kJoining,
     "MembershipCoreTest.SilenceBeginsWithTheLastFrameNotWithTheNextLook"},
    {"frames_not_heard", "only silence is counted, not what is heard", Profile::kJoining},
    {"waits_are_silence", "the time in which a peer waits for a processor is its silence"},
    {"late_looks_count_in_full", "late looks count in full before the kernel tells of any wait",
     Profile::kEverything, "MembershipLagTest.LateLooksAtAPeerThatAlwaysWaitsDoNotMakeItSuspect"},
    {"stopped_time_counts", "the time in which a worker stood still is its peers' silence",
     Profile::kJoining, "MembershipCoreTest.WhoWasStoppedJudgesNobodyForIt"},
    {"called_without_valid_lease", "calls are sent without a valid lease", Profile::kJoining},
    {"valid_for_longer_than_suspect_after", "a holder relies on its peer longer than that waits",
     Profile::kJoining},
    {"valid_before_any_answer", "a lease begins valid", Profile::kJoining,
     "MembershipCoreTest.ALeaseBeginsInvalid"},
    {"death_record_not_told", "the writer of a death record tells no other worker",
     Profile::kJoining},
    {"last_words_not_told", "what a dead writer wrote is not told in its place", Profile::kJoining,
     "MembershipCoreTest.TheRecordsOfADeadWriterAreToldInItsPlace"},
    {"own_death_ignored", "a worker that finds itself in the list goes on", Profile::kJoining},
    {"undecided_not_read_again",
     "a worker that gave up a peer without a death record reads no list", Profile::kJoining,
     "MembershipCoreTest.AWorkerThatGaveUpAPeerReadsTheListUntilItDecides"},
    {"unknown_decides_nothing", "a pair that the store does not answer goes on", Profile::kJoining},
    {"joiner_declares_dead", "a worker that nobody knows yet declares the silent ones dead",
     Profile::kJoining, "JoinerCoreTest.DoesNotDeclareDeadForSilenceButTellsTheOthers"},
    {"refused_declares_dead", "a worker that is refused declares the refuser dead",
     Profile::kJoining, "MembershipCoreTest.ARefusedWorkerOnlyReads"},
    {"refusal_not_checked", "a joiner that is refused fails without reading the list",
     Profile::kJoining},
    {"claims_not_compared", "a claim to have replaced a worker is not checked", Profile::kJoining,
     "MembershipIncarnations.AFalseClaimToThePlaceOfAnEndedWorkerDoesNotKeepTheRealProcessOut"},
    // references, the owner
    {"no_tombstones", "ended ids are not remembered"},
    {"withdrawn_creation_runs", "a creation that was cancelled before it came runs"},
    {"cancelled_creation_keeps_waiting", "what waits for a cancelled creation waits on",
     Profile::kEverything, "OwnershipSchedules.FailedCarriersLeaveNothing"},
    {"parked_forks_forgotten", "forks that came before the creation are forgotten"},
    {"passed_fork_not_listed", "a fork that the owner sends is not listed"},
    {"delete_not_struck_out", "a deleted fork stays listed"},
    {"repeat_strikes_another", "a repeated USER_DELETE strikes out another fork"},
    {"freed_with_forks", "a value is freed although forks are listed"},
    {"freed_while_awaited", "a value is freed although calls wait for it"},
    {"dead_user_not_reaped", "a dead user's forks stay"},
    {"watermark_not_taken", "the users' watermark is ignored"},
    {"earlier_incarnation_not_recorded",
     "a death known after that of a later incarnation is ignored", Profile::kEverything,
     "RRefDeaths.AnEarlierIncarnationEndsAlsoAfterALaterOneOfItsIndex"},
    {"ended_incarnation_heard", "messages of ended incarnations are taken", Profile::kEverything,
     "OwnershipSchedules.DeathsLeaveNothing"},
    // references, the user
    {"creation_not_cancelled", "a creation given up is not cancelled at the owner"},
    {"unsent_child_stays", "a child that never left holds its parent"},
    {"dead_owner_ignored", "forks of a dead owner's values stay"},
    {"dead_child_holder_ignored", "a child sent to a dead worker holds its parent"},
    {"watermark_ignores_undecided", "the watermark passes undecided ids"},
    {"no_last_watermark", "the last watermark is not sent"},
    {"deleted_before_children", "a fork is deleted with undecided children"},
    {"deleted_unconfirmed", "a fork is deleted before it is confirmed"},
    {"child_accept_not_sent", "the parent is not told that its child is decided"},
    {"refused_child_not_told", "the parent is not told that its child was refused"},
    {"starts_at_first_confirmation", "a call starts when one of its references is confirmed"},
    // contexts
    {"released_context_made_again", "a late call makes a released context again"},
    {"release_not_passed_on", "a worker that hears of a release tells nobody"},
    {"histories_not_read", "decisions that are piggybacked are ignored"},
    {"ended_pass_joined", "a pass that has ended here is joined again"},
    {"dead_creator_ignored", "contexts of a dead creator stay"},
    {"lost_peer_not_told", "the creator does not hear who lost a peer"},
    {"ended_peer_heard", "messages of a dead peer are taken"},
    // passes
    {"unreceived_ignored", "what was sent and not received does not count"},
    {"commits_before_quiescence", "the initiator decides when it is idle itself"},
    {"commits_while_waiting", "commit although a gradient is held up"},
    {"reports_while_working", "a worker reports, or decides, while it works"},
    {"holds_not_counted", "holds do not keep a worker busy"},
    {"carried_reports_dropped", "reports that are piggybacked are lost"},
    {"seal_cancels_active", "the seal cancels sends that will get gradients"},
    {"seal_misses_one", "one worker is not sealed"},
    {"empty_answers_not_sent", "no answer where no gradient comes"},
    {"commit_not_published", "participants are not told of the commit"},
    {"aborted_stage_merged", "gradients of an aborted pass become readable"},
    {"abort_not_passed_on", "an abort does not follow the gradients", Profile::kEverything,
     "ContextCore.AnAbortLearnedFromAHistoryFollowsTheGradients"},
    {"abort_not_heard", "a participant ignores ABORT"},
    {"death_in_pass_ignored", "the death of a worker does not end a pass"},
    {"commits_while_waiting_sealed", "commit although a gradient is held up after the seal",
     Profile::kEverything, "PassCore.NothingIsReadableIfAGradientIsHeldUpAfterTheSeal"},
    {"kept_after_deadline", "a part without a decision stays after the deadline",
     Profile::kEverything, "PassCore.AWorkerWithoutADecisionDropsThePassAndSaysSo"},
    {"fed_twice", "a second gradient for one send is fed", Profile::kEverything,
     "PassCore.GradientsForOneSendAreFedOnce"},
    {"cancelled_send_fed", "a gradient for a cancelled send is fed", Profile::kEverything,
     "PassCore.NoGradientsAreFedToACancelledSend"},
    // steps, the owner
    {"abort_ignored", "a step that was given up stays prepared", Profile::kSteps},
    {"settle_leaves_it_open", "a step is called not applied and may be applied later",
     Profile::kSteps, "StepOwnerCoreTest.TheCallersQuestionEndsWhatIsNotApplied"},
    {"others_not_asked", "an owner whose caller died gives the step up alone", Profile::kSteps},
    {"applied_elsewhere_ignored", "that another owner applied the step does not count",
     Profile::kSteps},
    {"undecided_sequence_joined", "an optimizer joins a sequence with an undecided step",
     Profile::kSteps, "StepOwnerCoreTest.ASequenceGoesOnWithTheNextOptimizer"},
    {"sequence_begins_anew", "an owner does not know how far a sequence is", Profile::kSteps},
    {"later_steps_stay", "steps behind the one that is resumed count as applied", Profile::kSteps,
     "StepOwnerCoreTest.GoingBackEndsWhatWasPreparedAndSetsEveryoneBack"},
    {"inquiry_leaves_it_open", "an inquiry leaves a step open that is not known here",
     Profile::kSteps, "StepOwnerCoreTest.AnInquiryEndsAStepWhosePrepareHasNotArrived"},
    {"inquiry_does_not_fence", "an owner that was asked takes the dead caller's COMMIT",
     Profile::kSteps, "StepOwnerCoreTest.AnOwnerThatWasAskedRefusesTheCallersCommit"},
    {"dead_owners_answer_counts", "what a dead owner had said counts", Profile::kSteps,
     "StepOwnerCoreTest.WhatADeadOwnerHadSaidDoesNotCountOnceAnotherOwnerKnowsItDead"},
    {"earlier_round_counts", "an answer to an earlier question counts", Profile::kSteps,
     "StepOwnerCoreTest.WhatADeadOwnerHadSaidDoesNotCountOnceAnotherOwnerKnowsItDead"},
    {"deaths_in_inquiry_ignored", "deaths that a question names are ignored", Profile::kSteps,
     "StepOwnerCoreTest.WhatADeadOwnerHadSaidDoesNotCountOnceAnotherOwnerKnowsItDead"},
    {"dead_callers_prepare_taken", "a PREPARE of a dead caller is taken", Profile::kSteps,
     "StepOwnerCoreTest.WithoutItsCallerItAsksTheOthersAndRefusesTheCommit"},
    {"earlier_deaths_forgotten", "owners that died before the PREPARE are asked", Profile::kSteps,
     "StepOwnerCoreTest.AnOwnerThatDiedBeforeThePrepareIsNotAsked"},
    // steps, the caller
    {"refusal_does_not_count", "the step is committed although an owner refused it",
     Profile::kSteps},
    {"lost_answer_not_asked_for", "an answer that was lost counts as not applied", Profile::kSteps},
    {"unknown_counts_as_not_applied", "SETTLE's unknown is told as not applied", Profile::kSteps,
     "StepCallerCoreTest.AQuestionWithoutAnAnswerIsDataLossNotNotApplied"},
    {"durable_of_the_furthest", "durable is what one owner has written", Profile::kSteps},
    // shutdown
    {"entry_not_awaited", "a phase ends before all have entered", Profile::kShutdown},
    {"reports_of_any_phase_count", "reports of phase 1 count in phase 2", Profile::kShutdown},
    {"left_out_not_compared", "a report from before a death counts", Profile::kShutdown},
    {"end_not_reported", "no new report after a death", Profile::kShutdown},
    {"phase_end_taken_early", "a phase ends although a joiner has not entered", Profile::kShutdown,
     "QuiescenceCoreTest.APhaseDoesNotEndBeforeAJoinerThatItsLeaderDoesNotKnowHasEntered"},
    {"leader_asks_once", "the leader does not ask for new reports after a death",
     Profile::kShutdown,
     "QuiescenceCoreTest.AJoinerWhoseEndWasReportedBeforeTheLeaderMetItIsNotWaitedFor"},
    {"old_rounds_report_counts", "a report from before the leader asked again counts",
     Profile::kShutdown,
     "QuiescenceCoreTest.AReportThatWasUnderWayBeforeTheLeaderAskedAgainDoesNotCount"},
    {"ended_phase_not_known", "a new leader does not hear that a phase has ended",
     Profile::kShutdown, "QuiescenceCoreTest.ALeaderMayDieAtAnyStep"},
    {"joiner_not_told_of_entry", "a joiner is not told who has entered", Profile::kShutdown},
    {"report_with_unknown_dropped", "a report that names an unknown worker is lost",
     Profile::kShutdown},
    {"joiners_always_admitted", "joiners are admitted after phase 1", Profile::kShutdown},
};

}  // namespace

std::span<const Rule> rules() { return kRules; }

bool break_rule(std::string_view name) {
  const bool known =
      std::ranges::any_of(kRules, [&](const Rule& rule) { return name == rule.name; });
  if (!known || !has_breakages()) return false;
  set_breakage(name, true);
  return true;
}

void mend_rules() {
  for (const Rule& rule : kRules) set_breakage(rule.name, false);
}

int find_breakages(uint64_t at_most, std::ostream& out) {
  if (!has_breakages()) {
    out << "this build cannot break rules: configure it with -DWEFT_BREAKAGES=ON, as preset dev "
           "does\n";
    return 2;
  }
  size_t missed = 0;
  out << std::left << std::setw(34) << "breakage" << std::setw(12) << "profile" << std::setw(62)
      << "what the core does" << std::right << std::setw(8) << "runs"
      << "  invariant\n";
  for (const Rule& rule : kRules) {
    break_rule(rule.name);
    Report report;
    RunResult result;
    while (report.runs < at_most && result.violation.invariant.empty()) {
      result = run_seed(rule.profile, report.runs + 1, report);
    }
    mend_rules();
    const bool found = !result.violation.invariant.empty();
    missed += found || rule.test != nullptr ? 0 : 1;
    out << std::left << std::setw(34) << rule.name << std::setw(12) << name_of(rule.profile)
        << std::setw(62) << rule.broken << std::right << std::setw(8) << report.runs << "  "
        << (found                  ? result.violation.invariant
            : rule.test != nullptr ? absl::StrCat("- (", rule.test, ")")
                                   : "NOT FOUND")
        << std::endl;
  }
  out << std::size(kRules) << " breakages, " << missed << " found neither so nor by a test\n";
  return missed == 0 ? 0 : 1;
}

}  // namespace weft::sim
