"""Intervals of a sharpness: what is proved, against dense Hessians."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest

import oracles
from flatmin.curvature import Sharpness, sharpness
from flatmin.curvature.inertia import all_below, quotient, sweeps, vanishes
from flatmin.curvature.interval import linear_interval
from flatmin.curvature.operators import Hessian
from flatmin.curvature.random_start import CHANCE, random_start
from flatmin.data.generators import gaussian_samples
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

LINEAR = [
    Architecture.mlp(3, 1),
    Architecture.mlp(3, 4),
    Architecture(3, (2, 5, 1), (1.0,)),
    Architecture(4, (3, 2), (0.5, -2.0)),
    Architecture.residual(3, 3, [0.6, 0.0, 0.8]),
    Architecture.multivariate(3, 3, 2),
    Architecture.multivariate(4, 2, 3, width=5),
    Architecture.multivariate(3, 1, 2),
]


def data_for(architecture):
    targets = architecture.widths[-1] if architecture.output is None else 1
    return gaussian_samples(12, architecture.inputs, seed=0, targets=targets)


def networks(architecture, size=6, scale=0.9):
    """Gaussian weights; of the last two networks some layers are zero or equal to the identity."""
    flat = scale * np.random.default_rng(3).standard_normal((size, architecture.parameters))
    layers = architecture.split(flat)
    layers[0][-1] = 0.0
    for w, shape in zip(layers, architecture.shapes, strict=True):
        w[-2] = np.eye(*shape)
    return Ensemble.from_flat(architecture, flat)


def spectra(samples, ensemble):
    return [
        np.linalg.eigh(oracles.gradient_and_hessian(samples, ensemble.architecture, layers)[1])
        for layers in ensemble
    ]


@pytest.mark.parametrize("architecture", LINEAR, ids=str)
def test_inertia_says_on_which_side_of_the_largest_eigenvalue_a_number_is(architecture):
    samples, ensemble = data_for(architecture), networks(architecture)
    found = sweeps(samples.regression(), architecture, ensemble.flat())
    top = np.array([values[-1] for values, _ in spectra(samples, ensemble)])
    for share in (1e-9, 1e-4, 0.3, 10.0):
        assert all_below(found, top * (1.0 + share)).all()
    for share in (1e-12, 1e-9, 1e-4, 0.3, 0.999):
        assert not all_below(found, top * (1.0 - share)).any()
    assert not all_below(found, np.zeros(len(top))).any()
    assert not all_below(found, np.full(len(top), np.nan)).any()


@pytest.mark.parametrize("architecture", LINEAR, ids=str)
def test_quotients_are_as_near_as_they_say(architecture):
    """Against the quadratic form of the dense Hessian, whose own rounding is 1e-14 of its norm."""
    samples, ensemble = data_for(architecture), networks(architecture)
    found = sweeps(samples.regression(), architecture, ensemble.flat())
    v = np.random.default_rng(0).standard_normal((len(ensemble), architecture.parameters))
    value, error = quotient(found, architecture.split(v))
    for i, layers in enumerate(ensemble):
        matrix = oracles.gradient_and_hessian(samples, architecture, layers)[1]
        expected = v[i] @ matrix @ v[i] / (v[i] @ v[i])
        assert abs(value[i] - expected) <= error[i] + 1e-14 * np.linalg.norm(matrix)
        assert error[i] <= 1e-13 * np.linalg.norm(matrix)


@pytest.mark.parametrize("architecture", LINEAR[:-1], ids=str)
def test_an_eigenvector_that_is_not_the_top_one_proves_nothing_and_is_repaired(architecture):
    samples, ensemble = data_for(architecture), networks(architecture)
    second = np.stack([vectors[:, -2] for _, vectors in spectra(samples, ensemble)])
    top = np.array([values[-1] for values, _ in spectra(samples, ensemble)])
    below = np.array([values[-2] for values, _ in spectra(samples, ensemble)])
    apart = below < top * (1 - 1e-6)  # a repeated top is a top
    assert apart.any()
    value = np.maximum(below, 0.0)
    given = Sharpness(
        value=value,
        residual=0.0 * value,
        products=1,
        method="lanczos",
        converged=False,
        vector=second,
    )
    judged = linear_interval(samples.regression(), ensemble, given, 1e-10)
    assert not judged.converged[apart].any()
    assert (judged.high[apart] >= top[apart] * (1 - 1e-12)).all()
    record = sharpness(samples, ensemble, start=second)
    np.testing.assert_allclose(record.value, top, rtol=1e-10)
    assert record.converged.all()


def test_a_saddle_where_gradient_and_guess_vanish():
    """Two zero layers of three: what is left couples them through the residual alone."""
    samples = gaussian_samples(30, 4, seed=2, targets=3)
    architecture = Architecture.multivariate(4, 3, 3, width=5)
    layers = [np.zeros((5, 4)), np.zeros((5, 5)), 9.0 * np.eye(3, 5)]
    matrix = oracles.gradient_and_hessian(samples, architecture, layers)[1]
    truth = np.linalg.eigvalsh(matrix)[-1]
    record = sharpness(samples, layers)
    assert truth > 10.0
    assert record.value == pytest.approx(truth, rel=1e-10)
    assert record.converged
    assert record.low <= truth * (1 + 1e-14)
    assert record.high >= truth * (1 - 1e-14)


@pytest.mark.parametrize("architecture", LINEAR, ids=str)
def test_a_hessian_that_is_zero_is_known_to_be(architecture):
    samples = data_for(architecture)
    ensemble = Ensemble.from_flat(architecture, np.zeros((1, architecture.parameters)))
    zero = np.all(spectra(samples, ensemble)[0][0] == 0.0)
    found = sweeps(samples.regression(), architecture, ensemble.flat())
    assert vanishes(found)[0] == zero == (architecture.depth > 2)
    record = sharpness(samples, ensemble)[0]
    assert record.converged
    if zero:
        assert (record.value, record.low, record.high) == (0.0, 0.0, 0.0)


def test_tiny_weights_are_not_certain_rather_than_wrong():
    """Values around 1e-240: squares on the way to them underflow."""
    samples = gaussian_samples(seed=0)
    architecture = Architecture.mlp(5, 10)
    flat = 1e-30 * np.random.default_rng(0).standard_normal((3, architecture.parameters))
    record = sharpness(samples, Ensemble.from_flat(architecture, flat))
    assert not record.converged.any()
    assert (record.proof == "none").all()
    assert (record.chance == 1.0).all()


@pytest.mark.parametrize("name", ["gelu-tanh", "gelu-erf", "tanh"])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_a_nonlinear_network_scales_without_losing_digits(name, scale):
    """At small weights phi(x) = phi'(0) x, and at large ones of gelu max(x, 0), so that the Hessian
    of weights s W is a power of s times that of W in the limit; tanh has none at large ones."""
    samples = gaussian_samples(seed=0)
    architecture = Architecture.mlp(5, 8, activation=name)
    flat = np.random.default_rng(1).standard_normal((2, architecture.parameters))
    record = sharpness(samples, Ensemble.from_flat(architecture, scale * flat))
    assert record.converged.all()
    if scale < 1.0:
        again = sharpness(samples, Ensemble.from_flat(architecture, scale * 2.0 * flat))
        np.testing.assert_allclose(again.value / record.value, 2.0**6, rtol=1e-9)
    elif name != "tanh":
        again = sharpness(samples, Ensemble.from_flat(architecture, scale * 2.0 * flat))
        np.testing.assert_allclose(again.value / record.value, 2.0**14, rtol=1e-9)


class Diagonal(Hessian):
    """A Hessian whose eigenvalues are given."""

    def __init__(self, values):
        self._values = values
        self.networks, self.dimension = values.shape

    def gradient(self):
        return np.zeros_like(self._values)

    def product(self, vectors):
        return self._values * vectors


def test_a_random_start_bounds_the_largest_eigenvalue_from_above():
    """Clusters, gaps and nearly repeated tops; bases too short to converge as well."""
    rng = np.random.default_rng(0)
    n = 200
    values = np.stack(
        [
            rng.standard_normal(n),
            np.linspace(-1.0, 1.0, n),
            np.concatenate([np.zeros(n - 2), [1.0, 1.0 + 1e-9]]),
            np.concatenate([rng.uniform(0.9, 1.0, n - 1), [1.001]]),
            1.0 / np.arange(1.0, n + 1),
        ]
    )
    top = values.max(axis=1)
    narrow = False
    for products in (5, 10, 20, 50, 150):
        found = random_start(Diagonal(values), 1e-10, products)
        assert (found.value + found.room >= top * (1 - 1e-14)).all()
        narrow = found.room <= 1e-9 * top
    assert narrow.sum() >= 4
    assert CHANCE <= 1e-6


def test_lanes_and_numpy_agree():
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 8)
    ensemble = networks(architecture, 30, 0.6)
    lanes = sharpness(samples, ensemble)
    plain = linear_interval(
        samples.regression(), ensemble, replace(lanes, low=0.0, high=np.inf), 1e-10
    )
    assert lanes.converged.all()
    assert plain.converged.all()
    assert (np.maximum(lanes.low, plain.low) <= np.minimum(lanes.high, plain.high)).all()
    order = np.random.default_rng(0).permutation(30)
    moved = sharpness(samples, ensemble[order])
    assert np.array_equal(lanes.low[order], moved.low)
    assert np.array_equal(lanes.high[order], moved.high)


def test_without_a_certificate_nothing_is_called_converged():
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 3)
    for network in (architecture, Architecture.mlp(5, 3, activation="tanh")):
        record = sharpness(samples, networks(network, 3), certify=False)
        assert not record.converged.any()
        assert record[0].proof == "none"
        assert "not certain" in str(record[0])


def exact_sharpness(regression, layers):
    """The largest eigenvalue by second differences of the risk in 80 digits."""
    with mpmath.workdps(80):
        sigma, w_star = mpmath.matrix(regression.sigma.tolist()), mpmath.matrix(regression.w_star)
        matrices = [mpmath.matrix(w.tolist()) for w in layers]
        step = mpmath.mpf(10) ** -25
        places = [(w, i, j) for w in matrices for i in range(w.rows) for j in range(w.cols)]

        def risk(*moved):
            for w, i, j in moved:
                w[i, j] += step
            product = mpmath.eye(len(w_star))
            for w in matrices:
                product = w * product
            off = product.T - w_star
            for w, i, j in moved:
                w[i, j] -= step
            return (off.T * sigma * off)[0]

        here, alone = risk(), [risk(one) for one in places]
        hessian = mpmath.matrix(len(places), len(places))
        for i in range(len(places)):
            for j in range(i + 1):
                both = risk(places[i], places[j]) - alone[i] - alone[j] + here
                hessian[i, j] = hessian[j, i] = both / step**2
        return float(max(mpmath.eigsy(hessian, eigvals_only=True)))


@pytest.mark.parametrize("method", ["auto", "dense", "lanczos"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounding_of_what_cancels_is_in_the_interval(seed, method):
    # Two equal columns, and a first layer that takes their difference: the Hessian is made of the
    # last bits of Sigma w*, and its size is eps times that of the numbers on the way to it.
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(7)
    regression = Regression.from_arrays(np.column_stack([x, x]), 0.7 * x + rng.standard_normal(7))
    difference, hidden = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 1.0]])
    layers = [difference, hidden, np.zeros((2, 2)), hidden.T, np.zeros((1, 2))]
    truth = exact_sharpness(regression, layers)
    assert truth < 1e-12
    found = sharpness(regression, layers, method=method)
    assert found.low <= truth <= found.high


def test_where_the_hessian_vanishes_the_sharpness_is_zero():
    # Three layers are zero: every second derivative is. Gaussian neighbours share its lanes.
    architecture = Architecture.mlp(3, 5)
    ensemble = networks(architecture, size=8)
    flat = ensemble.flat().copy()
    for k in (1, 2, 4):
        flat[3, architecture.offsets[k] : architecture.offsets[k + 1]] = 0.0
    data = data_for(architecture)
    for start in (None, np.ones_like(flat)):
        found = sharpness(data, Ensemble.from_flat(architecture, flat), start=start)
        assert found.value[3] == found.low[3] == found.high[3] == 0.0
        assert found.converged[3]
        bare = sharpness(data, Ensemble.from_flat(architecture, flat), start=start, certify=False)
        assert bare.value[3] == bare.residual[3] == 0.0
