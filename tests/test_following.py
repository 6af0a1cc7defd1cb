"""The sharpness along a run of linear networks with one output, against dense Hessians by JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

import oracles
from flatmin.core.arrays import aligned
from flatmin.curvature.linear import LinearHessian
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics import backends
from flatmin.dynamics.descent import descend
from flatmin.dynamics.recording import Recording
from flatmin.lanes.entries import PROBE_EVERY
from flatmin.lanes.layout import Held, linear
from flatmin.lanes.sweeps import Nodes, dimension, down, rise, sweep, up, weigh, x_of
from flatmin.lanes.vectors import splat, vectors
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

NEVER = 1e-300  # no run ends early
SQUARE = Architecture.mlp(3, 4)
NETWORKS = [
    SQUARE,
    Architecture.mlp(2, 1),
    Architecture.residual(4, 3, np.eye(4)[1]),
    Architecture(3, (2, 5, 1), (1.0,)),
    Architecture(4, (3, 2), (0.5, -2.0)),
]


def dense(samples: Any, architecture: Architecture, flat: np.ndarray) -> np.ndarray:
    layers = oracles.split(architecture, flat)
    return np.asarray(oracles.gradient_and_hessian(samples, architecture, layers)[1])


@njit
def product(lanes, weights, network, form, ab, layers, q, out):  # type: ignore[no-untyped-def]
    """H q, less q, divided by 2; <q, q>, <q, out> and <out, out> after four vectors a layer."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    w, a, of = vectors(lanes, weights), vectors(lanes, ab), vectors(lanes, layers)
    rise(w, network, a)
    nodes = Nodes(
        a, a[size:], a[2 * size :], splat(lanes, 0.5), of, of[depth:], of[2 * depth :],
        of[3 * depth :],
    )  # fmt: skip
    weigh(network, nodes)
    one = splat(lanes, 1.0)
    found = sweep(w, network, nodes, vectors(lanes, q), one, vectors(lanes, out), form)
    for i in range(3):
        vectors(lanes, layers)[4 * depth + i] = found[i]


def across(architecture: Architecture, hessian: LinearHessian, q: np.ndarray) -> None:
    """Take the part along b_k off the x_k."""
    begin = sum(columns for _, columns in architecture.shapes)
    for k, (rows, _) in enumerate(architecture.shapes[:-1]):
        x, b = q[begin : begin + rows], hessian._b[k + 1].T
        x -= b * (np.sum(x * b, axis=0) / np.sum(b * b, axis=0))
        begin += rows


@pytest.mark.parametrize(
    ("architecture", "hold"), [*((one, False) for one in NETWORKS), (SQUARE, True)], ids=str
)
def test_a_product_is_that_of_the_hessian(architecture: Architecture, hold: bool) -> None:
    samples, rng, n = gaussian_samples(9, architecture.inputs, seed=1), np.random.default_rng(2), 4
    data, flat = samples.regression(), rng.standard_normal((n, architecture.parameters))
    widths = (architecture.inputs, *architecture.widths)
    network = linear(widths, architecture.p, data.sigma, data.w_star)
    hessian = LinearHessian(data, architecture, flat)
    size, many, depth = sum(widths), dimension.py_func(network.layout), architecture.depth
    ab, layers, q, out, w = (
        aligned((rows, n)) for rows in (3 * size, 4 * depth + 3, many, many, flat.shape[1])
    )
    w[:], q[:] = flat.T, rng.standard_normal((many, n))
    ab[: widths[0]] = hessian._a[0].T
    ab[size : 2 * size] = np.hstack(hessian._b).T
    form = Held((0.0,) * widths[0], (0.0,) * widths[-1]) if hold else None
    across(architecture, hessian, q)
    given = hessian.weights_of(q.T)
    product(
        (0.0,) * n, w.ravel(), network, form, ab.ravel(), layers.ravel(), q.ravel(), out.ravel()
    )
    for i, v in enumerate(given):
        wanted = dense(samples, architecture, flat[i]) @ v / 2.0 - v
        close = {"rtol": 1e-11, "atol": 1e-11 * np.abs(wanted).max()}
        np.testing.assert_allclose(hessian.weights_of(out.T)[i], wanted, **close)
        squares = np.array([v @ v, v @ wanted, wanted @ wanted]) / 2.0
        np.testing.assert_allclose(layers[4 * depth :, i], squares, rtol=1e-11)


@njit
def first(lanes, weights, network, form, ab, layers, y, x, out):  # type: ignore[no-untyped-def]
    """`down` and `up` with H divided by 2."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    w, a, of = vectors(lanes, weights), vectors(lanes, ab), vectors(lanes, layers)
    nodes = Nodes(
        a, a[size:], a[2 * size :], splat(lanes, 0.5), of, of[depth:], of[2 * depth :],
        of[3 * depth :],
    )  # fmt: skip
    c, y_k = vectors(lanes, x), vectors(lanes, y)
    of_y = down(w, network, nodes, y_k, c, form)
    found = up(w, network, nodes, y_k, c, of_y, vectors(lanes, out), form)
    x_of(network, nodes, c, c[network.layout.nodes[1] :], form)
    for i in range(3):
        vectors(lanes, layers)[4 * depth + i] = found[i]


@pytest.mark.parametrize(
    ("architecture", "hold"), [*((one, False) for one in NETWORKS), (SQUARE, True)], ids=str
)
def test_the_first_product_finds_its_x(architecture: Architecture, hold: bool) -> None:
    """Of H q/2 - q nothing but y is left."""
    samples, rng, n = gaussian_samples(9, architecture.inputs, seed=1), np.random.default_rng(2), 4
    data, flat = samples.regression(), rng.standard_normal((n, architecture.parameters))
    widths = (architecture.inputs, *architecture.widths)
    network = linear(widths, architecture.p, data.sigma, data.w_star)
    hessian, size, depth = LinearHessian(data, architecture, flat), sum(widths), architecture.depth
    ab, layers, y, x, out, w = (
        aligned((rows, n)) for rows in (3 * size, 4 * depth + 3, size, size, size, flat.shape[1])
    )
    w[:], y[: size - widths[-1]] = flat.T, rng.standard_normal((size - widths[-1], n))
    ab[: widths[0]] = hessian._a[0].T
    ab[size : 2 * size] = np.hstack(hessian._b).T
    form = Held((0.0,) * widths[0], (0.0,) * widths[-1]) if hold else None
    arrays = (one.ravel() for one in (ab, layers, y, x, out))
    first((0.0,) * n, w.ravel(), network, form, *arrays)
    end = size - widths[-1]
    of_x = x[widths[0] : end]
    given, left = (y[:end], of_x), (out[:end], np.zeros_like(of_x))
    vector, rest = (hessian.weights_of(np.vstack(some).T) for some in (given, left))
    for i, v in enumerate(vector):
        wanted = dense(samples, architecture, flat[i]) @ v / 2.0 - v
        close = {"rtol": 1e-11, "atol": 1e-11 * np.abs(v).max()}
        np.testing.assert_allclose(rest[i], wanted, **close)
        squares = np.array([v @ v, v @ wanted, wanted @ wanted]) / 2.0
        np.testing.assert_allclose(layers[4 * depth :, i], squares, rtol=1e-10)


@pytest.mark.parametrize("architecture", NETWORKS, ids=str)
@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_it_is_the_largest_eigenvalue(
    architecture: Architecture, tolerance: float, rate: float
) -> None:
    """At a rate at which runs go on smoothly, and at one at which they swing."""
    samples = gaussian_samples(12, architecture.inputs, seed=3)
    ensemble = initialise(architecture, "gaussian", 0.6, 0, [(i,) for i in range(5)])
    for recording in (
        Recording(1, ("sharpness",), tolerance, 1),
        Recording(5, ("sharpness",), tolerance, 2),
        Recording(5, ("sharpness",), tolerance, 5),
    ):
        found = descend(samples, ensemble, rate, 60, recording=recording, tolerance=NEVER).recorded
        assert found is not None
        for step in (0, 5, 10, 60):
            at = ensemble
            if step:
                at = descend(samples, ensemble, rate, step, tolerance=NEVER).ensemble
            entry = step // recording.every
            value, residual = (
                found.values[name][entry] for name in ("sharpness", "sharpness_residual")
            )
            for i in np.flatnonzero(~np.isnan(value)):
                top = np.linalg.eigvalsh(dense(samples, architecture, at.flat()[i]))[-1]
                assert residual[i] <= tolerance * value[i]
                # an eigenvalue is no farther than the residual
                assert abs(value[i] - top) <= residual[i] + 1e-12 * top


def test_small_square_layers_keep_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a lane that diverges, and of its neighbours."""
    samples = gaussian_samples(12, 3, seed=3)
    ensemble = initialise(SQUARE, "gaussian", 0.6, 0, [(i,) for i in range(11)])
    rates = np.full(11, 0.05)
    rates[[2, 5]] = 40.0, 0.2
    seen = []
    for least in (0.0, np.inf):
        monkeypatch.setattr(backends, "_HELD_FLOPS", least)
        recording = Recording(1, ("gradient", "sharpness"), sharpness_steps=1)
        outcome = descend(samples, ensemble, rates, 200, recording=recording, tolerance=NEVER)
        assert outcome.recorded is not None
        seen.append(outcome.recorded.values)
    held, plain = seen
    assert np.isnan(plain["sharpness"][-1]).sum() == 1
    for name, values in plain.items():
        np.testing.assert_array_equal(held[name], values, name)


def test_a_course_saves_products() -> None:
    """Measured at every step, the next eigenvector is foreseen; at four of five it is not."""
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 10)
    ensemble = initialise(architecture, "gaussian", 0.4, 0, [(i,) for i in range(8)])
    spent = []
    for recording in (Recording(5, ("sharpness",), 1e-6, 5), Recording(5, ("sharpness",), 1e-6, 4)):
        found = descend(samples, ensemble, 0.01, 200, recording=recording, tolerance=NEVER).recorded
        assert found is not None
        products = found.values["sharpness_products"][1:] / recording.sharpness_steps
        spent.append(np.nanmean(products))
    assert spent[0] < 0.8 * spent[1]


def test_an_eigenvector_that_overtakes_is_noticed() -> None:
    """w* lies along one input, and what the layers have of the other stays apart: the Hessian has
    two parts that never meet, not even by rounding, and the top eigenvalue passes from one to the
    other."""
    samples = Samples.from_arrays(np.sqrt(2.0) * np.eye(2), [np.sqrt(8.0), 0.0])
    architecture, rate, steps = Architecture.mlp(2, 2), 0.01, 300
    flat = np.array([0.05, 0.0, 0.0, 1.0, 0.05, 0.0])
    recording = Recording(1, ("sharpness",), sharpness_tolerance=1e-6, sharpness_steps=1)
    run = descend(
        samples.regression(), Ensemble.from_flat(architecture, flat[None]), rate, steps,
        tolerance=NEVER, recording=recording, observe_ends=False,
    )  # fmt: skip
    assert run.recorded is not None
    top, second = np.empty(steps + 1), np.empty(steps + 1)
    for step in range(steps + 1):
        layers = oracles.split(architecture, flat)
        gradient, hessian = oracles.gradient_and_hessian(samples, architecture, layers)
        second[step], top[step] = np.linalg.eigvalsh(hessian)[-2:]
        flat = flat - rate * np.asarray(gradient)
    crossing, share = np.argmin(top / second), run.recorded.values["sharpness"][:, 0] / top
    missed = np.flatnonzero(np.abs(share - 1.0) > 1e-5)
    assert 1 <= len(missed) < PROBE_EVERY
    assert crossing - 1 <= missed[0]
    assert missed[-1] < crossing + PROBE_EVERY
