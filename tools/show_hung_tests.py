#!/usr/bin/env python3
"""Prints what the threads of a test wait for shortly before CTest kills it for its timeout.

    ctest --show-only=json-v1 > TESTS && tools/show_hung_tests.py TESTS

tools/test.sh runs it beside CTest: both must have the same parent process. Every 5 seconds it looks
at the processes that CTest has started. When a test has used 80 % of its timeout, it asks gdb for
the stacks of all threads of that process and its descendants, once. It ends with its parent.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

INTERVAL_S = 5
SHARE = 0.8  # of the timeout
GDB_S = 30  # for one process, which stands still meanwhile


def key_of(command):
    """CTest starts `python3` by the path of a link, and the process has another path."""
    return (os.path.basename(command[0]), *command[1:])


def timeouts(listing):
    """Returns {key of the command: timeout in seconds} of the tests that are built."""
    with open(listing, encoding="utf-8") as file:
        tests = json.load(file)["tests"]
    return {key_of(test["command"]): float(each["value"])
            for test in tests if test.get("command")
            for each in test.get("properties", []) if each["name"] == "TIMEOUT"}


class Process:
    def __init__(self, pid, uptime):
        with open(f"/proc/{pid}/stat", "rb") as file:
            name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            fields = rest.split()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.command = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        self.pid, self.name, self.parent = int(pid), os.fsdecode(name), int(fields[1])
        self.age = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def all_processes():
    """Returns {pid: Process}, without those that end meanwhile."""
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(pid)] = Process(pid, uptime)
        except OSError:
            pass
    return found


def children(processes, parent):
    return [each for each in processes.values() if each.parent == parent]


def family(processes, first):
    """Returns the process and its descendants, children before parents."""
    return [each for child in children(processes, first.pid) for each in family(processes, child)] + [first]


def show(process, seconds):
    print(f"\n== process {process.pid}: {' '.join(process.command)}", flush=True)
    try:
        asked = subprocess.run(["gdb", "-nx", "-batch", "-p", str(process.pid), "-iex", "set debuginfod enabled off",
                                "-ex", "thread apply all backtrace 40"], stdin=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, timeout=seconds, check=False)
        if b"ptrace" in asked.stderr:
            print(f"== gdb could not look: {os.fsdecode(asked.stderr).strip()}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"== gdb did not finish in {seconds:.0f} s", flush=True)


def look(processes, limits, launcher, shown):
    for ctest in children(processes, launcher):
        if ctest.name != "ctest":
            continue
        for test in children(processes, ctest.pid):
            limit = limits.get(key_of(test.command)) if test.command else None
            if limit is None or test.pid in shown or test.age < SHARE * limit:
                continue
            shown.add(test.pid)
            print(f"\n== a test has taken {test.age:.0f} s of {limit:.0f} s; what its threads do:", flush=True)
            end = time.monotonic() + (limit - test.age) / 2
            for member in family(processes, test):
                left = end - time.monotonic()
                if left > 0:
                    show(member, min(GDB_S, left))


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if shutil.which("gdb") is None:
        sys.exit("show_hung_tests: gdb is not installed, so a test that hangs will not show its stacks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # ends gdb too
    limits, launcher, shown = timeouts(sys.argv[1]), os.getppid(), set()
    while os.getppid() == launcher:
        look(all_processes(), limits, launcher, shown)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
