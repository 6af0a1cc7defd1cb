"""Flat vectors that come a parameter at a time: their sum, or a sketch of it.

Backward passes hand over the gradient of each parameter as soon as it is there: no second vector
is ever whole.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flatmin.probes.differences import Glance
from flatmin.probes.torch_call import Values

# Numbers of a sketch, and entries of a vector that share their random signs.
SUMS, BLOCK = 1024, 2**14


def groups(values: Values, most: float) -> list[Values]:
    """Parameters in groups of at most so many bytes, or of one that has more, as they come."""
    found: list[Values] = [{}]
    size = 0
    for name, one in values.items():
        if found[-1] and size + one.nbytes > most:
            found.append({})
            size = 0
        found[-1][name] = one
        size += one.nbytes
    return found


class Sum:
    """A flat vector to which pieces of vectors are added."""

    def __init__(self, like: Values) -> None:
        self._places, end, kind = {}, 0, torch.float32
        for name, one in like.items():
            self._places[name] = slice(end, end + one.numel())
            end, kind = end + one.numel(), torch.promote_types(kind, one.dtype)
        self._size, self._as = end, {"dtype": kind, "device": one.device}
        self._flat: Tensor | None = None
        self.weight = 1.0

    @property
    def flat(self) -> Tensor:
        """The sum so far."""
        if self._flat is None:
            self._flat = torch.zeros(self._size, **self._as)
        return self._flat

    def add(self, name: str, one: Tensor) -> None:
        """What belongs to one parameter."""
        dense = one.to_dense() if one.is_sparse else one
        self.flat[self._places[name]].add_(dense.detach().reshape(-1), alpha=self.weight)

    def split(self, flat: Tensor) -> Values:
        """Another vector, by parameter."""
        return {name: flat[place] for name, place in self._places.items()}

    def add_flat(self, one: Tensor) -> None:
        """A vector, which is not used any more."""
        if self._flat is None:
            self._flat = one.mul_(self.weight)
        else:
            self._flat.add_(one, alpha=self.weight)


class Sketch:
    """Sums of a vector's entries with random signs, and its products with two others.

    An entry is in one of the sums, so the squares of these are those of the entries and of
    products of two of them, whose signs are random: the norm of a sketch is that of the vector to
    about sqrt(1/2 SUMS), 2 per cent. Signs and places are those of the entry's number among the
    others in its block, moved on and turned from block to block.
    """

    def __init__(self, v: Values, kept: Values | None) -> None:
        self._others = [v] if kept is None else [v, kept]
        self._ranks = {name: rank for rank, name in enumerate(v)}
        self._sums, self._products = np.zeros(SUMS), np.zeros(2)
        self.weight = 1.0

    def add(self, name: str, one: Tensor) -> None:
        """What belongs to one parameter."""
        dense = (one.to_dense() if one.is_sparse else one).detach().reshape(-1)
        others = [other[name].reshape(-1) for other in self._others]
        draw = np.random.default_rng(self._ranks[name])
        signs = torch.from_numpy(draw.choice([-1.0, 1.0], min(BLOCK, dense.numel())))
        wide = torch.float32 if dense.device.type == "mps" else torch.float64
        signs = signs.to(dense.device, wide)
        for start in range(0, dense.numel(), BLOCK):
            part = dense[start : start + BLOCK].to(wide)
            for index, other in enumerate(others):
                found = torch.dot(part, other[start : start + BLOCK].to(wide))
                self._products[index] += self.weight * float(found)
            part = part * signs[: len(part)]
            if short := -len(part) % SUMS:
                part = torch.nn.functional.pad(part, (0, short))
            sums = np.asarray(part.reshape(-1, SUMS).sum(0).cpu(), float)
            turned = np.roll(sums, draw.integers(SUMS)) * draw.choice([-1.0, 1.0])
            self._sums += self.weight * turned

    @property
    def glance(self) -> Glance:
        """At the vector so far."""
        return Glance(self._sums.copy(), float(self._products[0]), float(self._products[1]))
