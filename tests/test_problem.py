"""Regression and Samples against independent oracles."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatmin.core.errors import DataError, FlatminError, SettingError
from flatmin.data import regression
from flatmin.data.generators import (
    gaussian_samples,
    gaussian_split,
    spectrum_samples,
    whitened_samples,
)
from flatmin.data.preparation import Preparation
from flatmin.data.regression import Regression, read_regression
from flatmin.data.samples import Samples, read_samples
from flatmin.data.tables.table import Choice, Table


@st.composite
def tables(draw, targets=(1, 3)):
    """X of any shape and rank, with columns of unlike scale, and a target it explains in part."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(2, 30)), draw(st.integers(1, 12))
    rank = draw(st.integers(1, min(n, d)))
    m = draw(st.integers(*targets))
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    X = X * 10.0 ** draw(st.floats(-3, 3))
    Y = X @ rng.standard_normal((d, m)) + draw(st.sampled_from([0.0, 1.0])) * rng.standard_normal(
        (n, m)
    )
    return X, Y[:, 0] if m == 1 else Y, rank


@settings(deadline=None, max_examples=150)
@given(tables())
def test_numpy_agrees(data):
    X, y, rank = data
    n, d = X.shape
    problem = Regression.from_arrays(X, y)
    w, _, _, s = np.linalg.lstsq(X, y, rcond=max(n, d) * np.finfo(float).eps)
    loose = 1e-10 * (s[0] / s[rank - 1])
    sigma = X.T @ X / n
    assert problem.rank == rank
    assert (problem.n, problem.d, problem.targets) == (n, d, 1 if y.ndim == 1 else y.shape[1])
    assert problem.w_star.shape == w.shape
    assert np.allclose(problem.w_star, w, rtol=0, atol=loose * np.linalg.norm(w))
    assert np.allclose(problem.sigma, sigma, rtol=0, atol=1e-12 * np.trace(sigma))
    assert np.array_equal(problem.sigma, problem.sigma.T)
    assert np.allclose(
        problem.eigenvalues, np.linalg.eigvalsh(sigma), rtol=0, atol=1e-12 * np.trace(sigma)
    )
    assert np.all(np.diff(problem.eigenvalues) >= 0)
    assert np.all(problem.eigenvalues[: d - rank] == 0)
    assert problem.smallest_eigenvalue > 0
    V = problem.eigenvectors
    assert np.allclose(V.T @ V, np.eye(d), atol=1e-12)
    assert np.allclose(sigma @ V, V * problem.eigenvalues, rtol=0, atol=1e-11 * np.trace(sigma))
    assert np.allclose(
        problem.sigma_root @ problem.sigma_root, sigma, rtol=0, atol=1e-11 * np.trace(sigma)
    )
    assert np.allclose(problem.q, problem.sigma_root @ problem.w_star)
    mean_square = np.sum(y**2) / n
    residual = np.sum((y - X @ w) ** 2) / n
    assert problem.risk_min == pytest.approx(residual, rel=1e-9, abs=1e-18 * mean_square)
    assert problem.risk_min + problem.excess_at_zero == pytest.approx(mean_square, rel=1e-9)
    other = w + np.random.default_rng(0).standard_normal(w.shape)
    assert problem.risk(other) == pytest.approx(np.sum((y - X @ other) ** 2) / n, rel=1e-9)
    assert Samples.from_arrays(X, y).risk(other) == pytest.approx(problem.risk(other), rel=1e-9)
    if y.ndim == 1:
        assert problem.a == pytest.approx(np.sum((X @ w) ** 2) / n / (w @ w), rel=loose)
        low, high = problem.smallest_eigenvalue, problem.largest_eigenvalue
        assert low * (1 - 1e-9) <= problem.a <= high * (1 + 1e-9)
    assert problem.full_rank == (rank == d)
    assert problem.condition_number == pytest.approx((s[0] / s[rank - 1]) ** 2, rel=loose)


@settings(deadline=None, max_examples=60)
@given(tables(targets=(1, 2)), st.integers(1, 40))
def test_any_cut_into_blocks_gives_the_same_bits(data, rows):
    X, y, _ = data
    whole = Regression.from_arrays(X, y)
    both = np.column_stack([X, y])
    blocks = [both[i : i + rows] for i in range(0, len(X), rows)]
    names = Choice(whole.feature_names, whole.target_names)
    cut = regression._reduce(Table("blocks", names, lambda: iter(blocks)), Preparation())
    assert np.array_equal(cut.w_star, whole.w_star)
    assert np.array_equal(cut.sigma, whole.sigma)
    assert cut.risk_min == whole.risk_min


@pytest.mark.parametrize("rows", [7, 64, 1000, 8192])
def test_streaming_over_many_blocks_agrees_with_one_factorisation(monkeypatch, rows):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((20000, 6)) * [1, 10, 0.1, 1, 5, 1] + 3
    y = X @ rng.standard_normal(6) + rng.standard_normal(20000)
    monkeypatch.setattr("flatmin.data.regression.ROWS", rows)
    problem = Regression.from_arrays(X, y)
    s = np.linalg.svd(X, compute_uv=False)
    w = np.linalg.lstsq(X, y, rcond=None)[0]
    assert np.allclose(problem.eigenvalues, s[::-1] ** 2 / 20000, rtol=1e-12)
    assert np.allclose(problem.w_star, w, rtol=1e-11)
    assert problem.risk_min == pytest.approx(np.mean((y - X @ w) ** 2), rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(tables(targets=(1, 1)), st.floats(1e-3, 1e3))
def test_invariances(data, factor):
    X, y, rank = data
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((X.shape[1],) * 2))[0]
    order = rng.permutation(len(X))
    problem = Regression.from_arrays(X, y)
    near = {"rel": 1e-9 * math.sqrt(problem.condition_number)}
    turned = Regression.from_arrays(X @ rotation, y)
    assert turned.rank == rank
    assert turned.w_star_norm == pytest.approx(problem.w_star_norm, **near)
    assert turned.a == pytest.approx(problem.a, **near)
    gap = np.linalg.norm(rotation @ turned.w_star - problem.w_star)
    assert gap <= near["rel"] * problem.w_star_norm
    shuffled = Regression.from_arrays(X[order], y[order])
    assert np.allclose(shuffled.sigma, problem.sigma, rtol=0, atol=1e-12 * problem.sigma.max())
    assert shuffled.a == pytest.approx(problem.a, **near)
    scaled = Regression.from_arrays(X, factor * y)
    assert scaled.w_star_norm == pytest.approx(factor * problem.w_star_norm, **near)
    assert scaled.a == pytest.approx(problem.a, **near)
    assert scaled.risk_min == pytest.approx(
        factor**2 * problem.risk_min,
        rel=1e-9,
        abs=1e-18 * (scaled.risk_min + scaled.excess_at_zero),
    )


def test_ill_conditioned_data_keeps_digits_that_the_normal_equations_lose():
    """Columns 1, 1 + 1e-9 u: the smallest eigenvalue of X'X is below its rounding error."""
    rng = np.random.default_rng(5)
    n = 12
    X = np.column_stack((np.ones(n), 1 + 1e-9 * rng.standard_normal(n), rng.standard_normal(n)))
    y = rng.standard_normal(n)
    problem = Regression.from_arrays(X, y)
    with mpmath.workdps(60):
        exact = mpmath.matrix(X.tolist())
        target = mpmath.matrix(y.tolist())
        values = sorted(mpmath.eigsy(exact.T * exact / n, eigvals_only=True))
        w = mpmath.lu_solve(exact.T * exact, exact.T * target)
        rest = target - exact * w
        truth = [float(v) for v in values]
        w_true = np.array([float(v) for v in w])
        risk = float(sum(v**2 for v in rest) / n)
    assert problem.rank == 3
    assert problem.eigenvalues == pytest.approx(truth, rel=1e-6)
    assert np.linalg.norm(problem.w_star - w_true) < 1e-5 * np.linalg.norm(w_true)
    assert problem.risk_min == pytest.approx(risk, rel=1e-6)
    lost = np.linalg.eigvalsh(X.T @ X / n)[0]
    assert abs(lost - truth[0]) > 0.5 * truth[0]
    assert "ill-conditioned" in problem.notes()[0]


def test_risk_min_has_no_cancellation():
    """A residual a billion times below the target is kept to many digits."""
    rng = np.random.default_rng(8)
    basis = np.linalg.qr(rng.standard_normal((40, 4)))[0]
    X, rest = basis[:, :3] @ rng.standard_normal((3, 3)), basis[:, 3]
    problem = Regression.from_arrays(X, X @ [1.0, 2.0, 3.0] + 1e-7 * rest)
    assert problem.risk_min == pytest.approx(1e-14 / 40, rel=1e-6)


def test_record_is_read_only_and_documents_itself():
    problem = gaussian_samples(n=8, d=12, seed=1).regression()
    for array in (problem.sigma, problem.w_star, problem.q, problem.sigma_root):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    with pytest.raises(AttributeError):
        problem.n = 3
    assert repr(problem).startswith("Regression(n=8, d=12, rank=8")
    assert problem.notes() == (
        "the features do not determine the regressor: rank 8 of 12, "
        "so flatmin uses the least-norm solution",
        "the 12 features fit all 8 rows exactly, so R_min is zero",
    )
    assert problem.risk_min == 0
    assert gaussian_samples().regression().notes() == ()
    several = gaussian_samples(targets=2).regression()
    with pytest.raises(SettingError, match="one target, and there are 2"):
        several.a  # noqa: B018
    with pytest.raises(SettingError, match=r"shape \(3,\); expected \(5, 2\)"):
        several.risk(np.zeros(3))


def test_the_callers_arrays_stay_writable():
    X, y = np.eye(3), np.ones(3)
    samples = Samples.from_arrays(X, y)
    X[0, 0] = y[0] = 5.0
    assert samples.X[0, 0] == samples.y[0] == 1.0


def test_whole_numbers_booleans_and_columns_of_one_target():
    X, y = np.array([[1, 0], [0, 1], [1, 1]]), np.array([True, False, True])
    expected = np.linalg.lstsq(X, y.astype(float), rcond=None)[0]
    for target in (y, y[:, None], y.astype(int), y.astype(np.float16)):
        problem = Regression.from_arrays(X, target)
        assert problem.w_star.shape == (2,)
        assert np.allclose(problem.w_star, expected)


def test_frame_names_and_types():
    frame = pd.DataFrame(
        {
            "a": [1, 2, 4],
            "flag": [True, False, True],
            "c": pd.array([1.5, 2.5, 0.5], dtype="Float64"),
            "y": [1.0, 2.0, 3.5],
            "label": ["u", "v", "w"],
        }
    )
    problem = read_regression(frame, target="y", features=["c", "a", "flag"])
    assert problem.feature_names == ("c", "a", "flag")
    assert problem.target_names == ("y",)
    X = np.array([[1.5, 1, 1], [2.5, 2, 0], [0.5, 4, 1]])
    assert np.allclose(problem.w_star, np.linalg.solve(X, [1, 2, 3.5]))
    samples = read_samples(frame, target=["y", "a"], features=["c"])
    assert samples.y.shape == (3, 2)
    assert np.array_equal(samples.y[:, 1], [1, 2, 4])
    with pytest.raises(DataError, match="the frame: column 'label' is of type"):
        read_regression(frame, target="y")
    frame["c"] = pd.array([1.5, None, 0.5], dtype="Float64")
    with pytest.raises(DataError, match=r"column 'c', row 1 \(counting from 0\) is nan"):
        read_regression(frame, target="y", features=["c"])


BAD_ARRAYS = {
    "one row": ([[1.0]], [1.0], "at least two rows, got 1"),
    "no rows": (np.empty((0, 2)), np.empty(0), "at least two rows, got 0"),
    "no columns": (np.empty((3, 0)), np.ones(3), "d at least 1"),
    "flat X": ([1.0, 2.0], [1.0, 2.0], "X has shape (2,); expected (n, d)"),
    "deep y": (np.eye(2), np.ones((2, 1, 1)), "y has shape (2, 1, 1)"),
    "lengths": (np.eye(3), [1.0, 2.0], "X has 3 rows and y has 2"),
    "ragged": ([[1.0], [1.0, 2.0]], [1.0, 2.0], "X has rows of unequal length"),
    "text": ([["a"], ["b"]], [1.0, 2.0], "X is of type <U1; expected real numbers"),
    "complex": (np.eye(2) * 1j, [1.0, 2.0], "X is of type complex128"),
    "nan": ([[1.0, 2.0], [np.nan, 1.0]], [1.0, 2.0], "column 'x0', row 1 (counting from 0) is nan"),
    "infinite y": (np.eye(2), [1.0, -np.inf], "column 'y', row 1 (counting from 0) is -inf"),
    "overflow": ([[1.0, 1e200], [1.0, 2.0]], [1.0, 2.0], "'x1', row 0 (counting from 0) is 1e+200"),
    "underflow": (np.eye(2) * 1e-200, [1.0, 2.0], "too small to square; rescale"),
    "huge w": (np.eye(2) * 1e-120, [1e120, 2.0], "|w*| is beyond the range"),
    "zero X": (np.zeros((3, 2)), [1.0, 2.0, 3.0], "every feature is zero"),
    "zero y": (np.eye(3), np.zeros(3), "the target 'y' is zero in every row"),
    "unexplained": ([[1.0], [1.0]], [1.0, -1.0], "do not explain the target 'y' at all (w* = 0)"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused_in_one_line(case):
    X, y, fragment = BAD_ARRAYS[case]
    with pytest.raises(FlatminError) as caught:
        Samples.from_arrays(X, y).regression() if case == "one row" else Regression.from_arrays(
            X, y
        )
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unexplained_target_is_seen_through_rounding_but_a_faint_one_is_kept():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((500, 4)) * [1, 1e6, 1e-4, 1]
    basis = np.linalg.qr(X)[0]
    noise = rng.standard_normal(500)
    noise -= basis @ (basis.T @ noise)
    noise -= basis @ (basis.T @ noise)
    with pytest.raises(DataError, match="do not explain"):
        Regression.from_arrays(X, noise)
    faint = Regression.from_arrays(X, noise + 1e-6 * basis @ np.ones(4))
    w = np.linalg.lstsq(X, 1e-6 * basis @ np.ones(4), rcond=None)[0]
    assert np.allclose(faint.w_star, w, rtol=1e-4)


@pytest.mark.parametrize("kind", [Regression, Samples])
def test_a_problem_is_made_of_whatever_is_read(kind, tmp_path):
    """Arrays, frames, dictionaries and paths alike."""
    random = np.random.default_rng(5)
    X = random.standard_normal((30, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * random.standard_normal(30)
    frame = pd.DataFrame(X, columns=list("abc"))
    table = frame.assign(y=y)
    table.to_csv(tmp_path / "table.csv", index=False)
    columns = {name: table[name].to_numpy() for name in table}
    named = [(frame, y), (table, "y"), (columns, "y"), (tmp_path / "table.csv", "y")]
    for source, target in [(X, y), *named]:
        found = kind.from_arrays(source, target).regression()
        np.testing.assert_allclose(found.w_star, np.linalg.lstsq(X, y)[0], rtol=1e-12)
        assert found.feature_names == (("x0", "x1", "x2") if source is X else ("a", "b", "c"))


def test_names_are_checked():
    X, y = np.eye(2), np.ones(2)
    named = Regression.from_arrays(X, y, ["u", "v"], "t")
    assert (named.feature_names, named.target_names) == (("u", "v"), ("t",))
    with pytest.raises(DataError, match="features has 1 names; expected 2"):
        Regression.from_arrays(X, y, ["u"])
    with pytest.raises(DataError, match="target has 2 names; expected 1"):
        Samples.from_arrays(X, y, target=["s", "t"])
    with pytest.raises(DataError, match="repeat a name"):
        Regression.from_arrays(X, y, ["u", "t"], "t")


@pytest.mark.parametrize(("n", "d", "targets"), [(50, 5, 1), (6, 9, 1), (40, 3, 4)])
def test_gaussian_samples_have_a_unit_regressor(n, d, targets):
    samples = gaussian_samples(n, d, seed=4, targets=targets)
    assert samples.X.shape == (n, d)
    assert samples.y.shape == ((n,) if targets == 1 else (n, targets))
    assert samples.regression().w_star_norm == pytest.approx(1, abs=1e-12)
    assert np.array_equal(samples.y, gaussian_samples(n, d, seed=4, targets=targets).y)
    assert not np.array_equal(samples.y, gaussian_samples(n, d, seed=5, targets=targets).y)


def test_the_test_half_comes_from_the_same_model():
    train, test = gaussian_split(n=4000, d=3, noise=0.1, seed=6)
    assert np.array_equal(train.X, gaussian_samples(4000, 3, 0.1, 6).X)
    assert not np.array_equal(train.X, test.X)
    w = train.regression().w_star
    assert np.allclose(test.regression().w_star, w, atol=0.02)
    assert test.risk(w) == pytest.approx(train.risk(w), rel=0.2)
    assert train.regression().risk_min == pytest.approx(train.risk(w), rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("alignment", ["spread", "weak", "strong"])
def test_spectrum_samples_have_the_chosen_spectrum(alignment, noise):
    samples = spectrum_samples(
        30, d=6, condition_number=1e4, alignment=alignment, noise=noise, seed=7
    )
    sigma = samples.X.T @ samples.X / 30
    expected = 10.0 ** np.linspace(-4, 0, 6)
    values, vectors = np.linalg.eigh(sigma)
    assert values == pytest.approx(expected, rel=1e-10)
    w = np.linalg.lstsq(samples.X, samples.y, rcond=None)[0]
    share = {"spread": [1] * 6, "weak": [2, 2, 2, 0, 0, 0], "strong": [0, 0, 0, 2, 2, 2]}
    assert (vectors.T @ w) ** 2 == pytest.approx(np.array(share[alignment]) / 6, abs=1e-8)
    assert samples.regression().risk_min == pytest.approx(noise**2, rel=1e-9, abs=1e-25)


def test_weights_belong_to_the_eigenvalues_in_the_order_given():
    problem = spectrum_samples(9, [5.0, 1.0, 3.0], alignment=[2.0, 0.0, 1.0]).regression()
    assert problem.a == pytest.approx((4 * 5 + 3) / 5, rel=1e-12)
    assert problem.eigenvalues == pytest.approx([1, 3, 5], rel=1e-12)


def test_whitened_samples():
    problem = whitened_samples(n=12, d=11, noise=2.0, seed=1).regression()
    assert np.allclose(problem.sigma, np.eye(11), atol=1e-13)
    assert problem.w_star_norm == pytest.approx(1)
    assert problem.risk_min == pytest.approx(4)
    assert whitened_samples(n=5, d=5, noise=0.0).regression().full_rank


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: gaussian_samples(n=1), "n must be at least 2, got 1"),
        (lambda: gaussian_samples(n=2.5), "n must be a whole number"),
        (lambda: gaussian_samples(d=0), "d must be a whole number of at least 1, got 0"),
        (lambda: gaussian_samples(noise=-1.0), "noise must be a number of at least 0, got -1.0"),
        (lambda: gaussian_samples(noise=math.nan), "noise must be"),
        (lambda: gaussian_samples(seed=-1), "seed must be"),
        (lambda: gaussian_samples(targets=0), "targets must be"),
        (lambda: spectrum_samples(9), "eigenvalues or both d and condition_number"),
        (lambda: spectrum_samples(9, [1.0], d=1), "not both"),
        (lambda: spectrum_samples(9, []), "eigenvalues"),
        (lambda: spectrum_samples(9, [1.0, -1.0]), "eigenvalues must be positive"),
        (lambda: spectrum_samples(9, d=3, condition_number=0.5), "condition_number must be from 1"),
        (lambda: spectrum_samples(9, d=1, condition_number=2), "must be 1 with d = 1"),
        (lambda: spectrum_samples(2, [1.0, 2.0, 3.0]), "n must be at least 3 (d), got 2"),
        (lambda: whitened_samples(3, 3, 1.0), "n must be at least 4 (d + 1, as there is noise)"),
        (lambda: spectrum_samples(9, [1.0, 2.0], alignment="wek"), "did you mean 'weak'"),
        (lambda: spectrum_samples(9, [1.0, 2.0], alignment=[0, 0]), "alignment must be 2 finite"),
        (lambda: spectrum_samples(9, [1.0, 2.0], alignment=[1.0]), "alignment must be 2 finite"),
    ],
)
def test_bad_settings_are_refused(make, fragment):
    with pytest.raises(SettingError) as caught:
        make()
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_vanishes_next_to_another_is_refused():
    """At 1e12 the rank is still seen; beyond, one column's rounding hides the other."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    y = X @ [1.0, 2.0]
    assert Regression.from_arrays(X * [1.0, 1e12], y).rank == 2
    for small, large in ((1.0, 1e16), (1e-20, 1.0), (1e-310, 1.0)):
        with pytest.raises(DataError, match=r"'x0' is .* of 'x1' in size, beyond the digits"):
            Regression.from_arrays(X * [small, large], y)
        ready = Preparation(standardise=True)
        if small > 1e-300:
            assert Regression.from_arrays(X * [small, large], y, preparation=ready).rank == 2
    # A small column that says nothing new is no loss: the rank is that of the data.
    double = np.column_stack([X[:, 0] * 1e-20, X[:, 0]])
    assert Regression.from_arrays(double, y).rank == 1
    zero = np.column_stack([0.0 * X[:, 0], X[:, 0]])
    assert Regression.from_arrays(zero, y).rank == 1


def test_a_difference_that_vanishes_next_to_another_column_is_refused():
    """Two columns differ by a thousandth, and a third is 1e12 times as large: each is seen, and
    what sets the two apart is not. The rank would be 2, and S_min 1e8 times what it is."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    X[:, 2] = X[:, 1] + 1e-3 * rng.standard_normal(200)
    y = X @ [1.0, -1.0, 1.0]
    assert Regression.from_arrays(X, y).rank == 3
    large = X * [1e12, 1.0, 1.0]
    with pytest.raises(DataError, match=r"of 'x0' in size, and what sets the small columns apart"):
        Regression.from_arrays(large, y)
    assert Regression.from_arrays(large, y, preparation=Preparation(standardise=True)).rank == 3
    # Where there is nothing between them the rank is that of the data, in all units.
    large[:, 2] = 3.0 * large[:, 1]
    assert Regression.from_arrays(large, y).rank == 2
    # Columns of one size that differ by about rounding are on one side of it or the other.
    for difference in 10.0 ** np.linspace(-16, -12, 60):
        X[:, 2] = X[:, 1] * (1.0 + difference * rng.standard_normal(200))
        assert Regression.from_arrays(X, y).rank in (2, 3)


def test_memory_of_a_wide_table_is_asked_for_before_it_is_taken(monkeypatch):
    """Sigma of 100,000 columns has 80 GB, whatever the number of rows."""
    monkeypatch.setattr("flatmin.core.memory.available_bytes", lambda: 1 << 20)
    X = np.random.default_rng(0).standard_normal((3, 3000))
    with pytest.raises(SettingError, match=r"a regression of 3001 columns would need .* of memory"):
        Regression.from_arrays(X, X[:, 0])
    few = Regression.from_arrays(X[:, :20], X[:, 0])
    assert few.rank == 3
    assert few.sigma == pytest.approx(X[:, :20].T @ X[:, :20] / 3, abs=1e-13)
    assert few.sigma_root @ few.sigma_root == pytest.approx(few.sigma, abs=1e-13)
