"""Small models with data and a dense Hessian, by PyTorch's own double backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call


class Block(nn.Module):
    """A transformer block over a few tokens, with a class a sequence."""

    def __init__(self, width: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.out = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.out((x + self.inner(self.second(x))).mean(dim=1))


def mlp(activation: type[nn.Module] = nn.Tanh, *norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *norm, activation(), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


CASES = {
    "mlp": (lambda: mlp(), (6,)),
    "batch norm": (lambda: mlp(nn.ReLU, nn.BatchNorm1d(8)), (6,)),
    "layer norm": (lambda: mlp(nn.GELU, nn.LayerNorm(8)), (6,)),
    "convolution": (convolutional, (1, 6, 6)),
    "transformer": (Block, (4, 6)),
}


def case(name: str, seed: int = 0, samples: int = 24, double: bool = True):
    """A model with inputs and classes."""
    torch.manual_seed(seed)
    make, shape = CASES[name]
    x, y = torch.randn(samples, *shape), torch.randint(0, 3, (samples,))
    model = make()
    return (model.double(), x.double(), y) if double else (model, x, y)


def dense(model: nn.Module, loss, batches) -> torch.Tensor:
    """The Hessian of the mean over samples of all batches, by torch.autograd.functional.hessian."""
    named = {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    total = sum(len(x) for x, _ in batches)

    def value(flat):
        parts = torch.split(flat, [one.numel() for one in named.values()])
        pairs = zip(named.items(), parts, strict=True)
        values = {name: part.reshape(one.shape) for (name, one), part in pairs}
        fresh = {name: one.clone() for name, one in buffers.items()}
        outputs = [(functional_call(model, {**fresh, **values}, (x,)), y) for x, y in batches]
        return sum(len(y) * loss(out, y) for out, y in outputs) / total

    flat = torch.cat([one.reshape(-1) for one in named.values()])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.autograd.functional.hessian(value, flat)
