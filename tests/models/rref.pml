/* Shows that a remote value lives as long as a live user's confirmed fork, and not for ever.
 *
 * One RRef, its owner, NU users and NF forks. The messages and states have the names of
 * docs/rref_protocol.md. Each step of a process is one event of one worker's core: it reads only
 * what that worker knows, and sends. Only assertions and the network read what all know (was, dead,
 * failed). This file has the state, the network, deaths and the claims; rref_user.pml and
 * rref_owner.pml have the two sides.
 *
 * The network: control messages are a set. Without ONCE a sent message can be delivered at any
 * later time, any number of times: loss, delay, reordering and repetition without bound. With ONCE
 * (for liveness) a message is delivered once, in any order, and REPEATS of them once more. Carriers
 * are read at most once; a failed one may be lost.
 *
 * Deaths: any worker may be declared dead, crashed or (wrong expiry) alive. Each other worker hears
 * of it at its own time. So does the worker itself, which is fenced then and acts until then.
 *
 * DEATHS, FAILS: the greatest number of death records, and of failed carriers and creations.
 * BY_OWNER: the value is made by its owner, which issues forks and recalls them; else by remote().
 * FETCH: one call on the value, which waits there until the function has returned.
 *
 * The mutants, each a way to break the protocol, are the names below that the text only #ifdefs.
 */
#ifndef NF
#define NF 3
#endif
#ifndef NU
#define NU 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef REPEATS
#define REPEATS 0
#endif
#define OWNER NU
#define NW (NU + 1)
#define NONE 255
#define BIT(w) (1 << (w))
#define HAS(set, w) (((set) >> (w)) & 1)

/* Control messages, one bit each in sent[fork]. RECALL is the owner's CANCEL_FORK. */
#define FORK_REQUEST 1
#define FORK_ACCEPT 2
#define FORK_REJECT 4
#define CHILD_ACCEPT 8
#define USER_DELETE 16
#define CANCEL_FORK 32
#define CANCEL_ACK_REGISTERED 64
#define CANCEL_ACK_ABSENT 128
#define RECALL 256
#define RECALL_ACK_REGISTERED 512
#define RECALL_ACK_ABSENT 1024
#define DELETE_ACK 2048
#define ALL_KINDS 4095
#define TO_OWNER (FORK_REQUEST | USER_DELETE | CANCEL_FORK | RECALL_ACK_REGISTERED | RECALL_ACK_ABSENT)
#define TO_HOLDER (FORK_ACCEPT | FORK_REJECT | RECALL | DELETE_ACK)
#define TO_ISSUER (CHILD_ACCEPT | CANCEL_ACK_REGISTERED | CANCEL_ACK_ABSENT)

short sent[NF];
#ifdef ONCE
short got[NF];  /* delivered: may be repeated */
#endif
byte below_request[NF];  /* settled_below as sent */
byte below_delete[NF];
byte below_cancel[NF];
byte settled[NU];        /* SETTLED in flight: a set of watermarks */

/* Carriers: the creation call of fork 0, and the message that brings any other fork. */
#define FLIGHT 1
#define READ 2
#define UNREAD 3  /* never sent, or dropped unread */
#define LOST 4
byte nf;
byte carrier[NF];
byte crt[NF];   /* its creator, the sender */
byte to[NF];    /* its holder: the receiver, or the caller of remote() */
byte par[NF];   /* its parent; none for a creation and for a fork that the owner issues */
bit failed[NF]; /* the sender was told that it failed */
byte known;     /* users 0 .. known-1 have met the RRef: breaks their symmetry */

/* A user's fork. */
#define PENDING 1
#define CANCELLING 2
#define CONFIRMED 3
#define GONE 4
byte st[NF];
bit dropped[NF];
byte kids[NF];     /* undecided children */
bit withdrawn[NF]; /* tombstone of a recall */
/* A fork as its issuer sees it. */
#define OPEN 1
#define CANCELLED 2
byte kid[NF];  /* 0: decided */
bit unsaid[NU];  /* an id was issued since a watermark covered all */

/* The owner. */
#define UNKNOWN 0
#define LIVE 1
#define ENDED 2
byte rr;
bit rrtomb;
byte oh;  /* handles of its own */
#define LISTED 1
#define PARKED 2  /* waits for the creation */
#define TOMB 3
byte own[NF];
byte refs;  /* how many are listed */
bit recalled[NF];
bit read_while_recalled[NF];
byte mark[NU];  /* watermarks */
bit was[NF];    /* ghost: the fork no longer exists at the owner */

/* Which workers live: sets of workers. */
byte crashed;
byte dead;       /* the workers that are declared dead */
byte heard[NW];  /* the deaths of which each worker has heard */
byte deaths;
byte fails;
byte repeats;

#ifdef FETCH
#define ASKED 1
#define WAITING 2
#define ANSWERED 3
#define DONE 4
byte fetch;
byte fetch_by;
bit ready;
#ifdef CALL_HOLDS_NOTHING
#define WAITED_FOR false
#else
#define WAITED_FOR (fetch == WAITING)
#endif
#ifdef LET_GO_EARLY
#define CALLED(f) false
#else
#define CALLED(f) (fetch == ASKED && fetch_by == f)
#endif
#define CALL_ENDS (fetch != ASKED && fetch != WAITING)
#else
#define CALL_ENDS true
#define WAITED_FOR false
#define CALLED(f) false
#endif

/* Never true: they name the broken promise in Spin's report. */
bit G2, S1, S2, S3, S4, S5, S7, S8, S9;

hidden byte i;
hidden byte j;
hidden byte n;
hidden byte found;

#define UP(w) (!HAS(crashed, w))
#define HELD(f) (st[f] == PENDING || st[f] == CONFIRMED || st[f] == CANCELLING)
#define UNDECIDED(f) \
  (kid[f] != 0 || \
   (f == 0 && par[0] == NONE && crt[0] != OWNER && (st[0] == PENDING || st[0] == CANCELLING)))

/* Nothing is sent to a worker that is known to be dead. */
inline post(kind, f, from, w) {
  if :: !HAS(heard[from], w) -> sent[f] = sent[f] | (kind) :: else fi
}
#ifdef ONCE
#define TAKE(kind, f) sent[f] = sent[f] & (ALL_KINDS - (kind)); got[f] = got[f] | (kind)
#else
#define TAKE(kind, f) skip
#endif

/* A reference leaves in its carrier, to any worker; a user does not send to itself. */
inline send_reference(from, parent, w) {
  crt[nf] = from;
  to[nf] = w;
  par[nf] = parent;
  carrier[nf] = FLIGHT;
  if :: w == known -> known++ :: else fi;
  nf++
}

#define ARRIVED(f, w, kind) (f < nf && UP(w) && (sent[f] & (kind)))
#define AT_HOLDER(f, u, kind) (ARRIVED(f, u, kind) && to[f] == u && !HAS(heard[u], OWNER))
#define AT_ISSUER(f, u, kind) (ARRIVED(f, u, kind) && crt[f] == u)
#define FROM_LIVE(f, u) (!HAS(heard[u], to[f]))

#define HEARS(x, w) (UP(x) && HAS(dead, w) && !HAS(heard[x], w))

#include "rref_user.pml"
#include "rref_owner.pml"

/* ---- Deaths and the network ---- */

/* Crashes, death records, carriers that get lost, repeats. Without ONCE nobody must act, so a
 * crash is a worker that does not. With ONCE, crashes and fences stop a worker, and a death
 * record follows each crash. */
#define MAY_DIE(w) (deaths > 0 && UP(w) && !HAS(dead, w) && (w < known || w == OWNER))
#define WRONG_EXPIRY(w) \
  :: d_step { MAY_DIE(w) -> deaths--; dead = dead | BIT(w) }
#ifdef ONCE
#define LIFE_OF(w) WRONG_EXPIRY(w) \
  :: d_step { MAY_DIE(w) -> deaths--; crashed = crashed | BIT(w) } \
  :: d_step { HAS(crashed, w) && !HAS(dead, w) -> dead = dead | BIT(w) } \
  :: d_step { HAS(dead, w) && UP(w) -> crashed = crashed | BIT(w) }  /* fenced */
#else
#define LIFE_OF(w) WRONG_EXPIRY(w)
#endif
#define LOSES(f) \
  :: d_step { f < nf && carrier[f] == FLIGHT && failed[f] -> carrier[f] = LOST }

proctype network() {
end:
  do
#if DEATHS > 0
  LIFE_OF(0)
  LIFE_OF(1)
#if NU > 2
  LIFE_OF(2)
#endif
  LIFE_OF(OWNER)
#endif
  LOSES(0)
  LOSES(1)
#if NF > 2
  LOSES(2)
#endif
#if NF > 3
  LOSES(3)
#endif
#if REPEATS > 0
#define REPEATED(f, kind) \
  :: d_step { f < nf && repeats > 0 && (got[f] & kind) -> \
              repeats--; sent[f] = sent[f] | kind; got[f] = got[f] & (ALL_KINDS - kind) }
#define REPEATED_ANY(f) \
  REPEATED(f, FORK_REQUEST) REPEATED(f, FORK_ACCEPT) REPEATED(f, FORK_REJECT) REPEATED(f, CHILD_ACCEPT) \
  REPEATED(f, USER_DELETE) REPEATED(f, CANCEL_FORK) REPEATED(f, CANCEL_ACK_REGISTERED) \
  REPEATED(f, CANCEL_ACK_ABSENT)
  REPEATED_ANY(0) REPEATED_ANY(1)
#if NF > 2
  REPEATED_ANY(2)
#endif
#endif
  od
}

#ifdef ONCE
/* Makes every run endless: under -f Spin does not look at runs that end. */
active proctype idle() {
  do :: nf = nf od
}
#endif

init {
  atomic {
    par[0] = NONE;
    /* Each number of faults up to the bound: the last ones must not be forced to happen. */
    if :: deaths = 0
#if DEATHS > 0
       :: deaths = 1
#endif
#if DEATHS > 1
       :: deaths = 2
#endif
    fi;
    if :: fails = 0
#if FAILS > 0
       :: fails = 1
#endif
#if FAILS > 1
       :: fails = 2
#endif
    fi;
    if :: repeats = 0
#if REPEATS > 0
       :: repeats = REPEATS
#endif
    fi;
#ifdef BY_OWNER
    rr = LIVE;
    oh = 1;
#else
    /* remote() by user 0. */
    nf = 1;
    known = 1;
    carrier[0] = FLIGHT;
    crt[0] = 0;
    to[0] = 0;
    st[0] = PENDING;
    unsaid[0] = 1;
#endif
    run user(0);
    run user(1);
#if NU > 2
    run user(2);
#endif
    run owner();
    run network()
  }
}

/* ---- Liveness, under weak fairness; in the end each user drops what it holds ---- */

#define DEAD_OWNER HAS(crashed, OWNER)
#define DEAD_HOLDER(f) (HAS(crashed, to[f]))
#define DEAD_ISSUER(f) (HAS(crashed, crt[f]))
/* Every sent fork is accepted, rejected, cancelled or lost. */
#define DECIDED(f) \
  (f >= nf || \
   ((DEAD_HOLDER(f) || (st[f] != PENDING && st[f] != CANCELLING)) && (DEAD_ISSUER(f) || kid[f] == 0) && \
    (DEAD_OWNER || own[f] != PARKED) && (carrier[f] != FLIGHT || DEAD_HOLDER(f) || DEAD_OWNER)))
/* Nothing is in flight to a live worker. */
#define STILL(f) \
  (f >= nf || \
   ((DEAD_OWNER || !(sent[f] & TO_OWNER)) && (DEAD_HOLDER(f) || DEAD_OWNER || !(sent[f] & TO_HOLDER)) && \
    (DEAD_ISSUER(f) || !(sent[f] & TO_ISSUER))))
/* G9: nothing is remembered, except a recall whose carrier never comes. */
#ifdef LOST_RECALL_COUNTS
#define NEVER_COMES(f) false
#else
#define NEVER_COMES(f) (carrier[f] == LOST)
#endif
#define EMPTY(f) \
  (f >= nf || ((DEAD_OWNER || (own[f] == UNKNOWN && !read_while_recalled[f])) && \
               (DEAD_HOLDER(f) || (!HELD(f) && (!withdrawn[f] || NEVER_COMES(f))))))
#if NF > 3
#define EACH(p) (p(0) && p(1) && p(2) && p(3))
#elif NF > 2
#define EACH(p) (p(0) && p(1) && p(2))
#else
#define EACH(p) (p(0) && p(1))
#endif

#if NU > 2
#define NOTHING_SETTLES (settled[0] == 0 && settled[1] == 0 && settled[2] == 0)
#else
#define NOTHING_SETTLES (settled[0] == 0 && settled[1] == 0)
#endif
#define FREED (rr != LIVE || DEAD_OWNER)
#define ALL_DECIDED (EACH(DECIDED) && (CALL_ENDS || DEAD_OWNER))
#define QUIET (EACH(STILL) && (DEAD_OWNER || NOTHING_SETTLES))
#define FORGOTTEN (EACH(EMPTY) && (DEAD_OWNER || (refs == 0 && !rrtomb)))
#ifdef ONCE
ltl freed { <> [] FREED }
ltl decided { <> [] ALL_DECIDED }
ltl quiet { <> [] QUIET }
ltl forgotten { <> [] FORGOTTEN }
/* <> [] of all four, in Spin's own form of a claim: the formula is too long for its translator. */
never all {
T0_init:
  do
  :: !(FREED && ALL_DECIDED && QUIET && FORGOTTEN) -> goto accept_S
  :: true
  od;
accept_S:
  do
  :: true -> goto T0_init
  od
}
#endif
