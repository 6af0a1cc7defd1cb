"""The categories of a column, numbered as they appear; a missing value has no number (nan)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError

MAX_CATEGORIES = 1000
# Of text: what stands for a missing value, as pandas reads it.
MISSING = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None")


class Labels:
    """The distinct values of one column, as text.

    >>> sex = Labels("the table", "sex")
    >>> sex.encode(["F", "M", "NA"], np.array([1, 0, 0, 2, -1])), sex.text(1)
    (array([ 0.,  1.,  1., nan, nan]), 'F')
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self._codes: dict[str, int] = {}

    def encode(self, values: Sequence[object], places: npt.NDArray[np.integer[Any]]) -> Float:
        """The numbers of values[places], new values numbered first; a place of -1 is missing."""
        numbers = np.full(len(values) + 1, np.nan)
        seen, first = np.unique(places, return_index=True)
        for place in seen[np.argsort(first)]:
            if place >= 0:
                numbers[place] = self._number(values[place])
        return np.asarray(numbers[places])

    def _number(self, value: object) -> float:
        text = str(value).strip()
        if value is None or text in MISSING:
            return np.nan
        if text not in self._codes and len(self._codes) == MAX_CATEGORIES:
            raise DataError(
                f"{self.source}: column {self.name!r} has more than {MAX_CATEGORIES} categories, "
                "too many for one_hot; drop it or use it as a number"
            )
        return self._codes.setdefault(text, len(self._codes))

    def order(self) -> npt.NDArray[np.intp]:
        """The numbers of the categories: by value if all are numbers, else by their text."""
        try:
            texts = sorted(self._codes, key=float)
        except ValueError:
            texts = sorted(self._codes)
        return np.array([self._codes[text] for text in texts], dtype=np.intp)

    def text(self, number: int) -> str:
        """The category with a number."""
        return list(self._codes)[number]
