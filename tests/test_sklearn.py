"""The estimator: scikit-learn's own checks, and its answers against LinearRegression's."""

from __future__ import annotations

import os
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

import flatmin
from flatmin.core.errors import SettingError
from flatmin.sklearn import DeepLinearRegressor
from processes import run


@parametrize_with_checks(
    [
        DeepLinearRegressor(),
        DeepLinearRegressor(depth=2, width=4, init="orthogonal", scale=0.5, fit_intercept=False),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_the_check_that_wants_another_setting_of_scipy():
    """Array API input is checked only where SciPy was imported with this setting."""
    code = (
        "from sklearn.utils.estimator_checks import estimator_checks_generator as checks\n"
        "from flatmin.sklearn import DeepLinearRegressor\n"
        "found = [c for c in checks(DeepLinearRegressor()) if 'array_api' in str(c[1])]\n"
        "for estimator, check in found: check(estimator)\n"
        "print(len(found))"
    )
    _, out, errors = run([sys.executable, "-c", code], env=os.environ | {"SCIPY_ARRAY_API": "1"})
    assert int(out or 0) >= 1, errors


def rows(n=60, d=4, targets=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + np.arange(d)
    shape = d if targets is None else (d, targets)
    y = X @ rng.standard_normal(shape) + 2.0
    return X, y + 0.1 * rng.standard_normal(y.shape)


@pytest.fixture
def quiet():
    """Any warning fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("targets", [None, 1, 3])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_settled_it_is_least_squares(targets, intercept, depth):
    X, y = rows(targets=targets)
    ours = DeepLinearRegressor(depth=depth, fit_intercept=intercept, random_state=0).fit(X, y)
    theirs = LinearRegression(fit_intercept=intercept).fit(X, y)
    assert ours.state_ == "settled"
    assert ours.coef_.shape == theirs.coef_.shape
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    # Settled is |grad| <= 1e-11 of the size of the weights times 2 lambda_min.
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-7)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-7)


@pytest.mark.usefixtures("quiet")
def test_attributes_are_those_of_the_run():
    X, y = rows()
    model = DeepLinearRegressor(depth=3, fit_intercept=False, random_state=7).fit(X, y)
    data = flatmin.Regression.from_arrays(X, y)
    network = flatmin.Architecture.mlp(4, 3)
    advice = flatmin.advise(data, network, seed=7)
    run = flatmin.train(data, network, learning_rate=advice.learning_rate, seed=7)
    assert model.learning_rate_ == advice.learning_rate
    assert (model.state_, model.n_iter_) == (run.state, run.outcome.steps[0])
    product = np.linalg.multi_dot(run.outcome.ensemble[0][::-1])
    np.testing.assert_allclose(model.coef_, product[0], rtol=1e-12)
    for layer, other in zip(model.weights_, run.outcome.ensemble[0], strict=True):
        np.testing.assert_array_equal(layer, other)
    assert model.sharpness_ == run.final_sharpness.value
    prediction = flatmin.predict(data, 3)
    assert model.critical_rate_ == prediction.critical_rate
    assert model.minimal_sharpness_ == pytest.approx(prediction.exact, rel=1e-15)
    both = ["step", "excess_risk", "distance", "gradient", "sharpness"]
    pd.testing.assert_frame_equal(model.history_[both], run.outcome.trace[both], rtol=1e-6)


def test_residual_networks_have_an_output_vector():
    X, y = rows()
    model = DeepLinearRegressor(init="residual", scale=0.25, random_state=1).fit(X, y)
    assert [w.shape for w in model.weights_] == [(4, 4)] * 3
    np.testing.assert_allclose(model.coef_, LinearRegression().fit(X, y).coef_, rtol=1e-7)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("targets", [None, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 6])
@pytest.mark.parametrize("intercept", [True, False])
def test_few_rows_are_fitted(n, d, targets, intercept):
    X, y = rows(n, d, targets)
    model = DeepLinearRegressor(fit_intercept=intercept, random_state=0).fit(X, y)
    least = LinearRegression(fit_intercept=intercept).fit(X, y)
    assert model.learned_
    # Learned: a thousandth of the excess risk, which is |y - y_hat|^2 beyond that of the best fit.
    zero = y - y.mean(axis=0) if intercept else y
    worst = np.sum((y - least.predict(X)) ** 2)
    assert np.sum((y - model.predict(X)) ** 2) <= worst + 1e-3 * np.sum(zero**2) + 1e-12


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (rows()[0], np.full(60, 0.1)),
        (np.full((60, 2), 0.1), rows()[1]),
        (rows()[0], np.full((60, 2), 0.1)),
        (np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.array([1.0, 1.0, -1.0, -1.0])),
    ],
)
def test_nothing_to_learn_is_the_mean(X, y, depth):
    model = DeepLinearRegressor(depth=depth).fit(X, y)
    assert not model.coef_.any()
    np.testing.assert_array_equal(model.predict(X), np.broadcast_to(y.mean(axis=0), y.shape))
    assert model.learned_
    assert (model.state_, model.n_iter_) == ("settled", 0)
    # sharpness at depth 1 is that of the quadratic; deeper, all second derivatives vanish at 0.
    centred = X - X.mean(axis=0)
    quadratic = 2 * np.linalg.eigvalsh(centred.T @ centred / len(X))[-1]
    expected = quadratic if depth == 1 else 0.0
    assert model.sharpness_ == pytest.approx(expected, rel=1e-12, abs=1e-30)
    assert model.minimal_sharpness_ == pytest.approx(model.sharpness_, rel=1e-15)


def test_where_no_rate_can_be_advised_a_stable_one_is_used_with_a_warning():
    X, y = rows()
    slow = X * np.array([1.0, 1.0, 1.0, 1e-4])
    with pytest.warns(
        ConvergenceWarning, match=r"at learning rate .* it is stalled .* No rate can be"
    ):
        model = DeepLinearRegressor(scale=0.0, max_steps=200).fit(slow, y)
    assert model.state_ == "stalled"
    assert not model.learned_
    assert 0.0 < model.learning_rate_ < model.critical_rate_
    np.testing.assert_allclose(model.predict(slow), y.mean())


def test_a_run_cut_short_is_a_model_with_a_warning():
    X, y = rows()
    with pytest.warns(ConvergenceWarning, match="has not learned: after 2 steps"):
        model = DeepLinearRegressor(max_steps=2, random_state=0).fit(X, y)
    assert model.n_iter_ == 2
    assert not model.learned_


def test_a_rate_that_diverges_is_an_error():
    X, y = rows()
    with pytest.raises(SettingError, match="learning_rate 50 makes gradient descent diverge"):
        DeepLinearRegressor(learning_rate=50, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "depth must be"),
        ({"width": 0}, "width must be"),
        ({"init": "xaver-normal"}, "did you mean 'xavier-normal'"),
        ({"scale": -1.0}, "scale must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"learned_at": 2.0}, "learned_at must"),
        ({"random_state": -1}, "seed must be"),
    ],
)
def test_settings_are_checked_when_fitting(settings, message):
    with pytest.raises(SettingError, match=message):
        DeepLinearRegressor(**settings).fit(*rows())


def test_sample_weights_are_not_taken():
    assert not has_fit_parameter(DeepLinearRegressor(), "sample_weight")


def test_pipelines_searches_and_clones():
    X, y = rows()
    frame = pd.DataFrame(X * [1.0, 100.0, 1.0, 0.01], columns=list("abcd"))
    pipe = make_pipeline(StandardScaler(), DeepLinearRegressor(random_state=0))
    assert cross_val_score(pipe, frame, y).min() > 0.9
    name = "deeplinearregressor"
    # The last rate diverges: a fit that fails scores NaN and loses.
    grid = {f"{name}__depth": [1, 2], f"{name}__learning_rate": [None, 100.0]}
    with pytest.warns(Warning, match="fits failed"):
        search = GridSearchCV(pipe, grid, cv=3).fit(frame, y)
    assert search.best_params_[f"{name}__learning_rate"] is None
    assert np.isnan(search.cv_results_["mean_test_score"]).sum() == 2
    model = DeepLinearRegressor(depth=2, random_state=0).fit(frame[["a", "c"]], y)
    assert model.feature_names_in_.tolist() == ["a", "c"]
    again = clone(model).fit(frame[["a", "c"]], y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    scaled = TransformedTargetRegressor(model, transformer=StandardScaler()).fit(
        frame[["a", "c"]], y
    )
    assert scaled.score(frame[["a", "c"]], y) == pytest.approx(model.score(frame[["a", "c"]], y))


def test_without_scikit_learn_the_door_says_what_to_install():
    code = "import sys; sys.modules['sklearn.base'] = None; import flatmin.sklearn"
    exit_code, _, errors = run([sys.executable, "-c", code])
    assert exit_code == 1
    assert "install flatmin[sklearn]" in errors


def test_what_a_mask_hides_is_missing():
    """scikit-learn takes the numbers behind a mask for values."""
    rows = flatmin.gaussian_samples(n=30, d=3, seed=0)
    hidden = np.ma.masked_array(rows.X.copy(), mask=np.eye(30, 3) > 0)
    model = DeepLinearRegressor(depth=2, learning_rate=0.01, max_steps=10, random_state=0)
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(hidden, rows.y)
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(rows.X, np.ma.masked_equal(rows.y, rows.y[0]))
    with pytest.warns(ConvergenceWarning):
        model.fit(np.ma.masked_array(rows.X), rows.y)
    with pytest.raises(ValueError, match="contains NaN"):
        model.predict(hidden)
