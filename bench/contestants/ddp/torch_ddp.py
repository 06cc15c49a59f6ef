#!/usr/bin/env python3
"""A rank of weft_bench's contestant "torch ddp": Python's DistributedDataParallel on Gloo.

Only `weft_bench ddp` starts it. It takes its commands as JSON lines from socket 3
(contestants/child.h) and times a training step as run_steps in contestants/block.cc does.
"""
import argparse
import datetime
import json
import os
import resource
import socket
import statistics
import time

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist

DRIVER_SOCKET = 3
UNIMPLEMENTED, DATA_LOSS = 12, 15  # as in absl::StatusCode
LAYERS, FEATURES, BATCH = 12, 1024, 32
TIMEOUT = datetime.timedelta(seconds=60)
TOLERANCE = 1e-5


def usage():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (
        used.ru_utime + used.ru_stime,
        used.ru_minflt + used.ru_majflt,
        used.ru_nvcsw + used.ru_nivcsw,
    )


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)))


class Rank:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.store = self.local = self.ddp = None

    def listen(self, command):
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return {"address": str(self.store.port)}

    def join(self, command):
        if self.store is None:
            self.store = dist.TCPStore("127.0.0.1", int(command["address"]), is_master=False)
        dist.init_process_group(
            "gloo", store=self.store, rank=self.rank, world_size=self.ranks, timeout=TIMEOUT
        )
        return {}

    def run(self, command):
        if command["row"] != "ddp step communication":
            return {"code": UNIMPLEMENTED, "error": "steps only"}
        if self.ddp is None:
            self.local = make_net()
            # The fastest setting: gradients stay in the buckets and are not copied back out.
            self.ddp = torch.nn.parallel.DistributedDataParallel(
                make_net(), gradient_as_bucket_view=True
            )
            torch.manual_seed(self.rank + 2)
            self.input = torch.randn(BATCH, FEATURES)
        if not self.gradients_are_right():
            return {"code": DATA_LOSS, "error": "wrong gradients"}
        return {"result": self.measure(command["warm_up"], command["timed"])}

    def step(self, net):
        net.zero_grad(set_to_none=True)
        net(self.input).sum().backward()

    def meet(self):
        dist.all_reduce(torch.zeros(1))

    def gradients_are_right(self):
        self.step(self.local)
        self.step(self.ddp)
        for local, averaged in zip(self.local.parameters(), self.ddp.parameters()):
            expected = local.grad.clone()
            dist.all_reduce(expected)
            expected /= self.ranks
            if not (averaged.grad - expected).norm() <= TOLERANCE * expected.norm():
                return False
        return True

    def measure(self, warm_up, timed):
        local_us, step_us, used = [], [], (0, 0, 0)
        begin = time.perf_counter()
        for i in range(warm_up + timed):
            self.meet()
            start = time.perf_counter()
            self.step(self.local)
            self.meet()
            middle = time.perf_counter()
            before = usage()
            self.step(self.ddp)
            end = time.perf_counter()
            if i >= warm_up:
                used = tuple(u + a - b for u, a, b in zip(used, usage(), before))
                local_us.append((middle - start) * 1e6)
                step_us.append((end - middle) * 1e6)
        return {
            "calls": timed,
            "seconds": time.perf_counter() - begin,
            "median_us": statistics.median(step_us),
            "p99_us": torch.quantile(torch.tensor(step_us), 0.99).item(),
            "bytes": 0,
            "all_calls": timed,
            "usage": dict(zip(("cpu_seconds", "page_faults", "switches"), used)),
            "local_us": statistics.median(local_us),
            "communication_us": statistics.median(s - l for s, l in zip(step_us, local_us)),
        }


def obey(driver, rank):
    verbs = {"listen": rank.listen, "join": rank.join, "run": rank.run}
    for line in driver:
        command = json.loads(line)
        answer = {"code": 0}
        if command["do"] != "quit":
            answer.update(verbs[command["do"]](command))
        driver.write(json.dumps(answer) + "\n")
        driver.flush()
        if command["do"] == "quit":
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["rank"], required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--processor", type=int)
    arguments = parser.parse_args()
    if arguments.processor is not None:
        os.sched_setaffinity(0, {arguments.processor})
    torch.set_num_threads(1)
    with socket.socket(fileno=DRIVER_SOCKET) as connection:
        obey(connection.makefile("rw"), Rank(arguments.rank, arguments.ranks))
    os._exit(0)  # as the other contestants: the order in which libraries' threads stop is undefined


if __name__ == "__main__":
    main()
