"""The spectral density and the trace, from random vectors.

For q uniform on the sphere E <q, f(H) q> = tr f(H)/n. Lanczos from q gives a Gauss quadrature of
<q, f(H) q>: nodes at the Ritz values, weights the squares of the first coordinates of their
vectors. The mean over several q estimates the density of eigenvalues, their scatter its error.
(Stochastic Lanczos quadrature; Golub and Meurant 2010, Ghorbani, Krishnan and Xiao 2019.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_count, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown
from flatmin.probes.measure import Krylov, Model
from flatmin.probes.record import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Density(Shown):
    """Nodes and weights of every random vector; the weights of each sum to 1."""

    nodes: list[Float]
    weights: list[Float]
    size: int
    products: int
    matrix: str

    @property
    def width(self) -> float:
        """A width for smoothing: a hundredth of the range."""
        ends = np.concatenate(self.nodes)
        return float(0.01 * max(np.ptp(ends), 1e-12 * np.abs(ends).max(), np.finfo(float).tiny))

    def at(self, places: ArrayLike, width: float | None = None) -> tuple[Float, Float]:
        """The density, smoothed by a Gaussian of this width, and its standard error."""
        sigma = self.width if width is None else check_positive("width", width)
        x = np.asarray(places, dtype=float)[:, None]
        bells = [
            (np.exp(-0.5 * ((x - nodes) / sigma) ** 2) @ weights) / (sigma * np.sqrt(2.0 * np.pi))
            for nodes, weights in zip(self.nodes, self.weights, strict=True)
        ]
        return _mean(np.array(bells))

    def above(self, x: float) -> tuple[float, float]:
        """The share of eigenvalues above x, and its standard error."""
        shares = [w[n > x].sum() for n, w in zip(self.nodes, self.weights, strict=True)]
        mean, error = _mean(np.array(shares)[:, None])
        return float(mean[0]), float(error[0])

    def plot(self) -> Figure:
        """The density with its error, on a logarithmic scale."""
        from flatmin.probes.figures import density_figure

        return density_figure(self)


def density(model: Model, *, vectors: int = 8, steps: int = 50, seed: int = 0) -> Density:
    """Of `vectors` random vectors, each with so many steps of Lanczos."""
    if check_count("vectors", vectors) < 2:
        raise SettingError("vectors must be at least 2: one alone has no error")
    check_count("steps", steps)
    nodes, weights, products = [], [], 0
    for number in range(vectors):
        krylov = Krylov(model, seed + number)
        while krylov.products < steps and not krylov.exhausted:
            krylov.extend()
        values, coordinates = krylov.ritz()
        nodes.append(values)
        weights.append(coordinates[0] ** 2)
        products += krylov.products
    return Density(
        nodes=nodes, weights=weights, size=model.size, products=products, matrix=model.matrix
    )


def trace(model: Model, *, vectors: int = 30, seed: int = 0) -> Trace:
    """n times the mean of <q, H q> (Hutchinson 1990, on the sphere)."""
    if check_count("vectors", vectors) < 2:
        raise SettingError("vectors must be at least 2: one alone has no error")
    found = []
    for number in range(vectors):
        krylov = Krylov(model, seed + number)
        krylov.extend()
        found.append(krylov.alpha[0] * model.size)
    mean, error = _mean(np.array(found)[:, None])
    return Trace(value=float(mean[0]), standard_error=float(error[0]), products=vectors)


def _mean(rows: Float) -> tuple[Float, Float]:
    """Over the first axis, with the standard error."""
    return rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
