"""Cases of buckets.json, gradients.json and join.json: what the reducer decides and computes."""
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from small_models import batch, buffers, exact, gradients, loss_of, parameters, small

# ---------------------------------------------------------------------------------------------- buckets.json
ASSIGNMENTS = {
    "one_bucket_without_a_limit": ([("float32", 100)] * 4, [2**63 - 1]),
    "closes_when_the_cap_is_reached_exactly": ([("float32", 10)] * 5, [80]),
    "overshoots_by_one_parameter": ([("float32", 10), ("float32", 15), ("float32", 10), ("float32", 1)], [60]),
    "first_limit_is_smaller": ([("float32", 100)] * 10, [400, 1200]),
    "last_limit_repeats": ([("float32", 100)] * 12, [400, 800, 1600]),
    "parameter_larger_than_every_limit": ([("float32", 10), ("float32", 1000), ("float32", 10)], [100, 200]),
    "dtypes_have_buckets_of_their_own":
        ([("float32", 10), ("float64", 10), ("float16", 10), ("bfloat16", 10), ("float32", 10), ("float64", 10),
          ("float16", 30), ("bfloat16", 30)], [80]),
    "dtypes_count_their_limits_apart":
        ([("float32", 10), ("float64", 10)] * 4, [40, 160, 320]),
    "dtypes_interleaved_are_sorted_by_smallest_index":
        ([("float64", 1), ("float32", 10), ("float32", 10), ("float64", 1), ("float32", 10)], [80]),
    "zero_sized_parameters": ([("float32", 0), ("float32", 10), ("float32", 0), ("float32", 0)], [40]),
    "only_zero_sized_parameters": ([("float32", 0)] * 3, [40]),
    "zero_limit": ([("float32", 1)] * 3, [0]),
    "sparse_is_alone": ([("float32", 10), ("float32", 10, True), ("float32", 10), ("float32", 10)], [80]),
    "sparse_first_and_last": ([("float32", 10, True), ("float32", 10), ("float32", 10, True)], [40, 80]),
    "all_sparse": ([("float32", 10, True)] * 3, [1000]),
    "ready_order": ([("float32", 10), ("float32", 20), ("float32", 30), ("float32", 40)], [120, 160], [3, 1, 2, 0]),
    "ready_order_with_dtypes":
        ([("float32", 10), ("float64", 20), ("float32", 30), ("float64", 5)], [40, 200], [3, 2, 1, 0]),
    "ready_order_with_sparse":
        ([("float32", 10), ("float32", 20, True), ("float32", 30), ("float32", 5)], [40, 200], [2, 1, 3, 0]),
    "resnet_like": ([("float32", n) for n in (9408, 64, 36864, 64, 73728, 128, 147456, 128, 294912, 256, 589824, 256,
                                              1179648, 512, 2359296, 512, 512000, 1000)], [2**20, 25 * 2**20]),
    "resnet_like_cap_4": ([("float32", n) for n in (9408, 64, 36864, 64, 73728, 128, 147456, 128, 294912, 256, 589824,
                                                    256, 1179648, 512, 2359296, 512, 512000, 1000)], [4 * 2**20]),
}


class Chain(nn.Module):
    """Square linear layers l0, l1, ... of `width`, run in `order`; a sparse table first where `rows` is not 0."""

    def __init__(self, width, dtypes, order, rows):
        super().__init__()
        if rows:
            self.table = nn.Embedding(rows, width, sparse=True)
        for index, dtype in enumerate(dtypes):
            setattr(self, f"l{index}", nn.Linear(width, width, dtype=getattr(torch, dtype)))
        self.width, self.order = width, order

    def forward(self):
        x = self.table(torch.tensor([0, 1])) if hasattr(self, "table") else torch.ones(2, self.width)
        for index in self.order:
            layer = getattr(self, f"l{index}")
            x = layer(x.to(layer.weight.dtype))
        return x


def chain(name, order=range(8), rank_orders=None, width=700, dtypes=("float32",) * 8, rows=0, last_cap=False,
          **options):
    return dict(name=name, width=width, dtypes=dtypes, rank_orders=rank_orders or [list(order)] * 2, rows=rows,
                set_last_bucket_cap=last_cap, options=options)


SHUFFLED = [3, 0, 7, 5, 1, 6, 2, 4]
CHAINS = [
    chain("default"),
    chain("cap_4", bucket_cap_mb=4),
    chain("find_unused", find_unused_parameters=True),
    chain("find_unused_cap_4", find_unused_parameters=True, bucket_cap_mb=4),
    chain("cap_list", bucket_cap_mb_list=[2, 4, 8]),
    chain("static_graph_cap_4", static_graph=True, bucket_cap_mb=4),
    chain("static_graph", static_graph=True),
    chain("find_unused_and_static_graph", static_graph=True, find_unused_parameters=True),
    chain("shuffled", SHUFFLED),
    chain("shuffled_cap_4", SHUFFLED, bucket_cap_mb=4),
    chain("shuffled_static_graph_cap_4", SHUFFLED, static_graph=True, bucket_cap_mb=4),
    chain("set_last_bucket_cap", last_cap=True),
    chain("mixed_dtypes", width=100, dtypes=("float32", "float64") * 4, bucket_cap_mb=0.1),
    chain("sparse_table", width=100, rows=50, bucket_cap_mb=0.1),
    chain("sparse_table_find_unused", width=100, rows=50, bucket_cap_mb=0.1, find_unused_parameters=True),
]
PAIR_CHAINS = [
    chain("rank_0_decides_the_order", rank_orders=[SHUFFLED, list(range(8))], bucket_cap_mb=4),
    chain("default"),
    chain("find_unused_cap_4", find_unused_parameters=True, bucket_cap_mb=4),
]
LISTS = ("bucket_sizes", "rebuilt_bucket_sizes", "prev_iteration_grad_ready_order_indices")
NUMBERS = ("has_rebuilt_buckets", "num_parameter_tensors", "total_parameter_size_bytes", "num_buckets_reduced",
           "unused_parameter_size", "bucket_cap_bytes")


def logged(ddp):
    """The logging data that tell about buckets, lists as lists."""
    data = ddp._get_ddp_logging_data()
    text = data.get("rebuilt_per_bucket_param_indices", "")
    result = {key: [int(item) for item in data.get(key, "").replace(",", " ").split()] for key in LISTS}
    result["rebuilt_per_bucket_param_indices"] = [
        [int(item) for item in bucket.split()] for bucket in text.split(",") if bucket.strip()]
    return result | {key: data[key] for key in NUMBERS if key in data}


def make_buckets(rank, world):
    if world == 1:
        for name, (tensors, limits, *order) in ASSIGNMENTS.items():
            made = [torch.empty(numel, dtype=getattr(torch, dtype)) for dtype, numel, *_ in tensors]
            sparse = [len(tensor) == 3 for tensor in tensors]
            order = order[0] if order else []
            assigned, bucket_limits = dist._compute_bucket_assignment_by_size(
                made, limits, sparse if any(sparse) or order else [], order)
            yield dict(kind="assignment", name=name, limits=limits, order=order, buckets=assigned,
                       bucket_limits=bucket_limits,
                       parameters=[dict(dtype=dtype, numel=numel, sparse=flag, bytes=tensor.nbytes)
                                   for (dtype, numel, *_), flag, tensor in zip(tensors, sparse, made)]), None
    for case in CHAINS if world == 1 else PAIR_CHAINS if world == 2 else []:
        if case["set_last_bucket_cap"]:
            os.environ["DDP_SET_LAST_BUCKET_CAP"] = "1"
        model = Chain(case["width"], case["dtypes"], case["rank_orders"][rank], case["rows"])
        ddp = DistributedDataParallel(model, **case["options"])
        iterations = []
        for _ in range(5):
            output = ddp()
            ddp.zero_grad()
            output.sum().backward()
            iterations.append(logged(ddp))
        os.environ.pop("DDP_SET_LAST_BUCKET_CAP", None)
        yield dict(case, kind="chain"), dict(iterations=iterations)


# -------------------------------------------------------------------------------------------- gradients.json
def step(zero_grad=True, sync=True, side=None):
    return dict(zero_grad=zero_grad, sync=sync, side=side)


def case(name, model="mlp", steps=(step(), step(), step()), worlds=(2,), **rest):
    """A case of GRADIENTS; what `rest` holds beyond the flags below are options of DDP."""
    flags = {key: rest.pop(key, value) for key, value in dict(old=False, start_differs=False, training=True).items()}
    return dict(name=name, model=model, steps=steps, worlds=worlds, options=rest, **flags)


ACCUMULATE = [step(), step(sync=False), step(zero_grad=False, sync=False), step(zero_grad=False),
              step(zero_grad=False)]
SIDE_EVERYWHERE, SIDE_ON_0, SIDE_NOWHERE = [True] * 3, [True, False, False], [False] * 3
CHANGING = [step(side=SIDE_ON_0), step(side=SIDE_EVERYWHERE), step(side=SIDE_NOWHERE), step(side=SIDE_ON_0)]
KEEPING = [step(False, side=SIDE_ON_0), step(False, side=SIDE_NOWHERE), step(False, side=SIDE_EVERYWHERE)]
BOTH = (2, 3)
TINY = 0.0001  # MiB: 104 bytes, so that almost every parameter has a bucket of its own
GRADIENTS = [
    case("plain", worlds=BOTH),
    case("several_buckets", bucket_cap_mb=TINY),
    case("bucket_view", gradient_as_bucket_view=True),
    case("bucket_view_several_buckets", gradient_as_bucket_view=True, bucket_cap_mb=TINY),
    case("rank_0_starts_all", start_differs=True),
    case("no_sync_twice", steps=ACCUMULATE, worlds=BOTH),
    case("no_sync_twice_bucket_view", steps=ACCUMULATE, gradient_as_bucket_view=True),
    case("no_sync_twice_static_graph", "twice", steps=ACCUMULATE, static_graph=True),
    case("unused", "branches", steps=CHANGING, worlds=BOTH, find_unused_parameters=True),
    case("unused_bucket_view", "branches", steps=CHANGING, find_unused_parameters=True, gradient_as_bucket_view=True),
    case("unused_several_buckets", "branches", steps=CHANGING, find_unused_parameters=True, bucket_cap_mb=TINY),
    case("unused_old_gradients", "branches", steps=KEEPING, old=True, find_unused_parameters=True),
    case("unused_old_gradients_bucket_view", "branches", steps=KEEPING, old=True, find_unused_parameters=True,
         gradient_as_bucket_view=True),
    case("unused_no_sync", "branches", find_unused_parameters=True,
         steps=[step(sync=False, side=SIDE_ON_0), step(False, side=SIDE_NOWHERE), step(False, side=SIDE_NOWHERE)]),
    case("static_graph", static_graph=True),
    case("static_graph_layer_twice", "twice", worlds=BOTH, static_graph=True),
    case("static_graph_layer_twice_several_buckets", "twice", static_graph=True, bucket_cap_mb=TINY),
    case("static_graph_unused", "branches", steps=[step(side=SIDE_NOWHERE)] * 3, static_graph=True),
    case("layer_twice", "twice"),
    case("output_not_in_the_loss", "heads", find_unused_parameters=True),
    case("shared_weight", "shared", worlds=BOTH),
    case("shared_weight_several_buckets", "shared", bucket_cap_mb=TINY),
    case("batch_norm_training", "norm", worlds=BOTH),
    case("batch_norm_training_start_differs", "norm", start_differs=True),
    case("batch_norm_eval", "norm", training=False),
    case("batch_norm_without_broadcast", "norm", broadcast_buffers=False, start_differs=True),
    case("batch_norm_no_sync", "norm", steps=[step(sync=False), step(zero_grad=False), step()]),
    case("sparse_embedding", "embedding", worlds=BOTH),
    case("sparse_embedding_find_unused", "embedding", find_unused_parameters=True),
]


def start(case, rank):
    """The model of one rank before DDP: other numbers on other ranks where the case says so."""
    model = small(case["model"], 1 + rank if case["start_differs"] else 1)
    for index, buffer in enumerate(model.buffers()):
        if buffer.is_floating_point():
            buffer.copy_(exact(50 + index + (10 * rank if case["start_differs"] else 0), *buffer.shape).abs() + 0.5)
    return model.train(case["training"])


def make_gradients(rank, world):
    for case in (case for case in GRADIENTS if world in case["worlds"]):
        model = start(case, rank)
        mine = dict(steps=[])
        if rank == 0 or case["start_differs"]:
            mine |= dict(parameters=parameters(model), buffers=buffers(model))
        if case["old"]:
            for index, parameter in enumerate(model.parameters()):
                parameter.grad = exact(1000 + 100 * rank + index, *parameter.shape)
            mine["old_gradients"] = gradients(model)
        ddp = DistributedDataParallel(model, **case["options"])
        for index, step in enumerate(case["steps"]):
            if step["zero_grad"]:
                ddp.zero_grad()
            x, target = batch(case["model"], 2000 + 100 * index + 10 * rank)
            flags = dict(use_side=step["side"][rank]) if step["side"] else {}
            with contextlib.nullcontext() if step["sync"] else ddp.no_sync():
                loss = loss_of(ddp(x, **flags), target)
                loss.backward()
            mine["steps"].append(dict(input=x, target=target, loss=loss.item(), gradients=gradients(model), **flags))
            if case["model"] == "norm":
                mine["steps"][-1]["buffers"] = buffers(model)
        yield {key: case[key] for key in ("name", "model", "training", "options")} | dict(
            steps=[{key: step[key] for key in ("zero_grad", "sync")} for step in case["steps"]]), mine

# ------------------------------------------------------------------------------------------------- join.json
def uneven(name, model="mlp", worlds=(2,), divide_by_initial=True, throws=False, **options):
    return dict(name=name, model=model, worlds=worlds, divide_by_initial_world_size=divide_by_initial,
                throw_on_early_termination=throws, lr=0.125, options=options)


JOINS = [
    uneven("divides_by_initial_world_size", worlds=BOTH),
    uneven("divides_by_live_ranks", worlds=BOTH, divide_by_initial=False),
    uneven("several_buckets", bucket_cap_mb=TINY, worlds=BOTH),
    uneven("bucket_view_divides_by_live_ranks", divide_by_initial=False, gradient_as_bucket_view=True),
    uneven("find_unused", "branches", worlds=BOTH, find_unused_parameters=True),
    uneven("find_unused_divides_by_live_ranks", "branches", divide_by_initial=False, find_unused_parameters=True),
    uneven("batch_norm", "norm", worlds=BOTH),
    uneven("throws_on_early_termination", throws=True),
]


def make_joins(rank, world):
    """Rank r has r + 1 batches; ranks[r].steps[s].parameters are those after its own s-th optimizer step."""
    for case in (case for case in JOINS if world in case["worlds"]):
        model = small(case["model"])
        mine = dict(parameters=parameters(model), buffers=buffers(model), batches=[], steps=[], error=None)
        ddp = DistributedDataParallel(model, **case["options"])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=case["lr"])
        for index in range(rank + 1):
            x, target = batch(case["model"], 3000 + 100 * index + 10 * rank)
            flags = dict(use_side=index == 1) if case["model"] == "branches" else {}
            mine["batches"].append(dict(input=x, target=target, **flags))
        try:
            with ddp.join(case["divide_by_initial_world_size"],
                          throw_on_early_termination=case["throw_on_early_termination"]):
                for x, target, *flags in (tuple(given.values()) for given in mine["batches"]):
                    optimizer.zero_grad()
                    loss_of(ddp(x, *flags), target).backward()
                    optimizer.step()
                    mine["steps"].append(dict(parameters=parameters(model)))
        except RuntimeError as error:
            mine["error"] = str(error)
        mine |= dict(parameters_after=parameters(model), buffers_after=buffers(model))
        yield {key: value for key, value in case.items() if key != "worlds"}, mine
