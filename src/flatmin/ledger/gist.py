"""What is kept of runs for statements about all of them: a gist of each data set, shape and scale.

A gist holds the exact sums of one quantity and a few extremes, so that it is as large for 10^9 runs
as for one and does not depend on the pieces in which the runs came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flatmin.core.arrays import Float
from flatmin.data.regression import Regression
from flatmin.ledger.evidence import Evidence, largest_error
from flatmin.ledger.record import Record
from flatmin.study.tally import Sums


@dataclass(eq=False)
class Gist:
    """Runs on one data set, of one shape, scale and kind of method."""

    regression: Regression
    depth: int
    output_norm: float
    scale: float
    flow: bool
    sums: Sums = field(default_factory=Sums)
    """Of the quantity, over the runs for which it is a finite number."""
    start: float | None = None
    """The largest excess risk at the start, if recorded."""
    room: float = 0.0
    """The largest room of a minimiser, of runs that found one."""
    error: float | None = None
    """The integrator's own error, the largest of all runs."""

    def add(self, runs: Evidence, values: Float | None) -> None:
        """Some more runs, and their quantity if it was measured."""
        if values is not None:
            self.sums.add(values[np.isfinite(values)])
        if "excess_risk" in runs.trace:
            self.start = max(self.start or 0.0, float(np.max(runs.excess_risk[0])))
        self.room = max(self.room, float(np.max(runs.minimiser_room[runs.settled], initial=0.0)))
        error = largest_error(runs)
        if error is not None:
            self.error = max(self.error or 0.0, error)


@dataclass(frozen=True)
class Sweep:
    """What a statement says of all runs together: `judge` sees the gists of a quantity.

    `key` tells which runs are summed up together, besides having one scale and method; those for
    which it is None do not count. Runs for which `measure` is NaN have no such quantity.
    """

    key: Callable[[Evidence], object]
    measure: Callable[[Evidence], Float | None]
    judge: Callable[[Sequence[Gist]], list[Record]]


class Gists:
    """The gists of a sweep, in the order in which their first runs came."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._found: dict[object, Gist] = {}

    def add(self, runs: Evidence) -> None:
        """Some more runs."""
        key = self._sweep.key(runs)
        if key is None:
            return
        values = self._sweep.measure(runs)
        for scale in np.unique(runs.scale).tolist():
            some = runs.scale == scale
            gist = self._found.setdefault(
                (key, scale, runs.flow),
                Gist(runs.regression, runs.depth, runs.output_norm, scale, runs.flow),
            )
            gist.add(runs.some(some), None if values is None else values[some])

    def records(self) -> list[Record]:
        """What the statement says of them."""
        return self._sweep.judge(list(self._found.values()))
