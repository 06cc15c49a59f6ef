#!/usr/bin/env python3
"""Fails when clang's thread-safety analysis objects to a source file of a room, with LibTorch or without.

Usage: check_locks.py [BUILD]     (BUILD: a configured and built preset, by default build/dev)

Preset clang compiles the rooms without LibTorch. This script only parses, so it can afford LibTorch's headers: it
takes each file's flags from BUILD/compile_commands.json and gives them to clang with -fsyntax-only.
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
CLANG = ["clang++-14", "-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]
NOT_ROOMS = ("tests/", "build/")


def flags_of(command):
    """What matters for parsing: the standard, macros and header paths, and not the precompiled header."""
    words = shlex.split(command)
    kept = []
    for position, word in enumerate(words):
        if re.match(r"-(D|I|std=)", word):
            kept.append(word)
        elif word in ("-isystem", "-idirafter"):
            kept += [word, words[position + 1]]
    return kept


def check(entry):
    run = subprocess.run([*CLANG, *flags_of(entry["command"]), entry["file"]], cwd=entry["directory"],
                         capture_output=True, text=True)
    return run.returncode, run.stderr


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else ROOT / "build/dev")
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        place = os.path.relpath(entry["file"], ROOT)
        if not place.startswith((*NOT_ROOMS, "..")):
            entries.setdefault(place, entry)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for place, (code, text) in zip(entries, pool.map(check, entries.values())):
            if code != 0:
                failed.append(place)
                print(text, end="")
    print(f"check_locks: {len(failed)} of {len(entries)} files are refused" if failed or not entries
          else f"check_locks: {len(entries)} files keep to their locks' annotations")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
