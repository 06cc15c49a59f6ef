/* The user's side of rref.pml, which includes it: forks of the value that are held or in flight. */

/* Sets n to the watermark of u, which u then sends. */
inline settled_below(u) {
  n = 0;
  do :: n < nf && !(crt[n] == u && UNDECIDED(n)) -> n++ :: else -> break od;
#ifdef HIGH_WATERMARK
  n = nf;
#endif
  unsaid[u] = (n < nf)
}
inline announce_last(u) {
  if
  :: unsaid[u] ->
     found = false;
     i = 0;
     do
     :: i < nf -> found = found || (crt[i] == u && UNDECIDED(i)) || (HELD(i) && to[i] == u); i++
     :: else -> break
     od;
     if
     :: !found ->
        unsaid[u] = 0;
#ifndef NO_SETTLED
        if :: !HAS(heard[u], OWNER) -> settled[u] = settled[u] | BIT(nf) :: else fi
#endif
     :: else
     fi
  :: else
  fi
}
#ifdef NO_S4
#define UNCHECKED true
#else
#define UNCHECKED false
#endif
/* S4: whatever it believes, a parent that is deleted has no child that may still come to be
 * listed. */
inline check_children(u, f) {
  i = 0;
  do
  :: i < nf ->
     assert(S4 || UNCHECKED || par[i] != f || carrier[i] >= UNREAD || own[i] == LISTED || was[i] ||
            (to[i] == OWNER && carrier[i] == READ) || HAS(dead, to[i]) || HAS(dead, u) || HAS(dead, OWNER));
     i++
  :: else -> break
  od
}
/* B2, B3. */
#ifdef EARLY_DROP
#define NO_KIDS(f) true
#else
#define NO_KIDS(f) (kids[f] == 0)
#endif
#ifdef DELETE_UNCONFIRMED
#define MAY_DELETE(f) (st[f] == CONFIRMED || st[f] == PENDING)
#else
#define MAY_DELETE(f) (st[f] == CONFIRMED)
#endif
inline delete_if_done(u, f) {
  if
  :: dropped[f] && NO_KIDS(f) && MAY_DELETE(f) ->
     check_children(u, f);
     settled_below(u);
     below_delete[f] = n;
     post(USER_DELETE, f, u, OWNER);
     st[f] = GONE;
     kids[f] = 0;
     announce_last(u)
  :: else
  fi
}
inline release_child(u, g) {
  kid[g] = 0;
  if
  :: HELD(par[g]) -> assert(S9 || kids[par[g]] > 0); kids[par[g]]--; delete_if_done(u, par[g])
  :: else
  fi;
  announce_last(u)
}
inline confirm(u, f) {
  assert(S2 || rr != ENDED || HAS(dead, u) || HAS(dead, OWNER));
  st[f] = CONFIRMED;
  if
  :: crt[f] != OWNER && crt[f] != u ->
#ifndef NO_CHILD_ACCEPT
     post(CHILD_ACCEPT, f, u, crt[f])
#else
     skip
#endif
  :: else
  fi;
  delete_if_done(u, f)
}
/* G2: something must have happened to the fork, or to one above it. */
inline lose(u, f) {
  found = HAS(dead, OWNER) || HAS(dead, u);
  j = f;
  do
  :: j != NONE -> found = found || failed[j] || HAS(dead, crt[j]) || HAS(dead, to[j]); j = par[j]
  :: else -> break
  od;
  assert(G2 || found);
  st[f] = GONE;
  kids[f] = 0
}
inline user_read(u, f) {
  carrier[f] = READ;
  if
  :: HAS(heard[u], crt[f]) || HAS(heard[u], OWNER)  /* its sender is dead, or its owner is */
  :: else ->
     if
     :: crt[f] == OWNER && withdrawn[f] -> withdrawn[f] = 0; assert(G2 || failed[f])
     :: crt[f] == OWNER && !withdrawn[f] -> confirm(u, f)
     :: crt[f] != OWNER ->
        st[f] = PENDING;
        settled_below(u);
        below_request[f] = n;
        post(FORK_REQUEST, f, u, OWNER)
     fi
  fi
}
inline user_discard(u, f) {
  carrier[f] = UNREAD;
  if
  :: HAS(heard[u], crt[f])
  :: !HAS(heard[u], crt[f]) && crt[f] != OWNER -> post(CHILD_ACCEPT, f, u, crt[f])
  :: !HAS(heard[u], crt[f]) && crt[f] == OWNER ->
     if
     :: withdrawn[f] -> withdrawn[f] = 0
     :: else ->
        settled_below(u);
        below_delete[f] = n;
        post(USER_DELETE, f, u, OWNER);
        announce_last(u)
     fi
  fi
}
inline on_fork_reject(u, f) {
  if
  :: st[f] == PENDING && f > 0 ->
#ifdef ASK_AGAIN
     post(FORK_REQUEST, f, u, OWNER)
#else
     lose(u, f);
#ifndef LOST_IN_SILENCE
     post(CHILD_ACCEPT, f, u, crt[f]);
#endif
     announce_last(u)
#endif
  :: else
  fi
}
inline on_cancel_ack(u, f, registered) {
  if
  :: kid[f] == CANCELLED -> release_child(u, f)
  :: kid[f] != CANCELLED && f == 0 && st[0] == CANCELLING ->
     if
     :: registered -> confirm(u, 0)
     :: else -> st[0] = GONE; kids[0] = 0; announce_last(u)
     fi
  :: else
  fi
}
/* It will never read what it has not read yet. */
inline on_recall(u, f) {
  if
  :: HELD(f) -> post(RECALL_ACK_REGISTERED, f, u, OWNER)
  :: else -> withdrawn[f] = 1; post(RECALL_ACK_ABSENT, f, u, OWNER)
  fi
}
inline user_peer_dead(u, w) {
  heard[u] = heard[u] | BIT(w);
  j = 0;
  do
  :: j < nf ->
     if
     :: w == OWNER && to[j] == u && HELD(j) -> st[j] = GONE; kids[j] = 0
     :: else
     fi;
     if
     :: w == OWNER && crt[j] == u -> kid[j] = 0
#ifndef CHILD_DEATH_IGNORED
     :: w != OWNER && crt[j] == u && to[j] == w && kid[j] != 0 -> release_child(u, j)
#endif
#ifdef CHILD_DEATH_TWICE
     :: w != OWNER && crt[j] == u && to[j] == w && kid[j] == 0 && par[j] != NONE && HELD(par[j]) ->
        release_child(u, j)
#endif
     :: else
     fi;
     withdrawn[j] = withdrawn[j] && !(w == OWNER && to[j] == u);
     j++
  :: else -> break
  od;
  if :: w == OWNER -> unsaid[u] = 0 :: else fi
}

/* ---- Its process ---- */

/* The issuer of a child no longer listens to a dead holder. It always listens to the owner. */
#define USER_EVENTS(f) \
  :: d_step { AT_HOLDER(f, u, FORK_ACCEPT) -> TAKE(FORK_ACCEPT, f); \
              if :: st[f] == PENDING || st[f] == CANCELLING -> confirm(u, f) :: else fi } \
  :: d_step { AT_HOLDER(f, u, FORK_REJECT) -> TAKE(FORK_REJECT, f); on_fork_reject(u, f) } \
  :: d_step { AT_HOLDER(f, u, RECALL) -> TAKE(RECALL, f); on_recall(u, f) } \
  :: d_step { AT_HOLDER(f, u, DELETE_ACK) -> TAKE(DELETE_ACK, f); withdrawn[f] = 0 } \
  :: d_step { AT_ISSUER(f, u, CHILD_ACCEPT) -> TAKE(CHILD_ACCEPT, f); \
              if :: kid[f] != 0 && FROM_LIVE(f, u) -> release_child(u, f) :: else fi } \
  :: d_step { AT_ISSUER(f, u, CANCEL_ACK_REGISTERED) -> TAKE(CANCEL_ACK_REGISTERED, f); \
              if :: !HAS(heard[u], OWNER) -> on_cancel_ack(u, f, true) :: else fi } \
  :: d_step { AT_ISSUER(f, u, CANCEL_ACK_ABSENT) -> TAKE(CANCEL_ACK_ABSENT, f); \
              if :: !HAS(heard[u], OWNER) -> on_cancel_ack(u, f, false) :: else fi } \
  :: d_step { f < nf && f > FIRST && UP(u) && to[f] == u && carrier[f] == FLIGHT -> user_read(u, f) } \
  :: d_step { f < nf && f > FIRST && UP(u) && to[f] == u && carrier[f] == FLIGHT -> user_discard(u, f) } \
  :: d_step { f < nf && UP(u) && to[f] == u && HELD(f) && !dropped[f] && !CALLED(f) -> \
              dropped[f] = 1; delete_if_done(u, f) } \
  :: d_step { f < nf && UP(u) && crt[f] == u && kid[f] == OPEN && fails > 0 && carrier[f] == FLIGHT -> \
              fails--; failed[f] = 1; carrier[f] = UNREAD; release_child(u, f) } \
  :: d_step { f < nf && UP(u) && crt[f] == u && kid[f] == OPEN && fails > 0 -> \
              fails--; failed[f] = 1; child_carrier_failed(u, f) } \
  SEND_TO(f, 0) SEND_TO(f, 1) SEND_TO_2(f) SEND_TO(f, OWNER)
#define SEND_TO(f, w) \
  :: d_step { nf < NF && f < nf && UP(u) && to[f] == u && (st[f] == PENDING || st[f] == CONFIRMED) && \
              !dropped[f] && w != u && (w <= known || w == OWNER) && !HAS(heard[u], w) -> \
              kid[nf] = OPEN; kids[f]++; unsaid[u] = 1; send_reference(u, f, w) }
#if NU > 2
#define SEND_TO_2(f) SEND_TO(f, 2)
#else
#define SEND_TO_2(f)
#endif
#ifdef BY_OWNER
#define FIRST -1
#else
#define FIRST 0
#endif

/* The carrier failed, and may have been read: the owner decides (BN5). */
inline child_carrier_failed(u, f) {
#ifdef RELEASE_ON_TIMEOUT
  release_child(u, f)
#else
  kid[f] = CANCELLED;
#ifndef NO_CANCEL_FORK
  settled_below(u);
  below_cancel[f] = n;
  post(CANCEL_FORK, f, u, OWNER)
#endif
#endif
}
inline creation_failed(u) {
  failed[0] = 1;
  dropped[0] = 1;
#ifdef CREATION_NOT_CANCELLED
  st[0] = GONE
#else
  st[0] = CANCELLING;
  settled_below(u);
  below_cancel[0] = n;
  post(CANCEL_FORK, 0, u, OWNER)
#endif
}

proctype user(byte u) {

end:
  do
  USER_EVENTS(0)
  USER_EVENTS(1)
#if NF > 2
  USER_EVENTS(2)
#endif
#if NF > 3
  USER_EVENTS(3)
#endif
#ifndef BY_OWNER
  :: d_step { u == 0 && UP(0) && st[0] == PENDING && fails > 0 -> fails--; creation_failed(0) }
#endif
  :: d_step { HEARS(u, 0) && u != 0 -> user_peer_dead(u, 0) }
  :: d_step { HEARS(u, 1) && u != 1 -> user_peer_dead(u, 1) }
#if NU > 2
  :: d_step { HEARS(u, 2) && u != 2 -> user_peer_dead(u, 2) }
#endif
  :: d_step { HEARS(u, OWNER) -> user_peer_dead(u, OWNER) }
#ifdef FETCH
  :: d_step { UP(u) && fetch == 0 && nf > 0 && to[0] == u && (st[0] == PENDING || st[0] == CONFIRMED) &&
              !dropped[0] && !HAS(heard[u], OWNER) -> fetch = ASKED; fetch_by = 0 }
  :: d_step { UP(u) && fetch == 0 && nf > 1 && to[1] == u && st[1] == CONFIRMED && !dropped[1] &&
              !HAS(heard[u], OWNER) -> fetch = ASKED; fetch_by = 1 }
  :: d_step { UP(u) && fetch == ASKED && to[fetch_by] == u && HAS(heard[u], OWNER) -> fetch = DONE }
#endif
  od
}
