"""Preparing a table: from the columns of a source to the columns of a regression.

What is asked for is done in this order, the same for every command, file and function:

    select    the features named, or all columns but the targets
    drop      columns by name
    one-hot   a column of categories -> a column of 0 and 1 for each category of the rows that stay
    missing   rows with missing values dropped, or the values replaced by the mean of their column
              (rows whose target is missing are dropped in both cases)
    centre    intercept: features and targets to mean 0. The best bias of x -> w'x + b is
              b = mean(y) - w'mean(x), which leaves the regression of the centred columns.
    scale     standardise: features to mean 0 and standard deviation 1 (divided by n, not n - 1);
              targets keep their scale, and their mean unless intercept is asked for too

Rows may come as a stream. Centring needs no second pass: with a shift c of the columns Z = [X Y],

    [1  Z - 1c'] = Q [rho  r']       Z - 1 mean' = Q_2 R,      rho (mean - c) = r,
                     [ 0   R ]

so the factor of the centred columns is the trailing triangle, and scaling multiplies its columns.
One-hot and the means of columns with missing values take a first pass of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, Yes
from flatmin.core.checks import check_choice, shown
from flatmin.core.errors import DataError, SettingError
from flatmin.data.columns import ColumnSummary, Tally
from flatmin.data.tables.labels import MAX_CATEGORIES
from flatmin.data.tables.table import Names, Reading, Table

MISSING = ("drop", "mean")


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is done to a table before it is a regression; the module says in which order.

    `drop` and `one_hot` name columns, `missing` is "drop" or "mean" (None refuses missing values).

    >>> Preparation(one_hot="sex", missing="mean", intercept=True).one_hot
    ('sex',)
    """

    drop: Names = ()
    one_hot: Names = ()
    missing: str | None = None
    intercept: bool = False
    standardise: bool = False

    def __post_init__(self) -> None:
        for name in ("drop", "one_hot"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else value
            if not isinstance(names, list | tuple) or not all(
                isinstance(column, str) and column.strip() for column in names
            ):
                raise SettingError(f"{name} must be names of columns, got {shown(value)}")
            object.__setattr__(self, name, tuple(names))
        if self.missing is not None:
            check_choice("missing", self.missing, MISSING)
        for name in ("intercept", "standardise"):
            if not isinstance(getattr(self, name), bool):
                value = shown(getattr(self, name))
                raise SettingError(f"{name} must be true or false, got {value}")

    @property
    def centres(self) -> bool:
        """Whether features are centred."""
        return self.intercept or self.standardise

    def reading(self, target: Any, features: Names | None) -> Reading:
        """How a source is read for it; of arrays, the target may be y itself."""
        return Reading(target, features, self.drop, self.one_hot, self.missing is not None)


NOTHING = Preparation()


class Prepared:
    """A table with columns of numbers only and no missing values; not yet centred or scaled."""

    def __init__(self, table: Table, preparation: Preparation) -> None:
        self.source, self.targets = table.source, table.choice.targets
        self.preparation, self._table, self._missing = preparation, table, preparation.missing
        self._rows = self._dropped = 0
        self._filled = np.zeros(len(table.choice.features), dtype=int)
        self._means: Float = np.empty(0)
        self._codes: dict[str, npt.NDArray[np.intp]] = {}  # of each category, in order
        if table.choice.labels or self._missing == "mean":
            self._first_pass()
        self.features = tuple(name for names in self._expanded() for name in names)
        if len({*self.features, *self.targets}) < len(self.features) + len(self.targets):
            raise DataError(f"{self.source}: one_hot makes a column whose name exists already")

    def _expanded(self) -> list[list[str]]:
        """For each chosen feature the columns it becomes."""
        labels, codes = self._table.choice.labels, self._codes
        return [
            [f"{name}={labels[name].text(i)}" for i in codes[name]] if name in codes else [name]
            for name in self._table.choice.features
        ]

    def _gone(self, block: Float) -> Yes:
        """Which rows of a block are dropped."""
        d = len(self._table.choice.features)
        looked_at = block if self._missing == "drop" else block[:, d:]
        return np.asarray(np.isnan(looked_at).any(axis=1))

    def _first_pass(self) -> None:
        """The categories in the rows that stay, and the mean of each column that will be there
        (of a column of 0 and 1: a share)."""
        features, labels = self._table.choice.features, self._table.choice.labels
        sums, counts = np.zeros(len(features)), np.zeros(len(features), dtype=int)
        seen = {name: np.zeros(MAX_CATEGORIES) for name in labels}
        rows = stay = 0
        for block in self._table.rows():
            part = block[~self._gone(block), : len(features)]
            rows, stay = rows + len(block), stay + len(part)
            present = ~np.isnan(part)
            counts += present.sum(axis=0)
            sums += np.where(present, part, 0.0).sum(axis=0)
            for j, name in enumerate(features):
                if name in labels:
                    codes = part[present[:, j], j].astype(np.intp)
                    seen[name] += np.bincount(codes, minlength=MAX_CATEGORIES)
        self._rows, self._dropped = rows, rows - stay
        self.check_rows(stay, 1)
        for name, count in zip(features, counts, strict=True):
            if not count:
                raise DataError(f"{self.source}: the column {name!r} has no values; drop it")
        for name in labels:
            order = labels[name].order()
            self._codes[name] = order[seen[name][order] > 0]
        self._means = np.concatenate(
            [
                seen[name][self._codes[name]] / count if name in labels else [total / count]
                for name, total, count in zip(features, sums, counts, strict=True)
            ]
        )

    def blocks(self) -> Iterator[Float]:
        """One pass over the rows."""
        features, codes = self._table.choice.features, self._codes
        d, self._rows, self._dropped, self._filled[:] = len(features), 0, 0, 0
        for block in self._table.rows():
            self._rows += len(block)
            if self._missing is not None:
                gone = self._gone(block)
                self._dropped += int(gone.sum())
                block = block[~gone]
                self._filled += np.isnan(block[:, :d]).sum(axis=0)
            if codes:
                parts = [
                    _indicators(block[:, j], codes[name]) if name in codes else block[:, j : j + 1]
                    for j, name in enumerate(features)
                ]
                block = np.concatenate([*parts, block[:, d:]], axis=1)
            if self._missing == "mean":
                row, column = np.nonzero(np.isnan(block))
                block = block.copy()
                block[row, column] = self._means[column]
            yield block

    def check_rows(self, n: int, least: int) -> None:
        """Refuse too few rows, and say so if that is because of missing values."""
        if n >= least:
            return
        if self._dropped:
            raise DataError(
                f"{self.source}: {self._dropped} of {self._rows} rows have missing values and are "
                f"dropped, which leaves {n}; at least {least} needed"
            )
        if least == 1:
            raise DataError(f"{self.source}: there are no rows")
        raise DataError(f"{self.source}: a regression needs at least two rows, got {n}")

    def sentences(self) -> list[str]:
        """What was done, after a pass."""
        choice, said = self._table.choice, []
        if choice.selected < choice.available:
            features = _count(choice.selected, "feature")
            said.append(f"selected {features} of {choice.available} columns")
        if choice.dropped:
            said.append(f"dropped the {_columns(choice.dropped)}")
        for name, columns in zip(choice.features, self._expanded(), strict=True):
            if name in self._table.choice.labels:
                said.append(f"one-hot: {name} -> {_some(columns)}")
        if self._missing is not None:
            which = "with missing values" if self._missing == "drop" else "whose target is missing"
            if self._dropped:
                said.append(f"dropped {self._dropped} of {self._rows} rows {which}")
            if self._filled.any():
                counts = zip(choice.features, self._filled, strict=True)
                each = [f"{name} ({count})" for name, count in counts if count]
                total = _count(int(self._filled.sum()), "missing value")
                said.append(f"filled {total} with the mean of the column: {_some(each)}")
            if not self._dropped and not self._filled.any():
                said.append("missing values: none found")
        return said


@dataclass(frozen=True, eq=False)
class Scaled:
    """Columns after centring and scaling (their rows, or a factor of them) and what to say."""

    content: Float = field(repr=False)
    features: tuple[str, ...]
    summary: ColumnSummary
    sentences: tuple[str, ...]


def scale_rows(ready: Prepared, rows: Float, tally: Tally) -> Scaled:
    """Centre and scale the rows [X Y] themselves."""
    if not ready.preparation.centres:
        return unscaled(ready, rows, tally)
    kept, centred = _plan(ready, tally)
    content = rows - tally.means  # a mean of large numbers is off by rounding; the rest goes here
    content -= content.mean(axis=0)
    deviations = np.sqrt(np.einsum("ij,ij->j", content, content) / len(rows))
    content[:, ~centred] = rows[:, ~centred]
    content = content[:, kept]
    return _scaled(ready, tally, content, kept, centred, deviations)


def scale_factor(ready: Prepared, factor: Float, shift: Float, tally: Tally) -> Scaled:
    """The factor of the centred and scaled columns, from that of [1 Z - 1c']; see the module."""
    if not ready.preparation.centres:
        return unscaled(ready, factor, tally)
    kept, centred = _plan(ready, tally)
    mean_row, triangle = factor[0, 1:] + factor[0, 0] * shift, factor[1:, 1:]
    deviations = np.linalg.norm(triangle, axis=0) / np.sqrt(tally.n)
    content = np.concatenate([triangle, np.where(centred, 0.0, mean_row)[None, :]])[:, kept]
    scaled = _scaled(ready, tally, content, kept, centred, deviations)
    return replace(scaled, content=np.asarray(np.linalg.qr(scaled.content, mode="r")))


def unscaled(ready: Prepared, content: Float, tally: Tally) -> Scaled:
    """Columns that are used as they are."""
    summary = tally.summary(ready.features)
    return Scaled(content, ready.features, summary, tuple(ready.sentences()))


def _plan(ready: Prepared, tally: Tally) -> tuple[Yes, Yes]:
    """Which columns stay (a constant feature is zero once centred), and which are centred."""
    d = len(ready.features)
    kept = ~tally.constant
    if not kept[:d].any():
        raise DataError(f"{ready.source}: every feature is constant; centred, nothing is left")
    if ready.preparation.intercept and not kept[d:].any():
        raise DataError(
            f"{ready.source}: the target {', '.join(map(repr, ready.targets[:4]))} is constant; "
            "centred, nothing is left"
        )
    kept[d:] = True
    centred = np.full(len(kept), True)
    centred[d:] = ready.preparation.intercept
    return kept, centred


def _scaled(
    ready: Prepared, tally: Tally, content: Float, kept: Yes, centred: Yes, deviations: Float
) -> Scaled:
    """Scale the columns that stay, and say what was done."""
    preparation, d = ready.preparation, len(ready.features)
    features = tuple(name for name, stays in zip(ready.features, kept, strict=False) if stays)
    left_out = tuple(name for name in ready.features if name not in set(features))
    sizes = np.where(centred, deviations, np.hypot(deviations, tally.means))[kept]
    said = ready.sentences()
    if left_out:
        said.append(f"left out the constant {_columns(left_out)}, zero once centred")
    count = _count(len(features), "feature")
    target = "the target" if len(ready.targets) == 1 else "the targets"
    solves = "a network with a bias on its output, at its best value, solves this problem"
    if preparation.standardise:
        scales = deviations[:d][kept[:d]]
        content = content / np.concatenate([scales, np.ones(len(ready.targets))])
        sizes[: len(features)] = 1.0
        said.append(
            f"standardised {count}: mean 0, standard deviation 1 "
            f"(it was {scales.min():.3g} to {scales.max():.3g})"
        )
        if preparation.intercept:
            said.append(f"centred {target}: {solves}")
    else:
        said.append(f"centred {count} and {target}: {solves}")
    means = tuple(np.where(centred, 0.0, tally.means)[kept].tolist())
    numbering = tally.summary(ready.features).identifiers
    identifiers = tuple(name for name in numbering if name not in left_out)
    summary = ColumnSummary(means, tuple(sizes.tolist()), identifiers=identifiers)
    return Scaled(content, features, summary, tuple(said))


def _indicators(codes: Float, order: npt.NDArray[np.intp]) -> Float:
    """A column of 0 and 1 for each category; nan in all of them where the category is missing."""
    columns: Float = (codes[:, None] == order).astype(np.float64)
    columns[np.isnan(codes)] = np.nan
    return columns


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _some(names: list[str]) -> str:
    if len(names) <= 6:
        return ", ".join(names)
    return f"{', '.join(names[:3])}, ..., {names[-1]} ({len(names)})"


def _columns(names: tuple[str, ...]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {_some(list(names))}"
