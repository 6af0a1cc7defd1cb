"""Gradients, Hessian products, spectra and sharpness against automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from flatmin.core.errors import SettingError
from flatmin.curvature import minimiser_spectrum, sharpness
from flatmin.curvature.sharpness import hessian_at
from flatmin.data.generators import gaussian_samples
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimisers import flattest_minimiser, minimiser_of_sharpness

LINEAR = [
    Architecture.mlp(3, 1),
    Architecture.mlp(3, 4),
    Architecture.mlp(4, 3, width=6),
    Architecture(3, (2, 5, 1), (1.0,)),
    Architecture(4, (3, 2), (0.5, -2.0)),
    Architecture.residual(3, 3, [0.6, 0.0, 0.8]),
    Architecture.multivariate(3, 3, 2),
    Architecture.multivariate(4, 2, 3, width=5),
    Architecture.multivariate(3, 1, 2),
]
NONLINEAR = [
    *(Architecture.mlp(3, 3, width=4, activation=name) for name in ACTIVATIONS if name != "linear"),
    *(Architecture.mlp(3, 3, width=2, activation=name, biases=True) for name in ACTIVATIONS),
    Architecture(3, (2, 4), (0.5, -1.0, 0.0, 2.0), biases=True),
    Architecture.mlp(3, 1, biases=True),
]
CASES = LINEAR + NONLINEAR


def data_for(architecture: Architecture, seed: int = 0):
    targets = architecture.widths[-1] if architecture.output is None else 1
    return gaussian_samples(12, architecture.inputs, seed=seed, targets=targets)


def ensemble_of(architecture: Architecture, size: int, scale: float = 0.7, seed: int = 0):
    rng = np.random.default_rng(seed)
    return Ensemble.from_flat(
        architecture, scale * rng.standard_normal((size, architecture.parameters))
    )


@pytest.mark.parametrize("architecture", CASES, ids=str)
def test_gradient_and_product_match_automatic_differentiation(architecture):
    samples, ensemble = data_for(architecture), ensemble_of(architecture, 3)
    hessian = hessian_at(samples, ensemble)
    vectors = np.random.default_rng(1).standard_normal((3, architecture.parameters))
    products = hessian.lift(hessian.product(hessian.restrict(vectors)))
    gradients = hessian.gradient()
    for i, layers in enumerate(ensemble):
        gradient, matrix = oracles.gradient_and_hessian(samples, architecture, layers)
        np.testing.assert_allclose(gradients[i], gradient, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(products[i], matrix @ vectors[i], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("architecture", CASES, ids=str)
@pytest.mark.parametrize("method", ["auto", "lanczos", "dense"])
def test_sharpness_is_the_largest_signed_eigenvalue(architecture, method):
    samples, ensemble = data_for(architecture), ensemble_of(architecture, 11)
    record = sharpness(samples, ensemble, method=method)
    expected = [oracles.sharpness(samples, architecture, layers) for layers in ensemble]
    np.testing.assert_allclose(record.value, expected, rtol=1e-10)
    assert np.all(record.converged)
    assert np.all(record.residual <= 1e-10 * np.abs(record.value))
    assert np.all(np.abs(record.value - expected) <= record.residual + 1e-12 * np.abs(expected))


def test_the_sign_matters():
    """Near a saddle the eigenvalue of largest modulus can be negative: it is not the sharpness."""
    architecture = Architecture(1, (1, 1), (1.0,))
    samples = gaussian_samples(6, 1, seed=0)
    data = samples.regression()
    w = 3.0 * np.sign(data.w_star[0])
    # R = (w_2 w_1 - w*)^2 sigma has a large mixed derivative of either sign here.
    for first, second in ((0.4 * w, -0.5), (0.01, 0.01)):
        layers = [np.array([[first]]), np.array([[second]])]
        matrix = oracles.gradient_and_hessian(samples, architecture, layers)[1]
        assert sharpness(samples, layers).value == pytest.approx(np.linalg.eigvalsh(matrix)[-1])


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(1, 6),
    st.floats(0.05, 2.0),
    st.integers(0, 1000),
)
def test_any_widths(widths, inputs, scale, seed):
    """The compiled, the batched and the dense road agree on any shape."""
    rng = np.random.default_rng(seed)
    p = tuple(rng.standard_normal(widths[-1]).tolist())
    architecture = Architecture(inputs, tuple(widths), p)
    samples = gaussian_samples(9, inputs, seed=seed)
    ensemble = ensemble_of(architecture, 3, scale, seed)
    dense = sharpness(samples, ensemble, method="dense")
    for method in ("auto", "lanczos"):
        record = sharpness(samples, ensemble, method=method)
        np.testing.assert_allclose(record.value, dense.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("architecture", LINEAR[:6], ids=str)
@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_spectrum_at_minimisers(architecture, factor):
    samples = data_for(architecture)
    data = samples.regression()
    layers = flattest_minimiser(data, architecture, np.random.default_rng(0))
    if factor > 1.0 and architecture.depth > 1:
        wanted = factor * sharpness(data, layers, architecture.p).value
        layers = minimiser_of_sharpness(data, architecture, wanted)
    full = np.linalg.eigvalsh(oracles.gradient_and_hessian(samples, architecture, layers)[1])
    spectrum = minimiser_spectrum(data, layers, architecture.p)
    top = full[-1]
    np.testing.assert_allclose(np.sort(full)[-len(spectrum) :], spectrum, atol=1e-10 * top)
    assert np.all(np.abs(np.sort(full)[: -len(spectrum)]) < 1e-9 * top)
    record = sharpness(data, layers, architecture.p, method="spectrum")
    assert record.value == pytest.approx(top, rel=1e-10)
    assert record.converged
    assert record.products == 1


def test_spectrum_of_several_targets():
    architecture = Architecture.multivariate(4, 3, 3)
    samples = gaussian_samples(20, 4, seed=3, targets=3)
    layers = oracles.balanced_minimiser(samples.regression(), architecture)
    full = np.linalg.eigvalsh(oracles.gradient_and_hessian(samples, architecture, layers)[1])
    spectrum = minimiser_spectrum(samples, layers)
    assert spectrum.size == 12
    np.testing.assert_allclose(full[-12:], spectrum, atol=1e-10 * full[-1])
    np.testing.assert_allclose(full[:-12], 0.0, atol=1e-9 * full[-1])


def test_spectrum_away_from_a_minimiser_says_so():
    samples = gaussian_samples(seed=0)
    layers = ensemble_of(Architecture.mlp(5, 6), 1, 0.5)[0]
    record = sharpness(samples, layers, method="spectrum")
    assert not record.converged
    assert record.residual > 1e-3 * record.value
    assert "NOT converged" in str(record)


def test_a_start_vector_comes_back_and_saves_products():
    samples = gaussian_samples(seed=0)
    ensemble = ensemble_of(Architecture.mlp(5, 10), 9, 0.45)
    cold = sharpness(samples, ensemble)
    nearby = Ensemble.from_flat(ensemble.architecture, ensemble.flat() * (1 + 1e-6))
    warm = sharpness(samples, nearby, start=cold.vector, tolerance=1e-6)
    again = sharpness(samples, nearby, tolerance=1e-6)
    assert warm.products.sum() < again.products.sum()
    norms = np.linalg.norm(cold.vector, axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-12)
    for i, layers in enumerate(ensemble):
        matrix = oracles.gradient_and_hessian(samples, ensemble.architecture, layers)[1]
        gap = np.linalg.norm(matrix @ cold.vector[i] - cold.value[i] * cold.vector[i])
        assert gap <= 2e-10 * cold.value[i]


def test_bits_do_not_depend_on_place_or_neighbours():
    samples = gaussian_samples(seed=0)
    ensemble = ensemble_of(Architecture.mlp(5, 6), 21, 0.5)
    flat = ensemble.flat()
    record = sharpness(samples, ensemble)
    order = np.random.default_rng(0).permutation(21)
    moved = sharpness(samples, Ensemble.from_flat(ensemble.architecture, flat[order]))
    assert np.array_equal(record.value[order], moved.value)
    assert np.array_equal(record.residual[order], moved.residual)
    broken = flat.copy()
    broken[4] = np.nan
    broken[5] = np.inf
    hurt = sharpness(samples, Ensemble.from_flat(ensemble.architecture, broken))
    keep = [i for i in range(21) if i not in (4, 5)]
    assert np.array_equal(hurt.value[keep], record.value[keep])
    assert np.isnan(hurt.value[[4, 5]]).all()
    assert not hurt.converged[[4, 5]].any()
    alone = sharpness(samples, list(ensemble)[7])
    assert alone.value == record.value[7]


def test_zero_weights_and_saddles():
    samples = gaussian_samples(seed=0)
    zeros = [np.zeros((5, 5)), np.zeros((5, 5)), np.zeros((1, 5))]
    for method in ("auto", "lanczos", "dense"):
        record = sharpness(samples, zeros, method=method)
        assert record.value == 0.0
        assert record.converged


def test_a_large_network():
    samples = gaussian_samples(80, 60, seed=0)
    architecture = Architecture.mlp(60, 12)
    layers = ensemble_of(architecture, 1, 1.0 / np.sqrt(60))[0]
    record = sharpness(samples, layers)
    assert record.converged

    # Oracle: power iteration on automatic differentiation's products, shifted to be positive.
    import jax
    import jax.numpy as jnp

    X, y = jnp.asarray(samples.X), jnp.asarray(samples.y)

    def risk(flat):
        return oracles.risk(architecture, X, y, oracles.split(architecture, flat))

    flat = jnp.asarray(architecture.join(layers))
    image = jax.jvp(jax.grad(risk), (flat,), (jnp.asarray(record.vector),))[1]
    np.testing.assert_allclose(image, record.value * record.vector, atol=2e-10 * record.value)
    from scipy.sparse.linalg import LinearOperator, eigsh

    product = jax.jit(lambda v: jax.jvp(jax.grad(risk), (flat,), (v,))[1])
    operator = LinearOperator(
        (flat.size, flat.size), matvec=lambda v: np.asarray(product(v)), dtype=float
    )
    top = eigsh(operator, k=1, which="LA", tol=1e-12, return_eigenvectors=False)[0]
    assert record.value == pytest.approx(top, rel=1e-10)


def test_products_are_bounded_and_failure_is_said():
    samples = gaussian_samples(seed=0)
    ensemble = ensemble_of(Architecture.mlp(5, 10), 9, 0.45)
    for method in ("auto", "lanczos"):
        record = sharpness(samples, ensemble, max_products=3, method=method)
        assert not record.converged.all()
        assert record.products.max() <= 4


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_derivatives(name):
    import jax

    x = np.concatenate([np.linspace(-30, 30, 401), [-1e-9, 0.0, 1e-9]])
    activation, reference = ACTIVATIONS[name], oracles.ACTIVATIONS[name]
    first, second = jax.grad(reference), jax.grad(jax.grad(reference))
    # Where they vanish JAX has rounding left, of gelu most: 1 + tanh u and 1 - tanh(u)^2 to
    # 2 eps times |x| <= 30, |x| u' < 50 and |x| u'^2 < 300 until tanh is 1, at |x| = 7.2.
    np.testing.assert_allclose(activation.value(x), reference(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(activation.first(x), jax.vmap(first)(x), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(activation.second(x), jax.vmap(second)(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, w: sharpness(s, w, method="magic"), "method must be one of"),
        (lambda s, w: sharpness(s, w, tolerance=0), "tolerance must be a positive number"),
        (lambda s, w: sharpness(s, w, max_products=0), "max_products must be"),
        (lambda s, w: sharpness(s, w, start=[1.0]), "start must have shape"),
        (lambda s, w: sharpness(s, []), "at least one matrix"),
        (lambda s, w: sharpness(s, [w[0][:, :4], *w[1:]]), "takes 4 inputs but the data have 5"),
        (lambda s, w: sharpness(s, w[:-1]), "pass the output vector p"),
        (lambda s, w: sharpness(s, [w[0], w[2][:, :3]]), "W_2 must have shape"),
        (
            lambda s, w: sharpness(
                s.regression(), ensemble_of(Architecture.mlp(5, 2, None, "tanh"), 1)
            ),
            "needs the samples",
        ),
    ],
)
def test_bad_calls(call, message):
    samples = gaussian_samples(seed=0)
    layers = ensemble_of(Architecture.mlp(5, 3), 1)[0]
    with pytest.raises(SettingError, match=message):
        call(samples, layers)


def test_the_record_prints_its_convention():
    samples = gaussian_samples(seed=0)
    ensemble = ensemble_of(Architecture.mlp(5, 3), 2)
    record = sharpness(samples, ensemble)
    assert "no factor 1/2" in str(record)
    assert "no factor 1/2" in str(record[0])
    told = {
        "value",
        "residual",
        "products",
        "method",
        "converged",
        "low",
        "high",
        "proof",
        "chance",
    }
    assert set(record[0].as_dict()) == told


def test_no_networks_have_no_sharpness():
    data = gaussian_samples(20, 3, seed=0)
    nothing = initialise(Architecture.mlp(3, 2), "gaussian", 0.5, 0, networks=2)[:0]
    found = sharpness(data, nothing)
    assert len(found) == 0
    assert found.vector.shape == (0, 12)
