"""Lemma 3 by Monte Carlo: formulas, the draws, the confidence limits and the verdicts."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from flatmin.core.errors import SettingError
from flatmin.core.seeds import generator
from flatmin.ledger import lemma_3 as module
from flatmin.ledger.figures import statement_figure
from flatmin.ledger.lemma_3 import Curve, draws_for, lemma_3
from flatmin.ledger.lemma_3_draws import (
    breaks,
    draw_noise,
    extreme_singular_values,
    failing,
    failure_bound,
    log_extremes,
    norm_ceiling,
    pushed,
    singular_value_floor,
    theta_ball,
)
from flatmin.ledger.lemma_9 import perturbed, rank_one_theta
from flatmin.ledger.record import Verdict, merge
from flatmin.ledger.statements import lemma_3 as statement

GRID = {"dimensions": (4, 8), "depths": (3, 10), "scales": (0.25, 1.0)}


@pytest.fixture(scope="module")
def table() -> list[Curve]:
    return lemma_3(draws=200, **GRID)


@pytest.mark.parametrize(("s", "u", "d"), [(0.25, 0.05, 4), (0.5, 1.3, 32), (1.0, 3.0, 7)])
def test_formulas_against_mpmath(s: float, u: float, d: int) -> None:
    e, S, U = mpmath.e, mpmath.mpf(s), mpmath.mpf(u)
    assert norm_ceiling(s, u) == pytest.approx(float(4 * e ** (S * S / 2 + U)), rel=1e-14)
    expected = 1 / (4 * e ** (2 * S * S / d + U))
    assert singular_value_floor(s, u, d) == pytest.approx(float(expected), rel=1e-14)
    expected = 8 * e ** (-d * (U / S) ** 2 / 32)
    assert failure_bound(s, u, d) == pytest.approx(float(expected), rel=1e-13)
    expected = 1 / (64 * e ** (2 * S * S + 4 * U))
    assert theta_ball(s, u) == pytest.approx(float(expected), rel=1e-14)


@pytest.mark.parametrize("d", [3, 4, 5, 32])
def test_lemma_9_covers_the_ball_from_dimension_four_on(d: int) -> None:
    s, u = 0.8, 0.4
    tight_norm, tight_floor = norm_ceiling(s, u) / 2, 2 * singular_value_floor(s, u, d)
    covered = theta_ball(s, u) <= tight_floor**2 / (4 * tight_norm**2) * (1 + 1e-14)
    assert covered == (d >= 4)


def test_smaller_dimensions_are_refused() -> None:
    with pytest.raises(SettingError, match="d >= 4"):
        lemma_3(draws=1, dimensions=(3,))


def test_draws_against_a_loop_over_explicit_matrices() -> None:
    d, L, s = 5, 6, 0.7
    found = log_extremes(draw_noise(3, d, L, range(4)), s / np.sqrt(L * d))
    for draw in range(4):
        noise = generator(3, "lemma-3", d, L, draw).standard_normal((L, d, d))
        product, norms, smallest = np.eye(d), [], []
        for k in range(L):
            product = (np.eye(d) + s / np.sqrt(L * d) * noise[k]) @ product
            norms.append(np.linalg.norm(product, 2))
            smallest.append(1.0 / np.linalg.norm(np.linalg.inv(product), 2))
        assert found[0][draw] == pytest.approx(np.log(norms), abs=1e-9)
        assert found[1][draw] == pytest.approx(np.log(smallest), abs=1e-9)


def test_a_draw_does_not_depend_on_the_others() -> None:
    few, many = (draw_noise(0, 4, 3, range(n)) for n in (50, 120))
    np.testing.assert_array_equal(few, many[:50])
    us = np.linspace(0.05, 1.0, 20)
    for one, other in zip(failing(few, 1.0, us), failing(many, 1.0, us), strict=True):
        np.testing.assert_array_equal(one, other[:50])


def test_threads_and_blocks_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(threads: int) -> list[object]:
        found = lemma_3(draws=40, dimensions=(4, 6), depths=(7,), threads=threads)
        return [(c.d, c.L, c.s, c.at_least.tolist(), c.at_most.tolist()) for c in found]

    whole = counts(1)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 2**13)
    assert whole == counts(1) == counts(3)


def test_extreme_singular_values_also_of_ill_conditioned_matrices() -> None:
    random = np.random.default_rng(0)
    matrices = random.standard_normal((30, 6, 6))
    matrices[::3, :, 0] = matrices[::3, :, 1] * (1.0 + 1e-9 * random.standard_normal((10, 6)))
    largest, smallest = extreme_singular_values(matrices)
    exact = np.linalg.svd(matrices, compute_uv=False)
    np.testing.assert_allclose(largest, exact[:, 0], rtol=1e-12)
    np.testing.assert_allclose(smallest, exact[:, -1], rtol=1e-8)


def test_a_pushed_value_is_reached_inside_the_ball() -> None:
    random = np.random.default_rng(1)
    layers = [np.eye(4) + 0.3 * random.standard_normal((6, 4, 4)) for _ in range(5)]
    at, radius = np.array([4, 3, 2, 4, 0, 1]), np.array([0.0, 0.01, 0.2])
    for which, sign in ((0, 1.0), (-1, -1.0)):
        found = np.exp(pushed(layers, at, sign * radius, which))
        for i, r in enumerate(radius):
            theta = rank_one_theta(layers, at, np.full(6, sign * r), which)
            assert max(np.linalg.norm(t, 2, axis=(1, 2)).max() for t in theta) <= r * (1 + 1e-12)
            moved = perturbed(layers, theta)
            for network in range(6):
                product = np.eye(4)
                for w in moved[: at[network] + 1]:
                    product = w[network] @ product
                value = np.linalg.svd(product, compute_uv=False)[which]
                assert sign * value >= sign * found[network, i] - 1e-12
        assert (sign * np.diff(found, axis=1) > 0).all()


def test_networks_that_fail_are_among_those_that_may(table: list[Curve]) -> None:
    for curve in table:
        assert (curve.at_least <= curve.at_most).all()
        share = curve.at_most / curve.draws
        assert (curve.low <= share).all()
        assert (share <= curve.high).all()
    assert any((curve.at_least > 0).any() for curve in table)


def test_theta_is_pushed_as_far_as_the_lemma_needs() -> None:
    # Of a network that is certain not to fail no theta may count, of one in between a theta can.
    normal, us = draw_noise(0, 8, 3, range(2000)), np.linspace(0.05, 0.5, 10)
    may_fail, fails = failing(normal, 1.0, us)
    assert not (fails & ~may_fail).any()
    norms, smallest = log_extremes(normal, 1.0 / np.sqrt(3 * 8))
    at_zero = breaks(norms.max(axis=1)[:, None], smallest.min(axis=1)[:, None], 1.0, 8, us)
    assert not (at_zero & ~fails).any()
    assert (fails & ~at_zero).any()


def test_the_lemma_holds_on_a_small_grid(table: list[Curve]) -> None:
    records = merge(curve.record() for curve in table)
    assert [record.part for record in records] == ["s = 0.25", "s = 1"]
    for record in records:
        assert (record.statement, record.verdict) == ("lemma-3", Verdict.HOLDS)
        assert 0.0 <= record.measured <= record.bound < 1.0
        assert record.slack == pytest.approx(record.bound / record.measured - 1.0)
        assert record.networks == 4 * 200
        assert "not given" in record.hypothesis
        assert "admissible from u = " in record.note
    assert "not resolved by 200 draws" in records[0].note
    first = table[0]
    assert (first.first(first.bound < 1.0), first.smallest_admissible) == (1.1, 1.1)


def test_a_bound_below_the_resolution_is_not_called_violated(table: list[Curve]) -> None:
    for curve in (c for c in table if (c.d, c.s) == (8, 0.25)):
        assert curve.us[-1] == 5.0
        assert curve.bound[-1] < 1.0
        assert not (curve.confirmed | curve.exceeded)[-1]
    few = lemma_3(draws=2, us=(1.5, 2.0), dimensions=(8,), depths=(3,), scales=(0.25,))
    (record,) = (curve.record() for curve in few)
    assert record.verdict is Verdict.NOT_APPLICABLE
    assert record.note == "not resolved by 2 draws at d = 8, L = 3"


def test_a_bound_above_one_says_nothing() -> None:
    table = lemma_3(draws=20, us=(0.1, 0.5), dimensions=(4,), depths=(3,), scales=(1.0,))
    (record,) = (curve.record() for curve in table)
    assert (table[0].bound >= 1.0).all()
    assert not (table[0].confirmed | table[0].exceeded).any()
    assert record.verdict is Verdict.NOT_APPLICABLE
    assert "bound above 1" in record.note


@pytest.mark.parametrize(
    ("noise", "expected"),
    [(1.0, Verdict.HOLDS), (4.0, Verdict.NOT_APPLICABLE), (8.0, Verdict.VIOLATED)],
)
def test_noisier_networks_than_claimed_are_told_apart(
    noise: float, expected: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "draw_noise", lambda *address: noise * draw_noise(*address))
    table = lemma_3(0, 200, dimensions=(16,), depths=(10,), scales=(0.25,))
    (record,) = (curve.record() for curve in table)
    assert record.verdict is expected
    assert (table[0].smallest_admissible is not None) == (noise == 1.0)
    if expected is Verdict.VIOLATED:
        assert record.measured > record.bound
        assert record.slack < 0.0
        assert record.violations > 0
        assert "no u works at d = 16, L = 10" in record.note


def test_too_small_and_too_large_u_are_not_violations() -> None:
    us = np.array([2.0, 2.5, 3.0, 3.5, 4.0, 4.5])
    counts = np.array([1000, 900, 5, 3, 1, 1])
    curve = Curve(32, 5, 1.0, us, 1000, counts, counts)
    bound = np.array([0.9, 0.5, 0.1, 0.05, 1e-2, 1e-6])
    curve.__dict__["bound"] = bound
    assert curve.exceeded.tolist() == [True, True, False, False, False, True]
    assert curve.confirmed.tolist() == [False, False, True, True, True, False]
    assert curve.admissible.tolist() == [False, False, True, True, True, False]
    assert (curve.smallest_admissible, curve.largest_admissible) == (3.0, 4.0)
    assert curve.exceeded_from == 4.5
    assert curve.verdict is Verdict.HOLDS
    record = curve.record()
    assert "beyond C4 L^(1/4)" in record.note


def test_which_products_break_the_bounds() -> None:
    us = np.array([1.0, 3.0])
    # exp(3.5) is above 4 exp(s^2/2 + 1) and below 2 exp(s^2/2 + 3).
    for tighter in (1.0, 2.0):
        found = breaks(np.array([3.5]), np.array([-0.5]), 0.5, 32, us, tighter)
        assert found.tolist() == [True, False]
    assert breaks(np.array([0.0]), np.array([-3.5]), 0.5, 32, us).tolist() == [True, False]


def test_progress_counts_every_network() -> None:
    steps: list[int] = []
    lemma_3(draws=7, **GRID, progress=steps.append)
    assert sum(steps) == 2 * 2 * 2 * 7
    assert 3 * 3 * sum(map(draws_for, (4, 8, 16, 32))) == 9 * 3800


def test_figure_has_a_panel_per_scale(table: list[Curve]) -> None:
    figure = statement_figure(statement, [curve.record() for curve in table])
    assert [panel.get_title() for panel in figure.axes] == ["s = 0.25", "s = 1"]
    assert {panel.get_xlabel() for panel in figure.axes} == {"u"}
    figure.canvas.draw()
