/* Shows that ranks of one host read each other's slots whole, and that no wake-up is lost.
 *
 * The protocol is that of docs/same_host_collectives.md, "The control block", as comm/same_host has it: NR
 * ranks run OPS operations through SLOTS slots each. A rank fills its slot, moves `published`,
 * wakes the others, waits for all, reads their slots, moves `consumed` and wakes the others again.
 * A waiting rank looks, announces that it sleeps, looks once more, and sleeps in the kernel. The
 * kernel compares the number in the wake-up word once more (shm/wait_word.h). Here only a wake-up
 * ends a sleep. Only after a death does the tick end sleeps, as in the code it always may.
 *
 * Memory: a write of a rank to its slot stays in its store buffer until the memory takes it, at any
 * time. A sequentially consistent store waits until the buffer is empty. The mutants RELAXED and
 * RELEASE are weaker stores of a counter.
 *
 * DEATHS ranks may die (of two), between any two steps that others can tell apart.
 * The mutants are the names below that the text only #ifdefs.
 */
#ifndef NR
#define NR 2
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

/* Never true: they name the broken promise in Spin's report. */
bit WHOLE_SLOT; /* a slot that is read holds the operation that it is read for */
bit WOKEN;      /* once a rank has moved and woken the others, no rank sleeps for what has come */
bit ENDS;       /* after a death every other rank completes or fails */
bit LEFT_FIRST; /* no rank fails because of one that had done its part before it died */

byte slot[NR * SLOTS];  /* the operation in it, plus 1 */
byte published[NR];
byte consumed[NR];
byte word[NR];          /* the wake-up word: its number, */
byte sleepers[NR];      /* and how many ranks announce that they sleep there */
bit asleep[NR];         /* in the kernel */
byte for_published[NR]; /* ghost: what it waits for; 0: nothing */
byte for_consumed[NR];

byte data[NR];          /* store buffer: for the slot, 0: nothing */
byte counter[NR];       /* store buffer: for `published`, 0: nothing; only in RELEASE */

bit dead[NR];
bit ended[NR];
byte deaths = DEATHS;

#define NEXT(r) (((r) + 1) % NR)
#define LAST(r) (((r) + NR - 1) % NR)
#define SLOT(r, n) slot[(r) * SLOTS + (n) % SLOTS]

/* Writes the slot from the store buffer. */
inline flush(r) {
  if
  :: data[r] > 0 -> SLOT(r, data[r] - 1) = data[r]; data[r] = 0
  :: else
  fi
}

active proctype memory() {
  byte r;
end:
  do
  :: atomic { data[0] > 0 -> flush(0) }
  :: atomic { data[1] > 0 -> flush(1) }
#if NR > 2
  :: atomic { data[2] > 0 -> flush(2) }
#endif
#ifdef RELEASE
  :: atomic { counter[0] > 0 && data[0] == 0 -> published[0] = counter[0]; counter[0] = 0 }
  :: atomic { counter[1] > 0 && data[1] == 0 -> published[1] = counter[1]; counter[1] = 0 }
#endif
  od
}

inline ring_one(o) {
  if
  :: sleepers[o] > 0 ->
#ifndef WAKES_ONLY
     word[o]++;
#endif
     asleep[o] = 0
  :: else
  fi
}
inline ring() {
  ring_one(NEXT(me));
#if NR > 2
  ring_one(LAST(me))
#endif
}
/* With two ranks, each waits for the other one only. */
inline check_woken() {
#if NR == 2
  assert(WOKEN || !asleep[NEXT(me)] ||
         !((for_published[NEXT(me)] > 0 && published[me] >= for_published[NEXT(me)]) ||
           (for_consumed[NEXT(me)] > 0 && consumed[me] >= for_consumed[NEXT(me)])))
#else
  skip
#endif
}
inline may_die() {
  if
  :: atomic { deaths > 0 -> deaths--; flush(me); dead[me] = 1; goto over }
  :: true
  fi
}

inline publish() {
#ifdef RING_FIRST
  ring();
#endif
#ifdef RELAXED
  published[me] = n + 1;
#else
#ifdef RELEASE
  atomic { counter[me] == 0 -> counter[me] = n + 1 };
#else
  atomic { flush(me); published[me] = n + 1 };
#endif
#endif
  may_die();
#ifndef RING_FIRST
  ring();
#endif
  check_woken()
}

/* An operation completes when all have come to `goal`. */
#if NR > 2
#define ALL(which, goal) (which[NEXT(me)] >= (goal) && which[LAST(me)] >= (goal))
#else
#define ALL(which, goal) (which[NEXT(me)] >= (goal))
#endif
#define SOMEBODY_DIED (dead[0] + dead[1] > 0)

inline wait(which, goal, ghost) {
  ghost[me] = goal;
  do
  :: ALL(which, goal) -> break
  :: else ->
#ifndef SAYS_LATE
     sleepers[me]++;
#endif
#ifndef SEEN_LATE
     seen = word[me];
#endif
#ifndef NO_SECOND_LOOK
     if
     :: ALL(which, goal) ->
#ifndef SAYS_LATE
        sleepers[me]--;
#endif
        break
     :: else
     fi;
#endif
#ifdef SEEN_LATE
     seen = word[me];
#endif
#ifdef SAYS_LATE
     sleepers[me]++;
#endif
     atomic {
       if
       :: word[me] == seen -> asleep[me] = 1
       :: else
       fi
     };
#ifdef NO_TICK
     !asleep[me];
#else
     (!asleep[me] || SOMEBODY_DIED);
#endif
     asleep[me] = 0;
     sleepers[me]--;
#if DEATHS > 0
     /* The check: what has come, which ranks are dead, and once more what has come. */
     come = ALL(which, goal);
     if
     :: !come && dead[NEXT(me)] ->
#ifndef CHECKED_ONCE
        come = ALL(which, goal);
#endif
        if
        :: !come ->
           assert(LEFT_FIRST || !ALL(which, goal));
           atomic { flush(me); dead[me] = 1; goto over }
        :: else
        fi
     :: else
     fi
#endif
  od;
  ghost[me] = 0
}

proctype rank(byte me) {
  byte n;
  byte seen;
  bit come;
  do
  :: n < OPS ->
#ifndef SLOT_NOT_FREE
     if
     :: n >= SLOTS -> wait(consumed, n + 1 - SLOTS, for_consumed)
     :: else
     fi;
#endif
     atomic { data[me] == 0 -> data[me] = n + 1 };
     may_die();
     publish();
     wait(published, n + 1, for_published);
#ifdef CONSUMED_FIRST
     consumed[me] = n + 1;
#endif
     assert(WHOLE_SLOT || SLOT(NEXT(me), n) == n + 1);
#if NR > 2
     assert(WHOLE_SLOT || SLOT(LAST(me), n) == n + 1);
#endif
     atomic { flush(me); consumed[me] = n + 1 };
     may_die();
     ring();
     check_woken();
     n++
  :: else -> break
  od;
over:
  ended[me] = 1
}

/* No rank can go on. */
active proctype watchdog() {
end:
  timeout ->
    if
#if NR > 2
    :: ended[0] && ended[1] && ended[2]
#else
    :: ended[0] && ended[1]
#endif
    :: else ->
       if
       :: SOMEBODY_DIED -> assert(ENDS)
       :: else -> assert(WOKEN)
       fi
    fi
}

init {
  atomic {
    run rank(0);
    run rank(1);
#if NR > 2
    run rank(2)
#endif
  }
}
