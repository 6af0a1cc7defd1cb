"""What is kept of each column of a regression, and what it gives a reader to think about."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from flatmin.core.arrays import Float, Yes

EPS = float(np.finfo(np.float64).eps)
# Fewer rows than this are no evidence that a column numbers them.
_FEWEST = 10
_IDENTIFIER = re.compile(r"(^|[\s_.-])(id|idx|index|identifier|rowid|row)$", re.I)
_CAMEL = re.compile(r"[a-z]I[dD]$")
# Scales further apart than this are worth a word, and so is a mean above this share of the power.
_APART, _SHARE = 1e3, 0.5


@dataclass(frozen=True)
class ColumnSummary:
    """Mean and root mean square of each column (features, then targets) as the regression uses
    it; and which of the features, as they were read, are constant (and not zero) or look like
    identifiers of the rows."""

    means: tuple[float, ...]
    sizes: tuple[float, ...]
    constant: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()

    def notes(self, features: tuple[str, ...], targets: tuple[str, ...]) -> list[str]:
        """What a reader should know about the columns, one sentence each."""
        d, found = len(features), []
        for name, mean, size in zip(targets, self.means[d:], self.sizes[d:], strict=False):
            share = (mean / size) ** 2 if size > 0.0 else 0.0
            if share > _SHARE and not self.constant:
                found.append(
                    f"the mean of the target {name!r} is {100 * share:.3g} % of its mean square, "
                    "and the weights must fit it: consider intercept"
                )
        sizes = [(size, name) for size, name in zip(self.sizes, features, strict=False) if size > 0]
        if sizes and max(sizes)[0] > _APART * min(sizes)[0]:
            found.append(
                f"the features differ in scale: the root mean square is {max(sizes)[0]:.3g} of "
                f"{max(sizes)[1]!r} and {min(sizes)[0]:.3g} of {min(sizes)[1]!r}; consider "
                "standardise"
            )
        if self.constant:
            found.append(f"{_listed(self.constant)} is constant: it acts as an intercept")
        if self.identifiers:
            found.append(
                f"{_listed(self.identifiers)} looks like a number given to the rows, not a "
                f"measurement: consider drop = {','.join(self.identifiers[:4])!r}"
            )
        return found


class Tally:
    """Sums over blocks of rows, about the first row, from which a summary is made.

    >>> tally = Tally()
    >>> tally.add(np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]]))
    >>> tally.constant, tally.means
    (array([False,  True]), array([2.33333333, 5.        ]))
    """

    def __init__(self) -> None:
        self.n = 0

    def add(self, block: Float) -> None:
        """Count the rows of a block in."""
        if not len(block):
            return
        columns = np.array(block.T, order="C")  # each column contiguous: the sums are then fast
        low, high = columns.min(axis=1), columns.max(axis=1)
        if not self.n:
            self.first = block[0].copy()
            self.low, self.high = low, high
            self.sums, self.squares = np.zeros(len(low)), np.zeros(len(low))
            self.whole = np.full(len(low), True)
        self.n += len(block)
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        candidates = np.flatnonzero(self.whole)
        if len(candidates):
            part = columns[candidates]
            self.whole[candidates] = np.all(part == np.rint(part), axis=1)
        columns -= self.first[:, None]
        self.sums += columns.sum(axis=1)
        self.squares += np.einsum("ij,ij->i", columns, columns)

    @property
    def constant(self) -> Yes:
        """Which columns vary by no more than rounding."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        return np.asarray(self.high - self.low <= 10 * EPS * largest)

    @property
    def means(self) -> Float:
        """The mean of each column."""
        return np.asarray(self.first + self.sums / self.n)

    def summary(self, features: tuple[str, ...]) -> ColumnSummary:
        """The summary of the columns as they are, of which the first are the features."""
        mean = self.sums / self.n
        power = self.squares / self.n - mean**2 + self.means**2
        return ColumnSummary(
            tuple(self.means.tolist()),
            tuple(np.sqrt(np.maximum(power, 0.0)).tolist()),
            tuple(name for j, name in enumerate(features) if self.constant[j] and self.high[j]),
            tuple(name for j, name in enumerate(features) if self._identifies(j, name)),
        )

    def _identifies(self, j: int, name: str) -> bool:
        """Whether a column numbers the rows: whole numbers that are low ... low + n - 1 in some
        order, by their sum and their sum of squares; or, for a name such as customer_id, whole
        numbers that reach far enough to be distinct."""
        n, span = self.n, float(self.high[j] - self.low[j])
        if n < _FEWEST or not self.whole[j] or span < n - 1:
            return False
        if _IDENTIFIER.search(name) or _CAMEL.search(name):
            return True
        shift = self.first[j] - self.low[j]
        total = self.sums[j] + n * shift
        squares = self.squares[j] + 2 * shift * self.sums[j] + n * shift**2
        expected = n * (n - 1) / 2, n * (n - 1) * (2 * n - 1) / 6
        return span == n - 1 and bool(np.allclose((total, squares), expected, rtol=1e-12, atol=0))


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:4])) + (f", ... ({len(names)})" if len(names) > 4 else "")
    return f"the feature {shown}" if len(names) == 1 else f"each of the features {shown}"
