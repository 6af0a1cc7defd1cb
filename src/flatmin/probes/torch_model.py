"""A PyTorch model, its loss and its data as a symmetric operator.

The matrix is that of the mean loss over all samples: every batch, and every chunk of a batch, is
weighted by its number of samples. Vectors are flat tensors where the model is. Products are taken
the cheapest way that the model can go (`torch_products`); one that it cannot go is left for
the next.

Memory. A step takes that of its activations, or of its gradients, whichever are more. Exact
products on a whole batch take two to three times the activations. So where a step is large, a
product goes through an eighth of a batch at a time, if the loss of a batch is the mean (or the sum)
of those of its chunks but for what dropout draws; `data` says so. What normalises over a batch goes
whole: there finite differences come first, which take the memory of a step and a copy of the
weights that are moved, if need be a group at a time. They are left for exact products where their
error alone is more than the tolerance. Where weights are much more than activations, products are
exact, and gradients wait for their second half a group at a time. Gradients are handed over a
parameter at a time (`Sum`), and vectors are taken to double precision in parts, so that no copies
of them are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice, check_count
from flatmin.core.errors import DataError, FlatminError, SettingError
from flatmin.probes.torch_batches import as_batches, chunks, describe, rows
from flatmin.probes.torch_call import Loss, TorchCall, Values, held, reached, without_dropout
from flatmin.probes.torch_pieces import Sum
from flatmin.probes.torch_products import GAUSS_NEWTON_WAYS, WAYS, gradient

MATRICES = ("Hessian", "Gauss-Newton")
# Bytes of a step (gradients, and what its backward pass needs) from which on memory is spared; how
# many times the other one of the two is, at most, where both count; into how many chunks batches
# are cut, where what a backward pass needs counts, and parameters are put, where that is little.
# What is moved at a time in finite differences is at most a share of what a backward pass needs.
LARGE, COMPARABLE, PIECES, GROUPS, ROOM = 2e6, 4.0, 8, 2, 0.2
DIFFERENCES = "finite differences"


class TorchModel:
    """The operator; `how` says which way its products go."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Any,
        parameters: Iterable[str] | None = None,
        matrix: str = "Hessian",
        chunk: int | None = None,
        how: str | None = None,
        large: float | None = None,
    ) -> None:
        self.matrix = check_choice("matrix", matrix, MATRICES)
        self._call = TorchCall(model, loss, parameters)
        chosen = self._call.chosen
        self._shapes = {name: one.shape for name, one in chosen.items()}
        self._kinds = {name: one.dtype for name, one in chosen.items()}
        self.size = sum(one.numel() for one in chosen.values())
        # Parts of vectors that are taken to double precision at a time.
        most = max(2**14, self.size // 64)
        self._places = [slice(at, at + most) for at in range(0, self.size, most)]
        # The widest type holds vectors, the narrowest limits their products.
        wide = all(kind == torch.float64 for kind in self._kinds.values())
        self._kind = torch.float64 if torch.float64 in self._kinds.values() else torch.float32
        self._eps = float(torch.finfo(torch.float64 if wide else torch.float32).eps)
        self.batches = as_batches(batches, self._call.device)
        self.data = describe(batches, self.batches)
        counts = [rows(batch) for batch in self.batches]
        self.shares = [count / sum(counts) for count in counts]
        self._ways = WAYS if matrix == "Hessian" else GAUSS_NEWTON_WAYS
        if how is not None:
            self._ways = {how: self._ways[check_choice("how", how, tuple(self._ways))]}
        self._left = list(self._ways)  # the way in use, and those that are left after it
        self._chunk = None if chunk is None else check_count("chunk", chunk)
        self._sums = False  # whether the loss of a batch is the sum of those of its chunks
        self._check(max(counts), LARGE if large is None else large)

    def _check(self, longest: int, from_bytes: float) -> None:
        """That the first loss is one finite number; how many samples go through at a time."""
        at, first = self._at(), self.batches[0]
        own = list(self._call.model.parameters())
        with self._plain():
            self._call.look_for_writes(first)
        with held(*own) as found, self._plain():
            leaves = {name: one.requires_grad_() for name, one in at.items()}
            value = self._call.value(leaves, first, 0)
        whole = float(value.detach())
        if not np.isfinite(whole):
            raise DataError(f"the loss of the first batch is not finite: {whole}")
        if not value.requires_grad:
            raise SettingError("the loss does not depend on the parameters: is something detached?")
        inside, used = self._call.chosen, reached(value)
        apart = next((name for name, one in inside.items() if id(one) in used), None)
        if apart is not None:
            raise SettingError(
                f"the loss holds on to parameter {apart!r} itself (in a list made before, say): it "
                "must take parameters from the model in every call"
            )
        kept, weights = sum(found.values()), sum(one.nbytes for one in inside.values())
        del value
        large, heavy = kept + weights > from_bytes, COMPARABLE * weights > kept
        if large and heavy and self._left == list(WAYS):
            # Tangents of gradients as large as the weights take more than a graph of them.
            self._left[:2] = self._left[1::-1]
        most = self._chunk
        if large and COMPARABLE * kept <= weights:
            self._call.waiting = weights / GROUPS
        elif most is None and large:
            most = -(-longest // PIECES)
        alone = self._chunk is None and longest == 1
        if most is None or (rows(first) <= most and not alone):
            return
        with torch.no_grad(), self._plain(), without_dropout(self._call.model):
            whole = float(self._call.value(at, first, 0))
            pieces = [(w, float(self._call.value(at, one, 0))) for w, one in chunks(first, most)]
        room = 200.0 * self._eps * max(abs(whole), 1e-3)
        mean, total = sum(w * one for w, one in pieces), sum(one for _, one in pieces)
        over = any(_over_batch(one) for one in self._call.model.modules())
        means, self._sums = abs(mean - whole) <= room, abs(total - whole) <= room
        fine = (means or self._sums) and not over and not alone
        if self._chunk is not None and not fine:
            raise SettingError(
                f"chunk: the loss of a batch ({whole:.6g}) is neither the mean nor the sum of that "
                f"of its chunks (mean {mean:.6g}): layers that normalise over a batch or draw in a "
                "way of their own do not allow chunks"
            )
        self._chunk = most if fine else None
        if large and fine and COMPARABLE * kept * most <= weights * longest:
            self._call.waiting = weights / GROUPS
        if not alone:
            self.data += f", {most} at a time" if fine else ", whole: its chunks differ"
        if not fine and COMPARABLE * kept > weights and DIFFERENCES in self._left[1:]:
            self._left.insert(0, DIFFERENCES)
            self._call.moved = ROOM * kept

    @property
    def how(self) -> str:
        """The way to products in use."""
        return self._left[0]

    @property
    def spares(self) -> bool:
        """Whether a way that takes more memory would be more precise."""
        return self.how == DIFFERENCES and len(self._left) > 1

    @property
    def precision(self) -> float:
        """Of a product."""
        return self._eps ** (2.0 / 3.0) if self.how == DIFFERENCES else self._eps

    @property
    def error(self) -> float:
        """Of a product with a unit vector: of finite differences, the largest of a piece's, or of
        their sum's."""
        pieces = -(-max(map(rows, self.batches)) // self._chunk) if self._chunk else 1
        most = self._call.differences.error * (pieces if self._sums else 1)
        return most if self.how == DIFFERENCES else 0.0

    def gaussian(self, seed: int) -> Tensor:
        """The same numbers on every device: drawn on the processor."""
        source = torch.Generator().manual_seed(seed)
        found = torch.empty(self.size, dtype=self._kind, device=self._call.device)
        for place in self._places:
            found[place] = torch.randn(len(found[place]), generator=source, dtype=torch.float64).to(
                found
            )
        return found

    def dots(self, basis: list[Tensor], v: Tensor) -> Float:
        """In double precision where the device has it."""
        wide, found = _wide(v), np.zeros(len(basis))
        for place in self._places:
            other = v[place].to(wide)
            each = torch.stack([torch.dot(q[place].to(wide), other) for q in basis])
            found += np.asarray(each.cpu(), float)
        return found

    def combine(self, basis: list[Tensor], coefficients: Float) -> Tensor:
        """One vector at a time, summed in double precision where the device has it."""
        found = torch.empty_like(basis[0])
        for place in self._places:
            total = torch.zeros_like(found[place], dtype=_wide(found))
            for q, c in zip(basis, coefficients.tolist(), strict=True):
                total.add_(q[place], alpha=c)
            found[place] = total
        return found

    def vector(self, given: Any) -> Tensor:
        """A direction: flat, or a tensor for each parameter, as a list or by name."""
        parts = getattr(given, "vector", given)  # of a record
        if isinstance(parts, dict):
            if set(parts) != set(self._shapes):
                raise SettingError("a direction by name must have those of all parameters")
            parts = [parts[name] for name in self._shapes]
        if isinstance(parts, (list, tuple)):
            parts = torch.cat([torch.as_tensor(one).reshape(-1) for one in parts])
        if not isinstance(parts, Tensor):
            raise SettingError(
                "a direction must be a record, a flat tensor or a tensor for each parameter, "
                f"got {given!r:.40}"
            )
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
        at, along = self._at(), self._split(v)
        with self._plain():
            while True:
                total = Sum(at)
                try:
                    for seed, total.weight, piece in self._pieces(number):
                        self._ways[self.how](self._call, at, along, piece, seed, total)
                    return total.flat
                except FlatminError:
                    raise
                except (NotImplementedError, RuntimeError):  # out of memory is one
                    if not self.another_way():
                        raise

    def _plain(self) -> Any:
        """Without the lower precision of a training that is going on around."""
        return torch.autocast(self._call.device.type, enabled=False)

    def _pieces(self, number: int) -> Iterator[tuple[int, float, Any]]:
        """Of one batch: what its random layers draw from, its weight, and the samples."""
        for index, (share, piece) in enumerate(chunks(self.batches[number], self._chunk)):
            yield number + index * len(self.batches), 1.0 if self._sums else share, piece

    def another_way(self) -> bool:
        """Take the next way to products; False if there is none."""
        if len(self._left) == 1:
            return False
        del self._left[0]
        return True

    def gradients(self) -> Iterator[Tensor]:
        """The gradient of each batch, flat."""
        for number in range(len(self.batches)):
            total = Sum(self._at())
            with self._plain():
                for seed, total.weight, piece in self._pieces(number):
                    gradient(self._call, self._at(), piece, seed, total.add)
            yield total.flat

    def _at(self) -> Values:
        return {name: one.detach() for name, one in self._call.chosen.items()}

    def _split(self, flat: Tensor) -> Values:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(shape).to(self._kinds[name]) for (name, shape), part in named}


def _wide(v: Tensor) -> torch.dtype:
    return torch.float32 if v.device.type == "mps" else torch.float64


def _over_batch(module: nn.Module) -> bool:
    """Whether a layer normalises over the batch that it is given."""
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and bool(module.training or module.running_mean is None)
