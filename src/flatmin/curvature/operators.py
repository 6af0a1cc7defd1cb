"""What every Hessian offers to the eigenvalue solvers.

A Hessian acts on coordinates `[network, dimension]`. For most networks these are the flat
parameters themselves; for linear networks with one output they are a short orthonormal
coordinate system of the Hessian's range (see `linear`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_count
from flatmin.core.errors import SettingError


class Hessian(Protocol):
    """The Hessian of the risk at given weights, for a batch of networks."""

    networks: int
    dimension: int
    largest_product: float
    """The logarithm of how large a product of the layers' norms may be without overflow."""

    def gradient(self) -> Float:
        """Flat gradients `[network, P]`."""
        ...

    def product(self, vectors: Float) -> Float:
        """H v in coordinates, `[network, dimension]` in and out."""
        ...

    def restrict(self, flat: Float) -> Float:
        """Coordinates of the projection of flat vectors `[network, P]`."""
        ...

    def lift(self, vectors: Float) -> Float:
        """Flat vectors `[network, P]` from coordinates; an isometry."""
        ...

    def guess(self) -> Float | None:
        """Coordinates of a good start vector, if one is known in closed form."""
        ...

    def spectrum(self) -> tuple[Float, Float]:
        """Eigenvalues, ascending, and eigenvectors of the reduction at a minimiser."""
        ...


class FlatHessian:
    """Base of the Hessians whose coordinates are the flat parameters."""

    networks: int
    dimension: int
    # Of linear networks fourth powers of the product are formed, of others squares.
    largest_product = 150.0

    def restrict(self, flat: Float) -> Float:
        """The identity."""
        return flat

    def lift(self, vectors: Float) -> Float:
        """The identity."""
        return vectors

    def guess(self) -> Float | None:
        """Nothing is known in closed form."""
        return None

    def spectrum(self) -> tuple[Float, Float]:
        """Of networks that are not linear no reduction is known."""
        raise SettingError("the spectrum at a minimiser is for linear networks only")


class HessianOperator:
    """The Hessian of the risk at one network's weights, in flat parameters: products, no matrix."""

    dtype = np.dtype(np.float64)

    def __init__(self, hessian: Hessian, parameters: int) -> None:
        check_count("networks", hessian.networks, 1)
        self._hessian, self.shape = hessian, (parameters, parameters)

    def __repr__(self) -> str:
        return f"HessianOperator(shape={self.shape})"

    def matvec(self, vector: ArrayLike) -> Float:
        """H v, for a flat vector."""
        flat = np.asarray(vector, dtype=float).reshape(1, self.shape[1])
        found = self._hessian.product(self._hessian.restrict(flat))
        return self._hessian.lift(found).reshape(np.shape(vector))

    __matmul__ = matvec

    def to_scipy(self) -> Any:
        """For SciPy's solvers: a LinearOperator that is its own adjoint."""
        from scipy.sparse.linalg import LinearOperator

        return LinearOperator(self.shape, matvec=self.matvec, rmatvec=self.matvec, dtype=self.dtype)
