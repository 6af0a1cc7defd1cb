"""The rows of a regression problem, for what needs them all: non-linear networks, test risks."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import check_kind, kind_of
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.shown import Shown
from flatmin.data.columns import ColumnSummary, Tally
from flatmin.data.preparation import NOTHING, Preparation, Prepared, scale_rows
from flatmin.data.regression import Regression
from flatmin.data.tables import Source, table_of
from flatmin.data.tables.table import ROWS, Names, Table


class Samples(Shown):
    """The rows themselves: X (n, d) and y (n,), or (n, m) for several targets.

    >>> Samples.from_arrays([[1, 2], [3, 4], [5, 7]], [1, 2, 3]).regression().rank
    2
    """

    X: Float
    y: Float
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    preparation: tuple[str, ...] = ()
    columns: ColumnSummary | None = None

    def __post_init__(self) -> None:
        for array in (self.X, self.y):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"Samples(n={self.n}, d={self.d}, targets={self.targets})"

    def contents(self) -> dict[str, Any]:
        """Its size and names, without the rows."""
        names = ("n", "d", "targets", "feature_names", "target_names", "preparation")
        return {name: getattr(self, name) for name in names}

    def page(self) -> Page:
        """Its size and names."""
        rows = [
            ("Rows", str(self.n)),
            (f"{self.d} features", shorten(", ".join(self.feature_names), 60)),
            ("Target", shorten(", ".join(self.target_names), 60)),
        ]
        return [Listing(("Samples", ""), rows), Remarks("", self.preparation)]

    @classmethod
    def from_arrays(
        cls,
        X: Source,
        y: Names | npt.ArrayLike,
        features: Names | None = None,
        target: Names | None = None,
        preparation: Preparation = NOTHING,
    ) -> Samples:
        """A copy of the rows, checked; the arguments are those of `Regression.from_arrays`."""
        check_kind("preparation", preparation, Preparation)
        return _collect(table_of(X, preparation.reading(y, features), target), preparation)

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.X)

    @property
    def d(self) -> int:
        """The number of features."""
        return len(self.feature_names)

    @property
    def targets(self) -> int:
        """The number m of targets."""
        return len(self.target_names)

    def regression(self) -> Regression:
        """The regression problem these rows define, computed once."""
        return self._regression

    @cached_property
    def _regression(self) -> Regression:
        reduced = Regression.from_arrays(self.X, self.y, self.feature_names, self.target_names)
        return replace(reduced, preparation=self.preparation, columns=self.columns)

    def risk(self, w: npt.ArrayLike) -> float:
        """R(w) = |y - Xw|^2 / n on these rows."""
        weights = numbers("w", w)
        expected = (self.d, *self.y.shape[1:])
        if weights.shape != expected:
            raise SettingError(f"w has shape {weights.shape}; expected {expected}")
        return float(np.sum(np.square(self.y - self.X @ weights)) / self.n)


Problem = Regression | Samples
"""What networks are trained on; linear ones need no rows."""


def check_problem(data: object) -> Problem:
    """The data that a function was given, or a SettingError that says how they are made."""
    if isinstance(data, Regression | Samples):
        return data
    raise SettingError(
        "the data must be what flatmin.read_regression or read_samples returns, "
        f"got {kind_of(data)}"
    )


def regression_of(data: object) -> Regression:
    """What networks without activations need of data, which may be their rows."""
    return check_problem(data).regression()


def read_samples(
    source: Source,
    target: Names | npt.ArrayLike,
    features: Names | None = None,
    preparation: Preparation = NOTHING,
) -> Samples:
    """The rows, for what needs them all; the arguments are those of `read_regression`."""
    return Samples.from_arrays(source, target, features, preparation=preparation)


def _collect(table: Table, preparation: Preparation) -> Samples:
    """All rows of a table."""
    ready = Prepared(table, preparation)
    none = np.empty((0, len(ready.features) + len(ready.targets)))
    rows = np.concatenate([none, *ready.blocks()])
    ready.check_rows(len(rows), 1)
    tally = Tally()
    for start in range(0, len(rows), ROWS):
        tally.add(rows[start : start + ROWS])
    scaled = scale_rows(ready, rows, tally)
    d, m = len(scaled.features), len(ready.targets)
    y = scaled.content[:, d].copy() if m == 1 else scaled.content[:, d:].copy()
    return Samples(
        X=scaled.content[:, :d].copy(),
        y=y,
        feature_names=scaled.features,
        target_names=ready.targets,
        preparation=scaled.sentences,
        columns=scaled.summary,
    )
