"""A deep linear network as a scikit-learn regressor.

The network is x -> p' W_L ... W_1 x + b, trained by gradient descent on the mean squared error.
With `fit_intercept` features and targets are centred first; b is then mean(y) - w' mean(x), the
best bias of every w. Nothing is scaled: put a StandardScaler before it, or see how descent fares
without.

Data without anything to learn (w* = 0: a constant target, features that are constant or orthogonal
to the target) have the zero network as a minimiser, and that is the model. Its Hessian vanishes at
depth 2 and above: S_min = 0, and no learning rate is too large. At depth 1 the Hessian is 2 Sigma.
"""

from __future__ import annotations

import warnings
from functools import reduce
from numbers import Integral
from typing import Any, Self

import numpy as np

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "flatmin.sklearn needs scikit-learn 1.6 or newer: install flatmin[sklearn]"
    ) from error

from flatmin.core.arrays import Float, unmasked
from flatmin.core.checks import check_choice, check_count, check_depth, check_nonnegative
from flatmin.core.errors import NothingToLearn, SettingError
from flatmin.data.regression import Regression
from flatmin.dynamics.advice import advise
from flatmin.dynamics.endings import LEARNED_AT, State, check_share
from flatmin.dynamics.training import Training, train
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import (
    DEFAULT_INIT,
    DEFAULT_SCALE,
    INITIALISATIONS,
    architecture_for,
)
from flatmin.theory.prediction import check_rate, predict

STEPS = 10_000
# What costs little beside a step: layers of wide networks do not.
_RECORDED = ("excess_risk", "distance", "gradient", "sharpness")
_HALVINGS = 80  # of a rate before giving up


class DeepLinearRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression by gradient descent on a deep linear network.

    Settings:

    - depth: the number of layers L.
    - width: of the hidden layers; None is the number of features. Below the number of targets it
      bounds the rank of `coef_`.
    - init, scale: the initial weights, by the names of `flatmin.network.initialisation`.
    - learning_rate: of gradient descent, a number or such as "0.5critical". None takes the rate
      that `flatmin.advise` found and tested on these data. Where none can be advised, it is the
      largest of 1/2, 1/4, ... of the critical rate at which the run does not diverge.
    - max_steps: a run ends after so many, or once it settled at a minimiser. None is 10 000, or as
      many as the advised rate needed when it was tested, if they are more.
    - learned_at: a network has learned when its excess risk is at most this share of that of w = 0;
      one that has not is the model all the same, with a ConvergenceWarning that says why.
    - fit_intercept: whether there is a bias on the output.
    - random_state: of the initial weights, and of those that the advice is tested on. A whole
      number is the seed of `flatmin.train`.

    Attributes after `fit`:

    - coef_, intercept_: the product of the layers and the bias, shaped as LinearRegression's.
    - weights_: the layers W_1, ..., W_L.
    - sharpness_: of the network found, for the loss without a factor 1/2.
    - minimal_sharpness_, critical_rate_: S_min and 2/S_min.
    - learning_rate_: the rate used; None where there was nothing to learn and none was given.
    - n_iter_: the steps taken.
    - learned_, state_: whether it learned, and how the run ended: settled, learning, oscillating or
      stalled.
    - history_: the trace of the run, a pandas frame: excess risk, |w - w*|^2, gradient, sharpness.
    - n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    A `learning_rate` that makes the run diverge is an error, as there is no model. Sample weights
    are not supported: `fit` does not take them.

    >>> from flatmin.data.generators import gaussian_samples
    >>> rows = gaussian_samples(n=50, d=5, seed=0)
    >>> model = DeepLinearRegressor(depth=4, random_state=0).fit(rows.X, rows.y)
    >>> model.state_, model.learned_
    ('settled', True)
    >>> model.minimal_sharpness_ <= model.sharpness_ <= 2 / model.learning_rate_
    True
    """

    def __init__(
        self,
        depth: int = 3,
        *,
        width: int | None = None,
        init: str = DEFAULT_INIT,
        scale: float = DEFAULT_SCALE,
        learning_rate: float | str | None = None,
        max_steps: int | None = None,
        learned_at: float = LEARNED_AT,
        fit_intercept: bool = True,
        random_state: Any = None,
    ) -> None:
        self.depth = depth
        self.width = width
        self.init = init
        self.scale = scale
        self.learning_rate = learning_rate
        self.max_steps = max_steps
        self.learned_at = learned_at
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train the network on X (n, d) and y (n,) or (n, m)."""
        self._check_settings()
        X, y = unmasked(X), unmasked(y)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        inputs, outputs = X, y.reshape(len(y), -1)
        x_mean, y_mean = np.zeros(inputs.shape[1]), np.zeros(outputs.shape[1])
        if self.fit_intercept:
            (inputs, x_mean), (outputs, y_mean) = _centred(inputs), _centred(outputs)
        coef = self._train(inputs, outputs)
        self.minimal_sharpness_ = 2.0 / self.critical_rate_
        bias: Any = y_mean - coef @ x_mean if self.fit_intercept else 0.0
        if y.ndim == 1:
            coef, bias = coef[0], float(np.sum(bias))
        self.coef_, self.intercept_ = coef, bias
        return self

    def predict(self, X: Any) -> Float:
        """The network's outputs, (n,) or (n, m) as the targets were."""
        check_is_fitted(self)
        X = validate_data(self, unmasked(X), dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_.T + self.intercept_)

    def _check_settings(self) -> None:
        check_depth(self.depth)
        check_choice("init", self.init, INITIALISATIONS)
        check_nonnegative("scale", self.scale)
        check_share("learned_at", self.learned_at)
        if self.learning_rate is not None:
            check_rate(self.learning_rate)
        for name, value in (("width", self.width), ("max_steps", self.max_steps)):
            if value is not None:
                check_count(name, value)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _train(self, inputs: Float, outputs: Float) -> Float:
        """Find and keep the network for centred data; its product (m, d)."""
        # A row given twice is the same problem, and a regression wants two rows.
        repeats = 2 if len(inputs) == 1 else 1
        X, Y = np.tile(inputs, (repeats, 1)), np.tile(outputs, (repeats, 1))
        try:
            regression = Regression.from_arrays(X, Y[:, 0] if Y.shape[1] == 1 else Y)
        except NothingToLearn:
            return self._zero(inputs, outputs.shape[1])
        seed = self._seed()
        architecture = architecture_for(
            self.init, regression, self.depth, width=self.width, seed=seed
        )
        ceiling = predict(regression, self.depth, architecture.output_norm).critical_rate
        done, reason = self._descended(regression, architecture, seed, ceiling)
        outcome = done.outcome
        weights = outcome.ensemble[0]
        self.weights_, self.history_ = weights, done.trace
        self.sharpness_, self.critical_rate_ = float(done.final_sharpness.value), ceiling
        self.learning_rate_, self.n_iter_ = done.learning_rate, int(outcome.steps[0])
        self.learned_, self.state_ = done.learned, done.state
        if not self.learned_:
            share = outcome.excess_risk[0] / regression.excess_at_zero
            trouble = (
                f"The network has not learned: after {self.n_iter_} steps at learning rate "
                f"{self.learning_rate_:.4g} it is {self.state_} with {share:.2g} of the excess "
                f"risk of w = 0. {reason}"
            )
            warnings.warn(trouble.rstrip(), ConvergenceWarning, stacklevel=3)
        return reduce(lambda product, layer: layer @ product, [*weights, architecture.output_map])

    def _descended(
        self, regression: Regression, architecture: Architecture, seed: int, ceiling: float
    ) -> tuple[Training, str]:
        """A run that did not diverge: at the rate given, the one advised, or the first that is
        stable, then with the reason why none was advised."""
        start: Any = {"init": self.init, "scale": self.scale, "seed": seed}
        start["learned_at"] = self.learned_at

        def run(rate: float | str, steps: int) -> tuple[Training, bool]:
            how: Any = {"learning_rate": rate, "steps": steps, "quantities": _RECORDED}
            done = train(regression, architecture, **start, **how)
            return done, done.state != State.DIVERGED

        if self.learning_rate is not None:
            done, stable = run(self.learning_rate, self.max_steps or STEPS)
            if not stable:
                raise SettingError(
                    f"learning_rate {done.learning_rate:g} makes gradient descent diverge; the "
                    f"critical rate is {ceiling:.4g} at depth {self.depth}, and learning_rate=None "
                    "chooses one"
                )
            return done, ""
        advice = advise(regression, architecture, **start)
        why = advice.reason
        if advice.learning_rate is not None:
            assert advice.steps is not None
            done, stable = run(advice.learning_rate, self.max_steps or max(STEPS, advice.steps))
            if stable:
                return done, ""
            why = f"The tested learning rate {advice.learning_rate:.4g} diverged here."
        for halvings in range(1, _HALVINGS):
            done, stable = run(ceiling / 2.0**halvings, self.max_steps or STEPS)
            if stable:
                return done, why
        raise SettingError(
            f"from init {self.init} (scale {self.scale:g}) gradient descent diverges at every "
            "learning rate; lower the scale"
        )

    def _zero(self, inputs: Float, targets: int) -> Float:
        """Keep the zero network, where w* = 0."""
        import pandas as pd

        d = inputs.shape[1]
        hidden = (self.width or d,) * (self.depth - 1)
        shapes = zip((*hidden, targets), (d, *hidden), strict=True)
        curvature = 0.0
        if self.depth == 1:
            curvature = 2.0 * float(np.linalg.norm(inputs, 2)) ** 2 / len(inputs)
        self.weights_ = [np.zeros(shape) for shape in shapes]
        self.history_ = pd.DataFrame({"step": [0], "excess_risk": [0.0], "sharpness": [curvature]})
        self.sharpness_ = curvature
        self.critical_rate_ = 2.0 / curvature if curvature > 0.0 else np.inf
        given = self.learning_rate
        self.learning_rate_, self.n_iter_ = None if isinstance(given, str) else given, 0
        self.learned_, self.state_ = True, State.SETTLED.value
        return np.zeros((targets, d))


def _centred(columns: Float) -> tuple[Float, Float]:
    """Columns less their means, and the means; what is constant becomes zero exactly."""
    means = columns.mean(axis=0)
    centred = columns - means
    centred[:, np.ptp(columns, axis=0) == 0.0] = 0.0
    return centred, means
