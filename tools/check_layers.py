#!/usr/bin/env python3
"""Fails if a file breaks a rule of the rooms. It names the file, the line and the rule.

Usage: check_layers.py [--write] [ROOT]     (ROOT: the repository, by default that of this script)

A room is a folder with one purpose. ROOMS below is the only list of them. Rules:
  1. A room includes itself and the rooms that its entry names. They stand above it in the list, so
     there are no cycles. A BRIDGE is one file that may include a further room. Tests may include
     anything. Examples and bench/ include what ROOMS says.
  2. internal/ belongs to its room. No other room includes it, except for tests.
  3. A target without TORCH in CMakeLists.txt includes no LibTorch header, not even through another
     header of the tree. base, sockets, shm and async include no gRPC and no protobuf. A state machine (a
     file *_core, or what STATE_MACHINES names) includes no gRPC, and itself no mutex, thread or executor.
  4. Files of the tree are included as "weft/ROOM/FILE.h". Only examples and bench include
     weft/weft.h.
  5. If an installed header (HDRS) includes a file of the tree, this file is installed too. Each is
     named by weft.h, a page, an example or a guide, or included by one that is.
  6. Internals of a room and its subrooms are in namespace weft::NAME_internal, where NAME is its
     top folder. Other rooms may only forward-declare there. There is no weft::internal.
  7. No two files that may be in one program define a type under one qualified name. All rooms are
     in every program. bench/ is one, and so is each folder of examples/ and of tests/, with the
     support/ beside it. An alias counts only in a header outside of tests/.
  8. A folder has at most 20 files, and a C++ file at most 600 lines. Folders of data are left out.
  9. The map in README.md, the picture in docs/design.md and the subfolders in CMakeLists.txt match
     ROOMS, and the list of files in rpc/README.md matches the folders. --write writes them. Each
     room and each target of rpc/ has its row in that page.
"""

import collections
import functools
import pathlib
import re
import sys

# Room: (purpose, rooms that it may include). Lower rooms first.
ROOMS = {
    "base": ("ids, status, clock, log, mutex, threads, fault injection: no torch, no gRPC", []),
    "launcher": ("which rank this process has, by the variables of the launcher that started it", ["base"]),
    "sockets": ("descriptors, TCP ports, unix sockets, and the thread that waits for them", ["base"]),
    "shm": ("what processes of one host share: sealed memory, rings, futex words", ["base", "sockets"]),
    "shm/blocks": ("blocks of shared memory that one process lends to another", ["base", "shm"]),
    "security": ("who a worker is, and how its group is protected: secrets, certificates, modes; no gRPC", ["base", "sockets"]),
    "links": ("gRPC connections that Weft accepts itself, and their TLS",
              ["base", "sockets", "security"]),
    "security/rights": ("which roles may call a function", ["base", "security"]),
    "security/command": ("`weft_cert`: makes certificates for the workers of a site", ["base", "security"]),
    "async": ("futures, executors and the threads that run them", ["base"]),
    "proto": ("the wire contract: every message, with its protocol in comments", []),
    "rpc/rendezvous": ("how workers find each other: joins and death records in a store",
                       ["base", "security"]),
    "store": ("the store through which the processes of a job find each other",
              ["base", "sockets", "security", "links", "proto", "rpc/rendezvous"]),
    "store/job": ("opens the store that a process's launcher names, and gives it to c10d",
                  ["base", "launcher", "sockets", "security", "async", "store"]),
    "checkpoint": ("files of tensors that survive a crash: safetensors, manifests, folders", ["base"]),
    "comm/same_host": ("the engine of the same-host backend: no torch", ["base", "async", "sockets", "shm"]),
    "comm/tensors": ("what a collective does to tensors: checks, sums, sparse sums",
                     ["base", "comm/same_host"]),
    "comm": ("process groups behind `c10d::Backend`: same host, several hosts, Gloo, NCCL",
             ["base", "launcher", "security", "async", "shm", "store", "store/job",
              "comm/same_host", "comm/tensors"]),
    "rpc/transport": ("frames and what carries them: in-process, gRPC",
                      ["base", "security", "links", "async", "proto", "rpc/rendezvous"]),
    "rpc/same_host/connection": ("frames in rings, and payloads in lent blocks, between two workers",
                                 ["base", "async", "sockets", "shm", "shm/blocks", "rpc/transport"]),
    "rpc/same_host": ("how workers of one host connect through shared memory",
                      ["base", "async", "sockets", "shm", "shm/blocks", "proto", "rpc/transport",
                       "rpc/same_host/connection"]),
    "rpc/session": ("delivery exactly once between two incarnations: agent, peers, credits",
                    ["base", "async", "proto", "rpc/rendezvous", "rpc/transport"]),
    "rpc/membership": ("leases, declarations of death, shutdown by quiescence",
                       ["base", "async", "proto", "rpc/rendezvous", "rpc/transport", "rpc/session"]),
    "rpc/codec": ("how C++ values become bytes", ["base", "async", "rpc/transport"]),
    "rpc": ("functions and classes that peers may call, and the verbs that call them",
            ["base", "security/rights", "async", "proto", "rpc/transport", "rpc/session", "rpc/codec"]),
    "rpc/batching": ("many callers, one execution", ["base", "async", "rpc/codec", "rpc"]),
    "rpc/aten": ("ATen's operators, called by name", ["base", "async", "rpc/codec", "rpc"]),
    "rref": ("references to remote values, kept alive by distributed reference counting",
             ["base", "async", "proto", "rpc/rendezvous", "rpc/transport", "rpc/session", "rpc/codec",
              "rpc", "rpc/aten"]),
    "dist_autograd/passes": ("bookkeeping of a backward pass over workers: pure", ["base", "proto"]),
    "dist_autograd/graph": ("runs the part of a pass that lies on one worker",
                            ["base", "async", "rpc/session", "rpc", "dist_autograd/passes"]),
    "dist_autograd": ("contexts and backward passes across workers",
                      ["base", "async", "proto", "rpc/rendezvous", "rpc/transport", "rpc/session",
                       "rpc/codec", "rpc", "rref", "dist_autograd/passes", "dist_autograd/graph"]),
    "dist_optim/steps": ("prepare and commit of an optimizer's step: pure", ["base", "async"]),
    "dist_optim": ("optimizers that step where the parameters live; durable steps",
                   ["base", "async", "checkpoint", "rpc/session", "rpc/codec", "rpc", "rref",
                    "dist_autograd/graph", "dist_autograd", "dist_optim/steps"]),
    "pipeline/schedules": ("orders of work in a pipeline: made, checked, priced and searched for; no torch", ["base"]),
    "pipeline/planner": ("cuts a model into stages, and chooses micro-batches and schedule; no torch",
                         ["base", "pipeline/schedules"]),
    "pipeline/command": ("`weft_pipeline`: checks, prices and draws schedules", ["base", "pipeline/schedules"]),
    "pipeline/stage": ("does the actions of one stage: forward, input gradients, weight gradients",
                       ["base", "async", "rpc", "dist_autograd/graph", "pipeline/schedules"]),
    "pipeline/profile": ("measures what the layers of a model cost, on the worker where they are",
                         ["base", "rpc/session", "rpc", "rref", "dist_autograd/graph", "dist_optim",
                          "pipeline/schedules", "pipeline/stage"]),
    "pipeline/runner": ("runs a worker's row of a schedule, and exchanges messages with the other workers",
                        ["base", "async", "rpc/session", "rpc", "rref", "dist_autograd/graph", "dist_optim",
                         "pipeline/schedules", "pipeline/stage"]),
    "pipeline": ("trains a model whose stages are on several workers, micro-batch by micro-batch",
                 ["base", "async", "rpc/session", "rpc", "rref", "dist_autograd", "dist_optim",
                  "pipeline/schedules", "pipeline/planner", "pipeline/stage", "pipeline/profile",
                  "pipeline/runner"]),
    "ddp/reducer": ("averages gradients over ranks, bucket by bucket", ["base", "async", "comm"]),
    "ddp/hooks": ("what may replace the average: compression, PowerSGD", ["base", "async", "comm"]),
    "ddp/batch_norm": ("batch norm over the inputs of all ranks", ["base", "comm"]),
    "ddp": ("DistributedDataParallel: join, samplers, ZeRO, model averaging",
            ["base", "async", "checkpoint", "comm", "ddp/reducer", "ddp/hooks", "ddp/batch_norm"]),
    "worker/launch": ("`weft_launch`: starts and restarts a job's processes", ["base", "launcher", "sockets", "security", "rpc/rendezvous", "store"]),
    "worker": ("joins the group, builds a worker's parts, shuts them down in order",
               ["base", "launcher", "sockets", "security", "security/rights", "async", "proto", "rpc/rendezvous", "rpc/transport",
                "rpc/same_host", "rpc/session", "rpc/membership", "rpc/codec", "rpc", "rpc/batching", "rpc/aten", "rref",
                "dist_autograd/graph", "dist_autograd", "checkpoint", "dist_optim/steps", "dist_optim",
                "store/job"]),
    "examples": ("runnable documentation, one folder per kind of job", "PUBLIC"),
    "bench": ("measurements beside peers", "PUBLIC"),
}
BRIDGES = {"ddp/dist_autograd_bridge": ["dist_autograd", "dist_autograd/graph"]}
# Targets, and files without their ending. Files *_core are state machines without an entry.
STATE_MACHINES = ["rpc_session_core", "rpc_membership_core", "rref_core", "dist_autograd_core", "step_core",
                  "shm/blocks/block_table"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = re.compile(r"weft_library\(\s*(\w+)\s+(\S+)\s([^)]*)\)")
TORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
WIRE = re.compile(r"(grpc|grpcpp|google/protobuf|weft/proto)/")
GRPC = re.compile(r"(grpc|grpcpp)/")
IMPURE = re.compile(r"(thread|mutex)$|weft/base/(mutex|thread)\.h|weft/async/(executor|serving_threads)\.h")
NO_CODE = (r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
           r"|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*")
TOKEN = re.compile(NO_CODE + r"|[A-Za-z_]\w*|::|[{};]|[^\s\w]|\d[\w'.]*|\n", re.M | re.S)
BRACE = re.compile(NO_CODE + r"|\d[\w'.]*|[{}]", re.M | re.S)
FOR_USERS = ["weft.h", "README.md", "docs/**/*.md", "examples/**/*.md", "examples/**/*.h", "examples/**/*.cc",
             "tests/guides/**/*.cc"]
MOST_FILES = 20
MOST_LINES = 600
MAP = "rooms: generated by tools/check_layers.py"
MAP_END = "/rooms"


@functools.lru_cache(maxsize=None)
def includes_of(path):
    """Returns (line number, quote, name) of each #include in a file."""
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match[1], match[2]))
    return found


def room_of(place):
    """Returns the deepest room that contains a path of the tree. None outside all rooms."""
    parts = place.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in ROOMS:
            return "/".join(parts[:length])
    return None


def source_files(root):
    for top in dict.fromkeys(room.split("/")[0] for room in [*ROOMS, "tests"]):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield path.relative_to(root).as_posix(), path


def in_tree(root, name):
    """Returns the file that `weft/...` names. None if it is generated, or not of this tree."""
    path = root / name.removeprefix("weft/")
    return path if name.startswith("weft/") and path.is_file() else None


def check_sizes(root):
    folders = collections.Counter()
    for place, path in source_files(root):
        lines = len(path.read_text(errors="replace").splitlines())
        if lines > MOST_LINES:
            yield f"{place}:{MOST_LINES + 1}: the file has {lines} lines, and at most {MOST_LINES} are allowed"
        folders[path.parent] += 1
    for folder in folders:
        # Beside the sources: CMakeLists.txt, README.md and scripts.
        count = sum(1 for path in folder.iterdir() if path.is_file())
        if count > MOST_FILES:
            yield f"{folder.relative_to(root)}: {count} files, and at most {MOST_FILES} are allowed"


def check_list():
    """Checks that the entry of a room names only rooms that stand before it."""
    seen = []
    for room, (_, below) in ROOMS.items():
        for other in below if below != "PUBLIC" else []:
            if other not in seen:
                yield f"tools/check_layers.py: {room} names {other}, which does not stand above it"
        seen.append(room)


def check_includes(root):
    for place, path in source_files(root):
        room = room_of(place)
        for number, quote, name in includes_of(path):
            if quote == '"' and not name.startswith("weft/"):
                if (path.parent / name).is_file() or (root / name).is_file():
                    yield f"{place}:{number}: \"{name}\" is spelled \"weft/...\" from the root"
                continue
            if not name.startswith("weft/") or room is None:  # tests include anything
                continue
            target = name.removeprefix("weft/")
            below = ROOMS[room][1]
            if "/" not in target:
                if below != "PUBLIC":
                    yield f"{place}:{number}: {name} is for users; a room includes single headers"
                continue
            other = room_of(target)
            if other == room:
                continue
            if other is None:
                yield f"{place}:{number}: {room} may not include {target.split('/')[0]} ({name})"
            elif "/internal/" in target:
                yield f"{place}:{number}: {name} is internal to {other}"
            elif below == "PUBLIC" or other in below:
                continue
            elif other not in BRIDGES.get(place.rsplit(".", 1)[0], []):
                yield f"{place}:{number}: {room} may not include {other} ({name})"


def libraries(root):
    """(target name, has TORCH, files, files of HDRS) of every weft_library in the tree's rooms."""
    for room in ROOMS:
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
    """Returns the includes that lead from a file to a forbidden header, or None."""
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


def chains(root, files, forbidden):
    """(place of the first include, the others) of each chain of includes to a forbidden header."""
    seen = set()
    for path in files:
        chain = chain_to(root, path, forbidden, seen) if path not in seen else None
        if chain:
            yield chain[0], " -> ".join(chain[1:])


def check_targets(root):
    for target, torch, files, _ in libraries(root):
        for place, chain in chains(root, files, TORCH) if not torch else []:
            yield f"{place}: weft::{target} has no TORCH but includes LibTorch: {chain}"
        for place, chain in chains(root, files, WIRE) if target in ("base", "sockets", "shm", "async") else []:
            yield f"{place}: weft::{target} includes gRPC or protobuf: {chain}"


def state_machines(root):
    """Returns the files of all state machines: each header with its .cc."""
    found = {path for place, path in source_files(root) if room_of(place) and
             (path.stem.endswith("_core") or place.rsplit(".", 1)[0] in STATE_MACHINES)}
    for target, _, files, _ in libraries(root):
        if target in STATE_MACHINES:
            found |= {path.with_suffix(ending) for path in files for ending in (".h", ".cc")}
    return sorted(path for path in found if path.is_file())


def check_state_machines(root):
    machines = state_machines(root)
    for place, chain in chains(root, machines, GRPC):
        yield f"{place}: a state machine includes gRPC: {chain}"
    for path in machines:
        for number, _, name in includes_of(path):
            if IMPURE.match(name):
                yield f"{path.relative_to(root)}:{number}: a state machine includes {name}"


def check_installed(root):
    installed = {file for _, _, _, headers in libraries(root) for file in headers}
    for path in sorted(installed):
        for number, _, name in includes_of(path):
            below = in_tree(root, name)
            if below and below not in installed:
                yield f"{path.relative_to(root)}:{number}: is installed, {name} is not: no HDRS names it"
    texts = "".join(path.read_text(errors="replace") for pattern in FOR_USERS for path in root.glob(pattern))
    needed = {path for path in installed if path.relative_to(root).as_posix() in texts}
    waiting = list(needed)
    while waiting:
        below = {in_tree(root, name) for _, _, name in includes_of(waiting.pop())} - {None} - needed
        needed |= below
        waiting += below
    for path in sorted(installed - needed):
        if room_of(path.relative_to(root).as_posix()) != "bench":  # it is not installed
            yield f"{path.relative_to(root)}: is installed, and no page, example or guide needs it"


def end_of_block(text, position):
    """Returns the position behind the `}` that closes the block in which a position lies."""
    depth = 1
    for match in BRACE.finditer(text, position):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.end()
    return len(text)


def declarations(text):
    """(line, namespace, statement, defines) of each declaration at namespace scope, without
    anonymous namespaces. A statement is a list of tokens up to its `;` or `{`."""
    scopes, statement, line, start, position = [], [], 1, 1, 0
    while match := TOKEN.search(text, position):
        token, position = match[0], match.end()
        first = token[0] if token.strip() else "\n"
        if first in "\n\"'#" or token.startswith(("//", "/*", 'R"')) or token.lstrip().startswith("#"):
            line += token.count("\n")
            continue
        if not statement:
            start = line
        if token == "{":
            header = "".join(" " + word if word[0].isalpha() else word for word in statement).strip()
            header = re.sub(r":: ", "::", header)
            named = re.fullmatch(r"(?:inline )?namespace(?: ([\w: ]+))?", header)
            if named and named[1]:
                scopes.append(named[1].replace(" ", ""))
                yield start, "::".join(scopes), ["namespace"], False
            else:
                if not named:
                    yield start, "::".join(scopes), statement, True
                position = end_of_block(text, match.end())
                line += text.count("\n", match.end(), position)
            statement = []
        elif token == "}":
            if scopes:
                scopes.pop()
            statement = []
        elif token == ";":
            if statement:
                yield start, "::".join(scopes), statement, False
            statement = []
        else:
            statement.append(token)


def without_template(statement):
    while statement[:1] == ["template"]:
        depth = 0
        for position, token in enumerate(statement):
            depth += (token == "<") - (token == ">")
            if token == ">" and depth == 0:
                break
        statement = statement[position + 1:]
    return statement


def defined_type(statement, body):
    """Returns the name of the type, alias or concept that a statement defines, or None."""
    statement = without_template(statement)
    if len(statement) < 2:
        return None
    if statement[0] == "using" and len(statement) > 2 and statement[2] == "=":
        return statement[1]
    if statement[0] == "concept":
        return statement[1]
    if statement[0] in ("class", "struct", "enum", "union") and body:
        words = [word for word in statement[1:] if word not in ("class", "struct", "final", "alignas")]
        head = []
        for word in words:
            if word in (":", "<"):
                if word == "<":
                    return None  # a specialisation
                break
            head.append(word)
        if "::" in head or "(" in head:
            return head[-1] if "(" in head and re.match(r"\w", head[-1]) else None
        return head[-1] if head else None
    return None


def is_forward(statement):
    statement = without_template(statement)
    return statement[:1] == ["namespace"] or (
        len(statement) <= 3 and statement[:1] in (["class"], ["struct"])) or statement[:1] == ["enum"]


def program_of(place):
    """Returns the folder whose files may be in one program. A folder's files may also be in the
    programs of the folders inside it, and those of rooms, (), are in all programs."""
    top, *inner = place.split("/")[:-1]
    if top in ("examples", "tests"):
        return (top,) if inner[:1] == ["support"] else (top, *inner[:1])
    return (top,) if top == "bench" else ()


def check_names(root):
    defined = {}  # qualified name: {program: the first file there}
    for place, path in source_files(root):
        room, program = room_of(place), program_of(place)
        own = room.split("/")[0] + "_internal" if room else None
        for number, scope, statement, body in declarations(path.read_text(errors="replace")):
            parts = scope.split("::")
            if program == () and parts[0] == "weft":
                if "internal" in parts:
                    yield f"{place}:{number}: internals of {room} are in weft::{own}, not in {scope}"
                elif any(part.endswith("_internal") and part != own for part in parts):
                    if body or not is_forward(statement):
                        yield f"{place}:{number}: {room} adds to {scope}, which is another room's"
            name = defined_type(statement, body)
            alias = without_template(statement)[:1] == ["using"]
            if name is None or (alias and (room is None or place.endswith(".cc"))):
                continue
            files = defined.setdefault(f"{scope}::{name}", {})
            for other, earlier in files.items():
                shorter = min(len(program), len(other))
                if program[:shorter] == other[:shorter] and earlier != place:
                    yield f"{place}:{number}: {scope}::{name} is defined in {earlier} as well"
            files.setdefault(program, place)


def room_map():
    """Returns the Markdown table of README.md. It has top folders only."""
    rows = [f"| `{room}/` | {purpose} |" for room, (purpose, _) in ROOMS.items() if "/" not in room]
    return "\n".join(["| folder | what it is for |", "|---|---|", *rows])


def room_picture():
    """Returns the Mermaid graph of docs/design.md: top folders, each with the
    dependencies that do not follow from others."""
    needs = {}
    for room, (_, below) in ROOMS.items():
        if below == "PUBLIC":
            continue
        top = room.split("/")[0]
        tops = {other.split("/")[0] for other in below} - {top}
        needs[top] = needs.get(top, set()) | tops
    bridged = {place.split("/")[0]: {room.split("/")[0] for room in rooms} for place, rooms in BRIDGES.items()}

    def reach(top):
        found = set(needs[top])
        for other in needs[top]:
            found |= reach(other)
        return found

    lines = ["```mermaid", "flowchart BT"]
    for top in needs:
        direct = needs[top] - set().union(*[reach(other) for other in needs[top]], set())
        lines += [f"  {top} --> {other}" for other in sorted(direct)]
        lines += [f"  {top} -. one file .-> {other}" for other in sorted(bridged.get(top, []))]
    return "\n".join([*lines, "```"])


def room_folders(root):
    """Returns the lines of CMakeLists.txt that add the rooms, lower ones first."""
    rooms = [room for room, (_, below) in ROOMS.items()
             if below != "PUBLIC" and (root / room / "CMakeLists.txt").is_file()]
    return "\n".join(f"add_subdirectory({room})" for room in rooms)


def rpc_rooms():
    return [room for room in ROOMS if room.split("/")[0] == "rpc"]


def rpc_files(root):
    """Returns the Markdown table of rpc/README.md: the headers, and each .cc without a header beside it."""
    rows = []
    for room in rpc_rooms():
        cells = [sorted(path.name for path in folder.glob("*") if path.suffix == ".h" or
                        path.suffix == ".cc" and not path.with_suffix(".h").is_file())
                 for folder in (root / room, root / room / "internal")]
        name = room.removeprefix("rpc/") + "/"
        rows.append(f"| `{name}` |" + "|".join("".join(f" `{file}`" for file in cell) + " " for cell in cells) + "|")
    return "\n".join(["| room | at its root | `internal/` |", "|---|---|---|", *rows])


def check_rpc_page(root):
    page = root / "rpc" / "README.md"
    text = page.read_text() if page.is_file() else ""
    for room in rpc_rooms() if text else []:
        if f"`{room.removeprefix('rpc/')}/`" not in text.partition("## Files")[0]:
            yield f"rpc/README.md: has no row for the room {room}"
    rows = dict(re.findall(r"^\| `weft::(\w+)` \|.* (yes|no) \|$", text, re.M))
    targets = {target: "yes" if torch else "no" for target, torch, files, _ in libraries(root)
               if text and files and files[0].relative_to(root).parts[0] == "rpc"}
    for target in sorted(rows.keys() | targets.keys()):
        if rows.get(target) != targets.get(target):
            yield f"rpc/README.md: the row of weft::{target} is missing, or says what CMakeLists.txt does not"


def check_maps(root, write):
    for file, wanted in [("README.md", room_map()), ("docs/design.md", room_picture()),
                         ("rpc/README.md", rpc_files(root)), ("CMakeLists.txt", room_folders(root))]:
        path = root / file
        text = path.read_text() if path.is_file() else ""
        begin, finish = [f"<!-- {mark} -->" if path.suffix == ".md" else f"# {mark}" for mark in (MAP, MAP_END)]
        before, mark, rest = text.partition(begin)
        inside, end, after = rest.partition(finish)
        if not (mark and end):
            if text:
                yield f"{file}: has no map between {begin} and {finish}"
        elif inside != f"\n{wanted}\n":
            if write:
                path.write_text(f"{before}{begin}\n{wanted}\n{finish}{after}")
            else:
                yield f"{file}: the map is not the one that tools/check_layers.py --write makes"


def main(arguments):
    write = "--write" in arguments
    arguments = [argument for argument in arguments if argument != "--write"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    problems = [*check_list(), *check_includes(root), *check_targets(root), *check_state_machines(root),
                *check_installed(root), *check_names(root), *check_sizes(root), *check_maps(root, write),
                *check_rpc_page(root)]
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
