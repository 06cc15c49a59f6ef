#!/usr/bin/env python3
"""Prints what the threads of a test wait for shortly before CTest kills it for its timeout.

    tools/show_hung_tests.py BUILD_FOLDER

tools/test.sh runs it beside CTest. It looks at the processes that CTest has started, and their
children, every 5 seconds until it is killed. When a test has used 90 % of its timeout, it asks gdb
for the stacks of all threads of that test's processes, once. Without gdb it says so and stops.
"""

import json
import os
import shutil
import subprocess
import sys
import time

INTERVAL_S = 5
SHARE = 0.9  # of the timeout


def timeouts(build):
    """Returns {command line: timeout in seconds} of the tests in this build folder."""
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    found = {}
    for test in json.loads(listing.stdout)["tests"]:
        for each in test.get("properties", []):
            if each["name"] == "TIMEOUT":
                found[tuple(test.get("command", []))] = float(each["value"])
    return found


def processes():
    """Returns {pid: (parent, age in seconds, command line)}; a process that ends meanwhile is left out."""
    found = {}
    with open("/proc/uptime") as file:
        uptime = float(file.read().split()[0])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = tuple(os.fsdecode(word) for word in file.read().split(b"\0")[:-1])
        except OSError:
            continue
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        found[int(pid)] = (int(fields[1]), uptime - started, command)
    return found


def family(pid, all_processes):
    """Returns the process and its descendants."""
    members = [pid]
    for member in members:
        members += [child for child, (parent, _, _) in all_processes.items() if parent == member]
    return members


def show(pid, command):
    print(f"\n== process {pid}: {' '.join(command)}", flush=True)
    subprocess.run(["gdb", "-nx", "-batch", "-p", str(pid), "-iex", "set debuginfod enabled off",
                    "-ex", "thread apply all backtrace 40"], stdin=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=60, check=False)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if shutil.which("gdb") is None:
        sys.exit("show_hung_tests: gdb is not installed, so a test that hangs will not show its stacks")
    limits = timeouts(sys.argv[1])
    shown = set()
    while True:
        everything = processes()
        for pid, (_, age, command) in everything.items():
            if pid in shown or age < SHARE * limits.get(command, float("inf")):
                continue
            shown.add(pid)
            print(f"\n== the test that runs as {pid} has taken {age:.0f} s; its timeout is "
                  f"{limits[command]:.0f} s", flush=True)
            for member in family(pid, everything):
                try:
                    show(member, everything[member][2])
                except subprocess.TimeoutExpired:
                    print(f"== gdb did not finish with {member}", flush=True)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
