#!/usr/bin/env python3
"""Compiles cases.cc once and checks that every wrong line is refused with the words beside it.

usage: check.py BUILD_DIR CASES_FILE
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys


def command_for(build: pathlib.Path, source: pathlib.Path) -> tuple[list[str], str]:
    """The command of compile_commands.json, made to check only and to report every error."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if pathlib.Path(entry["file"]).resolve() == source:
            words = shlex.split(entry["command"])
            at = words.index("-o")
            del words[at : at + 2]
            words = [w for w in words if w not in ("-c", "-Werror") and not w.startswith("-g")]
            limit = "-ferror-limit=0" if "clang" in words[0] else "-fmax-errors=0"
            return words + ["-fsyntax-only", "-w", limit], entry["directory"]
    sys.exit(f"{source} is not in {build}/compile_commands.json")


def errors_by_line(output: str, name: str) -> dict[int, list[str]]:
    """The texts of the errors that mention each line of the file.

    g++ prints the way from the user's line before the error, clang after it: a line belongs to the
    error that follows within its own paragraph (g++) or precedes it (clang).
    """
    place = re.compile(re.escape(name) + r":(\d+):\d+: ")
    found: dict[int, list[str]] = {}
    before: list[int] = []
    error = None
    for text in output.splitlines():
        lines = [int(n) for n in place.findall(text)]
        if " error: " in text:
            error = text.split(" error: ", 1)[1]
            for line in before + lines:
                found.setdefault(line, []).append(error)
            before = []
        elif re.search(r"required from|required by", text):
            before += lines
        elif error and "requested here" in text:
            for line in lines:
                found.setdefault(line, []).append(error)
    return found


def main() -> int:
    build, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    command, directory = command_for(build, source)
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    found = errors_by_line(run.stderr, source.name)

    problems, cases, right = [], 0, []
    for number, text in enumerate(source.read_text().splitlines(), 1):
        code, _, wanted = text.partition("  // ")
        if wanted.startswith("namespace"):
            continue
        if not wanted:
            right.append(number)
            continue
        cases += 1
        errors = found.get(number, [])
        if not any(wanted.strip() in error for error in errors):
            problems.append(f"line {number}: {code.strip()}\n  wanted: {wanted}\n  got: {errors}")
        elif len(set(errors)) > 2:
            problems.append(f"line {number}: {code.strip()}\n  too many errors: {errors}")
    for number in right:
        if number in found:
            problems.append(f"line {number} is right, but: {found[number]}")

    print(f"{cases} wrong lines, {len(problems)} problems")
    print("\n".join(problems))
    if problems:
        print(run.stderr[-20000:])
    return 1 if problems or cases == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
