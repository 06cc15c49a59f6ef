#!/usr/bin/env python3
"""Fails when clang objects to a source file of a room: the checks of .clang-tidy, or a missing include.

Usage: check_clang.py [BUILD]     (BUILD: a build by clang, by default build/dev)

The flags come from BUILD/compile_commands.json. clang-tidy parses all rooms together that have the same flags,
because it spends most of its time in LibTorch's headers. So two files may not define the same name in one unnamed
namespace of a room. Programs are parsed apart, because each has its main(). It does without the precompiled header,
of which it would visit all. Files without LibTorch are then parsed by the compiler, each by itself.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from check_layers import ROOMS

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT_ROOMS = ("tests/", "bench/", "build/")
FOLDERS = "|".join(sorted({room.split("/")[0] for room in ROOMS} - {"bench", "proto"}))
HEADERS = f"^{ROOT}/(build/[a-z]+/include/weft/)?({FOLDERS})/"
CLANG_TIDY = ["clang-tidy-14", "--quiet", f"--config-file={ROOT}/.clang-tidy", f"--header-filter={HEADERS}"]


def sources_of(entry):
    """The files of the tree that the entry compiles, relative to the root: several in a unity build."""
    path = pathlib.Path(entry["file"])
    files = [path]
    if path.parent.name == "Unity":
        files = [pathlib.Path(name) for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M)]
    return [os.path.relpath(file, ROOT) for file in files]


def flags_of(command):
    """The compiler's flags in a command, without its input, its output and the precompiled header."""
    command = re.sub(r" -Winvalid-pch| -fpch-\S+| -Xclang -include(-pch)? -Xclang \S+", "", command)
    words = shlex.split(command)[1:]
    return words[:words.index("-o")]


def check(command):
    run = subprocess.run(command, capture_output=True, text=True)
    return run.returncode, run.stdout + (run.stderr if run.returncode != 0 else "")


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else ROOT / "build/dev").resolve()
    seen = set()
    groups = {}  # the files that are parsed together, by program and flags
    alone = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        new = [file for file in sources_of(entry) if not file.startswith((*NOT_ROOMS, "..")) and file not in seen]
        seen.update(new)
        flags = flags_of(entry["command"])
        if new:
            target = re.search(r" -o \S*/(\w+)\.dir/", entry["command"])[1]
            program = any(file.startswith("examples/") or file.endswith("/main.cc") for file in new)
            ddp = new[0].startswith("ddp/")  # its names in unnamed namespaces are those of other rooms
            groups.setdefault((target if program else "ddp" if ddp else "rooms", *flags), []).extend(new)
        if "torch/include" not in entry["command"]:
            alone += [["clang++-14", *flags, "-fsyntax-only", ROOT / file] for file in new]
    tidied = []
    (build / "clang_tidy").mkdir(exist_ok=True)
    for number, ((name, *flags), files) in enumerate(groups.items()):
        together = build / f"clang_tidy/{name}_{number}.cc"
        together.write_text("".join(f'#include "{ROOT / file}"\n' for file in files))
        tidied.append([*CLANG_TIDY, together, "--", *flags])
    parses = tidied + alone
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for code, text in pool.map(check, parses):
            if code != 0:
                failed += 1
                print(text, end="")
    print(f"check_clang: clang objects to {failed} of {len(parses)} parses" if failed or not parses
          else f"check_clang: {len(seen)} files keep to .clang-tidy and to their locks' annotations")
    return 1 if failed or not parses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
