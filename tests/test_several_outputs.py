"""S_min for several outputs against brute force, closed cases and the function for one output."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import oracles
from flatmin import flattest_depth, predict
from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, whitened_samples
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser, product_rank


def random_samples(rng, n, d, targets, spread=1.0, rank=None):
    """Gaussian rows with feature scales from 1 to 10^-spread; P* of the given rank plus noise."""
    X = rng.standard_normal((n, d)) * np.logspace(0.0, -spread, d)
    product = rng.standard_normal((d, targets))
    if rank is not None:
        u, s, v = np.linalg.svd(product, full_matrices=False)
        product = (u[:, :rank] * s[:rank]) @ v[:rank]
        return Samples.from_arrays(X, X @ product)
    return Samples.from_arrays(X, X @ product + 0.3 * rng.standard_normal((n, targets)))


def objective(data, depth, log_t):
    """2 lambda_max(t Sigma + (L-1) t^{-1/(L-1)} Q'Q), by LAPACK."""
    Q = data.w_star.T @ data.sigma_root
    matrix = np.exp(log_t) * data.sigma + (depth - 1) * np.exp(-log_t / (depth - 1)) * Q.T @ Q
    return 2.0 * float(np.linalg.eigvalsh(matrix)[-1])


def brute_force(samples, architecture, starts=6, seed=0):
    """The least sharpness over minimisers, by a general optimiser from random starts.

    All layers are free but for the part of one of them that makes the product P*: of W_1 if the
    hidden layers are no narrower than the output, of W_L if no narrower than the input.
    """
    X, Y = jnp.asarray(samples.X), jnp.asarray(samples.y)
    target = jnp.asarray(samples.regression().w_star.T)
    last = architecture.widths[-1] > architecture.inputs

    def layers_of(theta):
        free = oracles.split(architecture, theta)
        others = free[:-1] if last else free[1:]
        through = others[0]
        for w in others[1:]:
            through = w @ through
        if last:
            gap = target - free[-1] @ through
            return [*others, free[-1] + gap @ jnp.linalg.solve(through.T @ through, through.T)]
        gap = target - through @ free[0]
        return [free[0] + through.T @ jnp.linalg.solve(through @ through.T, gap), *others]

    def log_sharpness(theta):
        flat = jnp.concatenate([w.ravel() for w in layers_of(theta)])
        hessian = jax.hessian(
            lambda x: oracles.risk(architecture, X, Y, oracles.split(architecture, x))
        )(flat)
        return jnp.log(jnp.linalg.eigvalsh(hessian)[-1])

    function = jax.jit(jax.value_and_grad(log_sharpness))
    rng = np.random.default_rng(seed)
    best = np.inf
    for _ in range(starts):
        x = rng.standard_normal(architecture.parameters)
        for _ in range(6):  # restarts help at kinks of the largest eigenvalue
            found = minimize(
                lambda z: tuple(np.asarray(v, dtype=float) for v in function(z)),
                x,
                jac=True,
                method="BFGS",
                options={"gtol": 1e-10, "maxiter": 1500},
            )
            x = found.x
        best = min(best, float(np.exp(found.fun)))
    return best


@pytest.mark.parametrize(
    ("inputs", "widths", "n"),
    [
        (2, (2, 2), 12),
        (3, (2, 2), 12),
        (3, (4, 3, 2), 12),  # uneven widths
        (3, (2, 2), 2),  # Sigma of rank 2 of 3
        (2, (2, 3), 9),  # more outputs than inputs
    ],
)
def test_brute_force_over_minimisers_finds_the_exact_value(inputs, widths, n):
    samples = random_samples(np.random.default_rng(3), n, inputs, widths[-1])
    exact = minimal_sharpness(samples.regression(), len(widths)).exact
    found = brute_force(samples, Architecture(inputs, widths, None))
    assert found >= exact * (1 - 1e-9)
    assert found == pytest.approx(exact, rel=1e-4)


SHAPES = [
    # inputs, widths, rows, rank of P* (None: full)
    (3, (3, 2), 12, None),
    (3, (2, 5, 2), 12, None),
    (2, (2, 4, 3, 5), 9, None),  # more outputs than inputs
    (5, (3, 6, 4), 3, None),  # Sigma of rank 3
    (4, (2, 2, 4), 20, 2),
    (4, (1, 3, 1, 3), 20, 1),
    (3, (4,), 12, None),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("inputs", "widths", "n", "rank"), SHAPES)
def test_the_flattest_minimiser_attains_the_value(inputs, widths, n, rank, seed):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, n, inputs, widths[-1], rank=rank)
    data, architecture = samples.regression(), Architecture(inputs, widths, None)
    exact = minimal_sharpness(data, len(widths)).exact
    for random in (None, rng):
        layers = flattest_minimiser(data, architecture, random)
        gradient, hessian = oracles.gradient_and_hessian(samples, architecture, layers)
        assert np.linalg.norm(gradient) < 1e-11 * exact
        assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("depth", "targets"), [(1, 2), (2, 2), (3, 3), (5, 2), (3, 6)])
def test_no_minimiser_is_flatter(seed, depth, targets):
    rng = np.random.default_rng(seed)
    samples = gaussian_samples(20, 3, seed=seed, targets=targets)
    data, architecture = samples.regression(), Architecture.multivariate(3, depth, targets)
    found = minimal_sharpness(data, depth)
    assert found.lower <= found.exact * (1 + 1e-14) <= found.upper * (1 + 1e-13)
    minimisers = [oracles.balanced_minimiser(data, architecture)]
    for _ in range(10):
        inner = [rng.standard_normal((3, 3)) / 2 + np.eye(3) for _ in range(depth - 1)]
        through = np.linalg.multi_dot([np.eye(3), np.eye(3), *reversed(inner)])
        minimisers.append([*inner, data.w_star.T @ np.linalg.inv(through)])
    for layers in minimisers:
        gradient, hessian = oracles.gradient_and_hessian(samples, architecture, layers)
        top = np.linalg.eigvalsh(hessian)[-1]
        assert np.linalg.norm(gradient) < 1e-8 * top
        assert top >= found.exact * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_scipy_minimises_the_same_function(seed):
    rng = np.random.default_rng(seed)
    d, targets, depth = rng.integers(2, 12), rng.integers(2, 8), int(rng.integers(2, 20))
    rank = int(rng.integers(1, min(d, targets) + 1)) if seed % 2 else None
    data = random_samples(
        rng, int(rng.integers(2, 30)), d, targets, spread=rng.uniform(0, 3), rank=rank
    ).regression()
    found = minimal_sharpness(data, depth)
    assert objective(data, depth, np.log(found.t)) == pytest.approx(found.exact, rel=1e-12)
    centre = np.log(found.t)
    other = minimize_scalar(
        lambda log_t: objective(data, depth, log_t),
        bounds=(centre - 3.0, centre + 4.0),
        method="bounded",
        options={"xatol": 1e-12},
    )
    assert found.exact <= other.fun * (1 + 1e-13)
    assert found.exact == pytest.approx(other.fun, rel=1e-8)


def test_a_kink_where_two_outputs_are_equally_sharp():
    """Two features, each with its own target: S_min is where both directions meet.

    With Sigma = diag(l_1, l_2) and P* = diag(w_1, w_2), the matrix is diagonal and its entries
    t l_i + (L-1) rho l_i w_i^2; where the entry with the larger l has the smaller w^2, one falls
    and one grows at the minimum.
    """
    l1, l2, w1, w2, depth = 4.0, 1.0, 0.5, 3.0, 3
    X = np.sqrt(2.0) * np.diag(np.sqrt([l1, l2]))
    data = Samples.from_arrays(X, X @ np.diag([w1, w2])).regression()
    # t (l1 - l2) = 2 t^{-1/2} (l2 w2^2 - l1 w1^2) at the crossing
    t = (2 * (l2 * w2**2 - l1 * w1**2) / (l1 - l2)) ** (2 / 3)
    slopes = [t * one - t**-0.5 * one * w**2 for one, w in ((l1, w1), (l2, w2))]
    assert min(slopes) < 0 < max(slopes)
    expected = 2 * (t * l1 + 2 * t**-0.5 * l1 * w1**2)
    found = minimal_sharpness(data, depth)
    assert found.exact == pytest.approx(expected, rel=1e-13)
    assert found.t == pytest.approx(t, rel=1e-12)


def test_a_regressor_that_misses_the_top_of_sigma():
    X = np.sqrt(3.0) * np.diag([3.0, 1.0, 0.5])
    product = np.array([[0.0, 0.0], [1.0, 0.2], [0.3, 2.0]])
    data = Samples.from_arrays(X, X @ product).regression()
    for depth in (2, 5):
        found = minimal_sharpness(data, depth)
        assert objective(data, depth, np.log(found.t)) == pytest.approx(found.exact, rel=1e-13)
        for step in (-1e-4, 1e-4):
            assert objective(data, depth, np.log(found.t) + step) >= found.exact * (1 - 1e-14)


def test_white_data_and_one_layer_in_closed_form():
    white = whitened_samples(30, 4, seed=0)
    product = np.random.default_rng(0).standard_normal((4, 3))
    data = Samples.from_arrays(white.X, white.X @ product).regression()
    top = np.linalg.svd(data.w_star, compute_uv=False)[0]
    for depth in (1, 2, 6):
        expected = 2 * depth * top ** (2 - 2 / depth)
        found = minimal_sharpness(data, depth)
        for value in (found.lower, found.exact, found.upper):
            assert value == pytest.approx(expected, rel=1e-12)
    coloured = gaussian_samples(20, 4, seed=1, targets=2).regression()
    assert minimal_sharpness(coloured, 1).exact == 2 * coloured.largest_eigenvalue


def test_proportional_targets_are_one_target():
    one = gaussian_samples(20, 4, seed=2)
    two = Samples.from_arrays(one.X, np.stack([0.6 * one.y, 0.8 * one.y], axis=1)).regression()
    for depth in (2, 5):
        a, b = minimal_sharpness(two, depth), minimal_sharpness(one.regression(), depth)
        assert a.exact == pytest.approx(b.exact, rel=1e-13)
        assert a.t == pytest.approx(b.t, rel=1e-7)
    assert product_rank(two) == 1
    assert flattest_depth(two) == flattest_depth(one.regression())


def test_it_is_the_sharpest_output_direction():
    """S_min = the largest one-output S_min over unit output directions."""
    samples = random_samples(np.random.default_rng(5), 20, 4, 2)
    least = minimal_sharpness(samples.regression(), 4).exact

    def one(angle):
        v = np.array([np.cos(angle), np.sin(angle)])
        data = Samples.from_arrays(samples.X, samples.y @ v).regression()
        return minimal_sharpness(data, 4).exact

    values = [one(angle) for angle in np.linspace(0, np.pi, 2001)]
    assert max(values) <= least * (1 + 1e-13)
    assert max(values) == pytest.approx(least, rel=1e-5)


def test_the_flattest_depth_is_that_of_a_list():
    data = random_samples(np.random.default_rng(1), 30, 4, 3, spread=1.5).regression()
    values = [minimal_sharpness(data, depth).exact for depth in range(1, 60)]
    assert np.all(np.diff(values, 2) >= -1e-12 * values[-1])
    assert flattest_depth(data) == predict(data, 3).flattest_depth == 1 + int(np.argmin(values))


def test_a_start_at_the_flattest_minimiser():
    data = gaussian_samples(20, 4, seed=0, targets=3).regression()
    architecture = Architecture.multivariate(4, 3, 3)
    ensemble = initialise(architecture, "flattest", 0.0, 0, [(0,), (1,)], data)
    for layers in ensemble:
        np.testing.assert_allclose(
            np.linalg.multi_dot(layers[::-1]), data.w_star.T, rtol=0, atol=1e-13
        )
    assert not np.allclose(*(layers[0] for layers in ensemble))


def test_narrow_layers_and_an_output_norm_are_refused():
    data = gaussian_samples(20, 4, seed=2, targets=3).regression()
    narrow = Architecture.multivariate(4, 3, 3, width=2)
    with pytest.raises(SettingError, match="widths of at least 3, the rank of P"):
        flattest_minimiser(data, narrow)
    with pytest.raises(SettingError, match=r"\|p\| must be 1 with 3 targets"):
        minimal_sharpness(data, 3, 2.0)
