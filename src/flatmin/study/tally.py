"""Runs by the values of some columns, counted and summed as their tables come by.

A cell is all that is kept of the runs of one point: how many there are and in which states, and of
a quantity its sum and the sum of its squares. Sums are exact, so that they depend neither on the
order of the runs nor on how they were cut into shards.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[Any, ...]


# Combinations of values held before those that are there twice are dropped.
_MOST_COMBINATIONS = 100_000
# Of numbers between these squares neither overflow nor lose digits.
_LEAST, _MOST = 2.0**-450, 2.0**450


class Sums:
    """How many numbers there were, their sum and that of their squares, without rounding."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = self._squares = Fraction(0)

    def add(self, values: Float) -> Sums:
        """Some more numbers, which must be finite."""
        self.count += len(values)
        size = np.abs(values)
        plain = (size < _MOST) & ((size > _LEAST) | (size == 0.0))
        for value in values[~plain].tolist():
            self._sum += Fraction(value)
            self._squares += Fraction(value) ** 2
        x = values[plain]
        square = x * x
        # What the square was rounded by, with x = high + low of 26 bits each (Veltkamp, Dekker).
        big = x * 134217729.0
        high = big - (big - x)
        low = x - high
        rest = ((high * high - square) + 2.0 * high * low) + low * low
        self._sum += _exact(x.tolist())
        self._squares += _exact(square.tolist() + rest.tolist())
        return self

    @property
    def mean(self) -> float:
        """The mean, rounded once."""
        return float(self._sum / self.count)

    @property
    def deviation(self) -> float:
        """The standard deviation of a sample of two or more: (sum x^2 - (sum x)^2/n) / (n - 1)."""
        try:
            return math.sqrt((self._squares - self._sum**2 / self.count) / (self.count - 1))
        except OverflowError:
            return math.inf


def _exact(values: list[float]) -> Fraction:
    """The sum, as that of a few numbers: each is what the ones before leave, rounded."""
    total = Fraction(0)
    while rest := math.fsum(values):
        total += Fraction(rest)
        values.append(-rest)
    return total


class Cell:
    """The runs of one point.

    `states` counts them; `sums` has the quantities asked for; `values` the different values of some
    columns, up to two.
    """

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.sums: defaultdict[str, Sums] = defaultdict(Sums)
        self.values: defaultdict[str, set[float]] = defaultdict(set)


def cells(
    tables: Iterable[pd.DataFrame], names: Sequence[str], take: Callable[[Cell, pd.DataFrame], None]
) -> dict[Key, Cell]:
    """A cell for each combination of values of the named columns, in their order.

    `take` adds the runs of a table to their cell. What is not there is None, and comes last.
    """
    found: defaultdict[Key, Cell] = defaultdict(Cell)
    for table in tables:
        groups: Any = (
            table.groupby(list(names), dropna=False, sort=False) if names else [((), table)]
        )
        for key, part in groups:
            take(found[tuple(None if value != value else _plain(value) for value in key)], part)
    return dict(sorted(found.items(), key=lambda one: [(v is None, v) for v in one[0]]))


def _plain(value: Any) -> float:
    number: float = value.item() if hasattr(value, "item") else value
    return number


def combinations(tables: Iterable[pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """Every combination of values of the named columns that some run has, once."""
    import pandas as pd

    held, rows = [], 0
    for table in tables:
        held.append(table[list(names)].drop_duplicates())
        rows += len(held[-1])
        if rows > _MOST_COMBINATIONS:
            held = [pd.concat(held).drop_duplicates()]
            rows = 0
    return pd.concat(held).drop_duplicates(ignore_index=True)
