"""Architectures, the lane layout, seeds and initialisations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatmin.core.errors import SettingError
from flatmin.core.seeds import generator
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import INITIALISATIONS, initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 20))
def test_lanes_and_matrices_are_the_same_weights(widths, inputs, size):
    architecture = Architecture(inputs, tuple(widths), (1.0,) * widths[-1])
    rng = np.random.default_rng(0)
    networks = [[rng.standard_normal(shape) for shape in architecture.shapes] for _ in range(size)]
    ensemble = Ensemble.from_matrices(architecture, networks)
    lanes = ensemble.lanes.shape[2]
    assert ensemble.lanes.shape == (-(-size // lanes), architecture.parameters, lanes)
    for i, (ours, theirs) in enumerate(zip(ensemble, networks, strict=True)):
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert np.array_equal(a, b)
            # The documented address of an entry: block, row-major place, lane.
            row, column = b.shape[0] - 1, b.shape[1] - 1
            place = architecture.offsets[k] + row * b.shape[1] + column
            assert ensemble.lanes[i // lanes, place, i % lanes] == b[row, column]
    assert np.array_equal(Ensemble.from_flat(architecture, ensemble.flat()).lanes, ensemble.lanes)


def test_kinds():
    assert Architecture.mlp(5, 3, width=7).shapes == ((7, 5), (7, 7), (1, 7))
    assert Architecture.residual(3, 2, [1.0, 0.0, 0.0]).square
    assert Architecture.multivariate(4, 2, 3).shapes == ((4, 4), (3, 4))
    assert Architecture(4, (2,), (3.0, 4.0)).output_norm == 5.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Architecture.mlp(5, 0), "depth must be a whole number of at least 1, got 0"),
        (lambda: Architecture.mlp(5, -2), "depth must be"),
        (lambda: Architecture.mlp(5, 2.5), "depth must be"),
        (lambda: Architecture.mlp(5, 10**9), "depth must be at most"),
        (lambda: Architecture.mlp(5, "3"), "depth must be"),
        (lambda: Architecture.mlp(5, True), "depth must be"),
        (lambda: Architecture.mlp(0, 2), "number of inputs must be"),
        (lambda: Architecture.mlp(5, 2, width=0), "width must be"),
        (lambda: Architecture(5, (3, -1), (1.0,)), "width of layer 2"),
        (lambda: Architecture(5, (3, 2), (1.0,)), "last layer's width 2"),
        (lambda: Architecture(5, (2,), (0.0, 0.0)), "norm of the output vector"),
        (lambda: Architecture.mlp(5, 2, activation="bump"), "activation must be one of"),
        (lambda: Architecture(5, (2,), None, "tanh"), "must be linear, got tanh"),
        (lambda: Architecture(5, (2,), None, biases=True), "must be linear, got biases"),
        (lambda: Architecture.mlp(5, 2).join([np.eye(5)]), "expected 2 weight matrices"),
        (lambda: Architecture.mlp(5, 1).join([np.eye(5)]), "W_1 must have shape"),
        (lambda: Ensemble.from_flat(Architecture.mlp(5, 1), np.ones(5)), "flat weights must have"),
        (lambda: generator(-1, "x"), "seed must be"),
        (lambda: generator(1.5, "x"), "seed must be"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_seeds_are_addresses():
    draw = generator(3, "scale", 0.25, 7).standard_normal(4)
    assert np.array_equal(draw, generator(3, "scale", 0.25, 7).standard_normal(4))
    others = [
        (4, "scale", 0.25, 7),
        (3, "scale", 0.25, 8),
        (3, "scale", 0.26, 7),
        (3, "x", 0.25, 7),
    ]
    for seed, *address in others:
        assert not np.array_equal(draw, generator(seed, *address).standard_normal(4))


ARCHITECTURES = {
    "gaussian": Architecture(4, (3, 5, 1)),
    "zero-layer": Architecture(4, (3, 5, 1)),
    "balanced": Architecture(4, (3, 5, 2), (1.0, 1.0)),
    "residual": Architecture.residual(4, 3, [0.5, 0.5, 0.5, 0.5]),
    "flattest": Architecture(4, (3, 5, 1)),
    "minimiser": Architecture(4, (3, 5, 1)),
}


@pytest.mark.parametrize("init", INITIALISATIONS)
def test_a_network_does_not_depend_on_the_others(init):
    data = gaussian_samples(20, 4, seed=1).regression()
    architecture = ARCHITECTURES.get(init, Architecture(4, (3, 5, 1)))
    addresses = [("run", i) for i in range(11)]
    scale = 50.0 if init == "minimiser" else 0.3
    every = initialise(architecture, init, scale, 5, addresses, data).flat()
    some = initialise(architecture, init, scale, 5, addresses[7:3:-1], data).flat()
    assert np.array_equal(every[7:3:-1], some)
    assert len({row.tobytes() for row in every}) == 11


def test_gaussian_and_residual_moments():
    deep = Architecture.residual(6, 5, np.eye(6)[0])
    many = [(i,) for i in range(400)]
    gaussian = initialise(deep, "gaussian", 0.3, 0, many).flat()
    assert gaussian.std() == pytest.approx(0.3, rel=0.02)
    noise = initialise(deep, "residual", 0.5, 0, many).layers()[2] - np.eye(6)
    assert noise.std() == pytest.approx(0.5 / np.sqrt(5 * 6), rel=0.02)
    assert abs(noise.mean()) < 0.01


def test_zero_layer_meets_assumption_a1():
    samples = gaussian_samples(20, 4, seed=1)
    ensemble = initialise(ARCHITECTURES["zero-layer"], "zero-layer", 0.4, 0, [(0,), (1,)])
    for layers in ensemble:
        w = np.linalg.multi_dot([m.T for m in layers]).ravel()
        assert samples.regression().risk(w) == pytest.approx(np.mean(samples.y**2))
    from flatmin.curvature.sharpness import hessian_at

    assert np.all(np.linalg.norm(hessian_at(samples, ensemble).gradient(), axis=1) > 1e-6)


def test_balanced_weights_are_balanced():
    for layers in initialise(
        ARCHITECTURES["balanced"], "balanced", 0.8, 0, [(i,) for i in range(3)]
    ):
        for lower, upper in pairwise(layers):
            np.testing.assert_allclose(upper.T @ upper, lower @ lower.T, atol=1e-14)


def test_starts_at_minimisers_have_the_sharpness_asked_for():
    data = gaussian_samples(20, 4, seed=1).regression()
    architecture = ARCHITECTURES["flattest"]
    flattest = initialise(architecture, "flattest", 0.0, 0, [(0,)], data)
    least = minimal_sharpness(data, 3).exact
    assert sharpness(data, flattest).value[0] == pytest.approx(least, rel=1e-10)
    chosen = initialise(architecture, "minimiser", [40.0, 90.0], 0, [(0,), (1,)], data)
    np.testing.assert_allclose(sharpness(data, chosen).value, [40.0, 90.0], rtol=1e-9)


@pytest.mark.parametrize(
    ("init", "scale", "message"),
    [
        ("gauss", 0.1, "did you mean 'gaussian'"),
        ("gaussian", -0.1, "scale must be a number of at least 0"),
        ("gaussian", float("nan"), "scale must be"),
        ("residual", 0.1, "residual initialisation needs every layer to be 4 x 4"),
        ("flattest", 0.1, "needs the data"),
    ],
)
def test_bad_initialisations(init, scale, message):
    with pytest.raises(SettingError, match=message):
        initialise(Architecture(4, (3, 5, 1)), init, scale, 0, [(0,)])


@given(st.integers(1, 20), st.data())
def test_an_ensemble_is_indexed_like_an_array(size, data):
    architecture = Architecture.mlp(2, 2)
    flat = np.random.default_rng(size).standard_normal((size, architecture.parameters))
    ensemble = Ensemble.from_flat(architecture, flat)
    one = data.draw(st.integers(-size, size - 1))
    for ours, theirs in zip(ensemble[one], architecture.split(flat[one]), strict=True):
        assert np.array_equal(ours, theirs)
    numbers = np.array(data.draw(st.lists(st.integers(-size, size - 1))), dtype=int)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    for which in (numbers, numbers.tolist(), mask, data.draw(st.slices(size))):
        some = ensemble[which]
        assert np.array_equal(some.flat(), flat[which])
        assert np.array_equal(some.lanes, Ensemble.from_flat(architecture, flat[which]).lanes)


def test_an_index_is_a_copy_and_has_a_range():
    ensemble = initialise(Architecture.mlp(2, 2), "gaussian", 1.0, 0, networks=3)
    before = ensemble.flat()
    ensemble[1][0][:] = 0.0
    ensemble[:2].lanes[:] = 0.0
    assert np.array_equal(ensemble.flat(), before)
    for place in (3, -4, np.int64(3)):
        with pytest.raises(IndexError):
            ensemble[place]
    with pytest.raises(IndexError):
        ensemble[np.array([True])]


def test_networks_stand_for_addresses():
    architecture = Architecture.mlp(2, 2)
    many = initialise(architecture, "pytorch", 1.0, 3, networks=5)
    addressed = initialise(architecture, "pytorch", 1.0, 3, [(i,) for i in range(5)])
    assert np.array_equal(many.lanes, addressed.lanes)
    for settings in ({}, {"networks": 1, "addresses": [(0,)]}):
        with pytest.raises(SettingError, match="either networks, their number, or their addresses"):
            initialise(architecture, "pytorch", 1.0, 3, **settings)
    with pytest.raises(SettingError, match="networks must be a whole number"):
        initialise(architecture, "pytorch", 1.0, 3, networks=0)


def test_biases_are_a_last_column():
    architecture = Architecture.mlp(3, 3, width=2, activation="relu", biases=True)
    assert architecture.parameters == 2 * 4 + 2 * 3 + 1 * 3
    assert architecture.shapes == ((2, 3), (2, 2), (1, 2))
    rng = np.random.default_rng(0)
    pairs = [
        (rng.standard_normal(shape), rng.standard_normal(shape[0])) for shape in architecture.shapes
    ]
    layers = [np.column_stack(pair) for pair in pairs]
    flat = architecture.join(layers)
    for one, again, w, (matrix, _) in zip(
        layers, architecture.split(flat), architecture.matrices(flat), pairs, strict=True
    ):
        np.testing.assert_array_equal(one, again)
        np.testing.assert_array_equal(w, matrix)
    without = architecture.split(architecture.join([w for w, _ in pairs]))
    for layer, (w, _) in zip(without, pairs, strict=True):
        np.testing.assert_array_equal(layer, np.column_stack([w, np.zeros(len(w))]))
    ensemble = Ensemble.from_matrices(architecture, [layers, layers])
    np.testing.assert_array_equal(ensemble[1][0], layers[0])
    np.testing.assert_array_equal(ensemble.flat()[0], flat)


@pytest.mark.parametrize("init", ["pytorch", "gaussian", "orthogonal", "zero-layer", "balanced"])
def test_biases_begin_at_zero_and_weights_as_without(init):
    with_biases = initialise(Architecture.mlp(4, 3, biases=True), init, 0.7, 5, networks=3)
    without = initialise(Architecture.mlp(4, 3), init, 0.7, 5, networks=3)
    for layer, plain in zip(with_biases.layers(), without.layers(), strict=True):
        np.testing.assert_array_equal(layer[..., :-1], plain)
        assert not layer[..., -1].any()


def test_families():
    assert Architecture.mlp(4, 2).family is Family.ONE_OUTPUT
    assert Architecture.multivariate(4, 2, 3).family is Family.SEVERAL_OUTPUTS
    assert Architecture.mlp(4, 2, activation="relu").family is Family.SAMPLES
    assert Architecture.mlp(4, 2, biases=True).family is Family.SAMPLES
    assert Architecture.mlp(4, 2, activation="relu", biases=True).beyond == "relu and biases"
