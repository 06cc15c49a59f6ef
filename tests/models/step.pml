/* Shows that an optimizer's step is applied once by every owner that outlives it, or by none.
 *
 * Mode locked, as dist_optim/internal/optimizer_shard.h and distributed_optimizer.cc have it: one
 * step, its caller, K owners. LAST: owner 0 is in the caller's process, and owner 1 is the only
 * remote one. PREPARE and COMMIT are one message to it (FINISH), and a lost answer is asked for
 * (SETTLE). Without LAST all owners are remote.
 *
 * Calls are executed at most once, in any order. An answer is lost only if its sender dies, or if
 * the caller has waited too long for a PREPARE or FINISH, which may run later; this happens
 * TIMEOUTS times. A call of a dead caller may still run, also after its death is known. DEATHS
 * workers may be declared dead, crashed or not (then they go on until they hear it). Each worker
 * hears it at its own time.
 *
 * TWO_DEATHS shows what is not promised: the caller dies, and then an owner that applied the step
 * after it has answered one of two others. ASKS_AGAIN would close it: a worker that counts an owner
 * as dead asks the rest again, and a worker that is asked no longer listens to the dead one before
 * it answers.
 *
 * The mutants are the names below that the text only #ifdefs.
 */
#ifndef K
#define K 3
#endif
#ifdef TWO_DEATHS
#define DEATHS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif
#ifndef REFUSALS
#define REFUSALS 1
#endif
#define CALLER K
#define HAS(set, w) (((set) >> (w)) & 1)
#define BIT(w) (1 << (w))
#define EVERYBODY (BIT(K) - 1)

/* Never true: they name the broken promise in Spin's report. */
bit ALL_OR_NONE, APPLIED_ONCE, TRUE_OUTCOME;

/* An owner's outcome. */
#define UNKNOWN 0
#define PREPARED 1
#define APPLIED 2
#define ABORTED 3
byte outcome[K];
byte applied[K];  /* ghost: how often it was applied */
bit fence[K];     /* COMMIT is refused: the owners decide */
bit resolves[K];  /* asks the others */

/* Calls in flight, as sets of owners, and their answers. FINISH counts as prepare. */
byte prepare;
byte commit;
byte abort;
byte settle;
byte done;     /* the caller has the answer to its last call to that owner */
byte refused;  /* and it was no */
byte yes;      /* answers in flight */
byte no;

/* Questions: from the asker, to the other owner. */
#define ASKED 1
#define SAYS_NO 2
#define SAYS_APPLIED 3
#define COUNTED 4
typedef Questions { byte to[K]; }
Questions question[K];

/* The caller. */
#define PREPARING 0
#define FINISHING 1
#define SETTLING 2
#define COMMITTING 3
#define ABORTING 4
#define ENDED 5
byte phase;
byte told;  /* by step(): UNKNOWN is nothing yet, PREPARED is DataLoss */

byte dead;         /* sets of workers: those that are declared dead */
byte crashed;
byte heard[K + 1]; /* the deaths of which each has heard */
byte deaths;
byte timeouts;
byte refusals;     /* how many owners will refuse a PREPARE */

hidden byte i;
hidden byte ups;
hidden byte downs;
hidden byte lives;

#define RUNS(w) (!HAS(crashed, w))
#ifdef LAST
#define PARTNERS 1                /* prepared first: the local one */
#else
#define PARTNERS EVERYBODY
#endif

/* The promise, after each decision of an owner. */
inline check() {
  ups = 0;
  downs = 0;
  lives = 0;
  i = 0;
  do
  :: i < K ->
     if
     :: !HAS(dead, i) && outcome[i] == APPLIED -> ups++
     :: !HAS(dead, i) && outcome[i] == ABORTED -> downs++
     :: else
     fi;
     if :: !HAS(dead, i) -> lives++ :: else fi;
     assert(APPLIED_ONCE || applied[i] <= 1);
     i++
  :: else -> break
  od;
  assert(ALL_OR_NONE || ups == 0 || downs == 0);
  assert(TRUE_OUTCOME || told != ABORTED || ups == 0);
  assert(TRUE_OUTCOME || told != APPLIED || ups == lives)
}
inline apply(o) {
  outcome[o] = APPLIED;
  applied[o]++;
  fence[o] = 0;
  check()
}
inline give_up(o) {
  outcome[o] = ABORTED;
  fence[o] = 0;
  check()
}
/* Nobody waits any longer for the answer to a call of an earlier phase. */
inline answer(o, to, good) {
  if
  :: phase == to && (good) -> yes = yes | BIT(o)
  :: phase == to && !(good) -> no = no | BIT(o)
  :: else
  fi
}

/* ---- The owner ---- */

#ifdef NO_QUESTION_FENCE
#define FENCES false
#else
#define FENCES true
#endif
#ifdef COMMIT_AGAIN
#define REPEATED(o) (outcome[o] == APPLIED)
#else
#define REPEATED(o) false
#endif

inline on_prepare(o) {
  if
  :: outcome[o] == UNKNOWN && !HAS(heard[o], CALLER) -> outcome[o] = PREPARED; answer(o, PREPARING, true)
  :: outcome[o] == UNKNOWN && HAS(heard[o], CALLER) -> give_up(o); answer(o, PREPARING, false)
  :: outcome[o] == PREPARED || outcome[o] == APPLIED -> answer(o, PREPARING, true)
  :: outcome[o] == ABORTED -> answer(o, PREPARING, false)
  fi
}
inline on_commit(o) {
  if
  :: (outcome[o] == PREPARED && !fence[o]) || REPEATED(o) -> apply(o); answer(o, COMMITTING, true)
  :: outcome[o] == APPLIED && !REPEATED(o) -> answer(o, COMMITTING, true)
  :: else -> answer(o, COMMITTING, false)
  fi
}
inline on_finish(o) {
  if
  :: outcome[o] == UNKNOWN || outcome[o] == PREPARED -> apply(o); answer(o, FINISHING, true)
  :: outcome[o] == APPLIED -> answer(o, FINISHING, true)
  :: outcome[o] == ABORTED -> answer(o, FINISHING, false)
  fi
}
inline on_abort(o) {
  if
  :: outcome[o] == PREPARED -> give_up(o)
#ifdef ABORT_FORGETS
  :: outcome[o] == UNKNOWN -> skip
#else
  :: outcome[o] == UNKNOWN -> give_up(o)
#endif
  :: else
  fi
}
/* Another owner asks, because the caller is dead. */
inline on_question(o, from) {
  if
  :: outcome[o] == APPLIED -> question[from].to[o] = SAYS_APPLIED
  :: else ->
     question[from].to[o] = SAYS_NO;
     if
     :: outcome[o] == PREPARED && FENCES -> fence[o] = 1
     :: outcome[o] == UNKNOWN && FENCES -> give_up(o)
     :: else
     fi
  fi
}
inline on_applied_elsewhere(o, p) {
  if
  :: outcome[o] == PREPARED || REPEATED(o) -> apply(o)
  :: else -> assert(ALL_OR_NONE || outcome[o] == APPLIED || HAS(dead, o) || HAS(dead, p))
  fi
}
/* All have answered or are dead, and none has applied it. */
#define COUNTS(o, p) \
  (p == o || question[o].to[p] == COUNTED || \
   (HAS(heard[o], p) && question[o].to[p] != SAYS_APPLIED))
#if K > 2
#define ALL_COUNT(o) (COUNTS(o, 0) && COUNTS(o, 1) && COUNTS(o, 2))
#else
#define ALL_COUNT(o) (COUNTS(o, 0) && COUNTS(o, 1))
#endif

inline caller_died(o) {
  heard[o] = heard[o] | BIT(CALLER);
  if
  :: outcome[o] == PREPARED ->
#ifdef ASKS_NOBODY
     give_up(o)
#else
     fence[o] = 1;
     resolves[o] = 1;
     i = 0;
     do
     :: i < K ->
        if
        :: i != o && !HAS(heard[o], i) -> question[o].to[i] = ASKED
        :: i != o && HAS(heard[o], i) -> question[o].to[i] = COUNTED
        :: else
        fi;
        i++
     :: else -> break
     od
#endif
  :: else
  fi
}
/* Answers of the dead owner that have not arrived no longer count. */
inline owner_died(o, p) {
  heard[o] = heard[o] | BIT(p);
  if :: question[o].to[p] != 0 -> question[o].to[p] = COUNTED :: else fi;
#ifdef ASKS_AGAIN
  if
  :: resolves[o] ->
     i = 0;
     do
     :: i < K ->
        if
        :: i != o && !HAS(heard[o], i) && question[o].to[i] != SAYS_APPLIED -> question[o].to[i] = ASKED
        :: else
        fi;
        i++
     :: else -> break
     od
  :: else
  fi
#endif
}

#ifdef LAST
#define IS_LAST(o) (o == 1)
#else
#define IS_LAST(o) false
#endif
#ifdef COMMIT_AGAIN
#define KEPT(o) BIT(o)
#else
#define KEPT(o) 0
#endif

/* The question names the dead owners that its asker does not count. */
#ifdef ASKS_AGAIN
#define HEEDS(o, p) ((heard[p] & EVERYBODY & (255 - heard[o])) == 0)
#else
#define HEEDS(o, p) true
#endif
#define MEETS(o, p) \
  :: d_step { o != p && RUNS(o) && question[p].to[o] == ASKED && !HAS(heard[o], p) && HEEDS(o, p) -> \
              on_question(o, p) } \
  :: d_step { o != p && RUNS(o) && question[o].to[p] == SAYS_APPLIED -> \
              question[o].to[p] = COUNTED; resolves[o] = 0; on_applied_elsewhere(o, p) } \
  :: d_step { o != p && RUNS(o) && question[o].to[p] == SAYS_NO -> question[o].to[p] = COUNTED } \
  :: d_step { o != p && RUNS(o) && HAS(dead, p) && !HAS(heard[o], p) -> owner_died(o, p) }

proctype owner(byte o) {
end:
  do
  :: d_step { RUNS(o) && HAS(prepare, o) && !IS_LAST(o) -> prepare = prepare - BIT(o); on_prepare(o) }
  :: d_step { RUNS(o) && HAS(prepare, o) && refusals > 0 && outcome[o] == UNKNOWN ->
              refusals--;
              prepare = prepare - BIT(o);
              answer(o, (IS_LAST(o) -> FINISHING : PREPARING), false) }
  :: d_step { RUNS(o) && HAS(prepare, o) && IS_LAST(o) -> prepare = prepare - BIT(o); on_finish(o) }
  :: d_step { RUNS(o) && HAS(commit, o) -> commit = commit - BIT(o); on_commit(o) }
  :: d_step { RUNS(o) && HAS(abort, o) -> abort = abort - BIT(o); on_abort(o); answer(o, ABORTING, true) }
  :: d_step { RUNS(o) && HAS(settle, o) -> settle = settle - BIT(o); on_abort(o);
              answer(o, SETTLING, outcome[o] == APPLIED) }
  :: d_step { RUNS(o) && HAS(dead, CALLER) && !HAS(heard[o], CALLER) -> caller_died(o) }
  :: d_step { RUNS(o) && resolves[o] && ALL_COUNT(o) ->
              resolves[o] = 0;
              if :: outcome[o] == PREPARED -> give_up(o) :: else fi }
  MEETS(o, 0)
  MEETS(o, 1)
#if K > 2
  MEETS(o, 2)
#endif
  od
}

/* ---- The caller ---- */

#define CALLED(o) (phase == PREPARING && HAS(PARTNERS, o) || \
                   (phase == COMMITTING || phase == ABORTING) && HAS(PARTNERS, o) || \
                   (phase == FINISHING || phase == SETTLING) && IS_LAST(o))
#define WAITS(o) (RUNS(CALLER) && CALLED(o) && !HAS(done, o))
#define HEARS(o) \
  :: d_step { WAITS(o) && HAS(yes, o) -> yes = yes - BIT(o); done = done | BIT(o) } \
  :: d_step { WAITS(o) && HAS(no, o) -> no = no - BIT(o); done = done | BIT(o); refused = refused | BIT(o) } \
  /* It died: its calls fail. */ \
  :: d_step { WAITS(o) && HAS(dead, o) -> done = done | BIT(o); refused = refused | BIT(o) } \
  :: d_step { WAITS(o) && (phase == PREPARING || phase == FINISHING) && timeouts > 0 -> \
              timeouts--; done = done | BIT(o); refused = refused | BIT(o) }

/* Answers that nobody waits for any longer are dropped with the call. */
inline call_again(next) {
  phase = next;
  done = 0;
  refused = 0;
  yes = 0;
  no = 0
}
inline tell(what) {
  if :: told == UNKNOWN -> told = what; check() :: else fi
}
#define DATA_LOSS PREPARED
#define ALL_DONE ((done & PARTNERS) == PARTNERS)
#ifdef ONE_PREPARED
#define MAY_COMMIT (done != 0 && refused == 0)
#else
#define MAY_COMMIT (ALL_DONE && refused == 0)
#endif
#ifdef ONE_ANSWER
#define ALL_COMMITTED (done != 0 && refused != done)
#else
#define ALL_COMMITTED (ALL_DONE && refused == 0)
#endif

proctype caller() {
  prepare = PARTNERS;
end:
  do
  HEARS(0)
  HEARS(1)
#if K > 2
  HEARS(2)
#endif
  :: d_step { RUNS(CALLER) && phase == PREPARING && ALL_DONE && refused != 0 ->
              call_again(ABORTING); abort = PARTNERS }
#ifdef LAST
  :: d_step { RUNS(CALLER) && phase == PREPARING && ALL_DONE && refused == 0 ->
              call_again(FINISHING); prepare = prepare | BIT(1) }
  :: d_step { RUNS(CALLER) && phase == FINISHING && HAS(done, 1) && refused == 0 ->
              call_again(COMMITTING); commit = PARTNERS }
#ifdef NOT_SETTLED
  :: d_step { RUNS(CALLER) && phase == FINISHING && HAS(done, 1) && refused != 0 ->
              call_again(ABORTING); abort = PARTNERS }
#else
  :: d_step { RUNS(CALLER) && phase == FINISHING && HAS(done, 1) && refused != 0 ->
              call_again(SETTLING); settle = BIT(1) }
#endif
  :: d_step { RUNS(CALLER) && phase == SETTLING && HAS(done, 1) && refused == 0 ->
              call_again(COMMITTING); commit = PARTNERS }
  :: d_step { RUNS(CALLER) && phase == SETTLING && HAS(done, 1) && refused != 0 ->
              call_again(ABORTING); abort = PARTNERS }
#else
  :: d_step { RUNS(CALLER) && phase == PREPARING && MAY_COMMIT ->
              call_again(COMMITTING); commit = PARTNERS }
#endif
  :: d_step { RUNS(CALLER) && phase == COMMITTING && ALL_COMMITTED -> phase = ENDED; tell(APPLIED) }
  :: d_step { RUNS(CALLER) && phase == COMMITTING && ALL_DONE && refused != 0 ->
              phase = ENDED; tell(DATA_LOSS) }
  :: d_step { RUNS(CALLER) && phase == ABORTING && ALL_DONE -> phase = ENDED; tell(ABORTED) }
  /* The time limit of step(): an owner has not answered. */
  :: d_step { RUNS(CALLER) && (phase == SETTLING || phase == COMMITTING) && told == UNKNOWN && timeouts > 0 ->
              timeouts--; tell(DATA_LOSS) }
  :: d_step { RUNS(CALLER) && phase == ABORTING && told == UNKNOWN && timeouts > 0 ->
              timeouts--; tell(ABORTED) }
  od
}

/* Death records. The worker has crashed, or goes on until it hears. Owner 0 dies with a local
 * caller. Without LIVENESS nobody must act, so a crash is a worker that does not, and a loss is
 * a call that does not arrive. */
#ifdef LAST
#define LIFE_OF(w) (w == CALLER || w == 0 -> BIT(CALLER) | BIT(0) : BIT(w))
#else
#define LIFE_OF(w) BIT(w)
#endif
#define LOSES(calls, w) calls = calls & (255 - BIT(w))
#define WRONG_EXPIRY(w) \
  :: d_step { deaths > 0 && RUNS(w) && !HAS(dead, w) -> deaths--; dead = dead | LIFE_OF(w) }
#ifdef LIVENESS
#define FATE(w) WRONG_EXPIRY(w) \
  :: d_step { deaths > 0 && RUNS(w) && !HAS(dead, w) -> deaths--; crashed = crashed | LIFE_OF(w) } \
  :: d_step { HAS(crashed, w) && !HAS(dead, w) -> dead = dead | LIFE_OF(w) } \
  :: d_step { HAS(dead, w) && RUNS(w) -> crashed = crashed | LIFE_OF(w) } \
  :: d_step { HAS(crashed, CALLER) && w < K && (HAS(commit | prepare | abort | settle, w)) -> \
              LOSES(commit, w); LOSES(prepare, w); LOSES(abort, w); LOSES(settle, w) }
#else
#define FATE(w) WRONG_EXPIRY(w)
#endif

proctype fate() {
end:
  do
  FATE(0)
  FATE(1)
#if K > 2
  FATE(2)
#endif
  FATE(CALLER)
#ifdef COMMIT_AGAIN
  :: d_step { phase == COMMITTING && timeouts > 0 -> timeouts--; commit = commit | PARTNERS }
#endif
  od
}

init {
  atomic {
    /* Each number of faults up to the bound: the last ones must not be forced to happen. */
    if :: deaths = 0 :: deaths = 1
#if DEATHS > 1
       :: deaths = 2
#endif
    fi;
    if :: timeouts = 0 :: timeouts = TIMEOUTS fi;
    if :: refusals = 0 :: refusals = REFUSALS fi;
    run owner(0);
    run owner(1);
#if K > 2
    run owner(2);
#endif
    run caller();
    run fate()
  }
}

#ifdef LIVENESS
/* Makes every run endless: under -f Spin does not look at runs that end. */
active proctype idle() {
  do :: phase = phase od
}
#define DECIDED(o) (HAS(crashed, o) || outcome[o] != PREPARED)
#if K > 2
#define ALL_DECIDED (DECIDED(0) && DECIDED(1) && DECIDED(2))
#else
#define ALL_DECIDED (DECIDED(0) && DECIDED(1))
#endif

/* No owner is left prepared, and step() returns while its caller lives. */
ltl decided { <> [] ALL_DECIDED }
ltl says { <> (told != UNKNOWN || HAS(crashed, CALLER)) }
#endif
