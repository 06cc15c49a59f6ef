/* The owner's side of rref.pml, which includes it: which forks keep the value alive. */

#define CREATED (rr == LIVE)
#ifdef ORPHANS_ACCEPTED
#define CREATOR_DEAD(f) false
#else
#define CREATOR_DEAD(f) HAS(heard[OWNER], crt[f])
#endif
#define ENDED_FORK(f) (own[f] == TOMB || crt[f] == OWNER || CREATOR_DEAD(f) || f < mark[crt[f]])
#ifdef BY_OWNER
#define ENDED_RREF true
#else
#define ENDED_RREF (rrtomb || HAS(heard[OWNER], 0) || mark[0] > 0)
#endif

inline list(f) {
  assert(S3 || !was[f]);
  assert(S7 || !HAS(heard[OWNER], to[f]));
  assert(S8 || own[f] != LISTED);
  own[f] = LISTED;
  refs++
}
inline add_tombstone(f) {
  was[f] = 1;
  own[f] = UNKNOWN;
#ifndef NO_TOMBSTONES
  if
  :: crt[f] != OWNER && !HAS(heard[OWNER], crt[f]) && f >= mark[crt[f]] -> own[f] = TOMB
  :: else
  fi
#endif
}
#ifdef FREED_EARLY
#define SPARE_REFS 1
#else
#define SPARE_REFS 0
#endif
/* B4. S1 and S2 are checked when the value is freed. */
inline settle() {
  if
  :: CREATED && oh == 0 && refs <= SPARE_REFS && !WAITED_FOR ->
     rr = ENDED;
     n = 0;
#ifdef FETCH
     assert(S5 || fetch != WAITING);
#endif
#if !defined(BY_OWNER) && !defined(NO_TOMBSTONES)
     rrtomb = !HAS(heard[OWNER], 0) && mark[0] == 0;
#endif
     i = 0;
     do
     :: i < nf ->
        n = n + (own[i] == LISTED);
        assert(S2 || st[i] != CONFIRMED || HAS(dead, to[i]) || HAS(dead, OWNER));
#if DEATHS == 0 && FAILS == 0
        assert(S1 || (carrier[i] != FLIGHT && !HELD(i)));
#endif
        i++
     :: else -> break
     od;
     assert(S8 || n == refs)
  :: else
  fi
}
inline unlist(f) {
  add_tombstone(f);
  assert(S8 || refs > 0);
  refs--;
  settle()
}
/* Refuses everything that waits for a creation that never comes. */
inline refuse_placeholder() {
  i = 0;
  do
  :: i < nf ->
     if
     :: own[i] == PARKED && to[i] == OWNER -> oh--; own[i] = UNKNOWN; post(CHILD_ACCEPT, i, OWNER, crt[i])
     :: own[i] == PARKED && to[i] != OWNER -> own[i] = UNKNOWN; post(FORK_REJECT, i, OWNER, to[i])
     :: else
     fi;
     i++
  :: else -> break
  od;
#ifdef FETCH
  if :: fetch == WAITING -> fetch = DONE :: else fi
#endif
}
inline raise(w, limit) {
  if
  :: limit > mark[w] ->
     mark[w] = limit;
     i = 0;
     do
     :: i < limit && i < nf ->
        if :: crt[i] == w && own[i] == TOMB -> own[i] = UNKNOWN :: else fi;
        i++
     :: else -> break
     od;
#ifndef BY_OWNER
     if
     :: w == 0 -> rrtomb = 0; if :: !CREATED -> rr = ENDED; refuse_placeholder() :: else fi
     :: else
     fi
#endif
  :: else
  fi
}
/* S7: a message of a dead incarnation changes nothing. */
#ifdef STALE_ACCEPTED
#define FROM_THE_DEAD(w) false
#else
#define FROM_THE_DEAD(w) HAS(heard[OWNER], w)
#endif
#ifdef CREATION_IGNORES_CANCEL
#define HEEDS_CANCEL false
#else
#define HEEDS_CANCEL true
#endif
inline accept_creation() {
  carrier[0] = READ;
  if
  :: FROM_THE_DEAD(0)
  :: else ->
     if
     :: CREATED -> if :: own[0] == LISTED -> post(FORK_ACCEPT, 0, OWNER, 0) :: else fi
     :: !CREATED && ENDED_RREF && HEEDS_CANCEL
     :: else ->
        assert(S3 || rr == UNKNOWN);
        rr = LIVE;
        list(0);
        post(FORK_ACCEPT, 0, OWNER, 0);
        i = 0;
        do
        :: i < nf ->
           if
           :: own[i] == PARKED && to[i] == OWNER -> own[i] = UNKNOWN; post(CHILD_ACCEPT, i, OWNER, crt[i])
           :: own[i] == PARKED && to[i] != OWNER -> list(i); post(FORK_ACCEPT, i, OWNER, to[i])
           :: else
           fi;
           i++
        :: else -> break
        od
     fi
  fi
}
inline owner_read(f) {
  carrier[f] = READ;
  if
  :: HAS(heard[OWNER], crt[f])
  :: crt[f] == OWNER -> if :: own[f] == LISTED -> oh++; unlist(f) :: else fi
  :: else ->
     if
     :: ENDED_FORK(f) || (!CREATED && ENDED_RREF) -> post(CHILD_ACCEPT, f, OWNER, crt[f])
     :: !ENDED_FORK(f) && CREATED -> oh++; post(CHILD_ACCEPT, f, OWNER, crt[f])
     :: else -> oh++; own[f] = PARKED
     fi
  fi
}
inline on_fork_request(f) {
  if
  :: FROM_THE_DEAD(to[f])
  :: else ->
     raise(to[f], below_request[f]);
     if
     :: own[f] == LISTED ->
#ifdef LISTED_TWICE
        list(f);
#endif
        post(FORK_ACCEPT, f, OWNER, to[f])
     :: own[f] == PARKED
     :: own[f] != LISTED && own[f] != PARKED ->
        if
        :: ENDED_FORK(f) || (!CREATED && ENDED_RREF) -> post(FORK_REJECT, f, OWNER, to[f])
        :: !ENDED_FORK(f) && CREATED -> list(f); post(FORK_ACCEPT, f, OWNER, to[f])
        :: else -> own[f] = PARKED
        fi
     fi
  fi
}
inline on_user_delete(f) {
  if
  :: FROM_THE_DEAD(to[f])
  :: else ->
     raise(to[f], below_delete[f]);
     if
     :: own[f] == LISTED ->
        read_while_recalled[f] = read_while_recalled[f] || recalled[f];
        recalled[f] = 0;
        unlist(f)
     :: own[f] != LISTED && crt[f] == OWNER -> post(DELETE_ACK, f, OWNER, to[f])
#ifdef COUNTED_TWICE
     :: own[f] != LISTED && crt[f] != OWNER && refs > 0 -> refs--; settle()
#endif
     :: else
     fi
  fi
}
inline on_cancel_fork(f) {
  if
  :: FROM_THE_DEAD(crt[f])
  :: else ->
     raise(crt[f], below_cancel[f]);
     if
     :: own[f] == LISTED || own[f] == PARKED -> post(CANCEL_ACK_REGISTERED, f, OWNER, crt[f])
     :: else ->
        if
        :: f > 0 -> if :: CREATED || !ENDED_RREF -> add_tombstone(f) :: else fi
        :: f == 0 && !CREATED ->
           rr = ENDED;
#ifndef NO_TOMBSTONES
           rrtomb = mark[0] == 0;
#endif
           refuse_placeholder()
        :: else
        fi;
        post(CANCEL_ACK_ABSENT, f, OWNER, crt[f])
     fi
  fi
}
inline on_recall_ack(f, registered) {
  if
  :: HAS(heard[OWNER], to[f])
  :: else ->
     if
     :: read_while_recalled[f] ->
        read_while_recalled[f] = 0;
        if :: !registered -> post(DELETE_ACK, f, OWNER, to[f]) :: else fi
     :: !read_while_recalled[f] && own[f] == LISTED && recalled[f] ->
        recalled[f] = 0;
        if :: !registered -> unlist(f) :: else fi
     :: else
     fi
  fi
}
inline owner_peer_dead(w) {
  heard[OWNER] = heard[OWNER] | BIT(w);
#ifndef BY_OWNER
  if :: w == 0 && !CREATED -> rr = ENDED; refuse_placeholder() :: else fi;
  rrtomb = rrtomb && w != 0;
#endif
#ifdef FETCH
  if :: fetch == WAITING && to[fetch_by] == w -> fetch = DONE :: else fi;
#endif
#ifndef NO_REAP
  j = 0;
  do
  :: j < nf ->
     if
     :: to[j] == w && own[j] == LISTED -> add_tombstone(j); refs--; recalled[j] = 0
     :: to[j] == w && own[j] == PARKED -> own[j] = UNKNOWN; was[j] = 1
     :: else
     fi;
     if :: crt[j] == w && own[j] == TOMB -> own[j] = UNKNOWN :: else fi;
     read_while_recalled[j] = read_while_recalled[j] && to[j] != w;
     j++
  :: else -> break
  od;
  settle()
#endif
}

/* ---- Its process ---- */

#define OWNER_EVENTS(f) \
  :: d_step { ARRIVED(f, OWNER, FORK_REQUEST) -> TAKE(FORK_REQUEST, f); on_fork_request(f) } \
  :: d_step { ARRIVED(f, OWNER, USER_DELETE) -> TAKE(USER_DELETE, f); on_user_delete(f) } \
  :: d_step { ARRIVED(f, OWNER, CANCEL_FORK) -> TAKE(CANCEL_FORK, f); on_cancel_fork(f) } \
  :: d_step { ARRIVED(f, OWNER, RECALL_ACK_REGISTERED) -> \
              TAKE(RECALL_ACK_REGISTERED, f); on_recall_ack(f, true) } \
  :: d_step { ARRIVED(f, OWNER, RECALL_ACK_ABSENT) -> \
              TAKE(RECALL_ACK_ABSENT, f); on_recall_ack(f, false) } \
  :: d_step { f < nf && f > FIRST && UP(OWNER) && to[f] == OWNER && carrier[f] == FLIGHT -> owner_read(f) } \
  :: d_step { f < nf && f > FIRST && UP(OWNER) && to[f] == OWNER && carrier[f] == FLIGHT -> \
              carrier[f] = UNREAD; \
              if :: crt[f] != OWNER -> post(CHILD_ACCEPT, f, OWNER, crt[f]) \
                 :: crt[f] == OWNER && own[f] == LISTED -> unlist(f) \
                 :: else fi } \
  :: d_step { f < nf && UP(OWNER) && crt[f] == OWNER && own[f] == LISTED && fails > 0 && !failed[f] && \
              (carrier[f] == FLIGHT || to[f] == OWNER) -> \
              fails--; failed[f] = 1; carrier[f] = UNREAD; unlist(f) } \
  :: d_step { f < nf && UP(OWNER) && crt[f] == OWNER && own[f] == LISTED && fails > 0 && !failed[f] && \
              to[f] != OWNER -> fails--; failed[f] = 1; lent_carrier_failed(f) }
#define LEND_TO(w) \
  :: d_step { nf < NF && UP(OWNER) && CREATED && oh > 0 && (w <= known || w == OWNER) && \
              !HAS(heard[OWNER], w) -> to[nf] = w; list(nf); send_reference(OWNER, NONE, w) }

inline lent_carrier_failed(f) {
#ifdef RECALL_NOT_ASKED
  unlist(f)
#else
  recalled[f] = 1;
  post(RECALL, f, OWNER, to[f])
#endif
}

proctype owner() {
end:
  do
  OWNER_EVENTS(0)
  OWNER_EVENTS(1)
#if NF > 2
  OWNER_EVENTS(2)
#endif
#if NF > 3
  OWNER_EVENTS(3)
#endif
  LEND_TO(0) LEND_TO(1) LEND_TO(OWNER)
#if NU > 2
  LEND_TO(2)
#endif
#ifndef BY_OWNER
#ifdef ONCE
  :: d_step { UP(OWNER) && carrier[0] == FLIGHT -> accept_creation() }
#else
  :: d_step { UP(OWNER) && (carrier[0] == FLIGHT || carrier[0] == READ) -> accept_creation() }
#endif
#endif
  :: d_step { UP(OWNER) && CREATED && oh > 0 -> oh--; settle() }
  :: d_step { HEARS(OWNER, 0) -> owner_peer_dead(0) }
  :: d_step { HEARS(OWNER, 1) -> owner_peer_dead(1) }
#if NU > 2
  :: d_step { HEARS(OWNER, 2) -> owner_peer_dead(2) }
#endif
#define SETTLES(u, below) \
  :: d_step { UP(OWNER) && HAS(settled[u], below) -> settled[u] = settled[u] & (255 - TAKEN(below)); \
              if :: !FROM_THE_DEAD(u) -> raise(u, below) :: else fi }
#ifdef ONCE
#define TAKEN(below) BIT(below)
#else
#define TAKEN(below) 0
#endif
#if NF > 3
#define SETTLES_ALL(u) SETTLES(u, 1) SETTLES(u, 2) SETTLES(u, 3) SETTLES(u, 4)
#else
#define SETTLES_ALL(u) SETTLES(u, 1) SETTLES(u, 2) SETTLES(u, 3)
#endif
  SETTLES_ALL(0) SETTLES_ALL(1)
#if NU > 2
  SETTLES_ALL(2)
#endif
#ifdef FETCH
  :: d_step { UP(OWNER) && CREATED && !ready ->
              ready = 1; if :: fetch == WAITING -> fetch = DONE; settle() :: else fi }
  :: d_step { UP(OWNER) && fetch == ASKED ->
              if
              :: HAS(heard[OWNER], to[fetch_by]) -> fetch = DONE
              :: else ->
                 if
                 :: CREATED && ready -> fetch = DONE  /* S5: the state that answers is the live one */
                 :: CREATED && !ready -> fetch = WAITING
                 :: !CREATED && ENDED_RREF ->
                    /* The caller had a confirmed fork, or the creation's. */
                    assert(S5 || (fetch_by == 0 && failed[0]) || HAS(dead, to[fetch_by]) || HAS(dead, OWNER));
                    fetch = DONE
                 :: else -> fetch = WAITING
                 fi
              fi }
#endif
  od
}
