"""`sharpness`: the one door to the largest Hessian eigenvalue of given weights.

Which road is taken (all end in a Rayleigh quotient with its residual):

- small linear networks with one output: compiled Lanczos over lanes (`lanes`);
- large ones, and several outputs: the top vector of the d x d reduction, exact at minimisers; if
  its residual is not small enough, Lanczos from it (`lanczos`);
- networks with an activation or biases: Lanczos on the hand-written product (`nonlinear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Yes
from flatmin.core.checks import check_choice, check_count, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.seeds import generator
from flatmin.curvature.lanczos import lanczos
from flatmin.curvature.linear import LinearHessian
from flatmin.curvature.multivariate import MultivariateHessian
from flatmin.curvature.nonlinear import NonlinearHessian
from flatmin.curvature.operators import Hessian, HessianOperator
from flatmin.curvature.record import Sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble

Weights = Ensemble | Sequence[ArrayLike]

METHODS = ("auto", "lanczos", "spectrum", "dense")
TOLERANCE = 1e-10

# A block of lanes should fit the second-level cache; beyond it one network at a time is faster.
LANE_PARAMETERS = 8192
_DENSE_PARAMETERS = 5000

HESSIANS: dict[Family, Any] = {
    Family.ONE_OUTPUT: LinearHessian,
    Family.SEVERAL_OUTPUTS: MultivariateHessian,
    Family.SAMPLES: NonlinearHessian,
}


def in_lanes(architecture: Architecture) -> bool:
    """Whether the compiled solver serves it, which does not see a network's neighbours."""
    few = architecture.parameters <= LANE_PARAMETERS
    return few and architecture.family is Family.ONE_OUTPUT


def sharpness(
    problem: Regression | Samples,
    weights: Weights,
    p: ArrayLike | None = None,
    *,
    method: str = "auto",
    tolerance: float = TOLERANCE,
    max_products: int = 2000,
    start: ArrayLike | None = None,
) -> Sharpness:
    """Largest eigenvalue of the Hessian of the mean squared error at given weights.

    `weights` is a list of matrices W_1..W_L, or an Ensemble; for a list, `p` is the output vector
    (1 if the last layer has one row; none if the problem has several targets). Networks with an
    activation or biases need Samples, linear ones take either. `start` is a flat vector (or one per
    network) such as the `vector` of an earlier record.

    >>> from flatmin.data.generators import gaussian_samples
    >>> from flatmin.network.architecture import Architecture, Family
    >>> from flatmin.theory.minimisers import flattest_minimiser
    >>> data = gaussian_samples(seed=0).regression()
    >>> flattest = flattest_minimiser(data, Architecture.mlp(5, depth=10))
    >>> print(sharpness(data, flattest))
    sharpness ... +- ... (converged, ... products); ...; largest eigenvalue of ... (no factor 1/2)
    """
    check_choice("method", method, METHODS)
    tolerance = check_positive("tolerance", tolerance)
    max_products = check_count("max_products", max_products)
    ensemble, single = _as_ensemble(problem, weights, p)
    first = None if start is None else _start_vectors(ensemble, start)
    usable = _within_range(ensemble)
    if not usable.all():
        # Diverged networks stay in place with NaN; zeros stand in for them while others are solved.
        flat = np.where(usable[:, None], ensemble.flat(), 0.0)
        ensemble = Ensemble.from_flat(ensemble.architecture, flat)
    record = _solve(problem, ensemble, method, tolerance, max_products, first)
    if not usable.all():
        value, residual = (np.where(usable, x, np.nan) for x in (record.value, record.residual))
        record = replace(
            record, value=value, residual=residual, converged=record.converged & usable
        )
    return record[0] if single else record


def minimiser_spectrum(
    problem: Regression | Samples, weights: Weights, p: ArrayLike | None = None
) -> Float:
    """All eigenvalues, ascending, of the d x d reduction: at a minimiser, the Hessian's non-zero
    spectrum (for several targets m d of them). One row per network for an Ensemble."""
    ensemble, single = _as_ensemble(problem, weights, p)
    values = hessian_at(problem, ensemble).spectrum()[0]
    result: Float = values[0] if single else values
    return result


def hessian(
    problem: Regression | Samples, weights: Weights, p: ArrayLike | None = None
) -> HessianOperator:
    """The Hessian of the mean squared error at one network's weights, as an operator.

    >>> from flatmin.data.generators import gaussian_samples
    >>> data = gaussian_samples(n=50, d=2, seed=0).regression()
    >>> operator = hessian(data, [np.eye(2), np.ones((1, 2))])
    >>> operator.shape, operator.to_scipy().shape
    ((6, 6), (6, 6))
    """
    ensemble, _ = _as_ensemble(problem, weights, p)
    return HessianOperator(hessian_at(problem, ensemble), ensemble.architecture.parameters)


def hessian_at(problem: Regression | Samples, ensemble: Ensemble) -> Hessian:
    """The Hessian (and gradient) of the risk at an ensemble's weights."""
    architecture = ensemble.architecture
    architecture.check_fits(problem)
    hessian: Hessian = HESSIANS[architecture.family](problem, architecture, ensemble.flat())
    return hessian


def _solve(
    problem: Regression | Samples,
    ensemble: Ensemble,
    method: str,
    tolerance: float,
    max_products: int,
    start: Float | None,
) -> Sharpness:
    if method == "auto" and in_lanes(ensemble.architecture):
        from flatmin.curvature.compiled import ensemble_sharpness

        return ensemble_sharpness(problem.regression(), ensemble, tolerance, max_products, start)
    hessian = hessian_at(problem, ensemble)
    if method == "dense":
        return _dense(hessian, ensemble, tolerance)
    guess = hessian.guess() if start is None else hessian.restrict(start)
    if guess is None and method == "spectrum":
        hessian.spectrum()
    if guess is not None and method != "lanczos" and start is None:
        record = _rayleigh(hessian, guess, tolerance)
        if method == "spectrum" or np.all(record.converged):
            return record
    if start is None:
        guess = _mix(hessian, guess)
    assert guess is not None
    value, residual, products, vector = lanczos(hessian, guess, tolerance, max_products)
    return Sharpness(
        value=value,
        residual=residual,
        products=products,
        method="lanczos",
        converged=residual <= tolerance * value,
        vector=hessian.lift(vector),
    )


def _rayleigh(hessian: Hessian, guess: Float, tolerance: float) -> Sharpness:
    """The record of given vectors, from one product."""
    norm = np.linalg.norm(guess, axis=1, keepdims=True)
    vector = np.divide(guess, norm, out=np.zeros_like(guess), where=norm > 0)
    image = hessian.product(vector)
    value = np.einsum("ni,ni->n", vector, image)
    residual = np.linalg.norm(image - value[:, None] * vector, axis=1)
    ones = np.ones(hessian.networks, dtype=np.int64)
    converged = residual <= tolerance * value
    return Sharpness(
        value=value,
        residual=residual,
        products=ones,
        method="spectrum",
        converged=converged,
        vector=hessian.lift(vector),
    )


def _dense(hessian: Hessian, ensemble: Ensemble, tolerance: float) -> Sharpness:
    """Every column of the Hessian, one product each, then LAPACK."""
    n = ensemble.architecture.parameters
    if n > _DENSE_PARAMETERS:
        raise SettingError(f"method 'dense' is for at most {_DENSE_PARAMETERS} parameters, got {n}")
    columns = [
        hessian.lift(hessian.product(hessian.restrict(np.tile(row, (hessian.networks, 1)))))
        for row in np.eye(n)
    ]
    matrix = np.stack(columns, axis=2)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.transpose(0, 2, 1)))
    vector = vectors[:, :, -1]
    residual = np.linalg.norm(
        np.einsum("nij,nj->ni", matrix, vector) - values[:, -1:] * vector, axis=1
    )
    products = np.full(hessian.networks, n)
    # Rounding of a full eigendecomposition is relative to the largest |eigenvalue|.
    scale = np.abs(values).max(axis=1)
    converged = residual <= np.maximum(tolerance * values[:, -1], 1e-15 * n * scale)
    return Sharpness(
        value=values[:, -1],
        residual=residual,
        products=products,
        method="dense",
        converged=converged,
        vector=vector,
    )


def _mix(hessian: Hessian, guess: Float | None) -> Float:
    """A start vector no eigenvector is orthogonal to: the guess, if any, plus a random part."""
    random: Float = generator(0, "lanczos start").standard_normal(hessian.dimension)
    # A product maps the random part into the Hessian's range.
    random = hessian.product(np.tile(random, (hessian.networks, 1)))
    norm = np.linalg.norm(random, axis=1, keepdims=True)
    random = np.divide(random, norm, out=np.ones_like(random), where=norm > 0)
    if guess is None:
        return random
    size = np.linalg.norm(guess, axis=1, keepdims=True)
    unit: Float = np.divide(guess, size, out=np.zeros_like(guess), where=size > 0)
    return unit + 0.1 * random


def _within_range(ensemble: Ensemble) -> Yes:
    """Networks whose weights are finite and whose products of layers cannot overflow."""
    largest = HESSIANS[ensemble.architecture.family].largest_product
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [np.sqrt(np.sum(w * w, axis=(1, 2))) for w in ensemble.layers()]
        size = sum(np.log(np.maximum(norm, 1.0)) for norm in norms)
    return np.asarray(np.isfinite(size) & (size < largest))


def _as_ensemble(
    problem: Regression | Samples, weights: Weights, p: ArrayLike | None
) -> tuple[Ensemble, bool]:
    if isinstance(weights, Ensemble):
        if p is not None:
            raise SettingError("an Ensemble has its own output vector: leave p out")
        ensemble, single = weights, False
    else:
        matrices = [np.atleast_2d(np.asarray(w, dtype=float)) for w in weights]
        if not matrices:
            raise SettingError("weights must hold at least one matrix")
        architecture = _architecture_of(matrices, p, problem.targets)
        ensemble, single = Ensemble.from_matrices(architecture, [matrices]), True
    ensemble.architecture.check_fits(problem)
    return ensemble, single


def _architecture_of(matrices: list[Float], p: ArrayLike | None, targets: int) -> Architecture:
    widths = tuple(w.shape[0] for w in matrices)
    if p is None:
        output: Any = (1.0,) if widths[-1] == 1 else None
        if output is None and targets == 1:
            raise SettingError(f"the last layer has {widths[-1]} rows: pass the output vector p")
    else:
        output = tuple(np.asarray(p, dtype=float).ravel().tolist())
    return Architecture(matrices[0].shape[1], widths, output)


def _start_vectors(ensemble: Ensemble, start: ArrayLike) -> Float:
    vectors = np.atleast_2d(np.asarray(start, dtype=float))
    expected = (len(ensemble), ensemble.architecture.parameters)
    if vectors.shape != expected:
        raise SettingError(f"start must have shape {expected}, got {vectors.shape}")
    return vectors
