"""`sharpness`: the one door to the largest Hessian eigenvalue of given weights.

Which road is taken (all end in a Rayleigh quotient with its residual, and in `interval`):

- small linear networks with one output: compiled Lanczos over lanes (`lanes`);
- small ones with several outputs: the same, on d rows that stand for all (`multivariate`);
- large ones, and the one of a run (`sharpness_of_one`): the top vector of the d x d reduction,
  exact at minimisers; if its residual is not small enough, Lanczos from it (`lanczos`);
- networks with an activation or biases: the whole spectrum of small ones, Lanczos from a random
  start of others, on the hand-written product (`nonlinear`); without an interval, compiled Lanczos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Yes, numbers
from flatmin.core.checks import check_choice, check_count, check_positive, check_several
from flatmin.core.errors import SettingError
from flatmin.core.memory import check_memory
from flatmin.core.seeds import generator
from flatmin.curvature.interval import bounded_above, linear_interval, linear_spectrum, searched
from flatmin.curvature.lanczos import lanczos
from flatmin.curvature.linear import LinearHessian
from flatmin.curvature.multivariate import MultivariateHessian, stand_in
from flatmin.curvature.nonlinear import NonlinearHessian, working_bytes
from flatmin.curvature.operators import Hessian, HessianOperator
from flatmin.curvature.record import NONE, Sharpness, unproved
from flatmin.data.samples import Problem, check_problem
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble
from flatmin.theory.units import Units

Weights = Ensemble | Sequence[ArrayLike]

METHODS = ("auto", "lanczos", "spectrum", "dense")
TOLERANCE = 1e-10

# A block of lanes should fit the second-level cache; beyond it one network at a time is faster.
LANE_PARAMETERS, LANE_SIGNALS = 8192, 1 << 14
_DENSE_PARAMETERS = 5000
# The whole spectrum of non-linear networks up to this size is cheaper than a search; of linear ones
# it is computed where the search may have missed an eigenvalue, which is rare.
_SMALL_PARAMETERS, _REPAIR_DIMENSION = 128, 1200
_WIDE = 1e-7

HESSIANS: dict[Family, Any] = {
    Family.ONE_OUTPUT: LinearHessian,
    Family.SEVERAL_OUTPUTS: MultivariateHessian,
    Family.SAMPLES: NonlinearHessian,
}


def in_lanes(architecture: Architecture) -> bool:
    """Whether the compiled solver serves it, which does not see a network's neighbours."""
    few = architecture.parameters <= LANE_PARAMETERS
    return few and architecture.family is Family.ONE_OUTPUT


def on_few_rows(architecture: Architecture, rows: int) -> bool:
    """Whether the compiled solver serves networks on so many rows: weights and signals of a block
    stay within a few megabytes of cache."""
    units = (
        architecture.inputs + sum(architecture.widths) + architecture.biases * architecture.depth
    )
    return architecture.parameters <= LANE_PARAMETERS and units * rows <= LANE_SIGNALS


@np.errstate(all="ignore")  # what overflows is judged, not warned of
def sharpness(
    problem: Problem,
    weights: Weights,
    p: ArrayLike | None = None,
    *,
    method: str = "auto",
    tolerance: float = TOLERANCE,
    max_products: int = 2000,
    start: ArrayLike | None = None,
    certify: bool = True,
) -> Sharpness:
    """Largest eigenvalue of the Hessian of the mean squared error at given weights.

    `weights` is a list of matrices W_1..W_L, or an Ensemble; for a list, `p` is the output vector
    (1 if the last layer has one row; none if the problem has several targets). Networks with an
    activation or biases need Samples, linear ones take either. `start` is a flat vector (or one per
    network) such as the `vector` of an earlier record. With `certify=False` the record has no
    interval and is never called converged: for values along a run, where the next one is asked for
    at once.

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
    first = None if start is None else np.atleast_2d(numbers("start", start))
    expected = (len(ensemble), ensemble.architecture.parameters)
    if first is not None and first.shape != expected:
        raise SettingError(f"start must have shape {expected}, got {first.shape}")
    record = _judge(problem, ensemble, _Asked(method, tolerance, max_products, first, certify))
    return record[0] if single else record


def sharpness_of_one(problem: Problem, ensemble: Ensemble) -> Sharpness:
    """That of the only network of an ensemble, by the road of large ones.

    It takes a few milliseconds more, but no kernel, which would take seconds to compile.
    """
    with np.errstate(all="ignore"):
        return _judge(problem, ensemble, _Asked("auto", TOLERANCE, 2000, None, True, False))[0]


def _judge(problem: Problem, ensemble: Ensemble, asked: _Asked) -> Sharpness:
    """The records of all networks, NaN where weights are beyond the range of numbers."""
    usable = _within_range(problem, ensemble)
    if not usable.all():
        # Diverged networks stay in place with NaN; zeros stand in for them while others are solved.
        flat = np.where(usable[:, None], ensemble.flat(), 0.0)
        ensemble = Ensemble.from_flat(ensemble.architecture, flat)
    record = _solve(problem, ensemble, asked)
    if not usable.all():
        lost: dict[str, Any] = dict.fromkeys(("value", "residual", "low", "high"), np.nan)
        lost |= {"converged": False, "proof": NONE, "chance": 1.0}
        kept: dict[str, Any] = {
            name: np.where(usable, getattr(record, name), x) for name, x in lost.items()
        }
        record = replace(record, **kept)
    return record


def minimiser_spectrum(problem: Problem, weights: Weights, p: ArrayLike | None = None) -> Float:
    """All eigenvalues, ascending, of the d x d reduction: at a minimiser, the Hessian's non-zero
    spectrum (for several targets m d of them). One row per network for an Ensemble."""
    ensemble, single = _as_ensemble(problem, weights, p)
    _check_range(problem, ensemble)
    values = hessian_at(problem, ensemble).spectrum()[0]
    result: Float = values[0] if single else values
    return result


def hessian(problem: Problem, weights: Weights, p: ArrayLike | None = None) -> HessianOperator:
    """The Hessian of the mean squared error at one network's weights, as an operator.

    >>> from flatmin.data.generators import gaussian_samples
    >>> data = gaussian_samples(n=50, d=2, seed=0).regression()
    >>> operator = hessian(data, [np.eye(2), np.ones((1, 2))])
    >>> operator.shape, operator.to_scipy().shape
    ((6, 6), (6, 6))
    """
    ensemble, _ = _as_ensemble(problem, weights, p)
    _check_range(problem, ensemble)
    return HessianOperator(hessian_at(problem, ensemble), ensemble.architecture.parameters)


def hessian_at(problem: Problem, ensemble: Ensemble) -> Hessian:
    """The Hessian (and gradient) of the risk at an ensemble's weights."""
    architecture = ensemble.architecture
    architecture.check_fits(problem)
    hessian: Hessian = HESSIANS[architecture.family](problem, architecture, ensemble.flat())
    return hessian


class _Asked(NamedTuple):
    """The settings of `sharpness`, checked."""

    method: str
    tolerance: float
    max_products: int
    start: Float | None
    certify: bool
    in_lanes: bool = True


def _solve(problem: Problem, ensemble: Ensemble, asked: _Asked) -> Sharpness:
    architecture = ensemble.architecture
    architecture.check_fits(problem)
    if not architecture.linear:
        return _nonlinear(problem, ensemble, asked)
    method, tolerance, max_products, start, certify, lanes = asked
    regression = problem.regression()
    if method == "auto" and lanes and in_lanes(architecture):
        from flatmin.curvature.compiled import ensemble_sharpness

        record = ensemble_sharpness(regression, ensemble, tolerance, max_products, start, certify)
    else:
        several = architecture.family is Family.SEVERAL_OUTPUTS
        if method == "dense":
            _check_dense(architecture)
            record = linear_spectrum(
                regression, ensemble, hessian_at(problem, ensemble), tolerance
            )  # fmt: skip
        elif method == "auto" and lanes and several and on_few_rows(architecture, regression.d):
            from flatmin.curvature.compiled import on_rows

            record = on_rows(stand_in(regression), ensemble, tolerance, max_products, start)
        else:
            hessian = hessian_at(problem, ensemble)
            record = _iterated(hessian, asked)
    if not certify:
        return record
    left = ~np.broadcast_to(record.converged, len(ensemble))
    if left.any():
        record = record.with_some(
            left, linear_interval(regression, ensemble[left], record.some(left), tolerance)
        )
    sizes = [sum(s) if architecture.output else s[0] * s[1] for s in architecture.shapes]
    if method != "auto" or sum(sizes) > min(_REPAIR_DIMENSION, max_products):
        return record
    # Wider than rounding makes it: another eigenvalue may be larger. Look at all of them.
    wide = record.high - record.low > max(tolerance, _WIDE) * record.value
    # One by one: bits do not depend on which others are wide.
    for i in np.flatnonzero(wide).tolist():
        alone = ensemble[[i]]
        other = linear_spectrum(regression, alone, hessian_at(problem, alone), tolerance)
        record = record.with_some([i], linear_interval(regression, alone, other, tolerance))
    return record


def _nonlinear(problem: Any, ensemble: Ensemble, asked: _Asked) -> Sharpness:
    method, tolerance, max_products, start, certify, _ = asked
    architecture = ensemble.architecture
    if method == "auto" and not certify and on_few_rows(architecture, problem.n):
        from flatmin.curvature.compiled import on_rows

        return on_rows(problem, ensemble, tolerance, max_products, start)
    check_memory(
        f"the sharpness of {architecture.parameters} parameters on {problem.n} rows",
        len(ensemble) * working_bytes(architecture, problem.n),
    )
    hessian = hessian_at(problem, ensemble)
    assert isinstance(hessian, NonlinearHessian)
    if method == "spectrum":
        hessian.spectrum()  # there is none
    if method == "dense":
        _check_dense(architecture)
        return searched(hessian, tolerance, _DENSE_PARAMETERS, _DENSE_PARAMETERS)
    if certify and start is None:
        small = _SMALL_PARAMETERS if method == "auto" else 0
        return searched(hessian, tolerance, max_products, small)
    record = _iterated(hessian, asked._replace(method="lanczos"))
    return bounded_above(hessian, record, tolerance, max_products) if certify else record


def _iterated(hessian: Hessian, asked: _Asked) -> Sharpness:
    method, tolerance, max_products, start, _, _ = asked
    guess = hessian.guess() if start is None else hessian.restrict(start)
    if guess is not None and method != "lanczos" and start is None:
        record = _rayleigh(hessian, guess)
        if method == "spectrum" or np.all(record.residual <= tolerance * record.value):
            return record
    if start is None:
        guess = _mix(hessian, guess)
    assert guess is not None
    value, residual, products, vector = lanczos(hessian, guess, tolerance, max_products)
    return unproved("lanczos", value, residual, products, hessian.lift(vector))


def _rayleigh(hessian: Hessian, guess: Float) -> Sharpness:
    """The record of given vectors, from one product."""
    norm = np.linalg.norm(guess, axis=1, keepdims=True)
    vector = np.divide(guess, norm, out=np.zeros_like(guess), where=norm > 0)
    image = hessian.product(vector)
    value = np.einsum("ni,ni->n", vector, image)
    residual = np.linalg.norm(image - value[:, None] * vector, axis=1)
    return unproved("spectrum", value, residual, np.ones(len(value)), hessian.lift(vector))


def _check_dense(architecture: Architecture) -> None:
    n = architecture.parameters
    if n > _DENSE_PARAMETERS:
        raise SettingError(f"method 'dense' is for at most {_DENSE_PARAMETERS} parameters, got {n}")


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


def _within_range(problem: Problem, ensemble: Ensemble) -> Yes:
    """Networks whose weights are finite and whose products of layers cannot overflow; of linear
    ones in the unit of weights, so that it is the same in all units."""
    architecture, unit = ensemble.architecture, 1.0
    largest = HESSIANS[architecture.family].largest_product
    if architecture.linear:
        known = problem.regression(), architecture.depth, architecture.output_norm
        unit = Units.of(*known).weight
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [np.sqrt(np.sum(w * w, axis=(1, 2))) / unit for w in ensemble.layers()]
        size = sum(np.log(np.maximum(norm, 1.0)) for norm in norms)
    return np.asarray(np.isfinite(size) & (size < largest))


def _check_range(problem: Problem, ensemble: Ensemble) -> None:
    if not _within_range(problem, ensemble).all():
        raise SettingError("weights must be finite, and their products within the range of numbers")


def _as_ensemble(problem: Problem, weights: Weights, p: ArrayLike | None) -> tuple[Ensemble, bool]:
    check_problem(problem)
    if isinstance(weights, Ensemble):
        if p is not None:
            raise SettingError("an Ensemble has its own output vector: leave p out")
        ensemble, single = weights, False
    else:
        layers = check_several("weights", weights, "a list of matrices or an Ensemble")
        matrices = [np.atleast_2d(numbers(f"W_{k}", w)) for k, w in enumerate(layers, start=1)]
        if not matrices:
            raise SettingError("weights must hold at least one matrix")
        if any(w.ndim > 2 or not w.size for w in matrices):
            shapes = ", ".join(str(w.shape) for w in matrices[:4])
            raise SettingError(f"weights must be matrices, one per layer, got shapes {shapes}")
        widths = tuple(w.shape[0] for w in matrices)
        output: Any = (1.0,) if widths[-1] == 1 else None
        if p is not None:
            output = tuple(numbers("p", p).ravel().tolist())
        elif output is None and problem.targets == 1:
            raise SettingError(f"the last layer has {widths[-1]} rows: pass the output vector p")
        architecture = Architecture(matrices[0].shape[1], widths, output)
        ensemble, single = Ensemble.from_matrices(architecture, [matrices]), True
    ensemble.architecture.check_fits(problem)
    return ensemble, single
