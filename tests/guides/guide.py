#!/usr/bin/env python3
"""Extracts the programs of docs/guides, and compares their output with the text of the guide.

    guide.py extract GUIDE.md FILE.cc
    guide.py run GUIDE.md COMMAND...

The program of a guide is its first block of ```cpp. Its output is the next block of ```text.
"""
import pathlib
import re
import subprocess
import sys

TIMEOUT_S = 120


def blocks(guide, language):
    text = pathlib.Path(guide).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if not found:
        sys.exit(f"{guide}: no block of ```{language}")
    return found


def extract(guide, file):
    pathlib.Path(file).write_text(f'#line 1 "{pathlib.Path(guide).name}"\n' + blocks(guide, "cpp")[0])


def run(guide, *command):
    expected = blocks(guide, "text")[0]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0 or done.stdout != expected:
        sys.exit(
            f"{guide}: exit code {done.returncode}, printed\n{done.stdout}{done.stderr}"
            f"instead of\n{expected}"
        )


if __name__ == "__main__":
    {"extract": extract, "run": run}[sys.argv[1]](*sys.argv[2:])
