"""Small PyTorch models whose Hessian is known whole: the set on which probes are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from flatmin.core.arrays import Float
from flatmin.probes.torch_products import plain_attention


@dataclass(frozen=True)
class ProbeCase:
    """A model in double precision with one batch, and all eigenvalues of its Hessian."""

    name: str
    model: Any
    loss: Callable[..., Any]
    batch: tuple[Any, Any]
    eigenvalues: Float

    @property
    def top(self) -> float:
        """The largest signed eigenvalue."""
        return float(self.eigenvalues[-1])


class _Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """A transformer block over four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(6), nn.LayerNorm(6)
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.out((x + self.inner(self.second(x))).mean(dim=1))


class _Quadratic(nn.Module):  # type: ignore[misc, unused-ignore]
    """Parameters whose loss is a quadratic form with chosen eigenvalues."""

    def __init__(self, eigenvalues: Float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(len(eigenvalues)))
        self.register_buffer("roots", torch.from_numpy(eigenvalues))

    def forward(self, x: Any) -> Any:
        return 0.5 * (self.roots * self.w**2).sum() * x


class _Mean(nn.Module):  # type: ignore[misc, unused-ignore]
    """A loss that is the output's mean; curvlinops asks losses for their reduction."""

    reduction = "mean"

    def forward(self, output: Any, target: Any) -> Any:
        return output.mean()


def _mlp(activation: Callable[[], Any], *norm: Any, width: int = 10) -> Any:
    return nn.Sequential(nn.Linear(8, width), *norm, activation(), nn.Linear(width, 3))


def _convolutional() -> Any:
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    return nn.Sequential(*layers)


def _deep() -> Any:
    parts = (nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return nn.Sequential(*parts)


_MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "tanh": (lambda: _mlp(nn.Tanh), (8,)),
    "ReLU": (lambda: _mlp(nn.ReLU), (8,)),
    "GELU": (lambda: _mlp(nn.GELU), (8,)),
    "deep": (_deep, (8,)),
    "batch norm": (lambda: _mlp(nn.ReLU, nn.BatchNorm1d(10)), (8,)),
    "layer norm": (lambda: _mlp(nn.GELU, nn.LayerNorm(10)), (8,)),
    "convolution": (_convolutional, (1, 6, 6)),
    "transformer": (_Block, (4, 6)),
}
_TOP = np.linspace(-1.0, 1.0, 150)
_SPECTRA = {
    "close": np.r_[_TOP, 9.97, 9.98, 9.99, 10.0],
    "very close": np.r_[_TOP, 10.0 - 1e-6, 10.0],
    "repeated": np.r_[_TOP, [10.0] * 4],
    "negative outlier": np.r_[_TOP, -20.0, 3.0],
    "all negative": np.linspace(-5.0, -1.0, 150),
}


def cases() -> Iterator[ProbeCase]:
    """Every model with both losses at its start and in training, saddles, and chosen spectra."""
    seed = 0
    for name, (make, shape) in _MODELS.items():
        for loss_name, loss in (("entropy", nn.CrossEntropyLoss()), ("squares", nn.MSELoss())):
            for steps in (0, 150):
                seed += 1
                torch.manual_seed(seed)
                model = make().double()
                x, y = torch.randn(40, *shape).double(), torch.randint(0, 3, (40,))
                target = nn.functional.one_hot(y, 3).double() if loss_name == "squares" else y
                _train(model, loss, x, target, steps)
                when = "in training" if steps else "at its start"
                yield _case(f"{name}, {loss_name}, {when}", model, loss, (x, target))
    for depth in (2, 3):
        torch.manual_seed(depth)
        linear = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(depth))).double()
        for layer in list(linear)[:2]:
            nn.init.zeros_(layer.weight)  # a saddle: negative and repeated eigenvalues
        pair = torch.randn(40, 6).double(), torch.randn(40, 6).double()
        yield _case(f"linear, saddle, depth {depth}", linear, nn.MSELoss(), pair)
    for name, spectrum in _SPECTRA.items():
        one = torch.ones(1).double(), torch.ones(1).double()
        quadratic = _Quadratic(spectrum).double()
        yield ProbeCase(name, quadratic, _Mean(), one, np.sort(spectrum))


def _train(model: Any, loss: Any, x: Any, y: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    model.zero_grad()


def _case(name: str, model: Any, loss: Any, batch: tuple[Any, Any]) -> ProbeCase:
    # Rivals evaluate in this mode whatever it was before.
    model.eval()
    named = {key: one.detach() for key, one in model.named_parameters()}

    def value(flat: Any) -> Any:
        parts = torch.split(flat, [one.numel() for one in named.values()])
        pairs = zip(named.items(), parts, strict=True)
        values = {key: part.reshape(one.shape) for (key, one), part in pairs}
        return loss(functional_call(model, values, (batch[0],)), batch[1])

    flat = torch.cat([one.reshape(-1) for one in named.values()])
    with plain_attention():
        hessian = torch.autograd.functional.hessian(value, flat, vectorize=True)
    return ProbeCase(name, model, loss, batch, np.linalg.eigvalsh(hessian.numpy()))
