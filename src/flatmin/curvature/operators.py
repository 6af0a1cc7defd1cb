"""What every Hessian offers to the eigenvalue solvers.

A Hessian acts on coordinates `[network, dimension]`. For most networks these are the flat
parameters themselves; for linear networks with one output they are a short orthonormal
coordinate system of the Hessian's range (see `linear`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_count
from flatmin.core.errors import SettingError


class Hessian:
    """The Hessian of the risk at given weights, for a batch of networks; unless a subclass says
    otherwise, coordinates are the flat parameters and nothing is known in closed form."""

    networks: int
    dimension: int
    # The logarithm of how large a product of the layers' norms may be without overflow: of linear
    # networks its fourth powers are formed, in units from 1e-12 to 1e12; of others squares.
    largest_product = 100.0

    def gradient(self) -> Float:
        """Flat gradients `[network, P]`."""
        raise NotImplementedError

    def product(self, vectors: Float) -> Float:
        """H v in coordinates, `[network, dimension]` in and out."""
        raise NotImplementedError

    def restrict(self, flat: Float) -> Float:
        """Coordinates of the projection of flat vectors `[network, P]`."""
        return flat

    def project(self, vectors: Float) -> Float:
        """The nearest vectors that are coordinates."""
        return vectors

    def lift(self, vectors: Float) -> Float:
        """Flat vectors `[network, P]` from coordinates; an isometry."""
        return vectors

    def guess(self) -> Float | None:
        """Coordinates of a good start vector, if one is known in closed form."""
        return None

    def spectrum(self) -> tuple[Float, Float]:
        """Eigenvalues, ascending, and eigenvectors of the reduction at a minimiser."""
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
