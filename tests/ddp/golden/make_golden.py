"""Makes the golden files of tests/ddp: what Python's DDP and c10d (torch 2.11, gloo, CPU) compute.

    tools/oracles.sh
    .deps/oracles/bin/python tests/ddp/golden/make_golden.py [--out FOLDER] [NAME ...]

One file per NAME (all by default): {"torch": version, "cases": [case, ...]}. A case has "name" and "world";
its "ranks" list, where it has one, holds what belongs to each rank. A tensor is {"shape": [...], "data": [...]}.
Every input and initial weight is in the file, so that the C++ tests need no random numbers. Inputs are multiples
of 1/32, exact in float16 and bfloat16 too. The function that makes the cases of a file (FILES, below) tells their keys.
"""
import argparse
import json
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from hook_cases import make_hooks
from reducer_cases import make_buckets, make_gradients, make_joins
from small_models import FLOAT
from state_and_data_cases import make_sampler, make_sync_batch_norm, make_zero

FILES = {"buckets": make_buckets, "gradients": make_gradients, "join": make_joins, "hooks": make_hooks,
         "zero": make_zero, "sync_batch_norm": make_sync_batch_norm, "sampler": make_sampler}
WORLDS = (1, 2, 3, 4)


def plain(value):
    """JSON's view of a value that may hold tensors and dtypes."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        data, digits = value.to_dense().reshape(-1).tolist(), 14 if value.dtype == FLOAT else 9
        if value.is_floating_point():
            data = [float(f"{number:.{digits}g}") for number in data]
        return {"shape": list(value.shape), "data": data}
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def joined(shared, ranks):
    """A case from its parts; results of a step that are equal on all ranks stand once, in case.steps."""
    for index, step in enumerate(shared.get("steps", []) if ranks[0] else []):
        of_ranks = [rank["steps"][index] for rank in ranks]
        for key in ("gradients", "buffers", "parameters"):
            if key in of_ranks[0] and all(other[key] == of_ranks[0][key] for other in of_ranks):
                step[key] = of_ranks[0][key]
                for other in of_ranks:
                    del other[key]
    return shared | ({} if ranks[0] is None else {"ranks": ranks})


def rank_main(rank, world, folder, names):
    """Runs the cases of one world size; rank 0 leaves them in the folder as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    made = {name: [] for name in names}
    for name in names:
        for shared, mine in FILES[name](rank, world):
            ranks = [None] * world
            dist.all_gather_object(ranks, plain(mine))
            made[name].append(joined({"world": world} | plain(shared), ranks))
    if rank == 0:
        (pathlib.Path(folder) / f"{world}.json").write_text(json.dumps(made))
    dist.barrier()
    os._exit(0)  # gloo's threads can abort the interpreter while it exits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FILES))
    arguments = parser.parse_args()
    names = arguments.names or list(FILES)
    with tempfile.TemporaryDirectory() as folder:
        for world in WORLDS:
            multiprocessing.spawn(rank_main, (world, folder, names), nprocs=world)
        made = [json.loads((pathlib.Path(folder) / f"{world}.json").read_text()) for world in WORLDS]
    for name in names:
        lines = [json.dumps(case, separators=(",", ":")) for part in made for case in part[name]]
        head = json.dumps({"torch": torch.__version__})[:-1]
        (arguments.out / f"{name}.json").write_text(head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
