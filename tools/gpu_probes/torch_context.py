"""Time and memory of a process that imports torch and puts a tensor on the GPU."""

import time


def say(name, value, unit=""):
    print(f"probe torch_context {name}: {value} {unit}".rstrip(), flush=True)


def resident():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return round(int(line.split()[1]) / 1024)
    return -1


begin = time.perf_counter()
import torch  # noqa: E402

say("import", round((time.perf_counter() - begin) * 1e3), "ms")
say("VmRSS after the import", resident(), "MiB")
begin = time.perf_counter()
tensor = torch.ones(4, device="cuda")
torch.cuda.synchronize()
say("first tensor", round((time.perf_counter() - begin) * 1e3), "ms")
say("VmRSS after the first tensor", resident(), "MiB")
