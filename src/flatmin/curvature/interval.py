"""The interval of a sharpness: a low and a high end, and the argument they rest on.

- Low end: a Rayleigh quotient less a bound on its rounding. Always proved.
- High end of linear networks: `inertia`, all eigenvalues are below it. Proved.
- High end of non-linear networks: the whole spectrum of the Hessian if it is small ("exact
  spectrum"), or a random start, which is wrong with a stated chance (`random_start`).
- The whole spectrum also repairs: where a vector was found and eigenvalues above it are not
  excluded, all of them are computed if that costs no more products than are allowed.

For the whole spectrum, |computed eigenvalue - eigenvalue| <= error of the matrix + n u |H|_F, the
backward error of LAPACK's solver (u is the unit roundoff; a constant of order one is taken as 4).
For linear networks the error of the matrix is that of b_k, a_k and C_k, carried through the layers
(`inertia.double_error`). For non-linear ones such a bound is useless, and the error E is measured:
against products in the longest floating-point type, with PROBES random unit vectors v. As in
`random_start`, P(|Ev| <= t |E|) <= t sqrt(2n/pi), so that |E| <= max |Ev| / t fails with the
chance (t sqrt(2n/pi))^PROBES.

No eigenvalue search is needed for the ends: they hold for whatever vector is given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.curvature.inertia import (
    LONG_UNIT,
    UNIT,
    Sweeps,
    all_below,
    double_error,
    quotient,
    sweeps,
    vanishes,
)
from flatmin.curvature.lanczos import lanczos
from flatmin.curvature.nonlinear import NonlinearHessian
from flatmin.curvature.operators import Hessian
from flatmin.curvature.random_start import CHANCE, Found, random_start
from flatmin.curvature.record import EXACT, INERTIA, NONE, RANDOM, Sharpness, unproved
from flatmin.data.regression import Regression
from flatmin.network.ensemble import Ensemble

PROBES = 3
_LARGEST_STATE = 512
_TINY = 1e-100
_NETWORKS = 256


def judged(record: Sharpness, low: Any, high: Any, proof: Any, tolerance: float) -> Sharpness:
    """The record with its interval; converged if there is one and it is narrow enough."""
    proof = np.where(np.isfinite(high), proof, NONE)
    chance = np.where(proof == RANDOM, CHANCE, np.where(proof == NONE, 1.0, 0.0))
    value = np.clip(record.value, low, high)
    with np.errstate(invalid="ignore"):
        narrow = high - low <= tolerance * value
    return replace(
        record,
        value=value,
        converged=(proof != NONE) & narrow,
        low=low,
        high=high,
        proof=proof,
        chance=chance,
    )


@np.errstate(all="ignore")  # what overflows proves nothing
def linear_interval(
    regression: Regression, ensemble: Ensemble, record: Sharpness, tolerance: float
) -> Sharpness:
    """The interval of linear networks at the record's vectors, by inertia; an interval that the
    record has already is kept where it is narrower."""
    architecture, flat = ensemble.architecture, ensemble.flat()
    low, high = np.zeros(len(flat)), np.full(len(flat), np.inf)
    state = max((architecture.inputs, *architecture.widths[:-1]))
    outputs = len(architecture.output_map)
    for at in range(0, len(flat), _NETWORKS):
        part = slice(at, at + _NETWORKS)
        found = sweeps(regression, architecture, flat[part])
        low[part], value = low_end(found, architecture.split(record.vector[part]))
        if state * outputs <= _LARGEST_STATE:
            high[part] = high_end(found, value, tolerance)
        high[part][vanishes(found)] = 0.0
    before = np.broadcast_to(record.high, high.shape)
    proof = np.where(before < high, record.proof, INERTIA)
    low = np.maximum(low, record.low)
    return judged(record, low, in_range(np.minimum(high, before)), proof, tolerance)


def in_range(high: Float) -> Float:
    """High ends without those so small that squares on the way to them may have underflowed."""
    return np.where((high > 0.0) & (high < _TINY), np.inf, high)


@np.errstate(all="ignore")
def linear_spectrum(
    regression: Regression, ensemble: Ensemble, hessian: Hessian, tolerance: float
) -> Sharpness:
    """The whole spectrum of linear networks."""
    architecture = ensemble.architecture
    found = sweeps(regression, architecture, ensemble.flat())
    return whole_spectrum(hessian, 4.0 * double_error(found), tolerance)


def low_end(found: Sweeps, vectors: list[Float]) -> tuple[Float, Float]:
    """Rayleigh quotients less their rounding, at least 0, and the quotients; 0 of a zero vector.

    The largest eigenvalue is never negative: R is a convex quadratic in each layer alone.
    """
    value, error = quotient(found, vectors)
    usable = np.isfinite(value) & np.isfinite(error)
    return np.where(usable, np.maximum(value - error, 0.0), 0.0), np.where(usable, value, 0.0)


def high_end(found: Sweeps, value: Float, tolerance: float) -> Float:
    """The least of a few trial numbers above the value that is proved to be above all eigenvalues.

    First the width that the tolerance allows, then wider ones: an interval that is too wide to be
    called converged is still worth having.
    """
    high = np.full(len(value), np.inf)
    for share in (0.9 * tolerance, 1e-9, 1e-8, 1e-5, 1e-2, 1.0):
        open_ = np.isinf(high) & (share >= 0.9 * tolerance)
        if not open_.any():
            break
        trial = value * (1.0 + share)
        proved = all_below(found.some(open_), trial[open_])
        high[np.flatnonzero(open_)[proved]] = trial[open_][proved]
    return high


def whole_spectrum(hessian: Hessian, rounding: Float, tolerance: float) -> Sharpness:
    """Value, vector and interval from all columns of the Hessian in coordinates, a product each."""
    n = hessian.dimension
    columns = [
        hessian.product(hessian.project(np.tile(row, (hessian.networks, 1)))) for row in np.eye(n)
    ]
    matrices = np.stack(columns, axis=2)
    usable = np.asarray(np.isfinite(matrices).all(axis=(1, 2)))
    matrices = np.where(usable[:, None, None], matrices, 0.0)
    # A power of two, exactly: squares of entries must not leave the range of numbers.
    scale = np.ldexp(1.0, np.frexp(np.abs(matrices).max(axis=(1, 2)))[1])
    matrices = 0.5 * (matrices + matrices.transpose(0, 2, 1)) / scale[:, None, None]
    values, vectors = np.linalg.eigh(matrices)
    vector = vectors[:, :, -1]
    image = np.einsum("nij,nj->ni", matrices, vector)
    value = np.einsum("ni,ni->n", vector, image)
    residual = scale * np.linalg.norm(image - value[:, None] * vector, axis=1)
    solver = 4 * n * UNIT * scale * np.sqrt(np.sum(matrices**2, axis=(1, 2)))
    value, top = scale * value, scale * values[:, -1]
    low = np.maximum(value - rounding - solver, 0.0)
    high = np.maximum(top, value) + rounding + solver
    record = Sharpness(
        value=np.where(usable, np.maximum(value, 0.0), np.nan),
        residual=np.where(usable, residual, np.nan),
        products=np.full(hessian.networks, n),
        method="dense",
        converged=usable,
        vector=hessian.lift(hessian.project(vector)),
    )
    return judged(record, low, np.where(usable, high, np.inf), EXACT, tolerance)


def searched(
    hessian: NonlinearHessian, tolerance: float, max_products: int, small: int
) -> Sharpness:
    """The record of non-linear networks: the whole spectrum of up to `small` parameters, a search
    from a random start of more."""
    if hessian.dimension <= min(small, max_products):
        rounding = measured_rounding(hessian)
        record = whole_spectrum(hessian, rounding, tolerance)
        return replace(record, chance=np.where(record.proof == NONE, 1.0, CHANCE))
    scaled = Scaled(hessian)
    found = random_start(scaled, tolerance, max_products)
    value, residual, products, vector = found.value, found.residual, found.products, found.vector
    left = max_products - int(products.max())
    if np.any(residual > tolerance * np.abs(value)) and left > 2:
        better = lanczos(scaled, vector, tolerance, left)
        value, residual, vector = better[0], better[1], better[3]
        products = products + better[2]
    value, residual = scaled.scale * value, scaled.scale * residual
    record = unproved("lanczos", value, residual, products, vector)
    return _from_random_start(hessian, scaled.scale, found, record, tolerance)


def measured_rounding(hessian: NonlinearHessian) -> Float:
    """A bound on the norm of the error of products, wrong with at most the chance CHANCE."""
    if LONG_UNIT == UNIT:  # no longer type to measure with: what may be lost at worst, roughly
        size = np.linalg.norm(hessian.product(np.ones((hessian.networks, hessian.dimension))))
        return np.full(hessian.networks, hessian.dimension * UNIT * size)
    n, longer = hessian.dimension, hessian.longer()
    largest = np.zeros(hessian.networks)
    for probe in generator(0, "rounding").standard_normal((PROBES, n)):
        vectors = np.tile(probe / np.linalg.norm(probe), (hessian.networks, 1))
        image = longer.product(vectors)
        error = np.sqrt(np.sum(np.square(hessian.product(vectors) - image), axis=1))
        floor = UNIT * np.sqrt(np.sum(np.square(image), axis=1))
        largest = np.maximum(largest, np.maximum(error, floor).astype(np.float64))
    return np.asarray(largest * np.sqrt(2 * n / np.pi) / CHANCE ** (1 / PROBES))


def bounded_above(
    hessian: NonlinearHessian, record: Sharpness, tolerance: float, max_products: int
) -> Sharpness:
    """The interval of non-linear networks whose record came from a start vector of someone's."""
    scaled = Scaled(hessian)
    found = random_start(scaled, tolerance, max_products)
    return _from_random_start(hessian, scaled.scale, found, record, tolerance)


def _from_random_start(
    hessian: NonlinearHessian, scale: Float, found: Found, record: Sharpness, tolerance: float
) -> Sharpness:
    usable = np.isfinite(record.value) & np.isfinite(found.value)
    rounding = measured_rounding(hessian) + 8 * UNIT * found.products * (scale * found.size)
    low = np.maximum(np.maximum(record.value, scale * found.value) - rounding, 0.0)
    high = np.maximum(scale * (found.value + found.room), record.value) + rounding
    low, high = np.where(usable, low, 0.0), np.where(usable, high, np.inf)
    return judged(record, low, high, RANDOM, tolerance)


class Scaled(Hessian):
    """A Hessian over a power of two for each network, so that squares stay in range of numbers."""

    def __init__(self, hessian: NonlinearHessian) -> None:
        self._hessian = hessian
        self.networks, self.dimension = hessian.networks, hessian.dimension
        probe = generator(0, "rounding").standard_normal(self.dimension)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(hessian.product(np.tile(probe, (self.networks, 1)))).max(axis=1)
        self.scale = np.ldexp(1.0, np.frexp(np.where(np.isfinite(size), size, 1.0))[1])

    def product(self, vectors: Float) -> Float:
        """H v / scale."""
        return self._hessian.product(vectors) / self.scale[:, None]
