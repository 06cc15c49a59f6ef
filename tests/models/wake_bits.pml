/* Shows that a worker sees whatever its peers have left for it in shared memory, and that a peer
 * whose ring is full gets space again.
 *
 * The protocol is that of docs/data_plane.md, "Rings and waking", as shm/wake_bits.h and
 * shm/byte_ring.h have it. There are two producers, each with a ring of RING records to one
 * reader. A producer fills a record, publishes it, sets its bit, and wakes the reader if it is
 * armed. The reader takes the bits, reads these rings and releases their space. With no bit left
 * it arms, looks once more, and sleeps in the kernel, which compares the number in the wake-up
 * word once more (shm/wait_word.h). A producer without room asks for space and looks once more.
 * The reader wakes it once half of its ring is free. In the code that is a signal as above, in the
 * other direction. Here only a wake-up ends a sleep; in the code a sleep also ends after a second.
 *
 * Memory: a store with relaxed or release order stays in its thread's store buffer until the memory
 * takes it, at any time; release stores in their order. A sequentially consistent operation waits
 * until the buffer has no such store before it. Many mutants are weaker orders.
 *
 * DIES: producer 1 may die while it signals. A third thread then notices it and calls wake().
 *
 * WAITS: there are two readers (rpc/same_host/connection/reading.h). Until record WANTED of producer
 * 0 is read, a thread that waits for it reads too, and signals wake that one. One lock lets one of
 * them look at a time, another one guards `waits`. Each reader is a group of sleepers, and `armed`
 * names the group. In the code the serving thread looks from time to time although the other one
 * waits.
 * The mutants are the names below that the text only #ifdefs.
 */
#ifndef RING
#define RING 2
#endif
#ifndef FIRST
#define FIRST 4 /* records of producer 0 */
#endif
#ifndef SECOND
#define SECOND 1
#endif
#ifndef WANTED
#define WANTED 1
#endif

/* Never true: they name the broken promise in Spin's report. */
bit WHOLE; /* a record that is read has its content */
bit WOKEN; /* the readers do not sleep while a record is published that none has read */
bit SPACE; /* no producer waits for space when the reader has read all */

byte content[2 * RING];  /* the number of the record in that slot, plus 1 */
byte tail[2];
byte head[2];
bit wants_space[2];
bit woken[2];            /* the producer: it waits for space */

#define NOBODY 0 /* the reader that a signal must wake */
#define SERVING 1
#define WAITING 2

bit pending[2];
byte armed;              /* SERVING, WAITING or NOBODY */
byte word;               /* the wake-up word: its number, */
byte sleepers;           /* and how many readers announce that they sleep there */
bit asleep[3];           /* in the kernel, by group */

/* Store buffers. 0: nothing, otherwise the value plus 1. */
byte its_content[2];
byte its_tail[2];
byte its_bit[2];
byte its_wants[2];
byte its_head[2];        /* of the reader */
byte its_armed[3];       /* of each reader */

byte read[2];            /* the positions of whoever reads */
bit visiting;            /* the lock of the reader that looks */
bit locked;              /* the lock that guards `waits` */
bit waits;               /* the second reader is there */
bit ended[2];
bit dead;

#define COUNT(p) (p == 0 -> FIRST : SECOND)
#define SLOT(p, n) content[(p) * RING + (n) % RING]

inline flush_content(p) {
  if
  :: its_content[p] > 0 -> SLOT(p, its_content[p] - 1) = its_content[p]; its_content[p] = 0
  :: else
  fi
}
inline flush_tail(p) {
  if
  :: its_tail[p] > 0 -> tail[p] = its_tail[p] - 1; its_tail[p] = 0
  :: else
  fi
}

inline flush_armed(r) {
  if
  :: its_armed[r] > 0 -> armed = its_armed[r] - 1; its_armed[r] = 0
  :: else
  fi
}

#ifdef RELAXED_TAIL
#define MAY_FLUSH_TAIL(p) (its_tail[p] > 0)
#else
#define MAY_FLUSH_TAIL(p) (its_tail[p] > 0 && its_content[p] == 0)
#endif

#define STORES(p) \
  :: atomic { its_content[p] > 0 -> flush_content(p) } \
  :: atomic { MAY_FLUSH_TAIL(p) -> flush_tail(p) } \
  :: atomic { its_bit[p] > 0 && its_content[p] == 0 && its_tail[p] == 0 -> \
              pending[p] = 1; its_bit[p] = 0 } \
  :: atomic { its_wants[p] > 0 -> wants_space[p] = its_wants[p] - 1; its_wants[p] = 0 } \
  :: atomic { its_head[p] > 0 -> head[p] = its_head[p] - 1; its_head[p] = 0 }

active proctype memory() {
end:
  do
  STORES(0)
  STORES(1)
  :: atomic { its_armed[SERVING] > 0 -> flush_armed(SERVING) }
  :: atomic { its_armed[WAITING] > 0 -> flush_armed(WAITING) }
  od
}

/* ---- The producer ---- */

inline may_die() {
#ifdef DIES
  if
  :: me == 1 -> atomic { flush_content(me); flush_tail(me); dead = 1; goto over }
  :: true
  fi
#else
  skip
#endif
}

inline set_bit() {
#ifdef RELAXED_BIT
  atomic { its_bit[me] == 0 -> its_bit[me] = 2 }
#else
#ifdef BIT_OVERTAKES
  pending[me] = 1
#else
  atomic { flush_content(me); flush_tail(me); pending[me] = 1 }
#endif
#endif
}
inline wake_if_armed() {
  if
  :: armed ->
     atomic { was = armed; armed = NOBODY };
     may_die();
     if
     :: was ->
#ifndef WAKES_ONLY
        word++;
#endif
#ifdef WAKES_SERVING
        was = SERVING;
#endif
        if
        :: sleepers -> asleep[was] = 0
        :: else
        fi;
        was = NOBODY
     :: else
     fi
  :: else
  fi
}
inline publish() {
  atomic { its_tail[me] == 0 -> its_tail[me] = n + 2 }
}

/* request_space() of the code. */
#define ENOUGH (n - head[me] <= RING / 2)
inline wait_for_space() {
#ifdef LOOKS_FIRST
  enough = ENOUGH;
#endif
#ifdef RELAXED_WANTS
  atomic { its_wants[me] == 0 -> its_wants[me] = 2 };
#else
  atomic { its_wants[me] = 0; wants_space[me] = 1 };
#endif
#ifdef NO_LOOK_FOR_SPACE
  enough = 0;
#endif
#if !defined(NO_LOOK_FOR_SPACE) && !defined(LOOKS_FIRST)
  enough = ENOUGH;
#endif
  if
  :: enough -> atomic { its_wants[me] == 0 -> its_wants[me] = 1; enough = 0 }
  :: else -> atomic { woken[me] -> woken[me] = 0 }
  fi
}

proctype producer(byte me) {
  byte n;
  byte was;
  bit enough;
  do
  :: n < COUNT(me) ->
     do
     :: n - head[me] < RING -> break
     :: else -> wait_for_space()
     od;
     atomic { its_content[me] == 0 -> its_content[me] = n + 1 };
#ifdef UNPUBLISHED
     /* It asks for space before it publishes this one. */
     if
     :: me == 0 && n == RING - 1 -> n++; wait_for_space(); n--
     :: else
     fi;
#endif
#ifdef SIGNALS_FIRST
     set_bit();
     wake_if_armed();
     publish();
#else
     publish();
#ifdef LOOKS_BEFORE_BIT
     wake_if_armed();
     set_bit();
#else
     set_bit();
     may_die();
     wake_if_armed();
#endif
#endif
     n++
  :: else -> break
  od;
over:
  ended[me] = 1
}

/* ---- The reader ---- */

inline take_bit(p) {
#ifdef CLEARS_LATE
  got = pending[p]
#else
  atomic { got = pending[p]; pending[p] = 0 }
#endif
}

inline release(p) {
#ifdef RELEASED_HEAD
  atomic { its_head[p] == 0 -> its_head[p] = read[p] + 1 };
#else
#ifndef FLAG_FIRST
  head[p] = read[p];
#endif
#endif
  got = wants_space[p];
#ifdef FLAG_FIRST
  head[p] = read[p];
#endif
  if
  :: got && last - read[p] <= RING / 2 ->
     atomic { got = wants_space[p]; wants_space[p] = 0 };
     if
     :: got -> atomic { woken[p] = 1; got = 0 }
     :: else
     fi
  :: else -> got = 0
  fi
}

#define REPLIED (read[0] >= WANTED)
/* The completion of what the second reader waits for wakes it. */
inline replied(p) {
#if defined(WAITS) && !defined(NOT_TOLD)
  if
  :: p == 0 && read[0] == WANTED ->
     word++;
     if
     :: sleepers -> asleep[WAITING] = 0
     :: else
     fi
  :: else
  fi
#else
  skip
#endif
}

/* It may release after any record, and does after the last one. */
inline drain(p) {
  last = tail[p];
  do
  :: read[p] < last ->
#ifdef RELEASED_EARLY
     head[p] = read[p] + 1;
#endif
     atomic { assert(WHOLE || SLOT(p, read[p]) == read[p] + 1); read[p]++ };
     replied(p);
     if
     :: read[p] < last -> release(p)
     :: true
     fi;
     if
     :: read[p] == last -> last = tail[p]
     :: else
     fi
  :: else -> break
  od;
  release(p);
  last = 0
}

inline look_at(p) {
  take_bit(p);
  if
  :: got ->
     atomic { any = 1; got = 0 };
     drain(p);
#ifdef CLEARS_LATE
     pending[p] = 0
#endif
  :: else
  fi
}

inline disarm(r) {
  atomic { its_armed[r] = 1; any = 0 } /* a relaxed store */
}
/* Reader r arms for the group. */
inline arm(r, group) {
#ifdef RELAXED_ARM
  atomic { its_armed[r] == 0 -> its_armed[r] = group + 1 }
#else
  atomic { its_armed[r] = 0; armed = group }
#endif
}
#ifdef WAITS
#define LOCK(l) atomic { !l -> l = 1 }
/* The next owner of the lock sees all stores. */
#define UNLOCK(l, r) atomic { flush_armed(r); l = 0 }
#else
#define LOCK(l) skip
#define UNLOCK(l, r) skip
#endif
inline look_once_more() {
  if
  :: pending[0] -> any = 1
  :: else
  fi;
  if
  :: pending[1] -> any = 1
  :: else
  fi
}

inline fall_asleep(r) {
  sleepers++;
  atomic {
    if
    :: word == seen -> asleep[r] = 1
    :: else
    fi
  }
}
inline awake() {
  atomic { sleepers--; seen = 0 }
}

/* Reader r leaves the coming signals to the other one, and sets `any` if it must wake it. */
inline arm_for(r, group) {
#ifdef LOOKS_BEFORE_ARMING
  look_once_more();
#endif
#ifndef NOT_ARMED
  arm(r, group);
#endif
#if !defined(HANDS_OVER_BLINDLY) && !defined(LOOKS_BEFORE_ARMING)
  look_once_more()
#endif
}
inline wake_other(group) {
  if
  :: any ->
     word++;
     if
     :: sleepers -> asleep[group] = 0
     :: else
     fi;
     any = 0
  :: else
  fi
}

/* work() and rest() of the code. */
active proctype serving() {
  byte seen;
  byte last;
  bit got;
  bit any;
  bit worked;
  do
  :: disarm(SERVING);
     LOCK(visiting);
     look_at(0);
     look_at(1);
     UNLOCK(visiting, SERVING);
     atomic { worked = any; any = 0 };
     LOCK(locked);
     if
#ifndef KEEPS_THE_SIGNALS
     :: waits -> arm_for(SERVING, WAITING)
#endif
     :: else
     fi;
     UNLOCK(locked, SERVING);
     wake_other(WAITING);
     if
     :: worked -> worked = 0
     :: else ->
        LOCK(locked);
        if
        :: waits ->
#ifndef SEEN_UNLOCKED
           seen = word;
#endif
           UNLOCK(locked, SERVING);
#ifdef SEEN_UNLOCKED
           seen = word
#endif
        :: else ->
           /* Before it arms: a late signal for what the reader has seen may disarm it again. */
#if !defined(SEEN_ARMED) && !defined(SEEN_LATE)
           seen = word;
#endif
#ifndef ARMS_LATE
           arm(SERVING, SERVING);
#endif
#ifdef SEEN_ARMED
           seen = word;
#endif
#ifndef NO_SECOND_LOOK
           look_once_more();
#endif
#ifdef ARMS_LATE
           arm(SERVING, SERVING);
#endif
#ifdef SEEN_LATE
           seen = word;
#endif
           UNLOCK(locked, SERVING)
        fi;
        if
        :: any
        :: else ->
           fall_asleep(SERVING);
end:
           !asleep[SERVING] -> awake()
        fi
     fi
  od
}

#ifdef WAITS
/* read_reply() of the code. */
active proctype waiting() {
  byte seen;
  byte last;
  bit got;
  bit any;
  bit busy;
  LOCK(locked);
  waits = 1;
  UNLOCK(locked, WAITING);
  do
  :: REPLIED -> break
  :: else ->
#ifdef DISARMS_FIRST
     disarm(WAITING);
#endif
#ifndef SEEN_AFTER_TRYING
     seen = word;
#endif
     atomic {
       if
       :: visiting -> busy = 1
       :: else -> visiting = 1
       fi
     };
     if
     :: busy ->
#ifdef SEEN_AFTER_TRYING
        seen = word;
#endif
        busy = 0;
        if
        :: REPLIED -> seen = 0
        :: else ->
           fall_asleep(WAITING);
end1:
           !asleep[WAITING] -> awake()
        fi
     :: else ->
        seen = 0;
        disarm(WAITING);
        look_at(0);
        look_at(1);
        UNLOCK(visiting, WAITING);
        if
        :: any
        :: else ->
           seen = word;
           arm(WAITING, WAITING);
           look_once_more();
           if
           :: any || REPLIED -> seen = 0
           :: else ->
              fall_asleep(WAITING);
end2:
              !asleep[WAITING] -> awake()
           fi
        fi
     fi
  od;
  any = 0;
  LOCK(locked);
  waits = 0;
  arm_for(WAITING, SERVING);
  UNLOCK(locked, WAITING);
  wake_other(SERVING)
}
#endif

#ifdef DIES
active proctype watcher() {
end:
  dead;
#ifndef NOT_WATCHED
  word++;
  if
  :: sleepers -> atomic { asleep[SERVING] = 0; asleep[WAITING] = 0 }
  :: else
  fi
#endif
}
#endif

/* Nobody can go on. */
active proctype watchdog() {
end:
  timeout ->
    if
    :: tail[0] > read[0] || tail[1] > read[1] -> assert(WOKEN)
    :: else
    fi;
    if
    :: asleep[WAITING] && REPLIED -> assert(WOKEN)
    :: else
    fi;
    assert(SPACE || (ended[0] && ended[1]))
}

init {
  atomic {
    run producer(0);
    run producer(1)
  }
}
