"""Writes torch_schedules.csv: what torch.distributed.pipelining's generators make. With --check it compares instead.

    .deps/oracles/bin/python tests/pipeline/golden/torch_schedules.py [--check]

A line "# NAME workers micro-batches chunks" comes before the rows of each schedule.
torch 2.11's 1F1B is wrong in its last row: the micro-batches of the forwards are too high by one.
"""
import pathlib
import sys

from torch.distributed.pipelining import _schedule_visualizer

FILE = pathlib.Path(__file__).with_suffix(".csv")


def cases():
    for workers in (2, 3, 4, 5):
        for micro_batches in sorted({workers, 2 * workers - 1, 2 * workers, 2 * workers + 1, 3 * workers}):
            for name, chunks in [("GPipe", 1), ("1F1B", 1), ("LoopedBFS", 2), ("LoopedBFS", 3), ("Interleaved1F1B", 2),
                                 ("Interleaved1F1B", 3), ("InterleavedZeroBubble", 2), ("InterleavedZeroBubble", 3),
                                 ("ZBVZeroBubble", 2), ("DualPipeV", 2)]:
                yield name, workers, micro_batches, chunks


def rows_of(name, workers, micro_batches, chunks):
    chunked = {"num_stages_per_rank": chunks} if chunks > 1 else {}
    made = _schedule_visualizer.get_schedule_ops(name, workers, micro_batches, **chunked)
    rows = made if isinstance(made, list) else [made[rank] for rank in sorted(made)]
    for row in rows:
        yield ",".join(str(action) for action in row if action is not None)


def text():
    lines = []
    for case in cases():
        try:
            rows = list(rows_of(*case))
        except (ValueError, AssertionError):  # too few micro-batches, or rounds of unequal length
            continue
        lines += ["# " + " ".join(map(str, case)), *rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(text())
    elif FILE.read_text() != text():
        sys.exit(f"{FILE} is not what this torch makes")
