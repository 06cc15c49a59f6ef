/* Shows that each chunk of a sum in arenas is added up once, and only in tensors that may be
 * written.
 *
 * The protocol is that of docs/same_host_collectives.md, "In arenas": NR ranks, each with a part of
 * CHUNKS chunks, run OPS operations. A rank sets its claims to the operation's number and zero, and
 * then publishes. It claims chunks of its own part and then of the others', adds each up into the
 * tensors of all, and moves `turned`. It has its tensor back when all have moved `turned`.
 * control_block.pml models how ranks sleep.
 *
 * The mutants are the names below that the text only #ifdefs.
 */
#ifndef NR
#define NR 2
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif

/* Never true: they name the broken promise in Spin's report. */
bit ADDED_ONCE;   /* no chunk is added up twice: the second sum would add up sums */
bit ALL_ADDED;    /* an operation that completes is whole */
bit LENT;         /* a tensor is written by others only while its rank waits in that operation */
bit OWN_NUMBER;   /* claims count the operation that they are read for */

typedef Claims { byte number; byte count; }
Claims claims[NR * SLOTS];
byte published[NR];
byte consumed[NR];
byte turned[NR];
byte lent[NR];                     /* ghost: the operation that has the tensor, plus 1; 0: none */
bit added[NR * CHUNKS * OPS];      /* ghost */

#define CLAIMS(r, n) claims[(r) * SLOTS + (n) % SLOTS]
#define ADDED(share, chunk, n) added[((n) * NR + (share)) * CHUNKS + (chunk)]
#if NR > 2
#define ALL(which, goal) (which[0] >= (goal) && which[1] >= (goal) && which[2] >= (goal))
#else
#define ALL(which, goal) (which[0] >= (goal) && which[1] >= (goal))
#endif

inline set_claims() {
  atomic {
    CLAIMS(me, n).number = n;
    CLAIMS(me, n).count = 0
  }
}

/* Sets `number` and `chunk`. */
inline claim() {
#ifdef NO_CLAIM
  number = n;
  chunk = own;
  own++;
#else
#ifdef TORN_CLAIM
  atomic { number = CLAIMS(share, n).number; chunk = CLAIMS(share, n).count };
  CLAIMS(share, n).count = chunk + 1;
#else
  atomic {
    number = CLAIMS(share, n).number;
    chunk = CLAIMS(share, n).count;
    CLAIMS(share, n).count++
  };
#endif
#endif
  assert(OWN_NUMBER || number == n)
}

/* It writes the tensors of all ranks. */
inline add_up() {
  atomic {
    i = 0;
    do
    :: i < NR -> assert(LENT || lent[i] == n + 1); i++
    :: else -> break
    od;
    assert(ADDED_ONCE || !ADDED(share, chunk, n));
    ADDED(share, chunk, n) = 1
  }
}

inline end_operation() {
  atomic {
    i = 0;
    do
    :: i < NR * CHUNKS -> assert(ALL_ADDED || added[n * NR * CHUNKS + i]); i++
    :: else -> break
    od;
    lent[me] = 0
  }
}

proctype rank(byte me) {
  byte n;
  byte turn;
  byte share;
  byte chunk;
  byte number;
  byte own;
  byte i;
  do
  :: n < OPS ->
     if
     :: n >= SLOTS -> ALL(consumed, n + 1 - SLOTS)
     :: else
     fi;
#if !defined(SET_LATE) && !defined(NOT_SET)
     set_claims();
#endif
     lent[me] = n + 1;
     published[me] = n + 1;
#ifdef SET_LATE
     set_claims();
#endif
     ALL(published, n + 1);
#ifdef TURNED_EARLY
     turned[me] = n + 1;
#endif
     turn = 0;
     do
     :: turn < NR ->
        share = (me + turn) % NR;
        own = 0;
        do
        :: claim();
           if
           :: chunk < CHUNKS -> add_up()
           :: else -> break
           fi
        od;
        turn++
     :: else -> break
     od;
     turned[me] = n + 1;
#ifndef NOT_TURNED
     ALL(turned, n + 1);
#endif
     end_operation();
     consumed[me] = n + 1;
     n++
  :: else -> break
  od
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
