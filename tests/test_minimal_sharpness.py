"""S_min and its relatives against dense eigenvalues, brute force, mpmath and closed cases."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture
from flatmin.theory.minimal_sharpness import (
    balanced_scale,
    corollary_2_bound,
    critical_learning_rate,
    minimal_sharpness,
    network_lower_bound,
    paper_learning_rate,
    vanishing_scale_limit,
)
from flatmin.theory.minimisers import flattest_minimiser, minimiser_of_sharpness


def dense_objective(regression: Regression, depth: int, p_norm: float, log_t: float) -> float:
    """2 lambda_max(t Sigma + (L-1)(|p|^2/t)^{1/(L-1)} q q') with LAPACK."""
    q = regression.q
    update = (depth - 1) * np.exp((2 * np.log(p_norm) - log_t) / (depth - 1))
    matrix = np.exp(log_t) * regression.sigma + update * np.outer(q, q)
    return 2.0 * float(np.linalg.eigvalsh(matrix)[-1])


def dense_minimum(regression: Regression, depth: int, p_norm: float = 1.0) -> float:
    # Golden section over a range far wider than needed: the function is convex in log t.
    low = np.log(balanced_scale(regression, depth, p_norm)) - 20.0
    high = low + 40.0
    ratio = (np.sqrt(5.0) - 1.0) / 2.0
    for _ in range(120):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        left, right = (dense_objective(regression, depth, p_norm, x) for x in (a, b))
        low, high = (low, b) if left < right else (a, high)
    return dense_objective(regression, depth, p_norm, 0.5 * (low + high))


@pytest.mark.parametrize(
    ("inputs", "widths", "p"),
    [
        (2, (2, 1), (1.0,)),
        (3, (1, 1), (1.0,)),
        (2, (2, 2, 1), (1.0,)),
        (2, (2, 2), (0.6, -0.8)),
        (3, (2, 3, 2), (1.5, 0.5)),
    ],
)
def test_brute_force_over_minimisers_finds_the_exact_value(inputs, widths, p):
    samples = spectrum_samples(12, d=inputs, condition_number=6.0, noise=0.5, seed=1)
    architecture = Architecture(inputs, widths, p)
    exact = minimal_sharpness(
        samples.regression(), architecture.depth, architecture.output_norm
    ).exact
    found = oracles.brute_force_minimal_sharpness(samples, architecture)
    assert found == pytest.approx(exact, rel=1e-6)
    assert found >= exact * (1 - 1e-9)


@given(
    st.integers(2, 8),
    st.integers(2, 30),
    st.floats(1.0, 1e6),
    st.sampled_from(["spread", "weak", "strong"]),
    st.floats(0.01, 100.0),
    st.integers(0, 1000),
)
def test_exact_value_against_a_dense_search(d, depth, condition, alignment, p_norm, seed):
    data = spectrum_samples(
        d + 3, d=d, condition_number=condition, alignment=alignment, seed=seed
    ).regression()
    found = minimal_sharpness(data, depth, p_norm)
    assert found.exact == pytest.approx(dense_minimum(data, depth, p_norm), rel=1e-9)
    assert found.lower <= found.exact * (1 + 1e-12)
    assert found.exact <= found.upper * (1 + 1e-12)
    assert found.exact <= vanishing_scale_limit(data, depth, p_norm) * (1 + 1e-12)


@given(st.integers(2, 6), st.integers(7, 12), st.integers(2, 12), st.integers(0, 100))
def test_underdetermined_data(n, d, depth, seed):
    data = gaussian_samples(n, d, seed=seed).regression()
    assert data.rank == n
    found = minimal_sharpness(data, depth)
    assert found.exact == pytest.approx(dense_minimum(data, depth), rel=1e-9)


@pytest.mark.parametrize("depth", [2, 3, 10, 1000, 10_000])
@pytest.mark.parametrize("alignment", ["spread", "weak"])
def test_fifty_digits(depth, alignment):
    """The same minimisation in 50 digits, from the same eigenvalues and coefficients."""
    data = spectrum_samples(9, d=6, condition_number=1e8, alignment=alignment, seed=3).regression()
    with mpmath.workdps(50):
        lam = [mpmath.mpf(x) for x in data.eigenvalues]
        v = [mpmath.mpf(x) for x in data.eigenvectors.T @ data.w_star]
        norm = mpmath.sqrt(sum(x * x for x in v))
        z2 = [a * (b / norm) ** 2 for a, b in zip(lam, v, strict=True)]
        top = lam[-1]

        def value(x):  # log of m g(m)^{(L-1)/L}, m = Lam (1 + e^x)
            m = top * (1 + mpmath.e**x)
            g = sum(a / (m - b) for a, b in zip(z2, lam, strict=True))
            return mpmath.log(m) + mpmath.mpf(depth - 1) / depth * mpmath.log((depth - 1) * g)

        low, high = mpmath.mpf(-80), mpmath.log(depth)
        ratio = (mpmath.sqrt(5) - 1) / 2
        for _ in range(300):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, b) if value(a) < value(b) else (a, high)
        scale = norm ** (2 - mpmath.mpf(2) / depth)
        expected = float(2 * scale * mpmath.e ** value((low + high) / 2))
    assert minimal_sharpness(data, depth).exact == pytest.approx(expected, rel=1e-13)


def test_wide_data_and_all_depths():
    d, rng = 2000, np.random.default_rng(0)
    spectrum = np.geomspace(1e-10, 1.0, d)
    w_star = rng.standard_normal(d) / np.sqrt(d)
    names = tuple(map(str, range(d)))
    data = Regression(
        n=d, d=d, rank=d, risk_min=0.0, sigma=np.diag(spectrum), w_star=w_star,
        eigenvalues=spectrum, eigenvectors=np.eye(d), feature_names=names, target_names=("y",),
    )  # fmt: skip
    for depth in (1, 2, 3, 5, 10, 100, 1000, 10_000):
        found = minimal_sharpness(data, depth, 2.0)
        assert found.lower * (1 - 1e-12) <= found.exact <= found.upper * (1 + 1e-12)
    # The value is the dense objective's at the t found, and t cannot be improved.
    found = minimal_sharpness(data, 10, 2.0)
    here, left, right = (
        dense_objective(data, 10, 2.0, np.log(found.t) + step) for step in (0.0, -1e-3, 1e-3)
    )
    assert here == pytest.approx(found.exact, rel=1e-12)
    assert here < min(left, right)


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 50])
def test_whitened_data_is_closed(depth):
    data = whitened_samples(30, 6, seed=2).regression()
    expected = 2.0 * depth * data.w_star_norm ** (2 - 2 / depth)
    assert minimal_sharpness(data, depth).exact == pytest.approx(expected, rel=1e-12)
    assert vanishing_scale_limit(data, depth) == pytest.approx(expected, rel=1e-12)


def test_depth_one_is_the_quadratic():
    samples = gaussian_samples(seed=4)
    data = samples.regression()
    p = (0.3, 0.4)
    weights = [np.random.default_rng(0).standard_normal((2, 5))]
    seen = oracles.sharpness(samples, Architecture(5, (2,), p), weights)
    assert minimal_sharpness(data, 1, 0.5).exact == pytest.approx(seen, rel=1e-10)


def test_scaling_laws():
    samples = gaussian_samples(seed=5)
    data = samples.regression()
    bigger = type(samples).from_arrays(samples.X, 3.0 * samples.y).regression()
    for depth in (2, 5):
        plain = minimal_sharpness(data, depth).exact
        by_target = minimal_sharpness(bigger, depth).exact / plain
        assert by_target == pytest.approx(3.0 ** (2 - 2 / depth))
        by_p = minimal_sharpness(data, depth, 7.0).exact / plain
        assert by_p == pytest.approx(7.0 ** (2 / depth))


def test_rotating_features_and_permuting_rows_change_nothing():
    samples = gaussian_samples(seed=6)
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    order = rng.permutation(samples.n)
    moved = type(samples).from_arrays((samples.X @ rotation)[order], samples.y[order])
    a, b = (minimal_sharpness(s.regression(), 8) for s in (samples, moved))
    assert a.exact == pytest.approx(b.exact, rel=1e-12)
    assert a.upper == pytest.approx(b.upper, rel=1e-12)


def test_the_best_regressor_outside_the_top_eigenspace():
    """The minimum sits at a kink of lambda_max there; white noise in w* must not hide it."""
    weights = [1.0, 1.0, 0.0]
    data = spectrum_samples(8, eigenvalues=[0.5, 1.0, 9.0], alignment=weights).regression()
    for depth in (2, 3, 10):
        found = minimal_sharpness(data, depth)
        assert found.exact == pytest.approx(dense_minimum(data, depth), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "architecture",
    [
        Architecture.mlp(5, 10),
        Architecture(5, (3, 7, 1), (2.0,)),
        Architecture.residual(5, 4, [0.6, 0.0, 0.8, 0.0, 0.0]),
        Architecture(5, (1, 1), (1.0,)),
        Architecture(5, (4,), (1.0, 2.0, 0.0, 0.0)),
    ],
)
def test_the_flattest_minimiser_attains_the_value(architecture, seed):
    samples = gaussian_samples(seed=seed)
    data = samples.regression()
    for random in (None, np.random.default_rng(seed)):
        weights = flattest_minimiser(data, architecture, random)
        gradient, _ = oracles.gradient_and_hessian(samples, architecture, weights)
        assert np.linalg.norm(gradient) < 1e-12
        exact = minimal_sharpness(data, architecture.depth, architecture.output_norm).exact
        assert oracles.sharpness(samples, architecture, weights) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("factor", [1.0, 1.001, 3.0, 1e4])
@pytest.mark.parametrize("depth", [2, 5])
def test_a_minimiser_of_chosen_sharpness(depth, factor):
    samples = gaussian_samples(seed=1)
    data = samples.regression()
    architecture = Architecture.mlp(5, depth)
    wanted = factor * minimal_sharpness(data, depth).exact
    weights = minimiser_of_sharpness(data, architecture, wanted)
    gradient, _ = oracles.gradient_and_hessian(samples, architecture, weights)
    assert np.linalg.norm(gradient) < 1e-10 * wanted
    assert oracles.sharpness(samples, architecture, weights) == pytest.approx(wanted, rel=1e-9)


def test_no_minimiser_is_flatter_than_the_flattest():
    data = gaussian_samples(seed=1).regression()
    with pytest.raises(SettingError, match="at least S_min"):
        minimiser_of_sharpness(data, Architecture.mlp(5, 4), 0.5)


@given(st.integers(0, 500), st.integers(2, 5))
def test_layer_norm_bound_holds_for_random_minimisers(seed, depth):
    """Theorem 2's first bound, at minimisers with nothing balanced about them."""
    samples = gaussian_samples(12, 3, seed=seed)
    data = samples.regression()
    rng = np.random.default_rng(seed)
    architecture = Architecture.mlp(3, depth)
    weights = [rng.standard_normal(shape) for shape in architecture.shapes]
    b = np.ones(1)
    for w in reversed(weights[1:]):
        b = w.T @ b
    weights[0] += np.outer(b, data.w_star - weights[0].T @ b) / (b @ b)
    seen = oracles.sharpness(samples, architecture, weights)
    norms = [np.linalg.norm(w) for w in weights]
    assert seen >= network_lower_bound(data, depth, norms) * (1 - 1e-9)
    assert seen >= minimal_sharpness(data, depth).exact * (1 - 1e-9)


def test_vanishing_scale_limit_is_the_balanced_chain():
    samples = gaussian_samples(seed=8)
    data = samples.regression()
    depth = 4
    share = data.w_star_norm ** (1 / depth)
    unit = np.eye(5)[0]
    weights = [share * np.outer(unit, data.w_star / data.w_star_norm)]
    weights += [share * np.outer(unit, unit)] * 2 + [share * unit[None, :]]
    seen = oracles.sharpness(samples, Architecture.mlp(5, depth), weights)
    assert vanishing_scale_limit(data, depth) == pytest.approx(seen, rel=1e-10)
    assert seen <= corollary_2_bound(data, depth)


def test_critical_rates():
    data = gaussian_samples(seed=9).regression()
    assert critical_learning_rate(data, 6) == pytest.approx(2 / dense_minimum(data, 6))
    assert paper_learning_rate(data, 6) >= critical_learning_rate(data, 6)


def test_the_product_of_ones():
    """f(x) = x_1...x_L at ones has sharpness L - 1; the loss (f-1)^2 there has 2 L."""
    import jax
    import jax.numpy as jnp

    depth = 6
    hessian = jax.hessian(jnp.prod)(jnp.ones(depth))
    assert np.linalg.eigvalsh(np.asarray(hessian))[-1] == pytest.approx(depth - 1)
    data = Regression.from_arrays([[1.0], [1.0]], [1.0, 1.0])
    assert minimal_sharpness(data, depth).exact == pytest.approx(2 * depth)


def test_values_beyond_floating_point_are_refused():
    data = Regression.from_arrays([[1.0], [2.0]], [1e130, 2e130])
    with pytest.raises(SettingError, match="beyond floating point"):
        minimal_sharpness(data, 5, 1e300)
