"""Tries two NCCL ranks on one GPU, with one NCCL_HOSTID for both or with one for each.

Usage: nccl_one_gpu.py same|different
Prints lines `probe name: value unit`, or the text of the refusal.
"""

import datetime
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def say(text):
    print(f"probe nccl {text}", flush=True)


def worker(rank, ids):
    if ids == "different":
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29621" if ids == "same" else "29622")
    torch.cuda.set_device(0)
    try:
        dist.init_process_group("nccl", rank=rank, world_size=2,
                                timeout=datetime.timedelta(seconds=30))
        value = torch.full((2,), float(rank + 1), device="cuda:0")
        dist.all_reduce(value)
        torch.cuda.synchronize()
    except Exception as error:
        if rank == 0:
            for line in str(error).strip().splitlines()[:8]:
                say(f"{ids} host ids, refused: {line[:240]}")
        os._exit(0)
    if rank == 0:
        say(f"{ids} host ids: works, sum {value[0].item()} (3 is right)")
    for name, count, rounds in (("8 B", 2, 20), ("64 MiB", 16 << 20, 5)):
        data = torch.ones(count, device="cuda:0")
        times = []
        for turn in range(rounds + 2):
            begin = time.perf_counter()
            dist.all_reduce(data)
            torch.cuda.synchronize()
            if turn >= 2:
                times.append((time.perf_counter() - begin) * 1e6)
        if rank == 0:
            say(f"{ids} host ids, all-reduce of {name}: {statistics.median(times):.0f} us")
    os._exit(0)


if __name__ == "__main__":
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    say(f"version {'.'.join(map(str, torch.cuda.nccl.version()))}")
    mp.spawn(worker, args=(sys.argv[1],), nprocs=2)
