"""Compares the committed golden files with what the installed torch computes now; exit status 1 on a difference.

    .deps/oracles/bin/python tests/ddp/golden/compare_live.py
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
TOLERANCE = 1e-9  # of float64 results; float32 ones are in the files with 9 digits and agree as well


def differences(old, new, place):
    """Yields a line per place where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from differences(old[key], new[key], f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new)):
            yield from differences(left, right, f"{place}[{index}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{place}: {old} in the file, {new} now"
    elif old != new:
        yield f"{place}: {str(old)[:100]} in the file, {str(new)[:100]} now"


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, HERE / "make_golden.py", "--out", folder], check=True)
        made = sorted(pathlib.Path(folder).glob("*.json"))
        lines = [line for path in made for line in differences(
            json.loads((HERE / path.name).read_text()), json.loads(path.read_text()), path.name)]
    print("\n".join(lines[:20]))
    print(f"compare_live: {len(made)} files, {len(lines)} differences")
    return 1 if lines or not made else 0


if __name__ == "__main__":
    sys.exit(main())
