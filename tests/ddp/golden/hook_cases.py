"""Cases of hooks.json: communication hooks, post-local SGD and model averaging."""
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn.parallel import DistributedDataParallel

from small_models import FLOAT, exact, gradients, parameters


class Given(nn.Module):
    """Parameters whose gradients are what forward() is given: its output is their inner product."""

    def __init__(self, shapes, dtype):
        super().__init__()
        for index, (name, shape) in enumerate(shapes.items()):
            setattr(self, name, nn.Parameter(exact(index, *shape, dtype=dtype)))

    def forward(self, given):
        return sum((parameter * given[name]).sum() for name, parameter in self.named_parameters())


MATRICES = dict(left=(8, 9), right=(8, 9), conv=(7, 2, 2, 3), small=(3, 4), bias=(5,))
VECTORS = dict(weight=(2, 3), bias=(2,))


def given(shapes, seed, dtype, thirds=False):
    return {name: exact(seed + index, *shape, dtype=dtype) / (3 if thirds else 1)
            for index, (name, shape) in enumerate(shapes.items())}


@contextlib.contextmanager
def recorded_draws(seeds, draws):
    """Notes what torch.manual_seed and torch.randn are called for inside."""
    seed, randn = torch.manual_seed, torch.randn
    torch.manual_seed = lambda value: seeds.append(int(value)) or seed(value)
    torch.randn = lambda *shape, **rest: draws.append(randn(*shape, **rest)) or draws[-1].clone()
    try:
        yield
    finally:
        torch.manual_seed, torch.randn = seed, randn


POWER = dict(matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=2, use_error_feedback=True,
             warm_start=True, batch_tensors_with_same_shape=False)
POWER_CASES = [
    ("power_sgd_rank_1", 2, dict()),
    ("power_sgd_rank_1", 3, dict()),
    ("power_sgd_rank_2", 2, dict(matrix_approximation_rank=2)),
    ("power_sgd_rank_4", 2, dict(matrix_approximation_rank=4, min_compression_rate=1)),
    ("power_sgd_rank_2_without_error_feedback", 2, dict(matrix_approximation_rank=2, use_error_feedback=False)),
    ("power_sgd_rank_2_without_warm_start", 2, dict(matrix_approximation_rank=2, warm_start=False)),
    ("power_sgd_rank_1_without_both", 2, dict(use_error_feedback=False, warm_start=False)),
    ("power_sgd_rank_2_batched", 2, dict(matrix_approximation_rank=2, batch_tensors_with_same_shape=True)),
]
COMPRESSED = ("conv", "right", "left")  # the order in which PowerSGD draws their Q: that of the rebuilt bucket


def power_input(index, rank):
    return given(MATRICES, 4000 + 100 * index + 10 * rank, FLOAT)


def make_power(name, options, rank):
    """One case; steps before the compression are plain averages and have no gradients here. seeds and q tell what
    was drawn in a step; q is as drawn, before it is orthogonalised."""
    model = Given(MATRICES, FLOAT)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, **options), powerSGD_hook.powerSGD_hook)
    steps, mine = [], dict(steps=[])
    for index in range(5):
        ddp.zero_grad()
        seeds, draws = [], []
        with recorded_draws(seeds, draws):
            ddp(power_input(index, rank)).backward()
        q = dict(zip(COMPRESSED, (one for several in draws for one in several)))
        steps.append(dict(seeds=seeds, q=q))
        mine["steps"].append(dict(gradients=gradients(model)) if index >= options["start_powerSGD_iter"] else {})
    return dict(name=name, dtype=FLOAT, options=options, steps=steps), mine


def make_compress(name, hook, rank):
    model = Given(VECTORS, torch.float32)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, hook)
    mine = dict(steps=[])
    for index in range(2):
        ddp.zero_grad()
        inputs = given(VECTORS, 4000 + 100 * index + 10 * rank, torch.float32, thirds=True)
        ddp(inputs).backward()
        mine["steps"].append(dict(given=inputs, gradients=gradients(model)))
    return dict(name=name, dtype=torch.float32, steps=[{}, {}]), mine


def make_hooks(rank, world):
    if world in (2, 3):
        yield make_compress("fp16_compress", default_hooks.fp16_compress_hook, rank)
        yield make_compress("bf16_compress", default_hooks.bf16_compress_hook, rank)
    if world == 3:
        yield (dict(name="power_sgd_inputs", shapes=MATRICES),
               dict(steps=[dict(given=power_input(index, rank)) for index in range(5)]))
    for name, case_world, options in POWER_CASES:
        if world == case_world:
            yield make_power(name, POWER | options, rank)
    if world == 4:
        yield from make_averagers(rank)


def make_averagers(rank):
    """Post-local SGD and model averaging on 4 ranks; subgroups {0, 1} and {2, 3}; SGD, parameters after each step."""
    pair, _ = dist.new_subgroups(2)
    for name, averager, hook in (
            ("post_local_sgd", dict(period=3, warmup_steps=2), dict(start_localSGD_iter=2)),
            ("post_local_sgd_without_subgroup_allreduce", dict(period=2, warmup_steps=3),
             dict(start_localSGD_iter=3, post_local_gradient_allreduce=False)),
            ("periodic_averaging", dict(period=2, warmup_steps=1), None),
            ("hierarchical_averaging", dict(period_group_size_dict={2: 2, 4: 4}, warmup_steps=1), None)):
        module = model = Given(VECTORS, FLOAT)
        if hook:
            module = DistributedDataParallel(model)
            module.register_comm_hook(post_localSGD_hook.PostLocalSGDState(None, pair, **hook),
                                      post_localSGD_hook.post_localSGD_hook)
        kind = HierarchicalModelAverager if "hierarchical" in name else averagers.PeriodicModelAverager
        average = kind(**averager)
        start, optimizer = parameters(model), torch.optim.SGD(model.parameters(), lr=0.125)
        mine = dict(steps=[])
        for index in range(9):
            optimizer.zero_grad()
            inputs = given(VECTORS, 5000 + 100 * index + 10 * rank, FLOAT)
            module(inputs).backward()
            optimizer.step()
            average.average_parameters(model.parameters())
            mine["steps"].append(dict(given=inputs, parameters=parameters(model)))
        yield dict(name=name, dtype=FLOAT, lr=0.125, parameters=start, averager=averager, hook=hook,
                   steps=[{} for _ in mine["steps"]]), mine
