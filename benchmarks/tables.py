"""Regression tables that nobody here made, and made-up ones that are not Gaussian.

The real ones come with scikit-learn and statsmodels, as they are and standardised; those with a
condition number above 1e6 are left to the notes of `predict`. The made-up ones have skewed, heavy
tailed or binary features, spectra up to a condition number of 1e6, and targets of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.data.regression import Regression

LARGEST_CONDITION = 1e6
DEPTHS = (1, 2, 3, 5, 10)
_SCIKIT = ("diabetes", "breast_cancer", "wine", "iris", "linnerud")
_STATSMODELS = (
    *("anes96", "cancer", "ccard", "committee", "copper", "cpunish", "engel", "fair", "longley"),
    *("modechoice", "randhie", "scotland", "spector", "stackloss", "star98", "statecrime"),
    "strikes",
)


@dataclass(frozen=True, eq=False)
class Case:
    """A table and the depth to ask about."""

    name: str
    data: Regression
    depth: int


def cases(wanted: int = 40) -> list[Case]:
    """So many tables: the real ones first, then made-up ones, depths in turn."""
    found: list[Case] = []
    for name, X, y in _all():
        data = Regression.from_arrays(X, y)
        if data.condition_number <= LARGEST_CONDITION and data.w_star_norm > 0.0:
            found.append(Case(name, data, DEPTHS[len(found) % len(DEPTHS)]))
        if len(found) == wanted:
            return found
    return found


def _all() -> Iterator[tuple[str, Float, Float]]:
    for name, X, y in _real():
        yield name, X, y
        yield f"{name}, standardised", _standardised(X), _standardised(y[:, None])[:, 0]
    for seed in range(10_000):
        yield f"made {seed}", *_made(seed)


def _real() -> Iterator[tuple[str, Float, Float]]:
    bundled: Any = import_module("sklearn.datasets")
    for name in _SCIKIT:
        X, y = getattr(bundled, f"load_{name}")(return_X_y=True)
        yield name, np.asarray(X, dtype=float), np.asarray(y, dtype=float).reshape(len(X), -1)[:, 0]
    for name in _STATSMODELS:
        table = import_module(f"statsmodels.datasets.{name}").load_pandas()
        numbers = table.exog.select_dtypes("number").to_numpy(dtype=float)
        target = np.asarray(table.endog, dtype=float).reshape(len(numbers), -1)[:, 0]
        yield name, numbers, target


def _standardised(X: Float) -> Float:
    spread = X.std(axis=0)
    varied = spread > 1e-12 * np.abs(X).max(axis=0)
    centred: Float = (X - X.mean(axis=0))[:, varied] / spread[varied]
    return centred


def _made(seed: int) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(30, 300)), int(rng.integers(2, 21))
    kinds: tuple[Float, ...] = (
        rng.lognormal(0.0, 1.0, (n, d)),
        rng.standard_t(3, (n, d)),
        (rng.random((n, d)) < 0.3).astype(float),
        rng.standard_normal((n, d)) + 3.0,
    )
    raw = kinds[seed % len(kinds)]
    # Column scales over up to three orders of magnitude: up to six in the condition number.
    X = raw * 10.0 ** rng.uniform(-1.5, 1.5, d) @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    y = X @ rng.standard_normal(d) + rng.standard_normal(n)
    return X, y * 10.0 ** rng.uniform(-3.0, 3.0)
