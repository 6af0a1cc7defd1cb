"""The depth with the smallest S_min: brute force, a closed case, convexity, real tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

import flatmin
from commands import call
from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression
from flatmin.theory.flattest_depth import flattest_depth, switching_norm
from flatmin.theory.prediction import predict


def dense_minimal_sharpness(data: Regression, depth: int, norm: float) -> float:
    """S_min by LAPACK's eigenvalues and a search over t, from the definition of the minimum."""
    from scipy.optimize import minimize_scalar

    if depth == 1:
        return 2.0 * norm**2 * float(np.linalg.eigvalsh(data.sigma)[-1])
    outer = np.outer(data.q, data.q)

    def largest(log_t: float) -> float:
        share = (depth - 1) * np.exp((2.0 * np.log(norm) - log_t) / (depth - 1))
        return float(np.linalg.eigvalsh(np.exp(log_t) * data.sigma + share * outer)[-1])

    start = (2 - 2 / depth) * np.log(data.w_star_norm) + 2 / depth * np.log(norm)
    found = minimize_scalar(
        largest, bounds=(start - 25, start + 25), method="bounded", options={"xatol": 1e-10}
    )
    return 2.0 * float(found.fun)


def scaled(data: Regression, norm: float) -> Regression:
    return replace(data, w_star=norm * data.w_star / data.w_star_norm)


@pytest.mark.parametrize("alignment", ["spread", "weak", "strong"])
@pytest.mark.parametrize(("norm", "p"), [(0.05, 1.0), (1.0, 1.0), (0.3, 4.0), (20.0, 0.5)])
@pytest.mark.parametrize("condition", [5.0, 1e4])
def test_brute_force_over_depths(alignment: Any, norm: float, p: float, condition: float) -> None:
    samples = spectrum_samples(30, d=4, condition_number=condition, alignment=alignment, seed=2)
    data = scaled(samples.regression(), norm)
    values = [dense_minimal_sharpness(data, depth, p) for depth in range(1, 61)]
    found = flattest_depth(data, p)
    # Neighbours of the minimum may be equal up to the search's own error.
    assert 1 <= found <= 60
    assert values[found - 1] <= min(values) * (1.0 + 1e-8)


@given(
    d=st.integers(1, 6),
    condition=st.floats(1.0, 1e6),
    log_w=st.floats(-12.0, 4.0),
    log_p=st.floats(-2.0, 2.0),
    seed=st.integers(0, 50),
)
def test_no_other_depth_is_flatter_and_the_curve_is_convex(
    d: int, condition: float, log_w: float, log_p: float, seed: int
) -> None:
    condition = condition if d > 1 else 1.0
    samples = spectrum_samples(20, d=d, condition_number=condition, alignment="weak", seed=seed)
    data, p = scaled(samples.regression(), np.exp(log_w)), float(np.exp(log_p))
    found = flattest_depth(data, p)
    depths = range(1, max(2 * found, 30) + 1)
    values = np.array([flatmin.minimal_sharpness(data, depth, p).exact for depth in depths])
    assert values[found - 1] <= values.min() * (1.0 + 1e-13)
    rounding = 1e-13 * values
    assert np.all(values[:-2] + values[2:] - 2.0 * values[1:-1] >= -(rounding[:-2] + rounding[2:]))


@pytest.mark.parametrize("log_w", [-6.3, -2.2, -0.6, -0.3, 0.0, 1.0])
@pytest.mark.parametrize("p", [1.0, 3.0])
def test_white_data_are_closed(log_w: float, p: float) -> None:
    data = scaled(whitened_samples(n=30, d=4, seed=0).regression(), np.exp(log_w))
    best = 2.0 * (np.log(p) - log_w)
    around = [depth for depth in (int(best), int(best) + 1) if depth >= 1] or [1]
    closed = [depth * np.exp(best / depth) for depth in around]
    assert flattest_depth(data, p) == around[int(np.argmin(closed))]


def test_a_tiny_regressor_does_not_overflow() -> None:
    white = scaled(whitened_samples(n=30, d=4, seed=0).regression(), 1e-150)
    best = 2.0 * 150.0 * np.log(10.0)
    assert abs(flattest_depth(white) - best) <= 1.0
    assert flattest_depth(white, largest=100) == 100
    assert predict(white, 1).as_dict()["flattest_depth"] == flattest_depth(white)


def test_positive_norms_and_none_for_several_outputs() -> None:
    several = replace(
        gaussian_samples(seed=0).regression(), w_star=np.eye(5)[:, :2], target_names=("a", "b")
    )
    with pytest.raises(SettingError, match=r"\|p\| must be 1 with 2 targets"):
        flattest_depth(several, 2.0)
    with pytest.raises(SettingError, match=r"\|p\| must be a positive number"):
        flattest_depth(gaussian_samples(seed=0).regression(), 0.0)


@pytest.fixture
def cancer(tmp_path: Any) -> Any:
    """A real table, standardised: S_min falls with depth before it grows."""
    table = load_breast_cancer(as_frame=True).frame.astype(float)
    path = tmp_path / "cancer.csv"
    ((table - table.mean()) / table.std(ddof=0)).to_csv(path, index=False)
    return path


def test_the_command_marks_it(monkeypatch: Any, capsys: Any, tmp_path: Any, cancer: Any) -> None:
    figure = tmp_path / "depth.svg"
    options = ("--target", "target", "--depths", "1,2,5,10", "--no-measure", "--figure", figure)
    code, out, err = call(monkeypatch, capsys, "predict", cancer, *options)
    assert (code, err) == (0, "")
    marked = [line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["*"]]
    assert marked == ["2"]
    said = " ".join(out.split())
    assert "the flattest depth for these data is 3; * is the flattest of those compared" in said
    assert "flattest of these: 2" in figure.read_text()
    code, out, _ = call(monkeypatch, capsys, "predict", cancer, *options[:5], "--json")
    assert json.loads(out)["flattest_depth"] == 3


@pytest.mark.parametrize("alignment", ["spread", "weak", "strong"])
@pytest.mark.parametrize("p", [1.0, 3.0])
def test_where_the_flattest_depth_switches(alignment: Any, p: float) -> None:
    samples = spectrum_samples(30, d=4, condition_number=30.0, alignment=alignment, seed=2)
    data = samples.regression()
    norms = [switching_norm(data, depth, p) for depth in range(1, 8)]
    assert norms == sorted(norms, reverse=True)
    for depth, norm in enumerate(norms, start=1):
        for factor, wanted in ((1.001, depth), (0.999, depth + 1)):
            near = scaled(data, factor * norm)
            values = [dense_minimal_sharpness(near, one, p) for one in range(1, 12)]
            assert 1 + int(np.argmin(values)) == flattest_depth(near, p) == wanted


def test_when_two_layers_are_flatter_than_one() -> None:
    """w*'Sigma w* < Lam/4 is enough, and q'Sigma q >= Lam^2/4 is enough for the contrary."""
    rng = np.random.default_rng(0)
    seen = set()
    for seed in range(200):
        samples = spectrum_samples(20, d=3, condition_number=10 ** rng.uniform(0, 2), seed=seed)
        data = scaled(samples.regression(), 10 ** rng.uniform(-1, 0.5))
        flatter = dense_minimal_sharpness(data, 2, 1.0) < 2.0 * data.largest_eigenvalue
        if data.excess_at_zero < 0.25 * data.largest_eigenvalue:
            assert flatter
            seen.add("enough")
        if data.q @ data.sigma @ data.q >= 0.25 * data.largest_eigenvalue**2:
            assert not flatter
            seen.add("too much")
    assert len(seen) == 2
