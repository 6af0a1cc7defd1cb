"""What every Hessian offers to the eigenvalue solvers.

A Hessian acts on coordinates `[network, dimension]`. For most networks these are the flat
parameters themselves; for linear networks with one output they are a short orthonormal
coordinate system of the Hessian's range (see `linear`).
"""

from __future__ import annotations

from typing import Protocol

from flatmin.core.arrays import Float


class Hessian(Protocol):
    """The Hessian of the risk at given weights, for a batch of networks."""

    networks: int
    dimension: int

    def gradient(self) -> Float:
        """Flat gradients `[network, P]`."""
        ...

    def product(self, vectors: Float) -> Float:
        """H v in coordinates, `[network, dimension]` in and out."""
        ...

    def restrict(self, flat: Float) -> Float:
        """Coordinates of the projection of flat vectors `[network, P]`."""
        ...

    def project(self, vectors: Float) -> Float:
        """The nearest vectors that are coordinates."""
        ...

    def lift(self, vectors: Float) -> Float:
        """Flat vectors `[network, P]` from coordinates; an isometry."""
        ...

    def guess(self) -> Float | None:
        """Coordinates of a good start vector, if one is known in closed form."""
        ...


class FlatHessian:
    """Base of the Hessians whose coordinates are the flat parameters."""

    networks: int
    dimension: int

    def restrict(self, flat: Float) -> Float:
        """The identity."""
        return flat

    def project(self, vectors: Float) -> Float:
        """The identity."""
        return vectors

    def lift(self, vectors: Float) -> Float:
        """The identity."""
        return vectors

    def guess(self) -> Float | None:
        """Nothing is known in closed form."""
        return None
