#!/usr/bin/env python3
"""The contestant "torch python" of `weft_bench pipeline`: ResNet50 in two shards on torch.distributed.rpc.

It has the structure of PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC". Micro-
batches are RRefs. It calls the first shard by remote and the last one by rpc_async. It uses
distributed autograd and a DistributedOptimizer. Three changes make it faster: the number of micro-
batches is an option, the cut follows the measured time of the layers (not between the second and
third group), and malloc has the settings of Weft.

Only `weft_bench pipeline` starts it.
"""
import statistics
import threading
import time

import torch_crowd

import torch
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, remote

BATCH, SIZE, CLASSES, WARM_UPS = 120, 128, 1000, 3  # as in bench/rows.h
GROUPS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        return torch.relu_(self.body(x) + self.shortcut(x))


def layers():
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    made, inputs = [stem], 64
    for blocks, width, stride in GROUPS:
        for block in range(blocks):
            made.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    made.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES)))
    return made


class Shard(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.layers = nn.Sequential(*layers()[first:last])
        self.lock = threading.Lock()

    def forward(self, x_rref):
        x = x_rref.to_here()
        with self.lock:
            return self.layers(x)

    def parameter_rrefs(self):
        return [RRef(parameter) for parameter in self.parameters()]


def profile(x):
    """Returns the seconds of each layer's forward and backward: the medians of three runs."""
    model, times = layers(), []
    for _ in range(3):
        inputs, here = x, []
        for number, layer in enumerate(model):
            inputs = inputs.detach().requires_grad_(number > 0)
            begin = time.perf_counter()
            outputs = layer(inputs)
            outputs.backward(torch.ones_like(outputs))
            here.append(time.perf_counter() - begin)
            inputs = outputs
        times.append(here)
    return [statistics.median(layer) for layer in zip(*times)]


class Master:
    def __init__(self, members):
        assert members == 2
        torch.manual_seed(1)
        self.images = torch.randn(BATCH, 3, SIZE, SIZE)
        labels = torch.randint(CLASSES, (BATCH,))
        self.wanted = nn.functional.one_hot(labels, CLASSES).float()
        self.models = {}

    def model(self, parts):
        if parts not in self.models:
            self.models.clear()  # two models at once need too much memory; each row has its own
            sample = self.images[: BATCH // parts]
            running = [torch.distributed.rpc.rpc_async(f"worker{i}", profile, args=(sample,)) for i in (1, 2)]
            costs = [sum(layer) for layer in zip(*(one.wait() for one in running))]
            cut = min(range(1, len(costs)), key=lambda i: max(sum(costs[:i]), sum(costs[i:])))
            shards = [remote("worker1", Shard, args=(0, cut)), remote("worker2", Shard, args=(cut, len(costs)))]
            parameters = sum((shard.rpc_sync().parameter_rrefs() for shard in shards), [])
            self.models[parts] = shards, DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
            for _ in range(WARM_UPS):
                self.step(parts)
        return self.models[parts]

    def step(self, parts):
        (first, last), optimizer = self.model(parts)
        begin = time.perf_counter()
        with dist_autograd.context() as context:
            outputs = []
            for x in self.images.split(BATCH // parts):
                hidden = first.remote().forward(RRef(x))
                outputs.append(last.rpc_async().forward(hidden))
            loss = nn.functional.mse_loss(torch.cat(torch.futures.wait_all(outputs)), self.wanted)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        return time.perf_counter() - begin

    def measure(self, row, parts, seconds):
        if row != "best" and "micro-batches" not in row:
            return None
        self.step(parts)  # after SIGSTOP the first step must find the peers again
        begin, steps = time.perf_counter(), []
        while not steps or time.perf_counter() - begin < seconds:
            steps.append(self.step(parts) * 1e6)
        return {
            "calls": len(steps) * BATCH,
            "seconds": time.perf_counter() - begin,
            "median_us": statistics.median(steps),
            "p99_us": max(steps),
            "all_calls": (len(steps) + 1) * BATCH,
        }


if __name__ == "__main__":
    torch_crowd.main(lambda rank: f"worker{rank}" if rank else "master", Master, timeout=300)
