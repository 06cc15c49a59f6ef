"""Two NCCL ranks on one GPU.

Usage: nccl_one_gpu.py same | different   (NCCL_HOSTID of the ranks)
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist


def say(name, value, unit=""):
    print(f"probe nccl {name}: {value} {unit}".rstrip(), flush=True)


def timed(function, rounds):
    times = []
    for i in range(rounds + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        if i >= 3:
            times.append((time.perf_counter() - begin) * 1e6)
    return round(statistics.median(times), 1)


def work(rank, mode, path):
    device = torch.device("cuda:0")
    begin = time.perf_counter()
    dist.init_process_group("nccl", init_method="file://" + path, rank=rank, world_size=2)
    tensor = torch.full((256,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    assert torch.all(tensor == 3).item()
    name = f"NCCL_HOSTID {mode}"
    if rank == 0:
        say(f"{name} version", ".".join(map(str, torch.cuda.nccl.version())))
        say(f"{name} all_reduce", "works, sum right")
        say(f"{name} start and first all_reduce", round(first * 1e3), "ms")
    for count, rounds, size in ((256, 50, "1 KiB"), (16 << 20, 5, "64 MiB")):
        tensor = torch.ones(count, device=device)
        middle = timed(lambda: dist.all_reduce(tensor), rounds)
        if rank == 0:
            say(f"{name} all_reduce {size}", middle, "us")
    tensor = torch.full((16 << 20,), 5.0 if rank == 0 else 0.0, device=device)
    middle = timed((lambda: dist.send(tensor, 1)) if rank == 0 else (lambda: dist.recv(tensor, 0)), 5)
    assert torch.all(tensor == 5).item()
    if rank == 1:
        say(f"{name} send of 64 MiB", middle, "us")
    dist.destroy_process_group()


def main():
    mode = sys.argv[1]
    if len(sys.argv) > 2:
        work(int(sys.argv[2]), mode, sys.argv[3])
        return 0
    path = os.path.join(tempfile.mkdtemp(), "store")
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    children = []
    for rank in range(2):
        environment = dict(os.environ, NCCL_DEBUG="WARN", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        environment["NCCL_HOSTID"] = "probe" if mode == "same" else f"probe-{rank}"
        command = [sys.executable, __file__, mode, str(rank), path]
        children.append(
            subprocess.Popen(command, env=environment, stderr=outputs[rank], stdout=None)
        )
    begin = time.monotonic()
    while any(child.poll() is None for child in children):
        failed = any(child.poll() not in (None, 0) for child in children)
        if failed or time.monotonic() - begin > 50:
            time.sleep(2)
            for child in children:
                child.kill()
            break
        time.sleep(0.1)
    codes = [child.wait() for child in children]
    if codes != [0, 0]:
        say(f"NCCL_HOSTID {mode} failed, exit codes", codes)
        outputs[0].seek(0)
        lines = outputs[0].read().decode(errors="replace").strip().splitlines()
        for line in lines[-6:]:
            say(f"NCCL_HOSTID {mode} error", line[:400])
    return 0


sys.exit(main())
