"""Above the ceiling, in closed form: against plain iteration, mpmath and finite differences."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression
from flatmin.theory.flip import flip
from flatmin.theory.minimal_sharpness import minimal_sharpness, vanishing_scale_limit
from flatmin.theory.one_neuron import flow_sharpness, pull_limit, small_limit_bounds
from flatmin.theory.oscillation import (
    imbalance_exponent,
    mode_doubling,
    mode_orbit,
    mode_reaches_zero,
    mode_step,
    one_mode,
)


@pytest.mark.parametrize("depth", [2, 3, 5, 10, 100])
@pytest.mark.parametrize("c", [1.0001, 1.05, 1.2])
def test_two_steps_return_to_the_orbit(depth: int, c: float) -> None:
    orbit = mode_orbit(depth, c)
    with mpmath.workdps(40):

        def step(u: mpmath.mpf) -> mpmath.mpf:
            return u - 2 * mpmath.mpf(c) / depth * (u ** (2 * depth - 1) - u ** (depth - 1))

        low = mpmath.findroot(lambda u: step(step(u)) - u, (orbit.low, orbit.low * (1 + 1e-7)))
        assert abs(low - 1) > 1e-5  # not the fixed point
        slope = mpmath.diff(step, low) * mpmath.diff(step, step(low))
        # near c = 1 the root is known to rounding over the slope of c in z, about (z - 1)
        error = 1e-14 / (orbit.ratio - 1.0)
        assert abs(low - orbit.low) < error
        assert abs(step(low) - orbit.high) < error
        assert abs(slope - orbit.multiplier) < 100 * depth * error


def test_the_second_doubling_is_where_plain_iteration_doubles() -> None:
    for depth, known in ((2, 5**0.5 - 1), (3, 1.2446), (10, 1.2503), (1000, 1.2516)):
        found = mode_doubling(depth)
        assert found == pytest.approx(known, abs=5e-5)
        for c, doubled in ((found - 2e-3, False), (found + 2e-3, True)):
            u = 1.0 - 0.2 / depth
            for _ in range(20_000):
                u = float(mode_step(u, depth, c))
            again = float(mode_step(mode_step(u, depth, c), depth, c))
            assert (abs(again - u) > 3e-3 / depth) == doubled


@pytest.mark.parametrize("depth", [2, 3, 7])
def test_zero_is_reached_first_from_the_top_of_the_map(depth: int) -> None:
    c = mode_reaches_zero(depth)
    u = np.linspace(0.0, 1.0, 200_001)
    least = [float(mode_step(mode_step(u, depth, x).max(), depth, x)) for x in (0.99 * c, 1.01 * c)]
    assert least[0] > 0.0 > least[1]


def test_an_orbit_needs_a_rate_above_the_ceiling() -> None:
    with pytest.raises(SettingError, match=r"above 1, got 0\.9"):
        mode_orbit(3, 0.9)
    with pytest.raises(SettingError, match="depth must be 2 or more"):
        mode_orbit(1, 1.1)


def chain_gradient(data: Regression, p: float, y: np.ndarray, r: np.ndarray) -> tuple:
    """The gradient of the risk of w = p prod(r) y, by hand."""
    product = p * np.prod(r)
    g = 2.0 * data.sigma @ (product * y - data.w_star)
    return product * g, product * (g @ y) / r


@pytest.mark.parametrize("depth", [2, 3, 6])
@pytest.mark.parametrize("p", [1.0, 1.7])
@pytest.mark.parametrize(
    "data",
    [
        gaussian_samples(seed=3).regression(),
        spectrum_samples(60, d=4, condition_number=20.0, seed=1).regression(),
    ],
    ids=["gaussian", "condition 20"],
)
def test_the_flip_has_the_amplitude_of_plain_descent(
    data: Regression, depth: int, p: float
) -> None:
    """Chains are iterated at two rates; Richardson's extrapolation removes the next order."""
    found = flip(data, depth, p)
    least = minimal_sharpness(data, depth, p)
    assert found.supercritical
    y_0, r_0 = data.w_star / np.sqrt(least.t), (np.sqrt(least.t) / p) ** (1.0 / (depth - 1))
    ratios, risks = [], []
    for c in (1.01, 1.02):
        y, r = y_0 * 1.001, np.full(depth - 1, r_0)
        r[0] *= 1.001
        for _ in range(4000):
            gy, gr = chain_gradient(data, p, y, r)
            before = np.append(y, r)
            y, r = y - 2 * c / least.exact * gy, r - 2 * c / least.exact * gr
        half = 0.5 * np.linalg.norm(np.append(y, r) - before)
        error = p * np.prod(r) * y - data.w_star
        ratios.append(half**2 / found.amplitude_squared(c))
        risks.append(error @ data.sigma @ error)
    assert 2 * ratios[0] - ratios[1] == pytest.approx(1.0, abs=5e-3)
    assert abs(ratios[0] - 1.0) < abs(ratios[1] - 1.0)
    assert risks[0] == pytest.approx(found.excess_risk(1.01), rel=0.3)


@pytest.mark.parametrize("depth", [2, 3, 5, 10, 40])
def test_the_flip_of_white_data_is_that_of_one_mode(depth: int) -> None:
    white = whitened_samples(n=30, d=4, seed=0).regression()
    scale = depth * white.w_star_norm ** (2 / depth)
    expected = 3 * scale / (2 * (depth - 1) * (5 * depth - 4))
    assert flip(white, depth).amplitude_squared(2.0) == pytest.approx(expected, rel=1e-9)
    orbit = mode_orbit(depth, 1.0 + 1e-5)
    assert (0.5 * (orbit.high - orbit.low)) ** 2 * scale == pytest.approx(expected * 1e-5, rel=1e-3)


def test_the_flip_is_supercritical_on_random_problems() -> None:
    """The measured regularity of the documentation, on fewer problems."""
    random = np.random.default_rng(7)
    for _ in range(200):
        d, depth = int(random.integers(2, 9)), int(random.integers(2, 30))
        spectrum = 10 ** random.uniform(-4, 0, d)
        basis = np.linalg.qr(random.standard_normal((d, d)))[0]
        rows = np.sqrt(d * spectrum)[:, None] * basis.T
        target = basis @ (random.standard_normal(d) * spectrum ** random.uniform(-1, 1))
        data = Regression.from_arrays(rows, rows @ target)
        p = float(10 ** random.uniform(-1, 1))
        found = flip(data, depth, p)
        scale = (data.w_star_norm / p) ** (2.0 / depth)
        assert found.coefficient * scale / found.sharpness >= 2.0 * (1 - 1e-9)


def test_one_mode_is_an_eigenvector_strong_enough() -> None:
    assert one_mode(whitened_samples(n=30, d=4, seed=0).regression(), 2)
    assert not one_mode(gaussian_samples(seed=0).regression(), 2)


def test_imbalance_is_multiplied_as_said_in_every_step() -> None:
    data = gaussian_samples(seed=5).regression()
    random = np.random.default_rng(0)
    y, r = data.w_star * 0.9, 1.0 + 0.2 * random.standard_normal(4)
    for _ in range(20):
        gy, gr = chain_gradient(data, 1.0, y, r)
        pull = 0.05 * gr * r
        assert np.ptp(pull) < 1e-14 * max(1.0, abs(pull[0]))
        before, factor = r, 1.0 - (pull[0] / np.outer(r, r)) ** 2
        y, r = y - 0.05 * gy, r - 0.05 * gr
        now = np.subtract.outer(r**2, r**2)
        assert now == pytest.approx(factor * np.subtract.outer(before**2, before**2), abs=1e-13)


def test_the_transverse_exponent_is_the_growth_of_an_imbalance() -> None:
    depth, c = 5, 1.2
    u = np.full(depth, 0.9)
    u[0] += 1e-9
    factors, gaps = [], []
    for _ in range(400):
        product = np.prod(u)
        new = u - 2 * c / depth * (product - 1.0) * product / u
        factors.append(new[1] / u[1])
        gaps.append(abs(new[0] - new[1]))
        u = new
        if gaps[-1] < 1e-12:  # start again before rounding shows
            u[0] = u[1] + 1e-9
            gaps.append(1e-9)
    ratio = mode_orbit(depth, c).imbalance_factor
    assert imbalance_exponent(factors[-100:]) == pytest.approx(0.5 * np.log(abs(ratio)), rel=1e-6)


def test_flow_sharpness_is_that_of_the_flow() -> None:
    from scipy.integrate import solve_ivp

    start, target, a = np.array([0.3, 0.9, 1.4]), 2.0, 0.7

    def descent(_: float, w: np.ndarray) -> np.ndarray:
        product = np.prod(w)
        return -2 * a * (product - target) * product / w

    end = solve_ivp(descent, (0, 60), start, rtol=1e-11, atol=1e-12).y[:, -1]
    sharp = 2 * a * target**2 * np.sum(1 / end**2)
    assert flow_sharpness(start, target, a) == pytest.approx(sharp, rel=1e-7)


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_flow_sharpness_does_not_grow_where_it_is_proved(depth: int) -> None:
    random = np.random.default_rng(1)
    w = random.uniform(0.3, 1.6, size=(2000, depth))
    eta = random.uniform(0.02, 0.6, size=2000)
    proved = grown = 0
    for _ in range(15):
        product = np.prod(w, axis=1)
        pull = eta * 2.0 * (product - 1.0) * product
        new = w - pull[:, None] / w
        sane = np.all((np.abs(new) < 1e3) & (np.abs(new) > 1e-3), axis=1)
        w, new, eta, pull = w[sane], new[sane], eta[sane], pull[sane]
        before, after = flow_sharpness(w, 1.0), flow_sharpness(new, 1.0)
        small = np.abs(pull) <= pull_limit(w)
        assert np.all(after[small] <= before[small] * (1 + 1e-12))
        proved += np.count_nonzero(small)
        grown += np.count_nonzero(after > before * (1 + 1e-9))
        w = new
    assert proved > 1000
    assert grown > 0  # without the condition it does grow


def test_the_limit_lies_between_its_bounds() -> None:
    for seed in range(20):
        data = gaussian_samples(seed=seed).regression()
        for depth in (2, 7):
            low, high = small_limit_bounds(data, depth, 1.3)
            assert low <= vanishing_scale_limit(data, depth, 1.3) <= high
    white = whitened_samples(seed=1).regression()
    low, high = small_limit_bounds(white, 4)
    assert high == pytest.approx(vanishing_scale_limit(white, 4))
