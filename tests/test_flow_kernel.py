"""Gradient flow: against SciPy, conserved quantities, saddles, and the bits of a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from flatmin.lanes import step_control as kernel
from flatmin.lanes.flow import empty_seats, queue_of
from flatmin.lanes.flow_one_output import flow
from flatmin.lanes.layout import Linear, linear

Array = NDArray[np.float64]

MLP = (5,) * 10 + (1,)
RESIDUAL = (4,) * 6
ARCHITECTURES = [MLP, RESIDUAL, (3, 7, 2, 5, 1), (6, 4, 4, 3), (5, 3), (5, 1), (1, 1, 1)]


@dataclass
class Problem:
    widths: tuple[int, ...]
    p: Array
    sigma: Array
    target: Array

    @property
    def network(self) -> Linear:
        return linear(self.widths, self.p, self.sigma, self.target)

    @property
    def parameters(self) -> int:
        return sum(a * b for a, b in zip(self.widths[1:], self.widths[:-1], strict=True))

    @property
    def settled(self) -> float:
        return float(self.target @ self.sigma @ self.target / 2)

    def split(self, flat: Array) -> list[Array]:
        layers, at = [], 0
        for rows, cols in zip(self.widths[1:], self.widths[:-1], strict=True):
            layers.append(flat[at : at + rows * cols].reshape(rows, cols))
            at += rows * cols
        return layers

    def velocity(self, flat: Array) -> Array:
        """-gradient of (w - w*)' Sigma (w - w*), from dense products."""
        layers = self.split(flat)
        b = [self.p]
        for w in layers[::-1]:
            b.append(w.T @ b[-1])
        a = 2 * self.sigma @ (b[-1] - self.target)
        out = []
        for k, w in enumerate(layers):
            out.append(-np.outer(b[-2 - k], a).ravel())
            a = w @ a
        return np.concatenate(out)

    def excess(self, flat: Array) -> float:
        w = self.p
        for layer in self.split(flat)[::-1]:
            w = layer.T @ w
        return float((w - self.target) @ self.sigma @ (w - self.target))

    def conserved(self, flat: Array) -> list[Array]:
        layers = self.split(flat)
        return [v.T @ v - u @ u.T for u, v in pairwise(layers)]

    def drift(self, before: Array, after: Array) -> float:
        pairs = zip(self.conserved(before), self.conserved(after), strict=True)
        return max(float(np.linalg.norm(y - x)) for x, y in pairs)


def problem(widths: Sequence[int], seed: int = 0) -> Problem:
    random = np.random.default_rng(seed)
    d = widths[0]
    X = random.standard_normal((10 * d, d))
    p = np.ones(1) if widths[-1] == 1 else random.standard_normal(widths[-1])
    return Problem(tuple(widths), p, X.T @ X / (10 * d), random.standard_normal(d))


def gaussian(case: Problem, scale: float, networks: int, seed: int = 1) -> Array:
    return scale * np.random.default_rng(seed).standard_normal((networks, case.parameters))


def near_identity(case: Problem, networks: int, seed: int = 1) -> Array:
    d, depth = case.widths[0], len(case.widths) - 1
    return np.tile(np.eye(d).ravel(), depth) + gaussian(case, 0.5 / np.sqrt(depth * d), networks)


def run(
    case: Problem,
    flat: Array,
    *,
    rtol: float = 1e-8,
    atol: float | None = None,
    tolerance: float = 0.0,
    end: float | Array = np.inf,
    lanes: int = 4,
    steps: int = 10**9,
    max_steps: int = 10**5,
    threads: int = 1,
    before: Callable[[Array], None] = lambda controls: None,
) -> tuple[Array, Array]:
    """Weights [network, P] and controls [network, FIELDS], by calls of `steps` until all end."""
    controls, weights = kernel.new_controls(len(flat)), flat.copy()
    controls[:, kernel.END] = end
    before(controls)
    settings = kernel.Settings(
        rtol, rtol / 1000 if atol is None else atol, tolerance, case.settled, -1.0, float(max_steps)
    )
    queue = queue_of(np.flatnonzero(controls[:, kernel.STATE] == kernel.RUNNING))

    def job(_: int) -> float:
        seats, attempted = empty_seats(lanes), 0.0
        while True:
            attempted += flow(
                (0.0,) * lanes, weights, case.network, controls, settings, queue, seats, steps
            )
            if (seats < 0).all():
                return attempted

    with ThreadPoolExecutor(threads) as pool:
        attempted = sum(pool.map(job, range(threads)))
    assert attempted == controls[:, [kernel.ACCEPTED, kernel.REJECTED]].sum()
    return weights, controls


def start(widths: Sequence[int], networks: int) -> tuple[Problem, Array]:
    case = problem(widths)
    if widths == RESIDUAL:
        return case, near_identity(case, networks)
    return case, gaussian(case, 0.5, networks)


@pytest.mark.parametrize("widths", ARCHITECTURES)
def test_agrees_with_scipy_at_given_times(widths: tuple[int, ...]) -> None:
    case, flat = start(widths, 5)
    ends = np.array([0.3, 1.0, 2.0, 5.0, 0.01])
    weights, controls = run(case, flat, rtol=1e-11, end=ends)
    assert (controls[:, kernel.STATE] == kernel.REACHED).all()
    assert (controls[:, kernel.TIME] == ends).all()
    assert (controls[:, kernel.TIME_LOW] == 0).all()
    for v, end in enumerate(ends):
        exact = solve_ivp(
            lambda t, y: case.velocity(y), (0, end), flat[v], "DOP853", rtol=1e-12, atol=1e-14
        ).y[:, -1]
        assert np.abs(weights[v] - exact).max() < 1e-9
        assert controls[v, kernel.EXCESS] == pytest.approx(case.excess(weights[v]), rel=1e-10)
        square = (case.velocity(weights[v]) ** 2).sum()
        assert controls[v, kernel.GRADIENT] == pytest.approx(square, rel=1e-9)


def test_error_follows_the_tolerance() -> None:
    case = problem(MLP)
    flat = gaussian(case, 0.45, 8)
    exact, _ = run(case, flat, rtol=1e-13, end=3.0)
    errors, estimates, steps = [], [], []
    for rtol in (1e-5, 1e-7, 1e-9):
        weights, controls = run(case, flat, rtol=rtol, end=3.0)
        errors.append(np.sqrt(((weights - exact) ** 2).sum(1).max()))
        estimates.append(controls[:, kernel.ERROR].max())
        steps.append(controls[:, kernel.ACCEPTED].mean())
    assert errors[1] < errors[0] / 20
    assert errors[2] < errors[1] / 20
    assert errors[2] < 1e-7
    assert all(x < 100 * y for x, y in zip(errors, estimates, strict=True))
    # order 8: a hundredth of the error for at most 100^(1/8) = 1.8 times the steps, and some
    assert steps[2] < 2.2 * steps[1]


@pytest.mark.parametrize("scale", [0.05, 0.3, 0.6, None])
def test_conserved_quantities_hardly_drift(scale: float | None) -> None:
    case = problem((5,) * 11 if scale is None else MLP)
    flat = near_identity(case, 4) if scale is None else gaussian(case, scale, 4)
    weights, controls = run(case, flat, rtol=1e-10, tolerance=1e-8)
    assert (controls[:, kernel.STATE] == kernel.CONVERGED).all()
    assert (controls[:, kernel.GRADIENT] <= 1e-16).all()
    for before, after in zip(flat, weights, strict=True):
        assert np.abs(after - before).max() > 1e-2
        assert case.drift(before, after) < 1e-8


def test_leaves_the_saddle_and_arrives() -> None:
    case = problem(MLP)
    _, controls = run(case, gaussian(case, 0.05, 8), tolerance=1e-10)
    assert (controls[:, kernel.STATE] == kernel.CONVERGED).all()
    assert (controls[:, kernel.EXCESS] < 1e-18).all()
    assert controls[:, kernel.TIME].min() > 5e5
    assert (controls[:, kernel.ACCEPTED] + controls[:, kernel.REJECTED]).max() < 1000
    # a smaller start arrives after times whose rounding exceeds the last steps
    _, controls = run(case, gaussian(case, 0.005, 4), tolerance=1e-10)
    assert (controls[:, kernel.STATE] == kernel.CONVERGED).all()
    assert controls[:, kernel.TIME].min() > 1e13
    # the saddle itself has no gradient but is no minimiser
    _, controls = run(case, np.zeros((1, case.parameters)), tolerance=1e-10, max_steps=400)
    assert controls[0, kernel.STATE] == kernel.STALLED


def test_gradient_falls_far_below_the_tolerance_of_the_steps() -> None:
    case = problem(MLP)
    for rtol in (1e-4, 1e-8):
        _, controls = run(case, gaussian(case, 0.4, 8), rtol=rtol, tolerance=1e-12)
        assert (controls[:, kernel.STATE] == kernel.CONVERGED).all()


@pytest.mark.parametrize("widths", [MLP, (3, 7, 2, 5, 1), RESIDUAL])
def test_bits_do_not_depend_on_the_company(widths: tuple[int, ...]) -> None:
    case, flat = start(widths, 11)
    ends = np.where(np.arange(11) % 3 == 0, 1.5, np.inf)
    weights, controls = run(case, flat, tolerance=1e-9, end=ends)
    assert set(controls[:, kernel.STATE]) == {kernel.CONVERGED, kernel.REACHED}

    def same(other: tuple[Array, Array], keep: object = slice(None)) -> None:
        np.testing.assert_array_equal(other[0], weights[keep])  # type: ignore[index]
        np.testing.assert_array_equal(other[1], controls[keep])  # type: ignore[index]

    same(run(case, flat, tolerance=1e-9, end=ends, threads=2))
    same(run(case, flat, tolerance=1e-9, end=ends, steps=7))
    same(run(case, flat, tolerance=1e-9, end=ends, steps=1))
    same(run(case, flat, tolerance=1e-9, end=ends, steps=5, lanes=8, threads=2))
    order = np.random.default_rng(0).permutation(11)
    same(run(case, flat[order], tolerance=1e-9, end=ends[order]), order)

    bad = flat.copy()
    bad[[2, 4, 9]] = np.array([np.nan, 1e200, np.inf])[:, None]
    keep = np.setdiff1d(np.arange(11), [2, 4, 9])
    others = run(case, bad, tolerance=1e-9, end=ends)
    same((others[0][keep], others[1][keep]), keep)
    assert (others[1][[2, 4, 9], kernel.STATE] == kernel.STALLED).all()
    np.testing.assert_array_equal(others[0][[2, 4, 9]], bad[[2, 4, 9]])


def test_flow_of_deviations_from_the_identity_is_the_same_flow() -> None:
    """W_k = I + V_k: the gradient in V_k is the gradient in W_k."""
    case = problem(RESIDUAL)
    flat = near_identity(case, 2)
    identity = np.tile(np.eye(4).ravel(), 5)
    weights, _ = run(case, flat, rtol=1e-11, end=2.0)
    for v in range(2):
        deviations = solve_ivp(
            lambda t, y: case.velocity(identity + y), (0, 2), flat[v] - identity, "DOP853",
            rtol=1e-12, atol=1e-14,
        ).y[:, -1]  # fmt: skip
        assert np.abs(weights[v] - identity - deviations).max() < 1e-9


def test_ends() -> None:
    case = problem(MLP)
    flat = gaussian(case, 0.4, 4)
    # no steps beyond max_steps, and the lane says so
    _, controls = run(case, flat, max_steps=10)
    assert (controls[:, kernel.STATE] == kernel.STALLED).all()
    assert (controls[:, kernel.ACCEPTED] + controls[:, kernel.REJECTED] == 10).all()
    # an end in the past: nothing moves
    weights, controls = run(case, flat, end=np.array([0.0, -1.0, 0.0, 1.0]))
    assert (controls[:, kernel.STATE] == kernel.REACHED).all()
    np.testing.assert_array_equal(weights[:3], flat[:3])
    assert (controls[:3, kernel.TIME] == 0).all()

    # networks that ended are left alone
    def end_first(controls: Array) -> None:
        controls[0, kernel.STATE] = kernel.CONVERGED

    other, controls = run(case, flat, end=1.0, before=end_first)
    np.testing.assert_array_equal(other[0], flat[0])
    np.testing.assert_array_equal(other[3], weights[3])
    assert controls[0, kernel.TIME] == 0


def test_goes_on_from_an_end() -> None:
    case = problem(MLP)
    flat = gaussian(case, 0.4, 3)
    straight, once = run(case, flat, rtol=1e-11, end=2.0)
    controls, weights = kernel.new_controls(3), flat.copy()
    for end in np.linspace(0, 2, 41)[1:]:
        controls[:, kernel.END] = end
        controls[:, kernel.STATE] = kernel.RUNNING
        settings = kernel.Settings(1e-11, 1e-14, 0.0, 0.0, -1.0, 1e5)
        call = (queue_of(range(3)), empty_seats(4), 10**5)
        flow((0.0,) * 4, weights, case.network, controls, settings, *call)
        assert (controls[:, kernel.TIME] == end).all()
    assert np.abs(weights - straight).max() < 1e-9
    # the stops cost at most a step each: the step for what follows is kept
    assert (controls[:, kernel.ACCEPTED] <= once[:, kernel.ACCEPTED] + 40).all()


def test_steps_below_the_rounding_of_time_count() -> None:
    case = problem(MLP)
    flat = gaussian(case, 0.4, 4)

    def late(controls: Array) -> None:
        controls[:, kernel.TIME] = 1e17

    expected, _ = run(case, flat, rtol=1e-10, end=16.0)
    weights, controls = run(case, flat, rtol=1e-10, end=1e17 + 16, before=late)
    assert controls[:, kernel.ACCEPTED].min() > 32
    assert (controls[:, kernel.TIME] == 1e17 + 16).all()
    assert np.abs(weights - expected).max() < 1e-11
