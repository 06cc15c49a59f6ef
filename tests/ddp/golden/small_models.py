"""What the cases share: exact numbers, the small models, and what is recorded of a model."""
import torch
from torch import nn

FLOAT = torch.float64


def exact(seed, *shape, dtype=FLOAT):
    """Numbers in [-1, 1] that are multiples of 1/32, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-32, 33, shape, generator=generator).to(dtype) / 32


def fill(model, seed=1):
    """Gives every parameter explicit numbers; returns the model."""
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(exact(100 * seed + index, *parameter.shape))
    return model


def gradients(model):
    return {name: None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters()}


def parameters(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def buffers(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


class Small(nn.Module):
    """The models of gradients.json, join.json and zero.json, by kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first = nn.Embedding(6, 3, sparse=True) if kind == "embedding" else nn.Linear(4, 3)
        self.second = nn.Linear(3, 2)
        if kind in ("branches", "heads"):
            self.side = nn.Linear(3, 2)
        if kind == "branches":
            self.never = nn.Linear(3, 2)
        if kind == "twice":
            self.square = nn.Linear(3, 3)
        if kind == "shared":
            self.copy = nn.Linear(4, 3)
            self.copy.weight = self.first.weight
        if kind == "norm":
            self.norm = nn.BatchNorm1d(3)
        self.to(FLOAT)

    def forward(self, x, use_side=True):
        hidden = self.first(x)
        if self.kind == "norm":
            return self.second(self.norm(hidden))
        hidden = torch.tanh(hidden.mean(1) if self.kind == "embedding" else hidden)
        if self.kind == "twice":
            hidden = torch.tanh(self.square(torch.tanh(self.square(hidden))))
        if self.kind == "shared":
            hidden = hidden * self.copy(x)
        if self.kind == "branches" and use_side:
            return self.second(hidden) + self.side(hidden)
        if self.kind == "heads":
            return self.second(hidden), self.side(hidden)
        return self.second(hidden)


def small(kind, seed=1):
    return fill(Small(kind), seed)


def batch(kind, seed, rows=3):
    """An input and a target; indices for the embedding."""
    x = exact(seed, rows, 4)
    if kind == "embedding":
        x = (x * 32).long() % 6
    return x, exact(seed + 7, rows, 2)


def loss_of(output, target):
    """Sum of squares, halved, over the rows; of several outputs only the first counts."""
    output = output[0] if isinstance(output, tuple) else output
    return (output - target).pow(2).sum() / 2
