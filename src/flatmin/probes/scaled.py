"""The matrix D^{1/2} (H + c) D^{1/2}, with D and c diagonal: what a preconditioned method feels.

A step W <- W - D g is a step of plain descent with rate 1 in the coordinates D^{-1/2} W, where the
Hessian is D^{1/2} H D^{1/2}. Its eigenvalues are those of D H.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatmin.probes.lanczos import Vector
from flatmin.probes.measure import Model


class Scaled:
    """The operator of a model in other coordinates; all else is passed on to the model."""

    def __init__(self, model: Model, root: Vector, shift: Vector) -> None:
        """`root` is D^{1/2} and `shift` is c, both flat."""
        self._model, self._root, self._shift = model, root, shift

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def parts(self, v: Vector) -> Iterator[Vector]:
        """Of each batch."""
        inner = self._root * v
        for part in self._model.parts(inner):
            yield self._root * (part + self._shift * inner)

    @property
    def error(self) -> float:
        """Of a product with a unit vector."""
        return float(self._model.error * (self._root**2).max())
