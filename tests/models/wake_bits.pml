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

/* Never true: they name the broken promise in Spin's report. */
bit WHOLE; /* a record that is read has its content */
bit WOKEN; /* the reader does not sleep while a record is published that it has not read */
bit SPACE; /* no producer waits for space when the reader has read all */

byte content[2 * RING];  /* the number of the record in that slot, plus 1 */
byte tail[2];
byte head[2];
bit wants_space[2];
bit woken[2];            /* the producer: it waits for space */

bit pending[2];
bit armed;
byte word;               /* the wake-up word: its number, */
bit sleepers;            /* and whether the reader announces that it sleeps there */
bit asleep;              /* in the kernel */

/* Store buffers. 0: nothing, otherwise the value plus 1. */
byte its_content[2];
byte its_tail[2];
byte its_bit[2];
byte its_wants[2];
byte its_head[2];        /* of the reader */
byte its_armed;

byte read[2];            /* the reader's own positions */
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
  :: atomic { its_armed > 0 -> armed = its_armed - 1; its_armed = 0 }
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
     atomic { was = armed; armed = 0 };
     may_die();
     if
     :: was ->
#ifndef WAKES_ONLY
        word++;
#endif
        if
        :: sleepers -> asleep = 0
        :: else
        fi;
        was = 0
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
  bit was;
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

/* It may release after any record, and does after the last one. */
inline drain(p) {
  last = tail[p];
  do
  :: read[p] < last ->
#ifdef RELEASED_EARLY
     head[p] = read[p] + 1;
#endif
     atomic { assert(WHOLE || SLOT(p, read[p]) == read[p] + 1); read[p]++ };
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

inline arm() {
#ifdef RELAXED_ARM
  atomic { its_armed == 0 -> its_armed = 2 }
#else
  atomic { its_armed = 0; armed = 1 }
#endif
}

active proctype reader() {
  byte seen;
  byte last;
  bit got;
  bit any;
  do
  :: atomic { its_armed = 1; any = 0 }; /* disarms: a relaxed store */
     look_at(0);
     look_at(1);
     if
     :: any
     :: else ->
        /* Before it arms: a late signal for what the reader has seen may disarm it again. */
#if !defined(SEEN_ARMED) && !defined(SEEN_LATE)
        seen = word;
#endif
#ifndef ARMS_LATE
        arm();
#endif
#ifdef SEEN_ARMED
        seen = word;
#endif
#ifndef NO_SECOND_LOOK
        if
        :: pending[0] -> any = 1
        :: else
        fi;
        if
        :: pending[1] -> any = 1
        :: else
        fi;
#endif
#ifdef ARMS_LATE
        arm();
#endif
#ifdef SEEN_LATE
        seen = word;
#endif
        if
        :: any
        :: else ->
           sleepers = 1;
           atomic {
             if
             :: word == seen -> asleep = 1
             :: else
             fi
           };
end:
           atomic { !asleep -> sleepers = 0; seen = 0 }
        fi
     fi
  od
}

#ifdef DIES
active proctype watcher() {
end:
  dead;
#ifndef NOT_WATCHED
  word++;
  if
  :: sleepers -> asleep = 0
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
    assert(SPACE || (ended[0] && ended[1]))
}

init {
  atomic {
    run producer(0);
    run producer(1)
  }
}
