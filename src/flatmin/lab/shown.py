"""A run on somebody's screen: made piece by piece, sent entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.plain import plain
from flatmin.lab.engine import End, Ground, Piece, follow
from flatmin.lab.sentences import sentence
from flatmin.lab.workers import Stop

SHOWN = ("step", "time", "excess_risk", "distance", "sharpness", "edge")
BANDS = ("excess_risk", "distance", "sharpness")


@dataclass(eq=False)
class Shown:
    """A run on somebody's screen: what has been made of it and how much of it was sent."""

    id: int
    ground: Ground
    facts: dict[str, Any]
    columns: dict[str, Float] = field(default_factory=dict)
    end: End | None = None
    sent: int = 0

    def __len__(self) -> int:
        return len(self.columns.get("step", ()))

    def add(self, piece: Piece) -> None:
        """Take the next piece of the run."""
        edge = np.nan if piece.rate is None else self.ground.reach / piece.rate
        wanted = [*SHOWN]
        if self.ground.setting.every > 1 or self.ground.setting.networks > 1:
            wanted += [f"{name}_{end}" for name in BANDS for end in ("low", "high")]
        new = piece.columns | {"edge": np.full(len(piece), edge)}
        for name in wanted:
            if name in new:
                before = self.columns.get(name)
                self.columns[name] = (
                    new[name] if before is None else np.concatenate([before, new[name]])
                )
        self.end = piece.end

    @property
    def steps(self) -> int:
        """How many it takes: as it ended, or as it may at most."""
        return self.end.steps if self.end is not None else self.ground.setting.steps

    def times(self, count: int) -> Float | None:
        """About so many times along a flow; none of other runs."""
        if "time" not in self.columns:
            return None
        some = self.columns["time"][:: max(1, len(self) // count)]
        return some[np.isfinite(some)]

    def extent(self) -> dict[str, Any]:
        """How far the curves reach, as far as they have been made: the axes stand still."""
        found = {}
        for name in ("sharpness", "excess_risk"):
            values = self.columns[name]
            values = values[np.isfinite(values) & (values > 0.0)]
            found[name] = [float(values.min()), float(values.max())] if values.size else None
        return found

    def frame(self, slot: str, until: int) -> dict[str, Any]:
        """What the page has not seen of the run, up to an entry."""
        begin, self.sent = self.sent, until
        part = {name: _numbers(column[begin:until]) for name, column in self.columns.items()}
        over = self.end is not None and until >= len(self)
        sharpness = self.columns["sharpness"][:until]
        last = float(sharpness[-1]) if len(sharpness) else float("nan")
        return {
            "type": "frame",
            "slot": slot,
            "id": self.id,
            "first": begin,
            "columns": part,
            "extent": self.extent(),
            "edge_rate": self.ground.reach / last if np.isfinite(last) and last > 0 else None,
            "sentence": self._sentence(until, over),
            "end": plain(self.end) if over else None,
        }

    def _sentence(self, until: int, over: bool) -> str:
        if over and self.end is not None:
            return self.end.sentence
        edge = self.columns["edge"][until - 1]
        return sentence(
            self.columns["excess_risk"][:until],
            self.columns["sharpness"][:until],
            float(edge) if np.isfinite(edge) else None,
            formula=self.facts["edge_formula"],
            excess_at_zero=self.facts["excess_at_zero"],
            goal=self.facts["goal"],
            networks=self.ground.setting.networks,
        )


def _numbers(column: Float) -> list[float | None]:
    """As JSON has them; what is not finite is null."""
    values: list[float | None] = column.tolist()
    if np.isfinite(column).all():
        return values
    return [value if value is not None and np.isfinite(value) else None for value in values]


class Pieces:
    """A run as a job: each call makes its next piece."""

    def __init__(self, ground: Ground) -> None:
        self._pieces = follow(ground, self._progress)
        self._stop: Stop | None = None

    def __call__(self, stop: Stop) -> Piece:
        self._stop = stop
        return next(self._pieces)

    def _progress(self, done: int) -> None:
        if self._stop is not None:
            self._stop(done)
