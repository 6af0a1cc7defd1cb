"""Long runs above the ceiling: against plain NumPy, scalar maps and pairs of nearby runs."""

from __future__ import annotations

import numpy as np
import pytest

from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression
from flatmin.data.sets import paper_samples
from flatmin.dynamics import orbits as module
from flatmin.dynamics.atlas import atlas, work
from flatmin.dynamics.atlas_figure import atlas_figure
from flatmin.dynamics.orbits import CHAOTIC, DIVERGED, SETTLED, STALLED, follow_orbits
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.flip import flip
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser
from flatmin.theory.oscillation import mode_doubling, mode_orbit, mode_step

PAPER = paper_samples("linear").regression()
WHITE = whitened_samples(n=50, d=3, seed=0).regression()


def plain_step(layers: list[np.ndarray], data: Regression, eta: float) -> list[np.ndarray]:
    """Gradient descent by the formulas of the theory, one network."""
    b = [np.ones(1)]
    for w in reversed(layers):
        b.insert(0, w.T @ b[0])
    a = 2.0 * data.sigma @ (b[0] - data.w_star)
    new = []
    for k, w in enumerate(layers):
        new.append(w - eta * np.outer(b[k + 1], a))
        a = w @ a
    return new


def output(layers: list[np.ndarray], data: Regression) -> float:
    product = np.linalg.multi_dot(layers[::-1])[0] if len(layers) > 1 else layers[0][0]
    return float(product @ data.sigma @ data.w_star / (data.q @ data.q))


def critical(data: Regression, depth: int) -> float:
    return 2.0 / minimal_sharpness(data, depth).exact


@pytest.mark.parametrize("width", [1, 4])
def test_a_ramp_is_plain_descent_with_rising_rates(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KICK", 0.0)
    network = Architecture.mlp(PAPER.d, 3, width)
    start = initialise(network, "gaussian", 0.5, 0, networks=11)
    steps, last = 60, np.linspace(0.1, 0.2, 11)
    found = follow_orbits(PAPER, start, last, steps, first_rates=0.05)
    for i in (0, 4, 10):
        layers, outputs = start[i], []
        for step in range(steps):
            outputs.append(output(layers, PAPER))
            eta = min(0.05 + step * (last[i] - 0.05) / (steps // 4), last[i])
            layers = plain_step(layers, PAPER, eta)
        kept = len(found.output)
        assert found.output[:, i] == pytest.approx(outputs[-kept:], rel=1e-8)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_white_data_follow_the_map_of_one_number(depth: int) -> None:
    c = np.array([0.95, 1.1, 1.2, mode_doubling(depth) + 0.02])
    found = atlas(WHITE, depth, c=c, starts=2, steps=6000)
    assert found.orbits.kind[::2].tolist() == [SETTLED, "period 2", "period 2", "period 4"]
    for i in range(8):
        u = 0.9
        for _ in range(6000):
            u = float(mode_step(u, depth, found.c[i]))
        cycle = []
        for _ in range(4):
            cycle.append(u**depth)
            u = float(mode_step(u, depth, found.c[i]))
        # the tolerance is what the slowest direction leaves of the first kick
        assert np.sort(found.orbits.output[-4:, i]) == pytest.approx(np.sort(cycle), abs=2e-5)
    exact = mode_orbit(depth, 1.2)
    swing = exact.high**depth - exact.low**depth
    assert found.orbits.swing[4:6] == pytest.approx(swing, rel=1e-4)
    factor = np.log(abs(exact.imbalance_factor)) / 2
    if depth > 2:
        assert found.orbits.transverse[4:6] == pytest.approx(factor, rel=1e-3)
    # among chains the slowest contraction is that of u or of balance
    slowest = max(factor, np.log(abs(exact.multiplier)) / 2)
    assert found.orbits.exponent[4:6] == pytest.approx(slowest, rel=0.02, abs=1e-4)


def two_runs(data: Regression, depth: int, width: int, c: float, steps: int) -> float:
    """The mean growth a step of the distance of two nearby runs, by plain NumPy."""
    random = np.random.default_rng(0)
    network = Architecture.mlp(data.d, depth, width)
    layers = flattest_minimiser(data, network, random)
    layers = [w + 1e-3 * random.standard_normal(w.shape) for w in layers]
    eta = c * critical(data, depth)
    for _ in range(1000):
        layers = plain_step(layers, data, eta)
    near = [w + 1e-9 * random.standard_normal(w.shape) for w in layers]
    total = 0.0
    for step in range(steps):
        layers, near = plain_step(layers, data, eta), plain_step(near, data, eta)
        apart = [n - w for n, w in zip(near, layers, strict=True)]
        length = np.sqrt(sum(np.sum(x**2) for x in apart))
        if step >= 100:
            total += np.log(length / 1e-9)
        near = [w + 1e-9 / length * x for w, x in zip(layers, apart, strict=True)]
    return total / (steps - 100)


@pytest.mark.parametrize(
    ("depth", "width", "c"), [(3, 1, 1.6), (3, 5, 1.5687), (2, 1, 1.4), (4, 1, 1.1)]
)
def test_the_exponent_is_how_fast_nearby_runs_part(depth: int, width: int, c: float) -> None:
    """Of chains (width 1) whatever its sign; of wider networks where it is positive."""
    brute = two_runs(PAPER, depth, width, c, 3000)
    network = Architecture.mlp(PAPER.d, depth, width)
    random = np.random.default_rng(1)
    flat = network.join(flattest_minimiser(PAPER, network, random))
    starts = flat + 1e-3 * random.standard_normal((8, len(flat)))
    found = follow_orbits(
        PAPER, Ensemble.from_flat(network, starts), c * critical(PAPER, depth), 8000
    )
    # Chaotic means of 3000 steps differ by a few per cent.
    assert np.mean(found.exponent) == pytest.approx(brute, abs=0.03)
    assert set(found.kind) == {CHAOTIC if brute > 0.01 else "period 2"}


def test_kinds_are_told_apart() -> None:
    time = np.arange(1000)[:, None]
    golden = 2 * np.pi * 0.5 * (5**0.5 - 1)
    logistic = [0.3]
    for _ in range(999):
        logistic.append(3.9 * logistic[-1] * (1 - logistic[-1]))
    columns = [
        1.0 + 0.0 * time[:, 0],
        1.0 + 0.1 * (-1.0) ** time[:, 0],
        1.0 + 0.1 * np.cos(2 * np.pi * time[:, 0] / 7),
        1.0 + 0.1 * np.cos(golden * time[:, 0]),
        np.array(logistic),
        1e-9 * time[:, 0],
        np.full(1000, np.inf),
    ]
    outputs = np.stack(columns, axis=1)
    growth = np.array([-1.0, -1.0, -1.0, 0.0, 500.0, 0.0, np.nan])
    still = np.zeros_like(outputs)
    with np.errstate(all="ignore"):
        gain = 2.0 * WHITE.excess_at_zero * (outputs - 1.0)
        stretch = np.exp(np.broadcast_to(growth / 1000, outputs.shape))
        seen = np.stack([gain, still, still, still + 1.0, stretch])
        found = module._judged(WHITE, Architecture.mlp(WHITE.d, 3), np.ones(7), seen)
    wanted = [SETTLED, "period 2", "period 7", "quasi-periodic", CHAOTIC, STALLED, DIVERGED]
    assert found.kind.tolist() == wanted
    assert found.period.tolist() == [1, 2, 7, 0, 0, 0, 0]
    assert found.exponent[4] == pytest.approx(0.5, rel=1e-12)


def test_thresholds_are_those_of_the_scalar_map() -> None:
    """At depth 2, where nothing stalls: c_2 = 1, c_4 = sqrt(5) - 1, and c_div = 2, where the
    largest value of the map on (0, 1) meets its orbit +-sqrt(1 + 2/c)."""
    found = atlas(WHITE, 2, c=np.linspace(1.2, 2.4, 61), starts=2, steps=4000)
    for threshold, exact in ((found.c_2, 1.0), (found.c_4, 5**0.5 - 1)):
        assert threshold is not None
        assert threshold.error < 1e-4
        assert abs(threshold.c - exact) < threshold.error
    assert found.c_div is not None
    assert abs(found.c_div.c - 2.0) <= found.c_div.error < 0.02
    top = ((1 + 2.0) / (3 * 2.0)) ** 0.5
    assert float(mode_step(top, 2, 2.0)) == pytest.approx((1 + 2 / 2.0) ** 0.5, rel=1e-14)


def test_two_critical_directions_make_it_quasi_periodic() -> None:
    """Where S_min is not simple: no return, and nearby runs neither meet nor part."""
    data = spectrum_samples(100, d=5, condition_number=100.0, alignment="weak", seed=0).regression()
    assert flip(data, 3).gap < 1e-9
    found = atlas(data, 3, c=np.array([0.97, 1.03]), starts=3, steps=8000, width=1)
    assert found.orbits.kind.tolist() == [SETTLED] * 3 + ["quasi-periodic"] * 3
    assert found.c_2 is None
    assert "most runs there are quasi-periodic" in found.sentence()
    assert abs(two_runs(data, 3, 1, 1.03, 6000)) < 2e-3


def test_deep_networks_stall_at_the_saddle() -> None:
    found = atlas(WHITE, 6, c=np.array([2.4, 2.5]), starts=2, steps=3000)
    assert set(found.orbits.kind) == {STALLED}
    assert np.max(np.abs(found.orbits.output[-1])) < 0.1


def test_the_attractor_does_not_depend_on_the_start_but_the_basin_does() -> None:
    c = np.array([1.1, 1.28])
    calm = atlas(PAPER, 3, c=c, starts=3, steps=5000, runs=8)
    assert np.ptp(calm.orbits.swing.reshape(2, 3), axis=1) == pytest.approx(0.0, abs=1e-4)
    assert calm.basins is not None
    assert calm.basins.shares["period 2"][0] == 1.0
    wild = atlas(PAPER, 3, c=c, starts=1, steps=1000, runs=8, init="gaussian", scale=1.5)
    assert wild.basins is not None
    assert wild.basins.shares[DIVERGED][0] > 0.0


def test_an_atlas_is_the_same_again() -> None:
    c = np.linspace(1.0, 1.5, 5)
    first, second = (atlas(PAPER, 2, c=c, starts=2, steps=800, seed=3) for _ in range(2))
    assert np.array_equal(first.orbits.output, second.orbits.output)
    assert np.array_equal(first.orbits.exponent, second.orbits.exponent)
    other = atlas(PAPER, 2, c=c, starts=2, steps=800, seed=4)
    assert not np.array_equal(first.orbits.output, other.orbits.output)


def test_threads_and_lanes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Architecture.mlp(PAPER.d, 3)
    start = initialise(network, "gaussian", 0.4, 0, networks=21)
    rates = np.linspace(0.2, 0.6, 21)
    found = []
    for threads in ("1", "3", "30"):  # two blocks of eight lanes and more, or blocks of four
        monkeypatch.setenv("FLATMIN_THREADS", threads)
        found.append(follow_orbits(PAPER, start, rates, 600))
    for other in found[1:]:
        assert np.array_equal(found[0].output, other.output, equal_nan=True)
        assert np.array_equal(found[0].exponent, other.exponent, equal_nan=True)


def test_progress_adds_up_and_pictures_are_drawn_of_anything() -> None:
    for c in (np.array([0.5]), np.array([5.0, 6.0]), np.linspace(0.9, 1.4, 12)):
        done: list[int] = []
        found = atlas(PAPER, 2, c=c, starts=2, steps=400, runs=2, progress=done.append)
        assert 0 < sum(done) <= work(c, 2, 400, 2)
        assert len(atlas_figure(found).axes) == 3
        rows = found.table()
        assert len(rows) == 2 * len(c)
        assert set(rows["kind"]) == set(found.orbits.kind)
        assert found.sentence().startswith("At depth 2 ")
        assert len(found.as_dict()["rates"]) == len(c)


def test_what_an_atlas_is_not_for_is_said() -> None:
    with pytest.raises(SettingError, match="depth must be at least 2"):
        atlas(PAPER, 1)
    several = gaussian_samples(seed=0).regression()
    network = Architecture.mlp(several.d, 2, activation="tanh")
    start = initialise(network, "gaussian", 0.1, 0, networks=2)
    with pytest.raises(SettingError, match="linear networks with one output"):
        follow_orbits(several, start, 0.1, 100)
    with pytest.raises(SettingError, match="positive"):
        atlas(PAPER, 2, c=np.array([-1.0, 1.0]))
