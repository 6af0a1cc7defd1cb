"""Descent on samples against plain NumPy loops and automatic differentiation; vector functions
against 50-digit arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import mpmath
import numpy as np
import pytest
from numba import njit

import oracles
from flatmin.core.arrays import aligned
from flatmin.curvature.nonlinear import NonlinearHessian
from flatmin.data.samples import Samples
from flatmin.dynamics import descent as engine
from flatmin.dynamics.recording import Recording
from flatmin.lanes import functions
from flatmin.lanes.activations import _SCALED, code_of
from flatmin.lanes.layout import Runs, Stop, sampled
from flatmin.lanes.samples_descent import descend_samples, product
from flatmin.lanes.vectors import vectors
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import initialise


@dataclass
class Result:
    flat: np.ndarray
    excess: np.ndarray
    square: np.ndarray
    rate: np.ndarray
    left: np.ndarray


def descend(
    architecture: Architecture,
    X: np.ndarray,
    y: np.ndarray,
    flat: np.ndarray,
    rate: Any,
    steps: int,
    *,
    left: Any = None,
    floor: float = 0.0,
    check: int = 10,
    tolerance: float = 0.0,
    limit: float = np.inf,
    lanes: int = 8,
    slices: int = 1,
    threads: int = 1,
    dtype: Any = np.float64,
) -> Result:
    """`steps` steps of every row of `flat`, in `slices` calls and `threads` ranges of blocks."""
    networks, size = flat.shape
    blocks = -(-networks // lanes)

    def pack(values: Any) -> np.ndarray:
        rows = np.zeros((blocks * lanes, *np.shape(values)[1:]), dtype)
        rows[:networks] = values
        return rows

    weights = aligned((blocks, size, lanes), dtype)
    weights[:] = pack(flat).reshape(blocks, lanes, size).transpose(0, 2, 1)
    rates = pack(np.broadcast_to(rate, networks)).reshape(blocks, lanes)
    todo = pack(np.broadcast_to(steps if left is None else left, networks)).reshape(blocks, lanes)
    excess, square = np.zeros((blocks, lanes), dtype), np.zeros((blocks, lanes), dtype)
    extremes = np.empty((blocks, 0, lanes), dtype)
    network = sampled(
        (architecture.inputs, *architecture.widths),
        architecture.biases,
        () if architecture.output is None else architecture.output,
        X,
        np.atleast_2d(y.T),
        code_of(architecture.activation_name),
        floor,
        dtype,
    )
    runs = Runs(rates, todo, excess, square, np.zeros_like(excess), extremes)
    stop = Stop(check, tolerance, 0.0, np.inf, limit)
    cuts = [blocks * t // threads for t in range(threads + 1)]

    def work(first: int, last: int) -> None:
        descend_samples(
            tuple(dtype(0) for _ in range(lanes)), weights, network, runs, stop, None, 0,
            steps // slices, 1, np.empty((blocks, 0, 9, lanes), dtype), first, last,
        )  # fmt: skip

    for _ in range(slices):
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, cuts[:-1], cuts[1:]))
    out = weights.transpose(0, 2, 1).reshape(blocks * lanes, size)[:networks]
    return Result(out.copy(), *(a.ravel()[:networks] for a in (excess, square, rates, todo)))


def start(architecture: Architecture, networks: int, n: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, architecture.inputs))
    outputs = () if architecture.output is not None else (architecture.widths[-1],)
    y = rng.standard_normal((n, *outputs))
    layers = [
        rng.standard_normal((networks, rows * (columns + architecture.biases))) / np.sqrt(columns)
        for rows, columns in architecture.shapes
    ]
    return X, y, np.concatenate(layers, axis=1)


SHAPES: list[Architecture] = [
    *(Architecture(5, (5, 5, 5, 1), (1.0,), name) for name in ACTIVATIONS),
    *(Architecture(3, (4, 7, 2), (0.7, -1.3), name) for name in ACTIVATIONS),
    Architecture(4, (1,), (1.0,), "tanh"),
    *(Architecture(3, (4, 7, 2), (0.7, -1.3), name, biases=True) for name in ACTIVATIONS),
    Architecture(4, (1,), (1.0,), biases=True),
    Architecture(1, (9, 1, 3), (1.0, 0.5, -2.0), "gelu-tanh"),
]
SEVERAL = [Architecture(4, (4, 6, 3), None), Architecture(5, (1, 2), None)]


def gradient(architecture: Architecture, X: np.ndarray, y: np.ndarray, flat: np.ndarray) -> Any:
    """The gradient of each row of `flat`: by NumPy for one output, else by JAX."""
    if architecture.output is not None:
        return NonlinearHessian(Samples.from_arrays(X, y), architecture, flat).gradient()

    def risk(row: Any) -> Any:
        return oracles.risk(architecture, X, y, oracles.split(architecture, row))

    return np.asarray(jax.vmap(jax.grad(risk))(flat))


def risks(architecture: Architecture, X: np.ndarray, y: np.ndarray, flat: np.ndarray) -> Any:
    return np.array(
        [oracles.risk(architecture, X, y, oracles.split(architecture, row)) for row in flat]
    )


@pytest.mark.parametrize("architecture", [*SHAPES, *SEVERAL], ids=str)
@pytest.mark.parametrize("n", [1, 6, 13])
def test_one_step_is_the_gradient(architecture: Architecture, n: int) -> None:
    # at rate 2^20 the step is all gradient, to the last few bits
    X, y, flat = start(architecture, 9, n)
    expected = gradient(architecture, X, y, flat)
    rate = 2.0**20
    step = (flat - descend(architecture, X, y, flat, rate, 1).flat) / rate
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(step - expected) <= 1e-13 * scale)
    measured = descend(architecture, X, y, flat, 0.0, 5)
    np.testing.assert_array_equal(measured.flat, flat)
    np.testing.assert_allclose(measured.square, np.sum(expected**2, axis=1), rtol=1e-12)
    np.testing.assert_allclose(measured.excess, risks(architecture, X, y, flat), rtol=1e-13)


@pytest.mark.parametrize("architecture", [*SHAPES[:6], SEVERAL[0]], ids=str)
def test_many_steps(architecture: Architecture) -> None:
    X, y, flat = start(architecture, 11, 17, seed=1)
    rate = np.linspace(0.005, 0.03, 11)
    expected = flat.copy()
    for _ in range(60):
        expected -= rate[:, None] * gradient(architecture, X, y, expected)
    result = descend(architecture, X, y, flat, rate, 60, floor=0.125)
    np.testing.assert_allclose(result.flat, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(
        result.excess, risks(architecture, X, y, expected) - 0.125, atol=1e-11
    )


def test_large_samples_in_tiles() -> None:
    # the signals of 3001 samples do not fit a tile; an odd number leaves an odd last tile
    architecture = SHAPES[1]
    X, y, flat = start(architecture, 3, 3001, seed=2)
    expected = gradient(architecture, X, y, flat)
    step = (flat - descend(architecture, X, y, flat, 2.0**20, 1).flat) / 2.0**20
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_bits_do_not_depend_on_lane_block_thread_slice_or_lane_count() -> None:
    architecture = Architecture(5, (5, 5, 1), (1.0,), "gelu-tanh")
    X, y, flat = start(architecture, 21, 300, seed=3)
    rate = np.linspace(0.01, 0.05, 21)
    whole = descend(architecture, X, y, flat, rate, 40)
    order = np.random.default_rng(0).permutation(21)
    others = [
        descend(architecture, X, y, flat, rate, 40, slices=4),
        descend(architecture, X, y, flat, rate, 40, threads=2),
        descend(architecture, X, y, flat, rate, 40, lanes=4),
    ]
    moved = descend(architecture, X, y, flat[order], rate[order], 40)
    for name in ("flat", "excess", "square", "rate", "left"):
        first = getattr(whole, name)
        np.testing.assert_array_equal(getattr(moved, name), first[order])
        for other in others:
            np.testing.assert_array_equal(getattr(other, name), first)


@pytest.mark.parametrize("huge", [50.0, np.nan])
def test_divergence_stops_its_lane_alone(huge: float) -> None:
    architecture = Architecture(3, (4, 4, 1), (1.0,), "silu")
    X, y, flat = start(architecture, 8, 20, seed=4)
    rate = np.full(8, 0.02)
    calm = descend(architecture, X, y, flat, rate, 50)
    rate[3] = huge
    result = descend(architecture, X, y, flat, rate, 50, limit=1e6)
    keep = np.arange(8) != 3
    np.testing.assert_array_equal(result.flat[keep], calm.flat[keep])
    np.testing.assert_array_equal(result.left[keep], 0)

    # a lane stops before the first step at which its risk is not below the limit
    at, taken = flat[3:4].copy(), 0
    if np.isfinite(huge):
        while risks(architecture, X, y, at)[0] < 1e6:
            at = at - huge * gradient(architecture, X, y, at)
            taken += 1
        assert 0 < taken < 50
        assert result.rate[3] == 0
        assert result.left[3] == 50 - taken
        assert result.square[3] == np.inf
        assert not result.excess[3] < 1e6
        np.testing.assert_allclose(result.flat[3], at[0], rtol=1e-9)


def test_nan_weights_leave_neighbours_alone() -> None:
    architecture = Architecture(3, (4, 4, 1), (1.0,), "tanh")
    X, y, flat = start(architecture, 8, 20, seed=5)
    calm = descend(architecture, X, y, flat, 0.02, 20)
    flat[5] = np.nan
    flat[6] = 1e200
    result = descend(architecture, X, y, flat, 0.02, 20, limit=1e9)
    np.testing.assert_array_equal(
        np.delete(result.flat, [5, 6], 0), np.delete(calm.flat, [5, 6], 0)
    )
    np.testing.assert_array_equal(result.left[[5, 6]], 20)
    np.testing.assert_array_equal(result.flat[6], flat[6])


def test_steps_left_and_convergence() -> None:
    architecture = Architecture(3, (3, 1), (1.0,), "softplus")
    X, y, flat = start(architecture, 8, 12, seed=6)
    left = np.array([0, 1, 2, 7, 13, 20, 29, 30])
    result = descend(architecture, X, y, flat, 0.05, 30, left=left)
    np.testing.assert_array_equal(result.left, 0)
    for row, steps in enumerate(left):
        alone = descend(
            architecture, X, y, flat[row : row + 1], 0.05, max(int(steps), 1), left=steps
        )
        np.testing.assert_array_equal(result.flat[row], alone.flat[0])

    # the check sees the gradient of the last weights before steps 10, 20, ...
    squares, at = [], flat.copy()
    for _ in range(400):
        slope = gradient(architecture, X, y, at)
        squares.append(np.sum(slope**2, axis=1))
        at = at - 0.05 * slope
    tolerance = float(np.median(squares[150]))
    expected = [
        next((s for s in range(10, 401, 10) if squares[s - 1][v] <= tolerance), 400)
        for v in range(8)
    ]
    result = descend(architecture, X, y, flat, 0.05, 400, tolerance=tolerance)
    np.testing.assert_array_equal(400 - result.left, expected)
    assert min(expected) < max(expected)
    np.testing.assert_array_equal(result.rate == 0, np.array(expected) < 400)


def test_products_joined_with_activations_have_the_same_bits() -> None:
    """Only one of both is used on a machine: the joined one where divisions take long."""
    _, over, of_five = _SCALED["gelu-tanh"]
    rows, size, lanes = 3, 6, (0.0,) * 8

    @njit
    def apart(lanes, w, x, h, s):  # type: ignore[no-untyped-def]
        w, x, h, s = vectors(lanes, w), vectors(lanes, x), vectors(lanes, h), vectors(lanes, s)
        product(w, 5, 1, rows, 5, x, h, size, False)
        over(h, s, s, rows * size)

    @njit
    def joined(lanes, w, x, h, s):  # type: ignore[no-untyped-def]
        w, x, h, s = vectors(lanes, w), vectors(lanes, x), vectors(lanes, h), vectors(lanes, s)
        of_five(w, x, h, s, rows, size)

    rng, found = np.random.default_rng(0), []
    w, x = rng.standard_normal((rows * 5, 8)), 0.5 * rng.standard_normal((5 * size, 8))
    for work in (apart, joined):
        h, s = aligned((rows * size, 8)), aligned((rows * size, 8))
        work(lanes, w.reshape(-1), x.reshape(-1), h.reshape(-1), s.reshape(-1))
        found.append((h.tobytes(), s.tobytes()))
        assert np.all(s != 0.0)
    assert found[0] == found[1]


def test_single_precision() -> None:
    architecture = Architecture(5, (5, 5, 1), (1.0,), "gelu-tanh")
    X, y, flat = start(architecture, 8, 30, seed=7)
    double = descend(architecture, X, y, flat, 0.02, 50)
    single = descend(architecture, X, y, flat, 0.02, 50, dtype=np.float32)
    np.testing.assert_allclose(single.flat, double.flat, atol=2e-5)
    np.testing.assert_allclose(single.excess, double.excess, rtol=1e-4)


# --- the vector functions ------------------------------------------------------------------------


@njit(nogil=True, forceinline=True)
def _distribution(x: Any) -> Any:
    return functions.gaussian(x)[0]


@njit(nogil=True, forceinline=True)
def _density(x: Any) -> Any:
    return functions.gaussian(x)[1]


def on_arrays(function: Any) -> Callable[[np.ndarray], np.ndarray]:
    @njit
    def loop(lanes: Any, x: Any, y: Any) -> None:
        before, after = vectors(lanes, x), vectors(lanes, y)
        for e in range(len(x) // len(lanes)):
            after[e] = function(before[e])

    def call(x: np.ndarray) -> np.ndarray:
        padded = np.zeros(-(-len(x) // 8) * 8)
        padded[: len(x)] = x
        y = np.empty_like(padded)
        loop((0.0,) * 8, padded, y)
        return y[: len(x)]

    return call


FUNCTIONS: dict[str, tuple[Any, Any, float, float, float, list[float]]] = {
    # function, reference, range, relative error, values at inf, -inf, 0
    "exp": (functions.exp, mpmath.exp, -708, 709.7, 4e-16, [np.inf, 0, 1]),
    "sigmoid": (
        functions.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), -690, 690, 5e-16, [1, 0, 0.5],
    ),
    "logistic": (
        functions.logistic_of_power, lambda t: 1 / (1 + mpmath.power(2, t)), -999, 999, 4e-16,
        [0, 1, 0.5],
    ),
    "tanh": (functions.tanh, mpmath.tanh, -50, 50, 5e-16, [1, -1, 0]),
    "softplus": (
        functions.softplus, lambda x: mpmath.log1p(mpmath.exp(x)), -690, 690, 7e-16,
        [np.inf, 0, np.log(2)],
    ),
    "distribution": (_distribution, mpmath.ncdf, -37, 37, 1e-15, [1, 0, 0.5]),
    "density": (_density, mpmath.npdf, -37, 37, 8e-16, [0, 0, 1 / np.sqrt(2 * np.pi)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vector_functions(name: str) -> None:
    function, reference, low, high, bound, ends = FUNCTIONS[name]
    call = on_arrays(function)
    rng = np.random.default_rng(8)
    tiny = 10.0 ** rng.uniform(-300, 0, 500) * rng.choice([-1, 1], 500)
    # where the reduction changes k, for x and 2 x, or for t in sixteenths
    halves = np.concatenate([np.log(2) / 4 * np.arange(-60, 61), np.arange(-61, 62, 2) / 32])
    x = np.concatenate(
        [rng.uniform(low, high, 1500), rng.uniform(-6, 6, 1500), tiny, halves, [low, high]]
    )
    x = np.clip(np.concatenate([x, np.nextafter(halves, 9), np.nextafter(halves, -9)]), low, high)
    with mpmath.workdps(50):
        exact = [reference(mpmath.mpf(v)) for v in x.tolist()]
        error = [
            abs(mpmath.mpf(v) - e) / abs(e) if e else abs(mpmath.mpf(v))
            for v, e in zip(call(x).tolist(), exact, strict=True)
        ]
    worst = int(np.argmax([float(e) for e in error]))
    assert error[worst] < bound, (x[worst], float(error[worst]))
    np.testing.assert_allclose(
        call(np.array([np.inf, -np.inf, 0.0])), ends, rtol=1e-15, atol=1e-299
    )
    assert np.isnan(call(np.array([np.nan]))).all()


def test_tanh_stays_within_one() -> None:
    x = np.random.default_rng(9).uniform(15, 40, 20000)
    assert np.abs(on_arrays(functions.tanh)(np.concatenate([x, -x]))).max() == 1.0


def test_records_of_the_kernel_are_those_taken_one_at_a_time() -> None:
    # Distances make the engine stop at every record; without them the kernel keeps records on its
    # way. Some of these runs diverge, and all end at steps of their own.
    rng = np.random.default_rng(0)
    problem = Samples.from_arrays(rng.standard_normal((20, 3)), rng.standard_normal((20, 2)))
    ensemble = initialise(Architecture.multivariate(3, 3, 2), "gaussian", 0.8, 0, networks=9)
    rates, steps = np.geomspace(0.01, 3.0, 9), np.arange(40, 67, 3)
    for every in (1, 7):
        kept, single = (
            engine.descend(
                problem, ensemble, rates, steps, recording=Recording(every, quantities)
            ).recorded
            for quantities in (("excess_risk", "gradient"), ("excess_risk", "gradient", "distance"))
        )  # fmt: skip
        assert kept is not None
        assert single is not None
        assert np.isnan(kept.values["excess_risk"]).any()
        for name, values in kept.values.items():
            np.testing.assert_array_equal(values, single.values[name], err_msg=name)
