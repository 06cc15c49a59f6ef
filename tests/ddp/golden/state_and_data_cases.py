"""Cases of zero.json, sync_batch_norm.json and sampler.json."""
import itertools

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data.distributed import DistributedSampler

from small_models import FLOAT, buffers, exact, fill, gradients, parameters, small

# ------------------------------------------------------------------------------------------------- zero.json
PARTITIONS = [[[1, 2, 3, 4, 5, 6, 7]], [[9, 7, 6, 5, 5, 4, 4, 3, 2, 1]], [[5, 5, 5, 5, 5]], [[100, 1, 1, 1]], [[8]],
              [[0, 3, 0, 3]], [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]], [[10, 1], [2, 7, 7], [4]],
              [[512 * 64, 512, 64 * 512, 64, 64 * 10, 10]]]
OPTIMIZERS = [("adam", torch.optim.Adam, dict(lr=0.01)), ("adam_w", torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
              ("sgd_momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9))]


def make_zero(rank, world):
    if world == 1:
        return
    for sizes in PARTITIONS:
        groups = [[nn.Parameter(torch.zeros(size)) for size in group] for group in sizes]
        indices = {id(p): index for index, p in enumerate(p for group in groups for p in group)}
        zero = ZeroRedundancyOptimizer(groups[0], torch.optim.SGD, lr=0.1)
        for group in groups[1:]:
            zero.add_param_group(dict(params=group))
        yield dict(kind="partition", name=str(sizes), groups=sizes,
                   partition=[[[indices[id(p)] for p in group["params"]] for group in part]
                              for part in zero._partition_parameters()]), None
    for name, optimizer, options in OPTIMIZERS:
        model = small("mlp")
        start, zero = parameters(model), ZeroRedundancyOptimizer(model.parameters(), optimizer, **options)
        steps = []
        for index in range(3):
            for place, parameter in enumerate(model.parameters()):
                parameter.grad = exact(6000 + 10 * index + place, *parameter.shape)
            steps.append(dict(gradients=gradients(model)))
            zero.step()
            steps[-1]["parameters"] = parameters(model)
        zero.consolidate_state_dict(to=0)
        yield dict(kind="steps", name=name, options=options, parameters=start, steps=steps,
                   state=zero.state_dict() if rank == 0 else None), None


# -------------------------------------------------------------------------------------- sync_batch_norm.json
def make_sync_batch_norm(_, world):
    """torch's SyncBatchNorm needs CUDA: the truth is BatchNorm over the batches of all ranks, concatenated."""
    for name, rows, shape, options in [] if world != 1 else (
            ("rows", [2, 3], (3,), {}), ("one_sample_and_none", [1, 4, 0], (3,), {}), ("no_affine", [3, 2], (2,),
            dict(affine=False)), ("cumulative_average", [2, 3, 1], (2,), dict(momentum=None)), ("sequence", [2, 1],
            (2, 3), {}), ("images", [1, 2, 0], (2, 2, 3), {}), ("images_no_affine_cumulative", [2, 2], (2, 2, 2),
            dict(affine=False, momentum=None)), ("eval", [2, 3], (3,), dict(training=False)),
            ("momentum_and_eps", [2, 3], (3,), dict(momentum=0.5, eps=0.1)),
            ("no_running_stats", [2, 2], (3,), dict(track_running_stats=False))):
        options = dict(options)
        training = options.pop("training", True)
        norm = (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(shape[0], dtype=FLOAT, **options)
        fill(norm).train(training)
        start = dict(parameters=parameters(norm), buffers=buffers(norm), steps=[])
        for index in range(2):
            norm.zero_grad()
            inputs = [exact(7000 + 100 * index + part, count, *shape) for part, count in enumerate(rows)]
            upstream = [exact(8000 + 100 * index + part, count, *shape) for part, count in enumerate(rows)]
            whole = torch.cat(inputs).requires_grad_()
            output = norm(whole)
            output.backward(torch.cat(upstream))
            parts = zip(inputs, upstream, output.detach().split(rows), whole.grad.split(rows))
            start["steps"].append(dict(gradients=gradients(norm), buffers=buffers(norm), ranks=[
                dict(input=x, output_gradient=dy, output=y, input_gradient=dx) for x, dy, y, dx in parts]))
        yield dict(name=name, world=len(rows), features=shape[0], training=training, options=options) | start, None


# ---------------------------------------------------------------------------------------------- sampler.json
def make_sampler(_, world):
    """Indices of each rank; with shuffle: torch.randperm(size) of a CPU generator seeded with seed + epoch."""
    for size, replicas, shuffle, drop_last in itertools.product((1, 3, 10, 12, 37), (1, 2, 3, 4), (False, True),
                                                                (False, True)) if world == 1 else ():
        samplers = [DistributedSampler(range(size), replicas, rank, shuffle, seed=7, drop_last=drop_last)
                    for rank in range(replicas)]
        for epoch in (0, 3) if shuffle else (0,):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            yield dict(name=f"{size}_of_{replicas}", size=size, world=replicas, shuffle=shuffle, drop_last=drop_last,
                       seed=7, epoch=epoch, indices=[list(sampler) for sampler in samplers]), None
