"""A PyTorch model, its loss and its data as a symmetric operator.

The matrix is that of the mean loss over all samples: every batch, and every chunk of a batch, is
weighted by its number of samples. Vectors are flat tensors where the model is. Products are taken
the cheapest way that the model can go (`torch_products`); one that it cannot go is left for
the next.

Memory. Forward over reverse takes 2.6 to 5.7 times that of a training step on a whole batch
(measured: perceptron, convolutional network, transformer). So where the tensors that a step keeps
for its backward pass are large, a product goes through an eighth of a batch at a time, if the loss
of a batch is the mean of those of its chunks; `data` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice, check_count
from flatmin.core.errors import DataError, FlatminError, SettingError
from flatmin.probes.torch_batches import as_batches, chunks, describe, rows
from flatmin.probes.torch_call import Loss, TorchCall, Values, held
from flatmin.probes.torch_products import WAYS, gauss_newton, gradient

MATRICES = ("Hessian", "Gauss-Newton")
# Bytes kept for a backward pass from which on batches are cut, and into how many chunks.
LARGE, PIECES = 4e6, 8


class TorchModel:
    """The operator; `how` says which way its products go."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Any,
        parameters: Sequence[str] | None = None,
        matrix: str = "Hessian",
        chunk: int | None = None,
    ) -> None:
        self.matrix = check_choice("matrix", matrix, MATRICES)
        self._call = TorchCall(model, loss, parameters)
        chosen = self._call.chosen
        self._shapes = {name: one.shape for name, one in chosen.items()}
        self._kinds = {name: one.dtype for name, one in chosen.items()}
        self.size = sum(one.numel() for one in chosen.values())
        # The widest type holds vectors, the narrowest limits their products.
        wide = all(kind == torch.float64 for kind in self._kinds.values())
        self._kind = torch.float64 if torch.float64 in self._kinds.values() else torch.float32
        self._eps = float(torch.finfo(torch.float64 if wide else torch.float32).eps)
        self.batches = as_batches(batches, self._call.device)
        self.data = describe(batches, self.batches)
        counts = [rows(batch) for batch in self.batches]
        self.shares = [count / sum(counts) for count in counts]
        self.how = next(iter(WAYS))
        self._chunk = None if chunk is None else check_count("chunk", chunk)
        self._check(max(counts))

    def _check(self, longest: int) -> None:
        """That the first loss is one finite number; how many samples go through at a time."""
        at, first = self._at(), self.batches[0]
        with held() as kept:
            leaves = {name: one.requires_grad_() for name, one in at.items()}
            whole = float(self._call.value(leaves, first, 0).detach())
        if not np.isfinite(whole):
            raise DataError(f"the loss of the first batch is not finite: {whole}")
        most = self._chunk
        if most is None and sum(kept) > LARGE:
            most = -(-longest // PIECES)
        if most is None or rows(first) <= most:
            return
        with torch.no_grad():
            pieces = chunks(first, most)
            mean = sum(share * float(self._call.value(at, one, 0)) for share, one in pieces)
        means = abs(mean - whole) <= 200.0 * self._eps * max(abs(whole), 1e-3)
        means = means and not any(_over_batch(one) for one in self._call.model.modules())
        if self._chunk is not None and not means:
            raise SettingError(
                f"chunk: the loss of a batch ({whole:.6g}) is not the mean of that of its chunks "
                f"({mean:.6g}): normalisation over a batch, random layers and losses that sum "
                "do not allow chunks"
            )
        self._chunk = most if means else None
        self.data += f", {most} at a time" if means else ", whole: its chunks differ"

    @property
    def precision(self) -> float:
        """Of a product."""
        return self._eps ** (2.0 / 3.0) if self.how == "finite differences" else self._eps

    def gaussian(self, seed: int) -> Tensor:
        """The same numbers on every device: drawn on the processor."""
        source = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.size, generator=source, dtype=torch.float64)
        return drawn.to(self._kind).to(self._call.device)

    def dots(self, basis: list[Tensor], v: Tensor) -> Float:
        """In double precision where the device has it."""
        wide = _wide(v)
        other = v.to(wide)
        return np.asarray(torch.stack([torch.dot(q.to(wide), other) for q in basis]).cpu(), float)

    def combine(self, basis: list[Tensor], coefficients: Float) -> Tensor:
        """One vector at a time, summed in double precision where the device has it."""
        total = torch.zeros_like(basis[0], dtype=_wide(basis[0]))
        for q, c in zip(basis, coefficients.tolist(), strict=True):
            total.add_(q, alpha=c)
        return total.to(basis[0].dtype)

    def vector(self, given: Any) -> Tensor:
        """A direction: flat, or a tensor for each parameter, as a list or by name."""
        parts = list(given.values()) if isinstance(given, dict) else given
        if not isinstance(parts, Tensor):
            parts = torch.cat([torch.as_tensor(one).reshape(-1) for one in parts])
        flat = parts.detach().to(self._call.device, self._kind).reshape(-1)
        if flat.numel() != self.size:
            raise SettingError(f"a direction must have {self.size} entries, got {flat.numel()}")
        if not bool(torch.isfinite(flat).all()) or not bool(flat.any()):
            raise SettingError("a direction must be finite and not zero")
        return flat

    def parts(self, v: Tensor) -> Iterator[Tensor]:
        """H_B v of each batch."""
        for number in range(len(self.batches)):
            yield self.part(number, v)

    def part(self, number: int, v: Tensor) -> Tensor:
        """H_B v of one batch."""
        at, along, total = self._at(), self._split(v), torch.zeros_like(v)
        for share, piece in chunks(self.batches[number], self._chunk):
            total.add_(self._join(self._one(at, along, piece, number)), alpha=share)
        return total

    def _one(self, at: Values, v: Values, batch: Any, number: int) -> Values:
        if self.matrix == "Gauss-Newton":
            return gauss_newton(self._call, at, v, batch, number)
        ways = list(WAYS)
        for way in ways[ways.index(self.how) :]:
            try:
                found = WAYS[way](self._call, at, v, batch, number)
            except FlatminError:
                raise
            except (NotImplementedError, RuntimeError) as error:
                if way == ways[-1] or isinstance(error, torch.OutOfMemoryError):
                    raise
                continue
            self.how = way
            return found
        raise AssertionError

    def another_way(self) -> bool:
        """Take the next way to products; False if there is none."""
        ways = list(WAYS)
        if self.matrix == "Gauss-Newton" or self.how == ways[-1]:
            return False
        self.how = ways[ways.index(self.how) + 1]
        return True

    def gradients(self) -> Iterator[Tensor]:
        """The gradient of each batch, flat."""
        for number, batch in enumerate(self.batches):
            total = torch.zeros(self.size, dtype=self._kind, device=self._call.device)
            for share, piece in chunks(batch, self._chunk):
                total.add_(self._join(gradient(self._call, self._at(), piece, number)), alpha=share)
            yield total

    def _at(self) -> Values:
        return {name: one.detach() for name, one in self._call.chosen.items()}

    def _split(self, flat: Tensor) -> Values:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(shape).to(self._kinds[name]) for (name, shape), part in named}

    def _join(self, named: Values) -> Tensor:
        return torch.cat([named[name].detach().reshape(-1).to(self._kind) for name in self._shapes])


def _wide(v: Tensor) -> torch.dtype:
    return torch.float32 if v.device.type == "mps" else torch.float64


def _over_batch(module: nn.Module) -> bool:
    """Whether a layer normalises over the batch that it is given."""
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and bool(module.training or module.running_mean is None)
