"""A PyTorch model, its loss and its data as a symmetric operator.

The Hessian is that of the mean loss over all batches, each weighted by its number of samples.
Nothing of the model changes: parameters and buffers are handed to it as copies
(`torch.func.functional_call`), gradients are not accumulated, and the random state is put back.
Layers that draw random numbers draw the same ones in every product.

Ways to a product, from the cheapest on; one that the model cannot go is left for the next:

- forward over reverse: the directional derivative of the gradient;
- reverse over reverse: the gradient of <gradient, v>;
- finite differences: (g(W + h v) - g(W - h v))/2h, where even that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError, SettingError

Loss = Callable[..., Tensor]
WAYS = ("forward over reverse", "reverse over reverse", "finite differences")


class TorchModel:
    """The operator; `how` says which way its products go."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Any,
        parameters: Sequence[str] | None = None,
        matrix: str = "Hessian",
    ) -> None:
        self._model, self._loss, self._matrix = model, loss, matrix
        self._chosen = _choose(model, parameters)
        self._names = list(self._chosen)
        self._shapes = [value.shape for value in self._chosen.values()]
        self.size = sum(value.numel() for value in self._chosen.values())
        some = next(iter(self._chosen.values()))
        self._kind, self._device = some.dtype, some.device
        self.precision = float(torch.finfo(self._kind).eps)
        self._batches = [_to(batch, self._device) for batch in as_batches(batches)]
        sizes = [rows(batch) for batch in self._batches]
        self.shares = [size / sum(sizes) for size in sizes]
        self.how = WAYS[0]
        with torch.no_grad(), _untouched(model):
            self._check(self._value(self._chosen, self._batches[0]))

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(f"the loss must return one number, got {shape}: take its mean")
        if not bool(torch.isfinite(value)):
            raise DataError("the loss of the first batch is not finite")

    # Vectors: flat tensors of the model's precision, on its device.

    def gaussian(self, seed: int) -> Tensor:
        """The same numbers on every device: drawn on the processor."""
        source = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.size, generator=source, dtype=torch.float64)
        return drawn.to(self._device, self._kind)

    def dots(self, basis: list[Tensor], v: Tensor) -> Float:
        """In double precision where the device has it."""
        wide = torch.float64 if v.device.type != "mps" else torch.float32
        other = v.to(wide)
        return np.array([float(torch.dot(q.to(wide), other)) for q in basis])

    def combine(self, basis: list[Tensor], coefficients: Float) -> Tensor:
        """One vector at a time; no copy of the basis."""
        total = torch.zeros_like(basis[0])
        for q, c in zip(basis, coefficients.tolist(), strict=True):
            total.add_(q, alpha=c)
        return total

    def product(self, v: Tensor) -> Tensor:
        """H v over all batches."""
        total = torch.zeros_like(v)
        for share, part in zip(self.shares, self.products(v), strict=True):
            total.add_(part, alpha=share)
        return total

    def products(self, v: Tensor) -> Iterator[Tensor]:
        """H_B v of each batch."""
        for batch in self._batches:
            with _untouched(self._model):
                yield self._one(v, batch)

    def _one(self, v: Tensor, batch: Any) -> Tensor:
        if self._matrix == "Gauss-Newton matrix":
            return self._gauss_newton(v, batch)
        for way in WAYS[WAYS.index(self.how) :]:
            try:
                found = _PRODUCTS[way](self, v, batch)
            except (NotImplementedError, RuntimeError) as error:
                if way == WAYS[-1] or "out of memory" in str(error):
                    raise
                continue
            self.how = way
            return found
        raise AssertionError

    def _forward_over_reverse(self, v: Tensor, batch: Any) -> Tensor:
        values = {name: value.detach() for name, value in self._chosen.items()}
        found = jvp(grad(lambda one: self._value(one, batch)), (values,), (self._split(v),))[1]
        return self._join(found)

    def _reverse_over_reverse(self, v: Tensor, batch: Any) -> Tensor:
        values = self._leaves()
        value = self._value(values, batch)
        first = torch.autograd.grad(value, list(values.values()), create_graph=True)
        along = sum(
            (g * one).sum() for g, one in zip(first, self._split(v).values(), strict=True)
        )
        second = torch.autograd.grad(along, list(values.values()), allow_unused=True)
        pairs = zip(second, values.values(), strict=True)
        return torch.cat(
            [(torch.zeros_like(w) if g is None else g.detach()).reshape(-1) for g, w in pairs]
        )

    def _finite_differences(self, v: Tensor, batch: Any) -> Tensor:
        size = max(float(torch.linalg.vector_norm(self._flat())), 1.0)
        # The error of a central difference, h^2 + precision/h, is least here.
        step = size * self.precision ** (1.0 / 3.0)
        ends = [self._gradient(self._flat() + sign * step * v, batch) for sign in (1.0, -1.0)]
        self.precision = max(self.precision, float(torch.finfo(self._kind).eps) ** (2.0 / 3.0))
        return (ends[0] - ends[1]) / (2.0 * step)

    def _gradient(self, flat: Tensor, batch: Any) -> Tensor:
        values = {name: one.requires_grad_() for name, one in self._split(flat.detach()).items()}
        found = torch.autograd.grad(self._value(values, batch), list(values.values()))
        return torch.cat([one.detach().reshape(-1) for one in found])

    def _gauss_newton(self, v: Tensor, batch: Any) -> Tensor:
        """J' (d^2 loss / d output^2) J v."""
        inputs, targets = _pair(batch)
        values = {name: value.detach() for name, value in self._chosen.items()}

        def outputs(one: dict[str, Tensor]) -> Tensor:
            return self._call(one, inputs)

        out, along = jvp(outputs, (values,), (self._split(v),))
        bent = jvp(grad(lambda o: self._loss(o, targets)), (out.detach(),), (along.detach(),))[1]
        return self._join(vjp(outputs, values)[1](bent.detach())[0])

    def gradient(self) -> Tensor:
        """The mean gradient, flat."""
        total = torch.zeros_like(self._flat())
        for share, batch in zip(self.shares, self._batches, strict=True):
            with _untouched(self._model):
                total.add_(self._gradient(self._flat(), batch), alpha=share)
        return total

    def _value(self, values: dict[str, Tensor], batch: Any) -> Tensor:
        if isinstance(batch, (list, tuple)) and len(batch) == 2:
            return self._loss(self._call(values, batch[0]), batch[1])
        return self._loss(lambda *inputs, **named: self._call(values, *inputs, **named), batch)

    def _call(self, values: dict[str, Tensor], *inputs: Any, **named: Any) -> Any:
        buffers = {name: value.clone() for name, value in self._model.named_buffers()}
        return functional_call(self._model, {**buffers, **values}, inputs, named)

    def _leaves(self) -> dict[str, Tensor]:
        return {name: one.detach().requires_grad_() for name, one in self._chosen.items()}

    def _flat(self) -> Tensor:
        return torch.cat([value.detach().reshape(-1) for value in self._chosen.values()])

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes])
        named = zip(self._names, parts, self._shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}

    def _join(self, named: dict[str, Tensor]) -> Tensor:
        return torch.cat([named[name].detach().reshape(-1) for name in self._names])


_PRODUCTS = {
    WAYS[0]: TorchModel._forward_over_reverse,
    WAYS[1]: TorchModel._reverse_over_reverse,
    WAYS[2]: TorchModel._finite_differences,
}


def _choose(model: nn.Module, names: Sequence[str] | None) -> dict[str, Tensor]:
    """The parameters that are differentiated, by name."""
    known = dict(model.named_parameters())
    if names is not None:
        for name in names:
            if name not in known:
                raise SettingError(f"parameters: the model has no parameter {name!r}")
        chosen = {name: known[name] for name in names}
    else:
        chosen = {name: value for name, value in known.items() if value.requires_grad}
    if not chosen:
        raise SettingError("the model has no parameters that require a gradient")
    for name, value in chosen.items():
        if not value.is_floating_point():
            raise SettingError(f"parameter {name!r} is of type {value.dtype}, not floating point")
        if not bool(torch.isfinite(value).all()):
            raise DataError(f"parameter {name!r} holds values that are not finite")
    return chosen


def as_batches(batches: Any) -> list[Any]:
    """A batch, a list of batches or a loader as a list; a loader is gone through once."""
    pair = isinstance(batches, (tuple, list)) and len(batches) == 2
    if pair and all(isinstance(one, Tensor) for one in batches):
        found = [tuple(batches)]
    elif isinstance(batches, (Tensor, dict)):
        found = [batches]
    elif isinstance(batches, Iterable):
        found = list(batches)
    else:
        raise SettingError(f"batches must be a batch, a list or a loader, got {type(batches)}")
    if not found:
        raise DataError("there are no batches")
    return found


def rows(batch: Any) -> int:
    """The number of samples of a batch: the length of its first tensor."""
    for one in _tensors(batch):
        if one.ndim:
            return int(one.shape[0])
    raise DataError("a batch holds no tensor with samples along its first axis")


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for one in batch.values():
            yield from _tensors(one)
    elif isinstance(batch, (list, tuple)):
        for one in batch:
            yield from _tensors(one)


def _to(batch: Any, device: torch.device) -> Any:
    """The batch where the model is; values that are not finite are refused."""
    if isinstance(batch, Tensor):
        if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
            raise DataError("a batch holds values that are not finite")
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(one, device) for key, one in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to(one, device) for one in batch)
    return batch


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    raise SettingError("the Gauss-Newton matrix needs batches of (inputs, targets)")


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """The same random numbers in every product, and the random state as before afterwards."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield
