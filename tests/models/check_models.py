#!/usr/bin/env python3
"""Runs Spin over the protocols' models: what they promise holds, and every mutant breaks it.

    check_models.py [--quick] [--only TEXT] [--list]

Each run is one line: what it is, its states and seconds (of CPU), the outcome. A run that holds must be
complete (all states, no bound reached); a mutant must break the very promise that the table names.
--quick leaves out the runs marked FULL. docs/testing/models.md says what the models cover.
"""

import argparse
import dataclasses
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FULL = True       # too long for the test suite
LARGE = True
LIMIT_S = 900     # for one run
MEMORY_MB = 8000  # for one run


@dataclasses.dataclass
class Run:
    name: str
    model: str
    defines: str
    claim: str = ''   # an LTL formula or claim, under weak fairness; none: assertions
    breaks: str = ''  # the promise that must fail, CYCLE for a claim; none: it holds
    full: bool = False   # not in the test suite
    large: bool = False  # many states: worth an optimised search
    depth: int = 20000


CYCLE = 'acceptance cycle'
RREF = 'rref.pml'
LEASE = 'lease.pml'
STEP = 'step.pml'
CONTROL_BLOCK = 'control_block.pml'
CLAIMS = 'claims.pml'
WAKE_BITS = 'wake_bits.pml'

RUNS = [
    # ---- References: safety under messages that are lost, repeated and reordered at will ----
    Run('no faults, 3 forks', RREF, 'NF=3'),
    Run('no faults, 4 forks', RREF, 'NF=4', full=FULL),
    Run('1 failed carrier, 3 forks', RREF, 'NF=3 FAILS=1'),
    Run('2 failed carriers, 3 forks', RREF, 'NF=3 FAILS=2', full=FULL),
    Run('1 death, 3 forks', RREF, 'NF=3 DEATHS=1'),
    Run('2 deaths, 3 forks', RREF, 'NF=3 DEATHS=2', large=LARGE),
    Run('1 death, 1 failed carrier, 3 forks', RREF, 'NF=3 DEATHS=1 FAILS=1', full=FULL),
    Run('1 death, 1 failed carrier, 2 forks', RREF, 'NF=2 DEATHS=1 FAILS=1'),
    Run('made by the owner, 1 failed carrier, 3 forks', RREF, 'BY_OWNER NF=3 FAILS=1', full=FULL),
    Run('made by the owner, 1 death, 3 forks', RREF, 'BY_OWNER NF=3 DEATHS=1', large=LARGE),
    Run('made by the owner, 1 death, 1 failed carrier, 2 forks', RREF,
        'BY_OWNER NF=2 DEATHS=1 FAILS=1', full=FULL),
    Run('made by the owner, 1 failed carrier, 2 forks', RREF, 'BY_OWNER NF=2 FAILS=1'),
    Run('a call on the value, 1 failed carrier, 3 forks', RREF, 'FETCH NF=3 FAILS=1', full=FULL),
    Run('a call on the value, 1 death, 3 forks', RREF, 'FETCH NF=3 DEATHS=1', large=LARGE),
    Run('a call on the value, 1 death, 1 failed carrier, 2 forks', RREF,
        'FETCH NF=2 DEATHS=1 FAILS=1', full=FULL),
    # ---- References: liveness ----
    Run('ends, no faults, 3 forks', RREF, 'ONCE NF=3', 'all'),
    Run('ends, 2 repeats, 3 forks', RREF, 'ONCE NF=3 REPEATS=2', 'all', full=FULL),
    Run('ends, 1 failed carrier, 3 forks', RREF, 'ONCE NF=3 FAILS=1', 'all', large=LARGE),
    Run('ends, 1 death, 3 forks', RREF, 'ONCE NF=3 DEATHS=1', 'all', large=LARGE),
    Run('ends, 1 death, 2 users, 2 forks', RREF, 'ONCE NF=2 NU=2 DEATHS=1', 'all'),
    Run('ends, 2 deaths, 2 forks', RREF, 'ONCE NF=2 DEATHS=2', 'all', full=FULL),
    Run('ends, 1 death, 1 failed carrier, 1 repeat, 2 forks', RREF,
        'ONCE NF=2 DEATHS=1 FAILS=1 REPEATS=1', 'all', full=FULL),
    Run('ends, made by the owner, 1 failed carrier, 2 users, 2 forks', RREF,
        'ONCE BY_OWNER NF=2 NU=2 FAILS=1', 'all'),
    Run('ends, made by the owner, 1 death, 1 failed carrier, 2 forks', RREF,
        'ONCE BY_OWNER NF=2 DEATHS=1 FAILS=1', 'all', full=FULL),
    Run('ends, a call on the value, 1 death, 1 failed carrier, 2 forks', RREF,
        'ONCE FETCH NF=2 DEATHS=1 FAILS=1', 'all', full=FULL),
    # ---- References: mutants ----
    Run('parent deleted before its child is decided', RREF, 'EARLY_DROP NF=2 NU=2', breaks='S4'),
    Run('parent deleted early, seen at the value', RREF, 'EARLY_DROP NO_S4 NF=2 NU=2',
        breaks='S1'),
    Run('no tombstones', RREF, 'NO_TOMBSTONES NF=2 NU=2', breaks='S3'),
    Run('watermark ignores undecided ids', RREF, 'HIGH_WATERMARK NF=3', breaks='G2'),
    Run('a failed carrier lets its parent go', RREF, 'RELEASE_ON_TIMEOUT NF=2 NU=2 FAILS=1',
        breaks='S4'),
    Run('value freed with a fork left', RREF, 'FREED_EARLY NF=2 NU=2', breaks='S2'),
    Run('a repeated USER_DELETE counted twice', RREF, 'COUNTED_TWICE NF=2 NU=2', breaks='S2'),
    Run('a repeated FORK_REQUEST listed twice', RREF, 'LISTED_TWICE NF=2 NU=2', breaks='S8'),
    Run('messages of ended incarnations accepted', RREF, 'STALE_ACCEPTED NF=2 NU=2 DEATHS=1',
        breaks='S7'),
    Run('orphans of a dead creator accepted', RREF, 'ORPHANS_ACCEPTED NF=3 NU=3 DEATHS=1',
        breaks='S3', full=FULL),
    Run('creation ignores its cancel', RREF, 'CREATION_IGNORES_CANCEL NF=2 NU=2 FAILS=1',
        breaks='S3'),
    Run('a child decided twice', RREF, 'CHILD_DEATH_TWICE NF=3 DEATHS=1', breaks='S9',
        full=FULL),
    Run('recall not asked', RREF, 'RECALL_NOT_ASKED BY_OWNER NF=2 NU=2 FAILS=1', breaks='S2'),
    Run('a call lets go before it is accepted', RREF, 'LET_GO_EARLY FETCH NF=2 NU=2', breaks='S5'),
    Run('a waiting call holds nothing', RREF, 'CALL_HOLDS_NOTHING FETCH NF=2 NU=2', breaks='S5'),
    Run('delete before confirmation', RREF, 'ONCE DELETE_UNCONFIRMED NF=2 NU=2', 'freed', CYCLE),
    Run('no CANCEL_FORK', RREF, 'ONCE NO_CANCEL_FORK NF=2 NU=2 FAILS=1', 'decided', CYCLE),
    Run('creation not cancelled', RREF, 'ONCE CREATION_NOT_CANCELLED NF=2 NU=2 FAILS=1', 'freed',
        CYCLE),
    Run('death of a user not reaped', RREF, 'ONCE NO_REAP NF=2 NU=2 DEATHS=1', 'freed', CYCLE),
    Run("death of the child's worker ignored", RREF, 'ONCE CHILD_DEATH_IGNORED NF=2 NU=2 DEATHS=1',
        'decided', CYCLE),
    Run('no CHILD_ACCEPT', RREF, 'ONCE NO_CHILD_ACCEPT NF=2 NU=2', 'freed', CYCLE),
    Run('a refused fork does not tell its parent', RREF, 'ONCE LOST_IN_SILENCE NF=3 FAILS=1',
        'decided', CYCLE, full=FULL),
    Run('a refused fork asks again', RREF, 'ONCE ASK_AGAIN NF=2 NU=2 FAILS=1', 'quiet', CYCLE),
    Run('no last watermark', RREF, 'ONCE NO_SETTLED NF=2 NU=2 FAILS=1', 'forgotten', CYCLE),
    # ---- References: what is not promised ----
    Run('limit: a recall whose carrier is lost is remembered', RREF,
        'ONCE LOST_RECALL_COUNTS BY_OWNER NF=2 NU=2 FAILS=1', 'forgotten', CYCLE),
    # ---- Leases and death records ----
    Run('a pair, ticks of 200 ms', LEASE, 'TIMED', depth=100000),
    Run('a pair, ticks of 100 ms', LEASE, 'TIMED FINE', depth=200000, full=FULL),
    Run('a pair, the judge is stopped', LEASE, 'TIMED FINE RELIABLE'),
    Run('3 workers, 1 crash, 1 wrong suspicion, 1 cut', LEASE, ''),
    Run('3 workers, 2 crashes, 2 wrong suspicions, 2 cuts', LEASE, 'CRASHES=2 WRONG=2 CUTS=2',
        full=FULL),
    Run('3 workers, the store is lost', LEASE, 'STORE_LOST STORE_LATE=1', full=FULL),
    Run('ends, 1 crash, 1 wrong suspicion', LEASE, 'LIVENESS CUTS=0', 'all'),
    Run('ends, 1 crash, 1 wrong suspicion, 1 cut', LEASE, 'LIVENESS', 'all', full=FULL),
    Run('ends, 2 crashes, 1 wrong suspicion, 1 cut', LEASE, 'LIVENESS CRASHES=2', 'all',
        full=FULL),
    Run('known dead, the store is lost', LEASE, 'LIVENESS STORE_LOST CUTS=0', 'known_dead'),
    Run('part both, the store is lost', LEASE, 'LIVENESS STORE_LOST CUTS=0', 'part_both'),
    Run('part both, the store answers late', LEASE, 'LIVENESS STORE_LATE=1', 'part_both',
        full=FULL),
    Run('suspect_after shorter than valid_for', LEASE, 'TIMED SUSPECT_AFTER=6', breaks='S6', depth=100000),
    Run("valid from the answer's arrival", LEASE, 'TIMED FROM_ARRIVAL', breaks='S6', depth=100000),
    Run('clocks 25 % apart', LEASE, 'TIMED DRIFT=4', breaks='S6', depth=100000),
    Run('judges for the time it was stopped', LEASE, 'TIMED RELIABLE JUDGES_ASLEEP',
        breaks='JUDGES_AWAKE'),
    Run('writes a death record without reading first', LEASE, 'NO_READ_FIRST', breaks='NOT_BOTH'),
    Run('writes a death record without comparing', LEASE, 'NO_COMPARE', breaks='ONE_ORDER'),
    Run('no fencing', LEASE, 'NO_FENCING', breaks='NOT_BOTH'),
    Run('a death record revised', LEASE, 'REVISED', breaks='NOT_REVISED'),
    Run('who is refused does not ask', LEASE, 'LIVENESS REFUSAL_IGNORED', 'fences', CYCLE),
    Run('limit: stopped again before it has read', LEASE, 'TIMED RELIABLE STOPS_AGAIN',
        breaks='JUDGES_AWAKE'),
    Run('limit: the store answers late, once', LEASE, 'LIVENESS STORE_LATE=1', 'fences', CYCLE),
    Run('limit closed: who had no answer asks again', LEASE, 'LIVENESS STORE_LATE=1 ASKS_AGAIN',
        'all', full=FULL),
    # ---- The optimizer's step ----
    Run('2 remote owners, 1 death', STEP, 'K=2'),
    Run('2 remote owners, 2 deaths', STEP, 'K=2 DEATHS=2'),
    Run('3 remote owners, 1 death', STEP, 'K=3', full=FULL),
    Run('a local and a remote owner, 2 deaths', STEP, 'K=2 LAST DEATHS=2'),
    Run('decided, 2 remote owners', STEP, 'LIVENESS K=2', 'decided'),
    Run('decided, 3 remote owners', STEP, 'LIVENESS K=3 TIMEOUTS=0 REFUSALS=0', 'decided',
        full=FULL),
    Run('decided, a local and a remote owner', STEP, 'LIVENESS K=2 LAST', 'decided', full=FULL),
    Run('says an outcome, 2 remote owners', STEP, 'LIVENESS K=2', 'says', full=FULL),
    Run('says an outcome, a local and a remote owner', STEP, 'LIVENESS K=2 LAST', 'says'),
    Run('question without fence', STEP, 'K=2 NO_QUESTION_FENCE', breaks='ALL_OR_NONE'),
    Run('commit not idempotent', STEP, 'K=2 COMMIT_AGAIN', breaks='APPLIED_ONCE'),
    Run('an owner aborts and asks nobody', STEP, 'K=2 ASKS_NOBODY', breaks='ALL_OR_NONE'),
    Run('commits after one PREPARE', STEP, 'K=2 ONE_PREPARED', breaks='ALL_OR_NONE'),
    Run('says Applied after one answer', STEP, 'K=2 ONE_ANSWER', breaks='TRUE_OUTCOME'),
    Run('a lost FINISH is taken for a no', STEP, 'K=2 LAST NOT_SETTLED', breaks='ALL_OR_NONE'),
    Run('an abort before its PREPARE is forgotten', STEP, 'LIVENESS K=2 ABORT_FORGETS', 'decided',
        CYCLE),
    Run('limit: caller dead, then an owner that has answered', STEP,
        'TWO_DEATHS TIMEOUTS=0 REFUSALS=0', breaks='ALL_OR_NONE', full=FULL),
    Run('limit closed: who counts a dead owner asks again', STEP,
        'TWO_DEATHS ASKS_AGAIN TIMEOUTS=0 REFUSALS=0', full=FULL),
    # ---- Shared memory: publish, wake, sleep ----
    Run('2 ranks, 3 operations, 1 slot', CONTROL_BLOCK, ''),
    Run('2 ranks, 5 operations, 2 slots', CONTROL_BLOCK, 'OPS=5 SLOTS=2'),
    Run('3 ranks, 1 operation', CONTROL_BLOCK, 'NR=3 OPS=1', full=FULL),
    Run('2 ranks, 1 death', CONTROL_BLOCK, 'DEATHS=1'),
    Run('looks once, then sleeps', CONTROL_BLOCK, 'NO_SECOND_LOOK', breaks='WOKEN'),
    Run('says that it sleeps after the second look', CONTROL_BLOCK, 'SAYS_LATE', breaks='WOKEN'),
    Run("reads the wake-up word's number after the second look", CONTROL_BLOCK, 'SEEN_LATE', breaks='WOKEN'),
    Run('rings before it publishes', CONTROL_BLOCK, 'RING_FIRST', breaks='WOKEN'),
    Run("wakes without moving the wake-up word's number", CONTROL_BLOCK, 'WAKES_ONLY', breaks='WOKEN'),
    Run('a counter stored with release order only', CONTROL_BLOCK, 'RELEASE', breaks='WOKEN'),
    Run('a counter stored with relaxed order', CONTROL_BLOCK, 'RELAXED', breaks='WHOLE_SLOT'),
    Run('a slot filled before all have read it', CONTROL_BLOCK, 'SLOT_NOT_FREE', breaks='WHOLE_SLOT'),
    Run('says that a slot is read before it is', CONTROL_BLOCK, 'CONSUMED_FIRST', breaks='WHOLE_SLOT'),
    Run('sleeps without a tick', CONTROL_BLOCK, 'DEATHS=1 NO_TICK', breaks='ENDS'),
    Run('looks what has come only before who is dead', CONTROL_BLOCK, 'DEATHS=1 CHECKED_ONCE',
        breaks='LEFT_FIRST'),
    # ---- Shared memory: claims ----
    Run('2 ranks, 3 operations', CLAIMS, ''),
    Run('3 ranks, 2 operations', CLAIMS, 'NR=3 OPS=2 CHUNKS=1', full=FULL),
    Run('adds up without a claim', CLAIMS, 'NO_CLAIM', breaks='ADDED_ONCE'),
    Run('a claim in two steps', CLAIMS, 'TORN_CLAIM', breaks='ADDED_ONCE'),
    Run('claims set after they are published', CLAIMS, 'SET_LATE', breaks='ADDED_ONCE'),
    Run('claims not set', CLAIMS, 'NOT_SET', breaks='OWN_NUMBER'),
    Run('says that it has turned before it has', CLAIMS, 'TURNED_EARLY', breaks='ALL_ADDED'),
    Run('ends before all have turned', CLAIMS, 'NOT_TURNED', breaks='ALL_ADDED'),
    # ---- Shared memory: rings, and waking their reader and their writers ----
    Run('2 and 1 records, rings of 1', WAKE_BITS, 'FIRST=2 RING=1', large=LARGE),
    Run('2 and 2 records, rings of 2', WAKE_BITS, 'FIRST=2 SECOND=2', large=LARGE),
    Run('3 and 1 records, rings of 2', WAKE_BITS, 'FIRST=3', full=FULL),
    Run('4 and 1 records, rings of 2', WAKE_BITS, '', full=FULL, depth=100000),
    Run('a producer dies while it signals', WAKE_BITS, 'DIES FIRST=2 RING=1', large=LARGE),
    Run('a thread that waits reads too, 1 producer', WAKE_BITS, 'WAITS FIRST=2 SECOND=0 RING=1', large=LARGE),
    Run('a thread that waits reads too, rings of 1', WAKE_BITS, 'WAITS FIRST=2 RING=1', full=FULL,
        depth=100000),
    Run('a thread that waits reads too, rings of 2', WAKE_BITS, 'WAITS FIRST=2 WANTED=2', full=FULL,
        depth=100000),
    Run('a producer dies, and a thread that waits reads too', WAKE_BITS, 'WAITS DIES FIRST=2 RING=1',
        full=FULL, depth=100000),
    Run('looks once, then sleeps', WAKE_BITS, 'NO_SECOND_LOOK', breaks='WOKEN'),
    Run('arms after the second look', WAKE_BITS, 'ARMS_LATE', breaks='WOKEN'),
    Run("reads the wake-up word's number after it has armed", WAKE_BITS, 'SEEN_ARMED', breaks='WOKEN'),
    Run("reads the wake-up word's number after the second look", WAKE_BITS, 'SEEN_LATE', breaks='WOKEN'),
    Run("wakes without moving the wake-up word's number", WAKE_BITS, 'WAKES_ONLY', breaks='WOKEN'),
    Run('clears a bit after it has read the ring', WAKE_BITS, 'CLEARS_LATE', breaks='WOKEN'),
    Run('signals before it publishes', WAKE_BITS, 'SIGNALS_FIRST', breaks='WOKEN'),
    Run('looks whether the reader is armed before it sets the bit', WAKE_BITS, 'LOOKS_BEFORE_BIT',
        breaks='WOKEN'),
    Run('arms with release order only', WAKE_BITS, 'RELAXED_ARM', breaks='WOKEN'),
    Run('sets the bit with release order only', WAKE_BITS, 'RELAXED_BIT', breaks='WOKEN'),
    Run('sets the bit with relaxed order', WAKE_BITS, 'BIT_OVERTAKES', breaks='WOKEN'),
    Run('publishes with relaxed order', WAKE_BITS, 'RELAXED_TAIL', breaks='WHOLE'),
    Run('releases space before it has read', WAKE_BITS, 'RELEASED_EARLY', breaks='WHOLE'),
    Run('asks for space and does not look again', WAKE_BITS, 'NO_LOOK_FOR_SPACE', breaks='SPACE'),
    Run('looks for space before it asks', WAKE_BITS, 'LOOKS_FIRST', breaks='SPACE'),
    Run('asks for space with release order only', WAKE_BITS, 'RELAXED_WANTS', breaks='SPACE'),
    Run('asks for space with records unpublished', WAKE_BITS, 'UNPUBLISHED RING=1', breaks='SPACE'),
    Run('looks who wants space before it releases', WAKE_BITS, 'FLAG_FIRST', breaks='SPACE'),
    Run('releases space with release order only', WAKE_BITS, 'RELEASED_HEAD', breaks='SPACE'),
    Run('a signal wakes the serving thread, whoever is armed', WAKE_BITS,
        'WAITS WAKES_SERVING FIRST=1', breaks='WOKEN'),
    Run('a completion does not wake the thread that waits', WAKE_BITS, 'WAITS NOT_TOLD SECOND=0',
        breaks='WOKEN', full=FULL, depth=100000),
    Run('a reader hands over and does not arm', WAKE_BITS, 'WAITS NOT_ARMED', breaks='WOKEN'),
    Run('a reader hands over and does not look', WAKE_BITS, 'WAITS HANDS_OVER_BLINDLY',
        breaks='WOKEN'),
    Run('a reader hands over and looks before it arms', WAKE_BITS, 'WAITS LOOKS_BEFORE_ARMING',
        breaks='WOKEN'),
    Run('the serving thread does not arm for the thread that waits', WAKE_BITS,
        'WAITS KEEPS_THE_SIGNALS SECOND=0', breaks='WOKEN', full=FULL, depth=100000),
    Run('the caller reads the number after the lock was busy', WAKE_BITS,
        'WAITS SEEN_AFTER_TRYING FIRST=1', breaks='WOKEN'),
    Run('the caller disarms before it has the lock', WAKE_BITS,
        'WAITS DISARMS_FIRST FIRST=1', breaks='WOKEN'),
    Run('the serving thread reads the number after it has unlocked', WAKE_BITS,
        'WAITS SEEN_UNLOCKED', breaks='WOKEN'),
    Run('nobody notices that a producer died while it signalled', WAKE_BITS,
        'DIES NOT_WATCHED FIRST=1', breaks='WOKEN'),
]


class Failure(Exception):
    pass


def call(command, folder, limit=LIMIT_S):
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, timeout=limit,
                              stderr=subprocess.STDOUT, text=True, errors='replace')
    except subprocess.TimeoutExpired:
        raise Failure(f'{command[0]}: more than {limit} s') from None
    return done.stdout


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Verifiers:
    """One folder with a verifier for each model and set of defines."""

    def __init__(self, folder, cc):
        self.folder, self.cc, self.made = folder, cc, {}

    def make(self, run):
        key = (run.model, run.defines, bool(run.claim))
        if key in self.made:
            return self.made[key]
        folder = tempfile.mkdtemp(dir=self.folder)
        for name in os.listdir(HERE):
            if name.endswith('.pml'):
                shutil.copy(os.path.join(HERE, name), folder)
        said = call(['spin', '-a', *('-D' + d for d in run.defines.split()), run.model], folder)
        if not os.path.exists(os.path.join(folder, 'pan.c')):
            raise Failure('spin: ' + said.strip())
        flags = ['-DNFAIR=3'] if run.claim else ['-DSAFETY']
        # If the search is short, the compiler takes most of the time.
        level = '-O1' if (run.full or run.large) and not run.breaks else '-O0'
        said = call([*self.cc, level, '-w', f'-DMEMLIM={MEMORY_MB}', *flags, '-o', 'pan', 'pan.c'],
                    folder)
        if not os.path.exists(os.path.join(folder, 'pan')):
            raise Failure('cc: ' + said.strip())
        self.made[key] = folder
        return folder


def search(run, folder):
    # A small search gets a small table of states, because the table is cleared first.
    command = ['./pan', f'-m{run.depth}', '-w24' if run.full or run.large else '-w20']
    if run.claim:
        command += ['-a', '-f', '-N', run.claim]
    return call(command, folder)


def judge(run, said):
    """Raises Failure unless the search found what the table says. Returns its count of states."""
    states = re.search(r'(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored', said)
    errors = re.search(r'errors: (\d+)', said)
    if not states or not errors:
        raise Failure('no result: ' + said.strip()[-300:])
    found = re.search(r'^pan:\d+: (.*)$', said, re.MULTILINE)
    found = found.group(1) if found else ''
    if not run.breaks:
        if errors.group(1) != '0' or found:
            raise Failure(f'broken: {found}')
        for trouble in ('max search depth too small', 'Search not completed', 'out of memory',
                        'reached -DMEMLIM', 'truncated', 'interrupted', 'VECTORSZ', 'too many'):
            if trouble in said:
                raise Failure(f'incomplete: {trouble}')
        if 'Full statespace search' not in said:
            raise Failure('incomplete: not all states were kept')
    elif errors.group(1) == '0':
        raise Failure(f'holds, and should break {run.breaks}')
    elif run.breaks == CYCLE:
        if not found.startswith(CYCLE):
            raise Failure(f'broken otherwise: {found}')
    elif not re.match(r'assertion violated[\s(]*' + run.breaks + r'\b', found):
        raise Failure(f'broken otherwise: {found}')
    return int(float(states.group(1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--quick', action='store_true', help='what the test suite runs')
    parser.add_argument('--only', default='', help='runs whose model, name or defines hold this')
    parser.add_argument('--list', action='store_true', help='print the table and stop')
    options = parser.parse_args()
    runs = [run for run in RUNS
            if not (options.quick and run.full)
            and options.only in f'{run.model} {run.name} {run.defines} {run.claim}']
    if options.list:
        for run in runs:
            print(f'{run.model:10} {run.name:62} {run.defines} {run.claim} {run.breaks}')
        return 0
    # Most runs are short, so that compiling takes most of their time. Clang compiles twice as fast.
    cc = next((c for c in ('clang-14', 'clang', 'gcc', 'cc') if shutil.which(c)), None)
    if not shutil.which('spin') or cc is None:
        print('check_models: needs spin (Debian: apt-get install spin) and a C compiler',
              file=sys.stderr)
        return 2
    failed = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='weft_models_') as folder:
        verifiers = Verifiers(folder, [cc])
        for run in runs:
            states, seconds = 0, 0.0
            try:
                made = verifiers.make(run)
                start = cpu_seconds()
                said = search(run, made)
                seconds = cpu_seconds() - start
                states = judge(run, said)
                outcome = f'ok, breaks {run.breaks}' if run.breaks else 'ok, holds'
            except Failure as failure:
                failed += 1
                outcome = f'FAILED: {failure}'
            print(f'{run.model[:-4]:9} {run.name:62} {states:>9} states {seconds:6.1f} s  {outcome}',
                  flush=True)
    print(f'{len(runs)} runs, {failed} failed, {time.monotonic() - began:.0f} s, '
          f'of CPU {cpu_seconds():.0f} s')
    return 1 if failed or not runs else 0


if __name__ == '__main__':
    sys.exit(main())
