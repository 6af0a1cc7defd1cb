"""Tables of runs, summed up: counts and means with 95 % bands per point of the grid.

Sharpness, distances and gradients vary over orders of magnitude: their means are geometric and
their bands are taken in logarithms. A mean is over the runs that have the number; after divergence
there is none. Shares have Wilson's interval, means Student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.shown import Shown
from flatmin.core.statistics import mean_half_width, share_band
from flatmin.dynamics.edge import EDGE_SHARE
from flatmin.dynamics.endings import learned_note

if TYPE_CHECKING:
    import pandas as pd


COORDINATES = (
    *("dataset", "depth", "width", "scale", "learning_rate", "relative_rate", "step_limit"),
    "repetition",
)
LOGARITHMIC = (
    *("initial_sharpness", "sharpness", "initial_distance", "distance", "excess_risk"),
    "gradient_norm",
)
PLAIN = ("train_risk", "test_risk", "steps", "time")
SHARES = ("learned", "settled", "oscillating", "diverged", "edge_of_stability")
QUANTITIES = (*LOGARITHMIC, *PLAIN, *SHARES)


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % band, over `count` runs; NaN if there are none."""

    value: float
    low: float
    high: float
    count: int

    def cells(self) -> tuple[str, str]:
        """The mean and the band, in words."""
        if not self.count:
            return "-", "-"
        return f"{self.value:.3g}", f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, eq=False)
class Curve:
    """Means of a quantity along x, for one value of the grouping coordinate.

    `edge` is 2/eta and `least` S_min where they are the same for all runs of the curve.
    """

    label: str
    x: Float
    means: tuple[Mean, ...]
    edge: float | None
    least: float | None


def frame(rows: Any) -> pd.DataFrame:
    """A pandas frame of a study's rows with the shares as columns of 0 and 1."""
    table: pd.DataFrame = rows.to_pandas()
    states = ("settled", "oscillating", "diverged")
    return table.assign(
        **{state: (table["state"] == state).astype(float) for state in states},
        learned=table["learned"].astype(float),
        edge_of_stability=(table["edge_share"] >= EDGE_SHARE).astype(float),
    )


def counts(table: pd.DataFrame) -> dict[str, int]:
    """Runs, how many learned, by state, and how many ended at the edge of stability."""
    found = {str(state): int(n) for state, n in table["state"].value_counts().sort_index().items()}
    return {
        "runs": len(table),
        "learned": int(table["learned"].sum()),
        **found,
        "edge of stability": int(table["edge_of_stability"].sum()),
    }


def varied(table: pd.DataFrame) -> list[str]:
    """Coordinates that tell points of the grid apart; data sets and repetitions are pooled.

    Rates are told apart by eta, or by eta over the critical rate if that has fewer values.
    """
    rates = ("learning_rate", "relative_rate")
    rate = min(rates, key=lambda name: (table[name].nunique(), rates.index(name)))
    names = [n for n in ("depth", "width", "scale", rate) if table[n].nunique() > 1]
    limits = table[[*names, "step_limit"]].drop_duplicates()
    if len(limits) > len(limits[names].drop_duplicates()) or (not names and len(limits) > 1):
        names.append("step_limit")
    return names


@dataclass(frozen=True)
class Point:
    """One point of the grid: its coordinates, its runs by state, and means of some quantities."""

    place: dict[str, float]
    counts: dict[str, int]
    means: dict[str, Mean]


def points(
    table: pd.DataFrame, quantities: Sequence[str] = ("sharpness", "distance")
) -> list[Point]:
    """Every point of the grid that has runs."""
    names = varied(table)
    groups: Any = table.groupby(names, dropna=False, sort=True) if names else [((), table)]
    found = []
    for key, part in groups:
        place = {name: _plain(value) for name, value in zip(names, key, strict=True)}
        means = {name: mean(part[name], name) for name in quantities}
        found.append(Point(place, counts(part), means))
    return found


MOST_POINTS = 60  # that an overview shows; `contents` has all
_STATES = ("runs", "learned", "settled", "edge of stability", "diverged")
_HEADS = ("runs", "learned", "settled", "edge", "div.", "sharpness", "95 % band", "distance")


class Overview(Shown):
    """What came out so far: counts, and means per point of the grid."""

    counts: dict[str, int]
    points: tuple[Point, ...]
    learned_at: float
    missing: int | None

    def contents(self) -> dict[str, Any]:
        """A row for each point: its place, counts and means."""
        rows = [one.place | {"counts": one.counts} | one.means for one in self.points]
        found = {"counts": self.counts, "points": rows, "learned_at": self.learned_at}
        return found | {"missing": self.missing}

    def __repr__(self) -> str:
        counts = ", ".join(f"{name.replace(' ', '_')}={n}" for name, n in self.counts.items())
        return f"Overview(points={len(self.points)}, {counts})"

    def page(self) -> Page:
        """What `flatmin study show` prints."""
        rows = [
            [
                *map(number, point.place.values()),
                *(str(point.counts.get(state, 0)) for state in _STATES),
                *point.means["sharpness"].cells(),
                point.means["distance"].cells()[0],
            ]
            for point in self.points[:MOST_POINTS]
        ]
        names = [name.replace("_", " ") for name in self.points[0].place]
        notes = [note for note in (missing_note(self.missing),) if note]
        notes.append(learned_note(self.learned_at))
        if len(self.points) > MOST_POINTS:
            notes.append(f"{len(self.points) - MOST_POINTS} more points are not shown")
        return [
            Listing(("Runs", ""), [(state, str(count)) for state, count in self.counts.items()]),
            Listing([*names, *_HEADS], rows, spare=("95 % band", "edge", "div.")),
            Remarks("", notes),
        ]


def missing_note(missing: int | None) -> str:
    """How many runs are not there, in words; nothing if all are, or the total is not known."""
    return f"{missing:,} runs of the study are missing: run it again" if missing else ""


def overview(table: pd.DataFrame, learned_at: float, missing: int | None = None) -> Overview:
    """A table of runs summed up."""
    return Overview(
        counts=counts(table), points=tuple(points(table)), learned_at=learned_at, missing=missing
    )


@dataclass(frozen=True, eq=False)
class Facets:
    """Curves of y along x in panels: one for each value of an axis that is neither x nor `by`.

    `axis` is that axis, None if there is one panel only; `pooled` are axes over which means were
    taken although their values differ at one point of a curve, with how many they are.
    """

    x: str
    y: str
    by: str | None
    axis: str | None
    panels: tuple[tuple[str, list[Curve]], ...]
    pooled: dict[str, int]

    def note(self) -> str | None:
        """What was pooled, if anything."""
        if not self.pooled:
            return None
        axes = ", ".join(f"{name} ({count} values)" for name, count in self.pooled.items())
        return f"pooled at every point: {axes}; name one as x or by to tell its values apart"


MOST_PANELS = 6


def facets(table: pd.DataFrame, x: str, y: str, by: str | None = None) -> Facets:
    """The curves of a figure: what is not named gets a panel for each value.

    If that would take several axes or more than `MOST_PANELS` panels, it is pooled.
    """
    whole = curves(table, x, y, by)
    named = [x] if by is None else [x, by]
    left = _pooled(table, named)
    for axis in left:
        if table[axis].nunique() <= MOST_PANELS and not _pooled(table, [*named, axis]):
            parts = table.groupby(axis, sort=True)
            panels = tuple((str(_short(key)), curves(part, x, y, by)) for key, part in parts)
            return Facets(x, y, by, axis, panels, {})
    pooled = {name: table[name].nunique() for name in left}
    return Facets(x, y, by, None, (("", whole),), pooled)


def _pooled(table: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Axes of the grid with several values where the named coordinates are the same.

    Data sets and repetitions are pooled on purpose.
    """
    others = [name for name in varied(table) if name not in named]
    if not others:
        return []
    values = table.groupby(list(named), dropna=False)[others].nunique().max()
    return [name for name in others if values[name] > 1]


def curves(table: pd.DataFrame, x: str, y: str, by: str | None = None) -> list[Curve]:
    """Means of y along x, one curve per value of `by`."""
    for setting, name in (("x", x), ("y", y), ("by", by)):
        if name is not None:
            check_choice(setting, name, QUANTITIES if setting == "y" else COORDINATES)
            if table[name].isna().all():
                raise SettingError(f"{setting} {name}: no run of this study has it")
    groups: Any = [("", table)] if by is None else table.groupby(by, sort=True)
    return [_curve(str(_short(key)), part, x, y) for key, part in groups]


def _curve(label: str, part: pd.DataFrame, x: str, y: str) -> Curve:
    places = [(key, mean(group[y], y)) for key, group in part.groupby(x, sort=True)]
    return Curve(
        label,
        np.array([key for key, _ in places], dtype=float),
        tuple(one for _, one in places),
        _same(part["edge"]),
        _same(part["minimal_sharpness"]),
    )


def _plain(value: Any) -> float:
    number: float = value.item() if hasattr(value, "item") else value
    return number


def _short(key: object) -> object:
    return f"{key:.4g}" if isinstance(key, float) else key


def _same(values: pd.Series[Any]) -> float | None:
    known = values.dropna().unique()
    return float(known[0]) if len(known) == 1 else None


def mean(values: Any, quantity: str) -> Mean:
    """The mean of a quantity with its band.

    >>> round(mean([1.0, 100.0], "sharpness").value, 12)
    10.0
    """
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    if quantity in LOGARITHMIC:
        numbers = numbers[numbers > 0]
    if not len(numbers):
        return Mean(np.nan, np.nan, np.nan, 0)
    if quantity in SHARES:
        low, high = share_band(int(numbers.sum()), len(numbers))
        return Mean(float(numbers.mean()), low, high, len(numbers))
    numbers = np.log(numbers) if quantity in LOGARITHMIC else numbers
    middle, half = numbers.mean(), mean_half_width(numbers)
    ends = np.array([middle, middle - half, middle + half])
    value, low, high = (np.exp(ends) if quantity in LOGARITHMIC else ends).tolist()
    return Mean(value, low, high, len(numbers))


def flat_frame(rows: Any) -> pd.DataFrame:
    """A frame without lists: a column `name` of lists becomes name_1, name_2, ..."""
    import pandas as pd

    table: pd.DataFrame = rows.to_pandas()
    for name in [field.name for field in rows.schema if hasattr(field.type, "value_type")]:
        lists = table.pop(name)
        length = max((len(one) for one in lists if one is not None), default=0)
        padded = np.full((len(table), length), np.nan)
        for place, one in enumerate(lists):
            if one is not None:
                padded[place, : len(one)] = one
        names = [f"{name}_{k + 1}" for k in range(length)]
        table = pd.concat([table, pd.DataFrame(padded, columns=names)], axis=1)
    return table
