"""Measures torch.distributed.rpc with device maps between two processes on one GPU.

Usage: torch_rpc.py [CHANNEL]   (for example cuda_basic; without it, TensorPipe chooses)
Prints lines `probe name: value unit`. TensorPipe's own log says which channels a pipe used.
"""

import collections
import os
import re
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

PORT = {"": 29611, "cuda_basic": 29612, "cuda_ipc": 29613}


def say(text):
    print(f"probe torch_rpc {text}", flush=True)


def add_one(tensor):
    return tensor + 1


def checksum(tensor):
    """Takes a large tensor and returns a small one, so that the time is that of one direction."""
    return tensor[-4:].clone()


def nothing():
    return 0


def timed(call, rounds, warm=10):
    times = []
    for turn in range(warm + rounds):
        begin = time.perf_counter()
        call()
        if turn >= warm:
            times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def measure(label):
    mid, tail = timed(lambda: rpc.rpc_sync("peer1", nothing), 300)
    say(f"{label} empty call: {mid:.1f} us (99th percentile {tail:.1f} us)")
    cpu = torch.ones(2, 2)
    mid, tail = timed(lambda: rpc.rpc_sync("peer1", add_one, args=(cpu,)), 300)
    say(f"{label} 2x2 CPU tensor each way: {mid:.1f} us (99th percentile {tail:.1f} us)")

    small = torch.ones(2, 2, device="cuda:0")
    answer = rpc.rpc_sync("peer1", add_one, args=(small,))
    say(f"{label} answer lies on {answer.device}, is {'right' if bool((answer == 2).all()) else 'wrong'}")

    def small_call():
        rpc.rpc_sync("peer1", add_one, args=(small,))
        torch.cuda.current_stream().synchronize()

    mid, tail = timed(small_call, 300)
    say(f"{label} 2x2 CUDA tensor each way, synchronized: {mid:.1f} us (99th percentile {tail:.1f} us)")
    for mib in (1, 16, 64, 256):
        big = torch.arange(mib << 18, dtype=torch.float32, device="cuda:0")
        torch.cuda.synchronize()

        def big_call():
            rpc.rpc_sync("peer1", checksum, args=(big,))
            torch.cuda.current_stream().synchronize()

        good = bool((rpc.rpc_sync("peer1", checksum, args=(big,)) == big[-4:]).all())
        mid, _ = timed(big_call, 15, 3)
        rate = (mib << 20) / mid / 1e3
        say(f"{label} {mib} MiB one way: {mid:.0f} us, {rate:.2f} GB/s, {'right' if good else 'wrong'}")


def worker(rank, channel):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(PORT.get(channel, 29614))
    options = {"num_worker_threads": 4, "rpc_timeout": 20}
    if channel:
        options["_channels"] = ["basic", channel]
    backend = rpc.TensorPipeRpcBackendOptions(**options)
    backend.set_device_map(f"peer{1 - rank}", {0: 0})
    torch.cuda.init()
    torch.cuda.set_device(0)
    log = open(f"/tmp/torch_rpc_{channel}_{rank}.log", "w+")
    os.dup2(log.fileno(), 2)
    rpc.init_rpc(f"peer{rank}", rank=rank, world_size=2, rpc_backend_options=backend)
    if rank == 0:
        label = f"channel {channel}," if channel else "default channels,"
        measure(label)
    rpc.shutdown()


def channels_in_log(channel):
    counts = collections.Counter()
    shown = []
    for rank in (0, 1):
        try:
            text = open(f"/tmp/torch_rpc_{channel}_{rank}.log", errors="replace").read()
        except OSError:
            continue
        counts.update(re.findall(r"cuda_ipc|cuda_basic|cuda_gdr|cuda_xth", text))
        shown += [line for line in text.splitlines()
                  if re.search(r"error|unavailable|not viable|selected|using", line, re.I)]
    say(f"log names channels: {dict(counts)}")
    for line in shown[:6]:
        say(f"log: {line[:220]}")


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    say(f"torch {torch.__version__}")
    try:
        mp.spawn(worker, args=(chosen,), nprocs=2)
    except Exception as error:  # The text of a refusal is a fact too.
        say(f"failed: {str(error).strip().splitlines()[-1][:300]}")
    channels_in_log(chosen)
