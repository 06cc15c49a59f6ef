#!/usr/bin/env python3
"""Fails when a file includes what its room may not, naming the file, the line and the rule.

Usage: check_layers.py [ROOT]     (ROOT: the repository, by default the one this script lies in)

Rules, from the room map in docs/design.md:
  1. A room includes itself and the rooms below it: base, proto <- rpc <- rref <- dist_autograd <-
     dist_optim <- worker; base <- shm <- comm <- ddp, of which one
     file, the bridge, may include dist_autograd. Examples include worker and public headers; tests and
     bench anything.
  2. internal/ is for the rooms, not for users: no example includes it.
  3. A target made without TORCH in CMakeLists.txt includes no LibTorch header, not through another
     header of the tree either. base includes no gRPC and no protobuf, the state machines no gRPC.
  4. Files of the tree are included as "weft/ROOM/FILE.h".
  5. What a library's HDRS include of the tree is in a library's HDRS too: only those are installed.
"""

import functools
import pathlib
import re
import sys

BELOW = {
    "base": [],
    "shm": ["base"],
    "comm": ["base", "shm"],
    "proto": [],
    "rpc": ["base", "proto"],
    "rref": ["base", "proto", "rpc"],
    "dist_autograd": ["base", "proto", "rpc", "rref"],
    "dist_optim": ["base", "proto", "rpc", "rref", "dist_autograd"],
    "ddp": ["base", "comm"],
    "worker": ["base", "proto", "rpc", "rref", "dist_autograd", "dist_optim"],
    "examples": ["base", "comm", "ddp", "rpc", "rref", "dist_autograd", "dist_optim", "worker"],
}
BRIDGES = {"ddp/dist_autograd_bridge": ["base", "dist_autograd"]}  # what else these files may include
FREE = ["tests", "bench"]
STATE_MACHINES = ["rref_core", "dist_autograd_core", "step_core"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = re.compile(r"weft_library\(\s*(\w+)\s+(\S+)\s([^)]*)\)")
TORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
GRPC = re.compile(r"(grpc|grpcpp)/")
WIRE = re.compile(r"(grpc|grpcpp|google/protobuf|weft/proto)/")


@functools.lru_cache(maxsize=None)
def includes_of(path):
    """(line number, quote, name) of each #include in a file."""
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match[1], match[2]))
    return found


def source_files(root):
    for room in [*BELOW, *FREE]:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield room, path


def in_tree(root, name):
    """The file that `weft/...` names, or None: generated, or not of this tree."""
    path = root / name.removeprefix("weft/")
    return path if name.startswith("weft/") and path.is_file() else None


def check_rooms(root):
    for room, path in source_files(root):
        place = path.relative_to(root)
        for number, quote, name in includes_of(path):
            if quote == '"' and not name.startswith("weft/"):
                if (path.parent / name).is_file() or (root / name).is_file():
                    yield f"{place}:{number}: \"{name}\" is spelled \"weft/...\" from the root"
                continue
            if not name.startswith("weft/") or room in FREE:
                continue
            target, _, rest = name.removeprefix("weft/").partition("/")
            if not rest or target == room:
                if not rest and room != "examples":
                    yield f"{place}:{number}: {name} is for users; a room includes single headers"
            elif target not in BELOW[room] + BRIDGES.get(str(place.with_suffix("")), []):
                yield f"{place}:{number}: {room} may not include {target} ({name})"
            elif room == "examples" and rest.startswith("internal/"):
                yield f"{place}:{number}: {name} is internal to {target}"


def libraries(root):
    """(target name, has TORCH, files, those of HDRS) of every weft_library in the tree's rooms."""
    for room in BELOW:
        lists = root / room / "CMakeLists.txt"
        if not lists.is_file():
            continue
        text = re.sub(r"#.*", "", lists.read_text())
        for match in LIBRARY.finditer(text):
            words = match[3].split()
            files = [lists.parent / word for word in words if word.endswith((".h", ".cc"))]
            files = [file for file in files if file.is_file()]
            headers = " ".join(words).partition("HDRS")[2].partition("SRCS")[0].split()
            installed = [file for file in files if str(file.relative_to(root / room)) in headers]
            yield match[1], "TORCH" in words, files, installed


def chain_to(root, path, forbidden, seen):
    """The includes that lead from a file to a forbidden header, or None."""
    seen.add(path)
    for number, _, name in includes_of(path):
        place = f"{path.relative_to(root)}:{number}"
        if forbidden.match(name):
            return [place, name]
        below = in_tree(root, name)
        if below and below not in seen:
            chain = chain_to(root, below, forbidden, seen)
            if chain:
                return [place, *chain]
    return None


def check_targets(root):
    for target, torch, files, _ in libraries(root):
        for forbidden, what, applies in [
            (TORCH, "has no TORCH but includes LibTorch", not torch),
            (WIRE, "includes gRPC or protobuf", target == "base"),
            (GRPC, "is a state machine but includes gRPC", target in STATE_MACHINES),
        ]:
            seen = set()
            for path in files if applies else []:
                chain = chain_to(root, path, forbidden, seen) if path not in seen else None
                if chain:
                    yield f"{chain[0]}: weft::{target} {what}: {' -> '.join(chain[1:])}"


def check_installed(root):
    installed = {file for _, _, _, headers in libraries(root) for file in headers}
    for path in sorted(installed):
        for number, _, name in includes_of(path):
            below = in_tree(root, name)
            if below and below not in installed:
                yield f"{path.relative_to(root)}:{number}: is installed, {name} is not: no HDRS names it"


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    problems = [*check_rooms(root), *check_targets(root), *check_installed(root)]
    for problem in problems:
        print(problem)
    count = sum(1 for _ in source_files(root))
    if problems or count == 0:
        print(f"check_layers: {len(problems)} violations in {count} files (rules: {sys.argv[0]})")
        return 1
    print(f"check_layers: {count} files keep to their layers")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
