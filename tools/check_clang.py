#!/usr/bin/env python3
"""Fails when clang objects to a source file of a room: its lock annotations, or the checks of .clang-tidy.

Usage: check_clang.py [BUILD]     (BUILD: a configured and built preset, by default build/dev)

Preset clang compiles the rooms without LibTorch. This script only parses, so it can afford LibTorch's headers. It takes
the flags from BUILD/compile_commands.json. Sources that BUILD compiles together are parsed together.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT_ROOMS = ("tests/", "bench/", "build/")
HEADERS = f"^{ROOT}/(build/[a-z]+/include/weft/)?(async|base|checkpoint|comm|ddp|dist_autograd|dist_optim|examples|rpc|rref|shm|worker)/"
CLANG_TIDY = ["clang-tidy-14", "--quiet", f"--config-file={ROOT}/.clang-tidy", f"--header-filter={HEADERS}"]


def sources_of(entry):
    """The files of the tree that the entry compiles, relative to the root: several in a unity build."""
    path = pathlib.Path(entry["file"])
    files = [path]
    if path.parent.name == "Unity":
        files = [pathlib.Path(name) for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M)]
    return [os.path.relpath(file, ROOT) for file in files]


def flags_of(command):
    """What matters for parsing: the standard, macros and header paths, and not the precompiled header."""
    words = shlex.split(command)
    kept = ["-Wno-everything", "-Wthread-safety"]
    for position, word in enumerate(words):
        if re.match(r"-(D|I|std=)", word):
            kept.append(word)
        elif word in ("-isystem", "-idirafter"):
            kept += [word, words[position + 1]]
    return kept


def check(entry):
    run = subprocess.run([*CLANG_TIDY, entry["file"], "--", *flags_of(entry["command"])], cwd=entry["directory"],
                         capture_output=True, text=True)
    return run.returncode, run.stdout + (run.stderr if run.returncode != 0 else "")


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else ROOT / "build/dev")
    seen = set()
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        new = [file for file in sources_of(entry) if not file.startswith((*NOT_ROOMS, "..")) and file not in seen]
        seen.update(new)
        if new:
            entries.append(entry)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for code, text in pool.map(check, entries):
            if code != 0:
                failed += 1
                print(text, end="")
    print(f"check_clang: clang objects to {failed} of {len(entries)} compilations" if failed or not entries
          else f"check_clang: {len(seen)} files keep to their locks' annotations and to .clang-tidy")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
