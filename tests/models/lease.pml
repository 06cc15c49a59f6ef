/* Shows that a peer does not suspect a holder whose lease is valid, and that a group has one order
 * of deaths.
 *
 * This file has two models of docs/membership.md.
 *
 * TIMED: one pair and its lease. The holder relies on the lease; the granter may suspect the
 * holder. Clocks tick: one tick is a heartbeat interval, 200 ms, or half of one with FINE. One of
 * the two clocks is up to 10 % faster or slower than the other. The granter stops and goes on.
 * Heartbeats and answers are late or lost, each direction by itself. They may also never be sent,
 * as by a holder that is stopped.
 *
 * S6: while the holder's lease is valid, the granter has not suspected it. The model keeps only the
 * newest heartbeat and the newest answer in flight. More of them, and the granter's own heartbeats,
 * would only delay a suspicion. RELIABLE: the holder sends heartbeats, and nothing is late or lost.
 * Then the granter, which is stopped at any time for any time, does not suspect it.
 *
 * Without TIMED: N workers, the store's list, posts, cuts and fencing. Time is left out; a live
 * worker may be suspected WRONG times. STORE_LATE: the store answers too late this many times.
 * STORE_LOST: the store is lost at any time.
 *
 * The mutants are the names below that the text only #ifdefs.
 */
#define HAS(set, w) (((set) >> (w)) & 1)
#define BIT(w) (1 << (w))

/* Never true: they name the broken promise in Spin's report. */
bit S6, JUDGES_AWAKE, ONE_ORDER, NOT_BOTH, NOT_REVISED;

#ifdef TIMED
/* ---- The lease of a pair ---- */

#ifdef FINE
#define TICKS 2
#else
#define TICKS 1
#endif
#ifndef SUSPECT_AFTER
#define SUSPECT_AFTER (9 * TICKS)
#endif
#ifndef VALID_FOR
#define VALID_FOR (7 * TICKS)
#endif
#ifndef DRIFT
#define DRIFT 10  /* ticks between two that worker 0's clock adds or leaves out */
#endif
#define NEVER 255

byte heartbeat = NEVER;    /* age of the holder's heartbeat in flight */
byte answer = NEVER;  /* age of the heartbeat whose answer is in flight */
byte since = VALID_FOR;   /* age of the newest answered heartbeat: the lease is valid until VALID_FOR */
byte silence;         /* since the granter heard anything, without the time in which it was asleep */
byte slept;
bit asleep;           /* the granter is asleep */
bit suspects;         /* the granter suspects the holder */
bit holder_drifts;    /* else the granter's clock does */
byte steady = DRIFT;  /* ticks since the clock last added or left out one */

#define HOLDS_S6 assert(S6 || !suspects || since >= VALID_FOR)
#ifdef JUDGES_ASLEEP
#define SLEEP_COUNTS SUSPECT_AFTER
#else
#define SLEEP_COUNTS (2 * TICKS)
#endif

inline older(age) {
  if :: age < VALID_FOR -> age++ :: age == VALID_FOR -> age = NEVER :: else fi
}
inline pass_holders_time() {
  older(heartbeat);
  older(answer);
  if :: since < VALID_FOR -> since++ :: else fi
}
inline pass_granters_time() {
  if
  :: asleep && slept < SLEEP_COUNTS -> slept++
  :: !asleep && silence < SUSPECT_AFTER -> silence++
  :: else
  fi
}
/* For a worker that is awake, nothing waits longer than one tick. A worker that wakes reads
 * before it stops again. */
#ifdef RELIABLE
#define DELIVERED (asleep || heartbeat == NEVER)
#else
#define DELIVERED true
#endif
#ifdef STOPS_AGAIN
#define HAS_READ true
#else
#define HAS_READ DELIVERED
#endif

active proctype clocks() {
end:
  do
  :: atomic {
       DELIVERED ->
       if :: steady < DRIFT -> steady++ :: else fi;
       if
       :: pass_holders_time(); pass_granters_time()
       :: steady == DRIFT && holder_drifts ->
          steady = 0;
          pass_granters_time();
          if :: pass_holders_time(); pass_holders_time() :: true fi
       :: steady == DRIFT && !holder_drifts ->
          steady = 0;
          pass_holders_time();
          if :: pass_granters_time(); pass_granters_time() :: true fi
       fi;
#ifdef RELIABLE
       heartbeat = 0
#endif
     }
  od
}

active proctype holder() {
  if :: holder_drifts = 1 :: true fi;
end:
  do
  :: atomic { heartbeat != 0 -> heartbeat = 0 }
  :: atomic { answer != NEVER ->
#ifdef FROM_ARRIVAL
              since = 0;
#else
              if :: answer < since -> since = answer :: else fi;
#endif
              answer = NEVER;
              HOLDS_S6 }
#ifndef RELIABLE
  :: atomic { heartbeat != NEVER -> heartbeat = NEVER }  /* lost */
  :: atomic { answer != NEVER -> answer = NEVER }
#endif
  od
}

active proctype granter() {
end:
  do
  :: atomic { !asleep && !suspects && heartbeat != NEVER -> silence = 0; answer = heartbeat; heartbeat = NEVER }
  :: atomic { !asleep && !suspects && silence >= SUSPECT_AFTER ->
              suspects = 1;
#ifdef RELIABLE
              assert(JUDGES_AWAKE);  /* its peer is alive and heard */
#endif
              HOLDS_S6 }
  :: atomic { !asleep && !suspects && HAS_READ -> asleep = 1; slept = 0 }
  :: atomic { asleep ->
              asleep = 0;
              silence = (silence + slept < SUSPECT_AFTER -> silence + slept : SUSPECT_AFTER);
              slept = 0 }
  od
}

#else
/* ---- The death records of a group ---- */

#define N 3
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef WRONG
#define WRONG 1
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef STORE_LATE
#define STORE_LATE 0
#endif
#define NOBODY 7

byte subject[N + 1];  /* the store's list */
byte writer[N + 1];
byte filled;
bit store = 1;

byte crashed;     /* sets of workers */
byte fenced;
byte gone[N];     /* peers that are gone at this worker */
byte told[N];     /* ghost: of these, the ones with a death record */
byte cut[N];      /* workers that this worker's frames do not reach */
byte post[N];     /* death records in flight to this worker. Bits N * from + subject
                     would be too many: the sender matters only if the post is lost */
byte read[N];     /* how much of the list it has read */
byte asks[N];     /* the worker about which it asks the store */
bit may_append[N];  /* it has seen the end of the list at read[] */
byte late[N];     /* the worker about which an append is in flight that its sender has given up */
byte late_at[N];
byte crashes;
byte wrong;
byte cuts;
byte slow;        /* how often the store will answer too late */
bit near = 1;     /* workers 0 and 2 have shared state; the others always have */

#define LIVES(w) (!HAS(crashed, w) && !HAS(fenced, w))
#define SHARED_STATE(a, b) (a != b && (near || a + b != 2))
#define LISTED(w) (subject[0] == w || subject[1] == w || subject[2] == w || subject[3] == w)

hidden byte i;

/* A worker reads, writes or is told a death record. If it is its own, it fences itself. */
inline learn(w, x) {
  if
  :: x == w ->
#ifndef NO_FENCING
     fenced = fenced | BIT(w)
#else
     skip
#endif
  :: else -> gone[w] = gone[w] | BIT(x); told[w] = told[w] | BIT(x)
  fi
}
/* Tells every other live worker: of its own records, and of those whose writer is dead. */
inline announce(w, x) {
  i = 0;
  do
  :: i < N -> if :: i != w && !HAS(gone[w], i) -> post[i] = post[i] | BIT(x) :: else fi; i++
  :: else -> break
  od
}
inline append(w, x) {
  assert(ONE_ORDER || !LISTED(x));      /* the list names a dead worker once */
  assert(NOT_BOTH || !LISTED(w));       /* and no worker writes that the list already names */
  subject[filled] = x;
  writer[filled] = w;
  filled++
}

#ifdef REFUSAL_IGNORED
#define REFUSES(x, w) false
#else
#define REFUSES(x, w) HAS(gone[x], w)
#endif
/* This closes STORE_LATE: a worker without an answer asks again once the store answers. */
#ifdef ASKS_AGAIN
#define ASKS_LATER(w, x) \
  :: d_step { LIVES(w) && asks[w] == NOBODY && HAS(gone[w], x) && !HAS(told[w], x) && store && slow == 0 -> \
              asks[w] = x }
#else
#define ASKS_LATER(w, x)
#endif
#define SUSPECTS(w, x) \
  :: d_step { LIVES(w) && asks[w] == NOBODY && SHARED_STATE(w, x) && !HAS(gone[w], x) && \
              (!LIVES(x) || REFUSES(x, w) || HAS(cut[x], w) || HAS(cut[w], x)) -> asks[w] = x } \
  :: d_step { LIVES(w) && asks[w] == NOBODY && SHARED_STATE(w, x) && !HAS(gone[w], x) && wrong > 0 -> \
              wrong--; asks[w] = x } \
  ASKS_LATER(w, x) \
  :: d_step { LIVES(w) && HAS(post[w], x) -> \
              post[w] = post[w] & (255 - BIT(x)); learn(w, x); \
              if :: asks[w] == x -> asks[w] = NOBODY; may_append[w] = 0 :: else fi } \
  REVISES(w, x)
#ifdef REVISED
#define REVISES(w, x) \
  :: d_step { w != x && LIVES(w) && LIVES(x) && HAS(gone[w], x) && !HAS(cut[x], w) -> \
              gone[w] = gone[w] & (255 - BIT(x)); assert(NOT_REVISED || !HAS(told[w], x)) }
#else
#define REVISES(w, x)
#endif

proctype worker(byte w) {
end:
  do
  SUSPECTS(w, 0)
  SUSPECTS(w, 1)
  SUSPECTS(w, 2)
#ifdef NO_READ_FIRST
  :: d_step { LIVES(w) && asks[w] != NOBODY && store && !may_append[w] && !LISTED(asks[w]) ->
              read[w] = filled; may_append[w] = 1 }
#endif
  :: d_step { LIVES(w) && asks[w] != NOBODY && store && read[w] < filled ->
              may_append[w] = 0;
              learn(w, subject[read[w]]);
              /* A worker that reads a record of a dead writer posts it in the writer's stead. */
              if
              :: HAS(gone[w], writer[read[w]]) && subject[read[w]] != w -> announce(w, subject[read[w]])
              :: else
              fi;
              if :: subject[read[w]] == asks[w] -> asks[w] = NOBODY :: else fi;
              read[w]++ }
  :: d_step { LIVES(w) && asks[w] != NOBODY && store && read[w] == filled && !may_append[w] ->
              may_append[w] = 1 }
  /* Compare and append: the entry that it saw free is still free. */
  :: d_step { LIVES(w) && asks[w] != NOBODY && store && read[w] == filled && may_append[w] ->
              append(w, asks[w]);
              learn(w, asks[w]);
              read[w] = filled;
              announce(w, asks[w]);
              /* The writer of a record that it has read may be the worker that is dead now. */
              if
              :: filled > 1 && writer[0] == asks[w] && subject[0] != w -> announce(w, subject[0])
              :: else
              fi;
              if
              :: filled > 2 && writer[1] == asks[w] && subject[1] != w -> announce(w, subject[1])
              :: else
              fi;
              asks[w] = NOBODY;
              may_append[w] = 0 }
#ifdef NO_COMPARE
  :: d_step { LIVES(w) && asks[w] != NOBODY && store && read[w] < filled && may_append[w] ->
              assert(ONE_ORDER || subject[read[w]] == asks[w]);
              subject[read[w]] = asks[w];
              asks[w] = NOBODY;
              may_append[w] = 0 }
#endif
#if defined(STORE_LOST) || STORE_LATE > 0
  /* Unknown: the peer is gone for this worker only. The append that it sent may still arrive. */
  :: d_step { LIVES(w) && asks[w] != NOBODY && slow > 0 ->
              if :: store -> slow-- :: else fi;
              if :: may_append[w] -> late[w] = asks[w]; late_at[w] = read[w] :: else fi;
              gone[w] = gone[w] | BIT(asks[w]);
              asks[w] = NOBODY;
              may_append[w] = 0 }
#endif
  od
}

#define FATE(w) \
  :: d_step { crashes > 0 && LIVES(w) -> crashes--; crashed = crashed | BIT(w); asks[w] = NOBODY } \
  :: d_step { post[w] != 0 && crashed != 0 -> post[w] = 0 }  /* lost with their sender */ \
  :: d_step { HAS(post[w], w) -> post[w] = post[w] & (255 - BIT(w)) }  /* nobody sends to the dead */ \
  :: d_step { cuts > 0 -> cuts--; cut[w] = cut[w] | BIT((w + 1) % N) } \
  :: d_step { cuts > 0 -> cuts--; cut[w] = cut[w] | BIT((w + 2) % N) } \
  :: d_step { cut[w] != 0 -> cut[w] = 0 } \
  :: d_step { late[w] != NOBODY && store -> \
              if :: late_at[w] == filled -> append(w, late[w]) :: else fi; \
              late[w] = NOBODY }

proctype fate() {
end:
  do
  FATE(0)
  FATE(1)
  FATE(2)
#ifdef STORE_LOST
  :: d_step { store -> store = 0; slow = 1 }
#endif
  od
}

init {
  atomic {
    i = 0;
    do
    :: i < N ->
       asks[i] = NOBODY;
       late[i] = NOBODY;
       subject[i] = NOBODY;
       writer[i] = NOBODY;
       i++
    :: else -> break
    od;
    subject[N] = NOBODY;
    i = 0;
    /* Each number of faults up to the bound: the last ones must not be forced to happen. */
    if :: crashes = 0 :: crashes = CRASHES fi;
    if :: wrong = 0 :: wrong = WRONG fi;
    if :: cuts = 0 :: cuts = CUTS fi;
    if :: slow = 0 :: slow = STORE_LATE fi;
#ifdef STORE_LOST
    slow = 1;
#endif
#ifndef ALL_NEAR
    if :: near = 0 :: near = 1 fi;
#endif
    run worker(0);
    run worker(1);
    run worker(2);
    run fate()
  }
}

#ifdef LIVENESS
/* Makes every run endless: under -f Spin does not look at runs that end. */
active proctype idle() {
  do :: filled = filled od
}
#define EACH(p) (p(0) && p(1) && p(2))
#define EACH_PEER(p, w) (p(w, 0) && p(w, 1) && p(w, 2))
#define FENCED(w) (!LISTED(w) || !LIVES(w))
#define KNOWS(w, x) (!LIVES(w) || LIVES(x) || !SHARED_STATE(w, x) || HAS(gone[w], x))
#define KNOWS_ALL(w) EACH_PEER(KNOWS, w)
#define NOT_ASUNDER(w, x) \
  (w == x || !LIVES(w) || !LIVES(x) || !SHARED_STATE(w, x) || !HAS(gone[w], x))
#define NOT_ASUNDER_ALL(w) EACH_PEER(NOT_ASUNDER, w)
#define AT_REST(w) (!LIVES(w) || asks[w] == NOBODY)

#define AGREED(w, x) \
  (w == x || !LIVES(w) || !LIVES(x) || !SHARED_STATE(w, x) || HAS(gone[w], x) == HAS(gone[x], w))
#define AGREED_ALL(w) EACH_PEER(AGREED, w)

/* A worker in the list fences itself. A dead worker is gone for all that share state with it.
 * With the store, of two that part one is dead; without it, both part. Questions get answers. */
ltl fences { <> [] EACH(FENCED) }
ltl known_dead { <> [] EACH(KNOWS_ALL) }
ltl one_of_two { <> [] EACH(NOT_ASUNDER_ALL) }
ltl part_both { <> [] EACH(AGREED_ALL) }
ltl at_rest { <> [] EACH(AT_REST) }
/* <> [] of all five, in Spin's own form of a claim. */
never all {
T0_init:
  do
  :: !(EACH(FENCED) && EACH(KNOWS_ALL) && EACH(NOT_ASUNDER_ALL) && EACH(AGREED_ALL) && EACH(AT_REST)) ->
     goto accept_S
  :: true
  od;
accept_S:
  do
  :: true -> goto T0_init
  od
}
#endif
#endif
