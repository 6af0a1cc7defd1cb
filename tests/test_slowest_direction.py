"""How slow the slowest direction is: dense eigenvalues, and descent itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatmin import Architecture, Regression, flattest_minimiser, minimiser_spectrum
from flatmin.data.generators import spectrum_samples, whitened_samples
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.prediction import predict
from flatmin.theory.slowest_direction import descent_steps, smallest_curvature


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.floats(-1.5, 1.5),
    st.floats(0.3, 3.0),
)
def test_dense_eigenvalues_at_the_flattest_minimiser_agree(seed, d, rank, depth, spread, norm):
    """The rank-r reduction, by LAPACK: its error is eps times the largest eigenvalue."""
    rng = np.random.default_rng(seed)
    rank = min(rank, d)
    X = rng.standard_normal((20, rank)) @ rng.standard_normal((rank, d))
    X = X * 10.0 ** (spread * rng.random(d))
    data = Regression.from_arrays(X, X @ rng.standard_normal(d) + rng.standard_normal(20))
    network = Architecture(d, (*[d] * (depth - 1), 1), (norm,))
    spectrum = minimiser_spectrum(data, flattest_minimiser(data, network), network.p)
    found = smallest_curvature(data, depth, norm)
    assert found == pytest.approx(spectrum[d - rank], rel=1e-9, abs=1e-13 * spectrum[-1])


def test_white_data_and_a_target_off_the_weak_direction():
    white = whitened_samples(n=30, d=4, seed=1).regression()
    assert smallest_curvature(white, 5) == pytest.approx(2 * minimal_sharpness(white, 5).t)
    # w* on the strong axis only: the weak one keeps 2 t lambda_1, and the middle one is skipped.
    X = np.sqrt(3) * np.diag([1.0, 2.0, 5.0])
    strong = Regression.from_arrays(X, X[:, 2])
    assert smallest_curvature(strong, 3) == pytest.approx(2 * minimal_sharpness(strong, 3).t)
    # w* on the weak and the strong axis: the weak one moves up, at most to the middle one.
    both = Regression.from_arrays(X, 1e3 * X[:, 0] + X[:, 2])
    t = minimal_sharpness(both, 3).t
    assert 2 * t < smallest_curvature(both, 3) <= 2 * t * 4.0 * (1 + 1e-12)


def descend(data: Regression, matrices, rate: float, steps: int):
    """Plain gradient descent on W_1..W_L with p = 1, and the excess risk at every step."""
    weights = [w.copy() for w in matrices]
    excess = np.empty(steps)
    for step in range(steps):
        after = [np.ones((1, 1))]
        for w in weights[:0:-1]:
            after.append(after[-1] @ w)
        after = after[::-1]  # after[k] = W_L ... W_{k+2}
        before = [np.eye(data.d)]
        for w in weights[:-1]:
            before.append(w @ before[-1])
        error = (weights[-1] @ before[-1])[0] - data.w_star
        excess[step] = error @ data.sigma @ error
        pull = 2 * (data.sigma @ error)[None, :]
        for k, w in enumerate(weights):
            w -= rate * (after[k].T @ (pull @ before[k].T))
    return excess


@pytest.mark.parametrize(("depth", "alignment"), [(1, "spread"), (3, "spread"), (3, "weak")])
def test_descent_takes_as_many_steps(depth, alignment):
    """From a small displacement, past the faster directions, the risk falls by 1000 in so many."""
    data = spectrum_samples(
        n=40, d=3, condition_number=30.0, alignment=alignment, seed=2
    ).regression()
    network = Architecture.mlp(3, depth)
    rate = 1.0 / minimal_sharpness(data, depth).exact
    expected = descent_steps(data, depth)
    rng = np.random.default_rng(0)
    start = [w + 1e-4 * rng.standard_normal(w.shape) for w in flattest_minimiser(data, network)]
    excess = descend(data, start, rate, 3 * math.ceil(expected))
    begin = math.ceil(expected)
    taken = int(np.argmax(excess[begin:] < excess[begin] / 1e3))
    assert taken == pytest.approx(expected, rel=0.02, abs=1)


def test_the_note_appears_where_descent_is_slow():
    for condition, slow in ((1e3, False), (1e7, True)):
        data = spectrum_samples(n=40, d=3, condition_number=condition, seed=2).regression()
        assert (descent_steps(data, 3) > 1e5) == slow
        assert any("descent is slow" in note for note in predict(data, 3).notes()) == slow
