"""torch's RPC (TensorPipe, device_maps) between two processes on one GPU.

Usage: torch_rpc.py default | cuda_ipc | cuda_basic
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed.rpc as rpc


def say(name, value, unit=""):
    print(f"probe torch_rpc {name}: {value} {unit}".rstrip(), flush=True)


def echo(tensor):
    return tensor


def take(tensor):
    if tensor.is_cuda:
        torch.cuda.current_stream().synchronize()
    return int(tensor[-1].reshape(-1)[-1].item())


def quantile(times, share):
    return sorted(times)[int((len(times) - 1) * share)]


def call(function, tensor, rounds):
    times = []
    for i in range(rounds + 3):
        begin = time.perf_counter()
        answer = rpc.rpc_sync("two", function, args=(tensor,), timeout=20)
        if isinstance(answer, torch.Tensor) and answer.is_cuda:
            torch.cuda.synchronize()
        if i >= 3:
            times.append((time.perf_counter() - begin) * 1e6)
        if function is take:
            assert answer == 7, answer
        else:
            assert torch.equal(answer, tensor)
    return times


def work(rank, mode, path):
    options = rpc.TensorPipeRpcBackendOptions(
        init_method="file://" + path,
        num_worker_threads=4,
        rpc_timeout=30,
        device_maps={"two" if rank == 0 else "one": {0: 0}},
        **({} if mode == "default" else {"_channels": [mode, "basic"]}),
    )
    torch.cuda.init()
    rpc.init_rpc(("one", "two")[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for device in ("cuda:0", "cpu"):
            if device == "cpu" and mode != "default":
                continue
            name = f"{mode} {device}"
            small = torch.full((2, 2), 7.0, device=device)
            times = call(echo, small, 300)
            say(f"{name} call with a 2x2 tensor and a 2x2 answer", round(statistics.median(times), 1), "us")
            say(f"{name} call with a 2x2 tensor, 99th percentile", round(quantile(times, 0.99), 1), "us")
            for mebibytes in (64, 256):
                big = torch.full((mebibytes << 18,), 7.0, device=device)
                if device != "cpu":
                    torch.cuda.synchronize()
                middle = statistics.median(call(take, big, 8))
                say(f"{name} {mebibytes} MiB one way", round(middle, 1), "us")
                say(f"{name} {mebibytes} MiB one way, rate", round((mebibytes << 20) / middle / 1e3, 2), "GB/s")
            say(name, "works, data right")
    rpc.shutdown()


def main():
    mode = sys.argv[1]
    if len(sys.argv) > 2:
        work(int(sys.argv[2]), mode, sys.argv[3])
        return 0
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    path = os.path.join(tempfile.mkdtemp(), "store")
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    children = [
        subprocess.Popen([sys.executable, __file__, mode, str(rank), path], stderr=outputs[rank])
        for rank in range(2)
    ]
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
        say(f"{mode} failed, exit codes", codes)
        for output in outputs:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            for line in lines[-6:]:
                say(f"{mode} error", line[:400])
    return 0


sys.exit(main())
