"""Preparing a table, against scikit-learn's transformers on scikit-learn's tables."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from commands import call
from flatmin import Preparation, Regression, Samples, read_regression, read_samples
from flatmin.core.errors import DataError, FlatminError, SettingError
from flatmin.study.spec import Study

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")


def diabetes() -> pd.DataFrame:
    """442 patients in natural units; sex as text and a group of three as a number."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame["sex"] = frame["sex"].map({1.0: "F", 2.0: "M"})
    frame.insert(3, "group", np.arange(len(frame)) % 3 + 9)
    return frame


def cancer() -> pd.DataFrame:
    return load_breast_cancer(as_frame=True).frame


def wine() -> pd.DataFrame:
    return load_wine(as_frame=True).frame


TABLES = {"diabetes": diabetes, "cancer": cancer, "wine": wine}


def numbers(name: str) -> tuple[pd.DataFrame, list[str]]:
    """A table with its columns of text left out, and its features."""
    frame = TABLES[name]().drop(columns="sex", errors="ignore")
    return frame, [column for column in frame if column != "target"]


def write(frame: pd.DataFrame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        text = {c: str if frame[c].dtype.kind not in "biuf" else None for c in frame}
        np.savez(path, **{c: frame[c].to_numpy(dtype=text[c]) for c in frame})
    else:
        frame.to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return path


def assert_close(found, expected, scale=1.0):
    """Equal but for rounding: 1e-9 is far above it, and far below any wrong mean or scale."""
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


def assert_same_problem(one: Regression, other: Regression) -> None:
    """The stream's answer and the rows' answer, up to rounding."""
    assert (one.n, one.d, one.rank) == (other.n, other.d, other.rank)
    assert one.feature_names == other.feature_names
    assert one.preparation == other.preparation
    loose = 1e-13 * np.sqrt(one.condition_number) + 1e-12
    assert_close(one.sigma, other.sigma, np.trace(one.sigma))
    np.testing.assert_allclose(one.w_star, other.w_star, rtol=0, atol=loose * one.w_star_norm)
    assert one.risk_min == pytest.approx(other.risk_min, rel=1e-9)
    for name in ("means", "sizes"):
        assert_close(getattr(one.columns, name), getattr(other.columns, name))
    assert one.columns.identifiers == other.columns.identifiers
    assert one.columns.constant == other.columns.constant


# --- Centring and standardising -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("table", TABLES)
def test_with_intercept_w_star_is_the_slope_of_a_fit_with_an_intercept(tmp_path, table, suffix):
    frame, features = numbers(table)
    path = write(frame, tmp_path / f"d{suffix}")
    fit = LinearRegression().fit(frame[features], frame["target"])
    prepared = Preparation(intercept=True)
    for problem in (
        read_regression(path, "target", preparation=prepared),
        read_samples(path, "target", preparation=prepared).regression(),
    ):
        assert problem.feature_names == tuple(features)
        loose = 1e-13 * np.sqrt(problem.condition_number)
        np.testing.assert_allclose(
            problem.w_star, fit.coef_, rtol=0, atol=loose * np.linalg.norm(fit.coef_)
        )
        residuals = frame["target"] - fit.predict(frame[features])
        assert problem.risk_min == pytest.approx(np.mean(residuals**2), rel=1e-9)
        covariance = np.cov(frame[features].T, ddof=0)
        assert_close(problem.sigma, covariance, np.trace(covariance))
        assert problem.preparation == (
            f"centred {len(features)} features and the target: a network with a bias on its "
            "output, at its best value, solves this problem",
        )
    assert_same_problem(
        read_regression(path, "target", preparation=prepared),
        read_samples(path, "target", preparation=prepared).regression(),
    )


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_standardise_is_the_standard_scaler(tmp_path, table, intercept):
    frame, features = numbers(table)
    path = write(frame, tmp_path / "d.csv")
    prepared = Preparation(standardise=True, intercept=intercept)
    samples = read_samples(path, "target", preparation=prepared)
    expected = StandardScaler().fit_transform(frame[features])
    assert_close(samples.X, expected)
    target = frame["target"] - intercept * frame["target"].mean()
    assert_close(samples.y, target, target.std())
    problem = read_regression(path, "target", preparation=prepared)
    assert_same_problem(problem, samples.regression())
    fit = LinearRegression(fit_intercept=intercept).fit(expected, target)
    loose = 1e-12 * problem.condition_number * np.linalg.norm(fit.coef_)
    np.testing.assert_allclose(problem.w_star, fit.coef_, rtol=0, atol=loose)
    assert problem.risk_min == pytest.approx(np.mean((target - fit.predict(expected)) ** 2))
    assert problem.preparation[0].startswith(f"standardised {len(features)} features")
    assert len(problem.preparation) == 1 + intercept


@given(
    st.integers(0, 2**32 - 1), st.integers(3, 40), st.integers(1, 6), st.floats(0, 8), st.booleans()
)
def test_stream_and_rows_agree_far_from_the_origin(seed, n, d, exponent, standardise):
    """A mean of 10^8 standard deviations costs 8 digits at most, in both ways."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, d + 1)) + 10.0**exponent
    prepared = Preparation(intercept=True, standardise=standardise)
    one = Regression.from_arrays(Z[:, :d], Z[:, d], preparation=prepared)
    centred = Z - Z.mean(axis=0)
    if standardise:
        centred[:, :d] /= centred[:, :d].std(axis=0)
    assert_close(one.sigma, centred[:, :d].T @ centred[:, :d] / n, np.trace(one.sigma))
    two = Samples.from_arrays(Z[:, :d], Z[:, d], preparation=prepared)
    np.testing.assert_allclose(two.X, centred[:, :d], rtol=0, atol=1e-7)
    assert one.rank == two.regression().rank
    loose = 1e-7 * np.sqrt(one.condition_number) * one.w_star_norm
    np.testing.assert_allclose(one.w_star, two.regression().w_star, rtol=0, atol=loose)
    assert one.centred
    assert two.regression().centred


def test_a_long_stream_is_centred_over_all_its_blocks(tmp_path):
    rng = np.random.default_rng(5)
    drift = np.linspace(0, 50, 30_000)[:, None]  # no block has the mean of the whole
    frame = pd.DataFrame(rng.standard_normal((30_000, 3)) + drift, columns=["a", "b", "y"])
    path = write(frame, tmp_path / "d.csv")
    problem = read_regression(path, "y", preparation=Preparation(intercept=True))
    assert_close(problem.w_star, LinearRegression().fit(frame[["a", "b"]], frame["y"]).coef_)


def test_several_targets():
    frame, _ = numbers("wine")
    targets = ["target", "proline"]
    prepared = Preparation(intercept=True)
    problem = read_regression(frame, targets, preparation=prepared)
    fit = LinearRegression().fit(frame.drop(columns=targets), frame[targets])
    np.testing.assert_allclose(problem.w_star.T, fit.coef_, rtol=0, atol=1e-8 * problem.w_star_norm)
    assert "features and the targets" in problem.preparation[0]
    assert_same_problem(problem, read_samples(frame, targets, preparation=prepared).regression())


@pytest.mark.parametrize("prepared", [Preparation(intercept=True), Preparation(standardise=True)])
def test_a_constant_column_is_left_out_when_centred(prepared):
    frame, features = numbers("wine")
    frame["one"], frame["third"] = 1.0, 0.1 + 0.2
    frame.loc[::2, "third"] = 0.3  # constant but for rounding
    plain = read_regression(frame[[*features, "target"]], "target", preparation=prepared)
    for problem in (
        read_regression(frame, "target", preparation=prepared),
        read_samples(frame, "target", preparation=prepared).regression(),
    ):
        assert problem.feature_names == tuple(features)
        assert_close(problem.sigma, plain.sigma, np.trace(plain.sigma))
        assert problem.preparation[0].startswith("left out the constant columns one, third")


# --- One-hot and missing values -------------------------------------------------------------------


def encoded(frame: pd.DataFrame, columns: list[str]) -> tuple[np.ndarray, list[str]]:
    """OneHotEncoder in place: the columns of a category stand where it stood."""
    blocks, names = [], []
    for name in frame:
        if name in columns:
            encoder = OneHotEncoder(sparse_output=False).fit(frame[[name]])
            blocks.append(encoder.transform(frame[[name]]))
            names.extend(f"{name}={label}" for label in encoder.categories_[0])
        elif name != "target":
            blocks.append(frame[[name]].to_numpy(dtype=float))
            names.append(name)
    return np.hstack(blocks), names


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_hot_is_the_one_hot_encoder(tmp_path, suffix):
    frame = diabetes()
    path = write(frame, tmp_path / f"d{suffix}")
    expected, names = encoded(frame, ["sex", "group"])
    prepared = Preparation(one_hot=["sex", "group"])
    samples = read_samples(path, "target", preparation=prepared)
    assert samples.feature_names == tuple(names)
    assert names[4:7] == ["group=9", "group=10", "group=11"]  # by value, not as text
    assert np.array_equal(samples.X, expected)
    assert samples.preparation == (
        "one-hot: sex -> sex=F, sex=M",
        "one-hot: group -> group=9, group=10, group=11",
    )
    problem = read_regression(path, "target", preparation=Preparation(one_hot="sex,group"))
    assert_same_problem(problem, samples.regression())
    again = read_samples(frame, "target", preparation=prepared)
    assert np.array_equal(again.X, expected)


def test_one_hot_of_arrays():
    X, y = np.array([[2.0, 5.0], [1.0, 5.5], [10.0, 7.0], [2.0, 1.0]]), np.arange(4.0)
    samples = Samples.from_arrays(X, y, preparation=Preparation(one_hot="x0"))
    assert samples.feature_names == ("x0=1.0", "x0=2.0", "x0=10.0", "x1")
    assert np.array_equal(samples.X[:, :3], [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_one_hot_over_many_blocks(tmp_path):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"k": rng.integers(0, 40, 20_000), "x": rng.standard_normal(20_000)})
    frame["k"] = "kind " + frame["k"].astype(str)
    frame["target"] = rng.standard_normal(20_000)
    frame.loc[19_990:, "k"] = "late"  # a category of the last rows only
    expected, names = encoded(frame, ["k"])
    for suffix in (".csv", ".parquet"):
        path = write(frame, tmp_path / f"d{suffix}")
        samples = read_samples(path, "target", preparation=Preparation(one_hot="k"))
        assert samples.feature_names == tuple(names)
        assert np.array_equal(samples.X, expected)
        assert "(41)" in samples.preparation[0]


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """A tenth of the values missing in three features, and some in the target."""
    rng = np.random.default_rng(8)
    frame = frame.copy()
    for name in ("bmi", "s3", "age"):
        frame.loc[rng.random(len(frame)) < 0.1, name] = np.nan
    frame.loc[[7, 99], "target"] = np.nan
    return frame


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_with_missing_values_are_dropped(tmp_path, suffix):
    frame = with_gaps(numbers("diabetes")[0])
    path = write(frame, tmp_path / f"d{suffix}")
    prepared = Preparation(missing="drop")
    samples = read_samples(path, "target", preparation=prepared)
    kept = frame.dropna()
    assert np.array_equal(samples.X, kept.drop(columns="target"))
    assert np.array_equal(samples.y, kept["target"])
    gone = len(frame) - len(kept)
    assert samples.preparation == (f"dropped {gone} of 442 rows with missing values",)
    assert_same_problem(read_regression(path, "target", preparation=prepared), samples.regression())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_mean_is_the_simple_imputer(tmp_path, suffix):
    frame = with_gaps(numbers("diabetes")[0])
    path = write(frame, tmp_path / f"d{suffix}")
    prepared = Preparation(missing="mean")
    samples = read_samples(path, "target", preparation=prepared)
    kept = frame.dropna(subset="target")
    assert_close(samples.X, SimpleImputer().fit_transform(kept.drop(columns="target")))
    count = int(kept.isna().sum().sum())
    assert samples.preparation[0] == "dropped 2 of 442 rows whose target is missing"
    assert samples.preparation[1].startswith(f"filled {count} missing values with the mean")
    assert_same_problem(read_regression(path, "target", preparation=prepared), samples.regression())


def test_everything_at_once_is_a_pipeline_of_scikit_learn(tmp_path):
    """Select, drop, one-hot, missing, centre, scale: in this order."""
    frame = with_gaps(diabetes())
    frame.loc[11, "sex"] = None
    path = write(frame, tmp_path / "d.csv")
    prepared = Preparation(
        drop="s1,s2", one_hot="sex", missing="mean", intercept=True, standardise=True
    )
    features = ["age", "sex", "bmi", "s1", "s3"]
    samples = read_samples(path, "target", features, prepared)
    kept = frame.dropna(subset="target")
    codes = ColumnTransformer(
        [("sex", OneHotEncoder(categories=[["F", "M"]], handle_unknown="ignore"), ["sex"])]
    ).fit_transform(kept)
    codes[kept["sex"].isna().to_numpy()] = np.nan
    raw = np.column_stack([kept["age"], codes, kept[["bmi", "s3"]]])
    expected = StandardScaler().fit_transform(SimpleImputer().fit_transform(raw))
    assert_close(samples.X, expected)
    assert_close(samples.y, kept["target"] - kept["target"].mean(), kept["target"].std())
    assert [sentence.split()[0] for sentence in samples.preparation] == [
        "selected",
        "dropped",
        "one-hot:",
        "dropped",
        "filled",
        "standardised",
        "centred",
    ]
    problem = read_regression(path, "target", features, prepared)
    assert_same_problem(problem, samples.regression())
    assert problem.rank == problem.d - 1  # sex=F and sex=M add to one, which centring removes
    frames = read_regression(frame, "target", features, prepared)
    assert_same_problem(problem, frames)


def test_missing_values_of_every_spelling(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(
        "a,flag,kind,y\n  ,NA,u,1\n+1,True, v ,2\nnan,False,none,3\n"
        "4e0, n/a,NA,5\n5,True,,\n 6 ,1,u,7\n"
    )
    prepared = Preparation(one_hot="kind", missing="mean")
    samples = read_samples(path, "y", preparation=prepared)
    assert samples.feature_names == ("a", "flag", "kind=none", "kind=u", "kind=v")
    nan = np.nan
    raw = [[nan, nan, 0, 1, 0], [1, 1, 0, 0, 1], [nan, 0, 1, 0, 0], [4, nan, nan, nan, nan]]
    expected = SimpleImputer().fit_transform([*raw, [6, 1, 0, 1, 0]])
    assert_close(samples.X, expected)
    dropped = read_samples(path, "y", preparation=Preparation(one_hot="kind", missing="drop"))
    assert np.array_equal(dropped.y, [2, 7])
    assert dropped.feature_names[2:] == ("kind=u", "kind=v")  # of the rows that stay


@pytest.mark.parametrize(
    ("row", "fragment"),
    [
        ("five,True,u,3", "line 4, column 'a': 'five' where a number belongs"),
        ("5,maybe,u,3", "line 4, column 'flag': 'maybe' where true or false"),
        ("5,True,u,-inf", "line 4, column 'y': the value is -inf"),
        ("1e200,True,u,3", "line 4, column 'a': the value is 1e+200, beyond"),
        ("5,True,3", "line 4: expected 4 values, got 3"),
    ],
)
def test_what_is_wrong_is_still_said_where_values_may_be_missing(tmp_path, row, fragment):
    path = tmp_path / "d.csv"
    path.write_text(f"a,flag,kind,y\n,True,u,1\n2,,v,2\n{row}\n")
    with pytest.raises(DataError) as caught:
        read_regression(path, "y", preparation=Preparation(one_hot="kind", missing="mean"))
    assert fragment in str(caught.value)


def test_categories_of_every_type(tmp_path):
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(["a", "b", None, "a"], categories=["unused", "b", "a"]),
            "flag": [True, False, True, True],
            "x": [1.0, 2.0, 4.0, 4.0],
            "y": [1.0, 2.0, 3.0, 5.0],
        }
    )
    prepared = Preparation(one_hot="kind,flag,x", missing="drop")
    names = ("kind=a", "kind=b", "flag=False", "flag=True", "x=1.0", "x=2.0", "x=4.0")
    expected = [[1, 0, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]]
    found = [read_samples(frame, "y", preparation=prepared)]
    for suffix in (".csv", ".parquet"):
        path = write(frame, tmp_path / f"d{suffix}")
        found.append(read_samples(path, "y", preparation=prepared))
    for samples in found:
        assert samples.feature_names == names
        assert np.array_equal(samples.X, expected)


def test_nothing_missing_is_said():
    problem = Regression.from_arrays(
        [[1.0], [2.0]], [1.0, 3.0], preparation=Preparation(missing="mean")
    )
    assert problem.preparation == ("missing values: none found",)


def test_nothing_asked_for_changes_no_bit_and_says_nothing():
    frame, features = numbers("wine")
    plain = Regression.from_arrays(frame[features], frame["target"])
    assert plain.preparation == ()
    factor = np.linalg.qr(frame[[*features, "target"]], mode="r")
    assert_close(plain.sigma, (factor.T @ factor / len(frame))[:-1, :-1], np.trace(plain.sigma))
    reduced = Samples.from_arrays(frame[features], frame["target"]).regression()
    assert np.array_equal(reduced.w_star, plain.w_star)


# --- Choosing columns -----------------------------------------------------------------------------


def test_lists_with_commas_and_columns_whose_names_have_commas(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2, 4], "b": [3.0, 1, 1], "a,b": [0.0, 1, 5], "y": [1.0, 2, 3]})
    path = write(frame, tmp_path / "d.csv")
    assert read_samples(path, "y", "a,b").feature_names == ("a,b",)
    assert read_samples(path, "y", "b,a").feature_names == ("b", "a")
    assert read_samples(path, "y", ["a,b", "b, a,"]).feature_names == ("a,b", "b", "a")
    dropped = read_samples(path, "y", preparation=Preparation(drop=("a,b", "a")))
    assert dropped.feature_names == ("b",)
    assert dropped.preparation == ("dropped the columns a,b, a",)
    with pytest.raises(DataError, match="no column 'y,b' \\(target\\)"):
        read_samples(path, "y,b")


def test_a_group_of_an_archive_is_dropped_by_its_name(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.eye(4)[:, :3], u=np.arange(4.0), y=np.ones(4))
    samples = read_samples(tmp_path / "d.npz", "y", preparation=Preparation(drop="X"))
    assert samples.feature_names == ("u",)


BAD_COLUMNS = {
    "drop unknown": ({"drop": "bmii"}, "no column 'bmii' (drop); did you mean 'bmi'?"),
    "drop the target": ({"drop": "target"}, "the target 'target' is also among the columns to"),
    "drop twice": ({"drop": "bmi,bmi"}, "the drop 'bmi' is given twice"),
    "drop all": ({"drop": ["age,sex,bmi,bp,group", "s1,s2,s3,s4,s5,s6"]}, "no features left"),
    "one-hot unknown": ({"one_hot": "Sex"}, "no column 'Sex' (one-hot); did you mean 'sex'?"),
    "one-hot target": ({"one_hot": "target"}, "the target 'target' cannot be one-hot"),
    "one-hot dropped": ({"one_hot": "sex", "drop": "sex"}, "'sex' (one-hot) is not among the"),
    "text": ({}, "column 'sex': 'M' where a number belongs; one_hot makes columns of it"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_bad_columns_are_refused_in_one_line(tmp_path, case):
    settings, fragment = BAD_COLUMNS[case]
    path = write(diabetes(), tmp_path / "d.csv")
    for read in (read_regression, read_samples):
        with pytest.raises(DataError) as caught:
            read(path, "target", preparation=Preparation(**settings))
        assert fragment in str(caught.value)
        assert "\n" not in str(caught.value)


BAD_SETTINGS = {
    "missing": ({"missing": "foo"}, "missing must be one of drop, mean, got 'foo'"),
    "missing close": ({"missing": "means"}, "did you mean 'mean'?"),
    "missing kind": ({"missing": True}, "missing must be one of drop, mean, got True"),
    "drop kind": ({"drop": 3}, "drop must be names of columns, got 3"),
    "drop empty": ({"drop": [" "]}, "drop must be names of columns, got [' ']"),
    "one-hot kind": ({"one_hot": ["a", 1]}, "one_hot must be names of columns, got ['a', 1]"),
    "intercept kind": ({"intercept": "yes"}, "intercept must be true or false, got 'yes'"),
    "standardise kind": ({"standardise": 1}, "standardise must be true or false, got 1"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_refused_in_one_line(case):
    settings, fragment = BAD_SETTINGS[case]
    with pytest.raises(SettingError) as caught:
        Preparation(**settings)
    assert fragment in str(caught.value)


def hopeless():
    y = np.arange(4.0)
    nan = np.nan
    return {
        "rows": ({"a": [nan, 1, nan, 1], "b": [1, nan, 1, nan], "y": y}, {"missing": "drop"},
                 "4 of 4 rows have missing values and are dropped, which leaves 0"),
        "one row": ({"a": [nan, 1, nan, nan], "y": y}, {"missing": "drop"}, "which leaves 1"),
        "column": ({"a": [nan] * 4, "y": y}, {"missing": "mean"}, "'a' has no values; drop it"),
        "target": ({"a": y, "y": [nan] * 4}, {"missing": "mean"}, "4 of 4 rows have missing"),
        "infinite": ({"a": [1, nan, np.inf, 1], "y": y}, {"missing": "mean"}, "row 2"),
        "nan": ({"a": [1, nan, 2, 1], "y": y}, {}, 'missing = "drop" or "mean"'),
        "constant": ({"a": [3.0] * 4, "y": y}, {"intercept": True}, "every feature is constant"),
        "flat target": ({"a": y, "y": [0.1] * 4}, {"intercept": True}, "'y' is constant"),
        "clash": ({"k": ["u", "v", "u", "v"], "k=u": y, "y": y}, {"one_hot": "k"}, "exists alre"),
        "no category": ({"k": [None] * 4, "a": y, "y": y}, {"one_hot": "k", "missing": "drop"},
                        "4 of 4 rows have missing"),
        "no category but rows": ({"k": [None] * 4, "a": y, "y": y},
                                 {"one_hot": "k", "missing": "mean"}, "'k' has no values"),
        "gap in categories": ({"k": ["u", None, "v", "u"], "y": y}, {"one_hot": "k"},
                              'missing = "drop" or "mean"'),
    }  # fmt: skip


@pytest.mark.parametrize("case", hopeless())
def test_tables_that_leave_nothing(case):
    columns, settings, fragment = hopeless()[case]
    with pytest.raises(DataError) as caught:
        read_regression(pd.DataFrame(columns), "y", preparation=Preparation(**settings))
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_hundred_thousand_categories_are_too_many(tmp_path, suffix):
    frame = pd.DataFrame({"k": np.arange(100_000), "y": np.arange(100_000.0)})
    path = write(frame, tmp_path / f"d{suffix}")
    with pytest.raises(DataError, match="column 'k' has more than 1000 categories"):
        read_regression(path, "y", preparation=Preparation(one_hot="k"))


# --- Notes ----------------------------------------------------------------------------------------


def notes(frame: pd.DataFrame, target: str = "target", **settings) -> str:
    prepared = Preparation(**settings)
    problem = read_regression(frame, target, preparation=prepared)
    rows = read_samples(frame, target, preparation=prepared).regression()
    assert problem.notes() == rows.notes()
    return "\n".join(problem.notes())


def test_notes_on_means_and_scales():
    frame, _ = numbers("diabetes")
    share = frame["target"].mean() ** 2 / np.mean(frame["target"] ** 2)
    assert f"is {100 * share:.3g} % of its mean square" in notes(frame)
    assert "consider intercept" in notes(frame)
    assert "consider intercept" not in notes(frame, intercept=True)
    assert "consider intercept" in notes(frame, standardise=True)
    assert "consider standardise" not in notes(frame)  # they differ by a factor of 50
    frame["s6"] *= 1e3
    assert "of 's6' and" in notes(frame)
    assert "consider standardise" in notes(frame, intercept=True)
    assert "consider standardise" not in notes(frame, standardise=True)


def test_notes_on_constant_columns_and_identifiers():
    frame, _ = numbers("wine")
    assert "constant" not in notes(frame)
    assert "number given" not in notes(frame)
    rng = np.random.default_rng(0)
    frame["one"] = 1.0
    frame["serial"] = rng.permutation(len(frame)) + 10**6
    frame["grid"] = rng.permutation(len(frame)) * 3  # whole and distinct, but no name for it
    frame["customer_id"] = rng.permutation(len(frame)) * 3
    found = notes(frame)
    assert "the feature 'one' is constant: it acts as an intercept" in found
    assert "consider intercept" not in found
    assert "each of the features 'serial', 'customer_id' looks like a number given" in found
    assert "drop = 'serial,customer_id'" in notes(frame, intercept=True)
    assert "constant" not in notes(frame, intercept=True)
    assert "number given" not in notes(frame, drop="serial,customer_id")


# --- The command and the study --------------------------------------------------------------------


def test_predict_and_train_say_the_same(monkeypatch, capsys, tmp_path):
    path = write(with_gaps(diabetes()), tmp_path / "d.csv")
    options = [
        "--target", "target", "--features", "age,sex,bmi,s1", "--drop", "s1", "--one-hot", "sex",
        "--missing", "drop", "--intercept", "--standardise",
    ]  # fmt: skip
    prepared = Preparation(
        drop="s1", one_hot="sex", missing="drop", intercept=True, standardise=True
    )
    problem = read_regression(path, "target", "age,sex,bmi,s1", prepared)
    code, out, _ = call(monkeypatch, capsys, "predict", path, "--depth", 3, *options, "--json")
    assert code == 0
    predicted = json.loads(out)
    assert predicted["preparation"] == list(problem.preparation)
    assert predicted["w_star_norm"] == problem.w_star_norm
    code, out, _ = call(monkeypatch, capsys, "predict", path, "--depth", 3, *options)
    assert "- one-hot: sex -> sex=F, sex=M" in out
    assert "a network with a bias on its output" in " ".join(out.split())
    run = ["train", path, "--depth", 3, "--learning-rate", "0.3critical", "--steps", 50, *options]
    code, out, _ = call(monkeypatch, capsys, *run, "--json")
    assert code == 0
    trained = json.loads(out)
    assert trained["preparation"] == predicted["preparation"]
    assert trained["risk_min"] == pytest.approx(predicted["risk_min"], rel=1e-9)
    assert trained["notes"] == list(problem.notes())
    code, out, _ = call(monkeypatch, capsys, *run, "--out", tmp_path / "run")
    assert "- one-hot: sex -> sex=F, sex=M" in out
    with np.load(tmp_path / "run" / "problem.npz") as arrays:
        saved = Regression.from_saved(dict(arrays))
        assert saved.preparation == problem.preparation
        assert saved.notes() == problem.notes()
        old = {k: v for k, v in arrays.items() if not k.startswith(("columns", "preparation"))}
    assert Regression.from_saved(old).preparation == ()  # of a run made before


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--missing", "foo"], "missing must be one of drop, mean, got 'foo'"),
        (["--drop", "agee"], "no column 'agee' (drop); did you mean 'age'?"),
        (["--one-hot", "target"], "the target 'target' cannot be one-hot"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "train"])
def test_commands_refuse_in_one_line(monkeypatch, capsys, tmp_path, command, options, fragment):
    path = write(diabetes(), tmp_path / "d.csv")
    more = ["--depth", 3] + (["--learning-rate", "0.1"] if command == "train" else [])
    code, out, err = call(monkeypatch, capsys, command, path, "--target", "target", *more, *options)
    assert code == 2
    assert fragment in err
    assert not out


def test_train_without_a_file_takes_no_preparation(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "train", "--learning-rate", "0.1", "--intercept")
    assert code == 2
    assert "need a FILE" in err


STUDY = """
[problem]
file = "d.csv"
target = "target"
{more}
[architecture]
depth = 3
{activation}
[initialisation]
scale = 0.1
[method]
learning_rate = 0.001
steps = 10
"""


def study(tmp_path, more="", activation=""):
    (tmp_path / "study.toml").write_text(STUDY.format(more=more, activation=activation))
    return Study(tmp_path / "study.toml")


def test_a_study_prepares_its_table_as_the_command_does(tmp_path):
    path = write(with_gaps(diabetes()), tmp_path / "d.csv")
    more = (
        'features = ["age", "sex", "bmi", "s1"]\ndrop = ["s1"]\none_hot = ["sex"]\n'
        'missing = "mean"\nintercept = true\nstandardise = true'
    )
    prepared = Preparation(
        drop="s1", one_hot="sex", missing="mean", intercept=True, standardise=True
    )
    expected = read_regression(path, "target", ["age", "sex", "bmi", "s1"], prepared)
    linear = study(tmp_path, more)
    assert isinstance(linear.data, Regression)
    assert np.array_equal(linear.data.w_star, expected.w_star)
    assert linear.data.preparation == expected.preparation
    rows = study(tmp_path, more, 'activation = "tanh"')
    assert isinstance(rows.data, Samples)
    assert rows.data.preparation == expected.preparation
    (tmp_path / "again.toml").write_text(linear.to_toml())
    assert Study(tmp_path / "again.toml").canonical() == linear.canonical()
    assert '"missing": "mean"' in linear.canonical()


def test_what_changes_nothing_does_not_change_which_study_it_is(tmp_path):
    write(numbers("diabetes")[0], tmp_path / "d.csv")
    plain = study(tmp_path)
    assert set(plain.plain()["problem"]) == {"file", "target"}
    idle = study(tmp_path, "intercept = false\nstandardise = false\ndrop = []\none_hot = []")
    assert idle.canonical() == plain.canonical()
    assert study(tmp_path, "intercept = true").canonical() != plain.canonical()


@pytest.mark.parametrize(
    ("more", "fragment"),
    [
        ('missing = "foo"', "problem.missing must be one of drop, mean, got 'foo'"),
        ('intercept = "yes"', "problem.intercept must be a valid boolean, got 'yes'"),
        ('drop = "age"', "problem.drop must be a valid tuple, got 'age'"),
        ('drop = ["agee"]', "no column 'agee' (drop); did you mean 'age'?"),
        ('one_hot = ["target"]', "the target 'target' cannot be one-hot"),
    ],
)
def test_a_study_refuses_in_one_line(tmp_path, more, fragment):
    write(diabetes(), tmp_path / "d.csv")
    with pytest.raises(FlatminError) as caught:
        study(tmp_path, more)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_made_up_data_take_no_preparation(tmp_path):
    text = STUDY.format(more="intercept = true", activation="")
    text = text.replace('file = "d.csv"\ntarget = "target"', 'paper = "linear"')
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(SettingError, match="must not have intercept with paper"):
        Study(tmp_path / "study.toml")
