"""Tables of runs, summed up: counts and means with 95 % bands per point of the grid.

Sharpness, distances and gradients vary over orders of magnitude: their means are geometric and
their bands are taken in logarithms. A mean is over the runs that have the number; after divergence
there is none. Shares have Wilson's interval, means Student's. Runs are one table or many, which
come by one after the other, twice: once for the points that there are, and once for their sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.shown import Shown
from flatmin.core.statistics import half_width, share_band
from flatmin.dynamics.edge import EDGE_SHARE
from flatmin.dynamics.endings import learned_note
from flatmin.study.tally import Cell, Sums, cells, combinations

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
_AXES = COORDINATES[1:-1]
SHARES = ("learned", "settled", "oscillating", "diverged", "edge_of_stability")
QUANTITIES = (*LOGARITHMIC, *PLAIN, *SHARES)

# Runs as one table, or a function that gives tables with some of their columns.
Runs = Any


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
    if "state" not in table:
        return table
    states = ("settled", "oscillating", "diverged")
    return table.assign(
        **{state: (table["state"] == state).astype(float) for state in states},
        learned=table["learned"].astype(float),
        edge_of_stability=(table["edge_share"] >= EDGE_SHARE).astype(float),
    )


def _tables(runs: Runs, *columns: str | None) -> Iterable[pd.DataFrame]:
    """Tables that have these columns, and the state if a share is among them."""
    if not callable(runs):
        return [runs]
    names = {name for name in columns if name is not None}
    if names & set(SHARES):
        names = names - set(SHARES) | {"state"}
    found: Iterable[pd.DataFrame] = runs(names)
    return found


_EDGE = "edge of stability"


def _states(table: pd.DataFrame) -> Counter[str]:
    """Runs, how many learned, by state, and how many ended at the edge of stability."""
    found = Counter({str(state): int(n) for state, n in table["state"].value_counts().items()})
    edge = int(table["edge_of_stability"].sum())
    return found + Counter(runs=len(table), learned=int(table["learned"].sum()), **{_EDGE: edge})


def _in_words(found: Counter[str]) -> dict[str, int]:
    apart = ("runs", "learned", _EDGE)
    states = {state: found[state] for state in sorted(found) if state not in apart}
    return {"runs": found["runs"], "learned": found["learned"], **states, _EDGE: found[_EDGE]}


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


def points(runs: Runs, quantities: Sequence[str] = ("sharpness", "distance")) -> list[Point]:
    """Every point of the grid that has runs."""
    names = varied(combinations(_tables(runs, *_AXES), _AXES))

    def take(cell: Cell, part: pd.DataFrame) -> None:
        cell.states.update(_states(part))
        for name in quantities:
            cell.sums[name].add(_usable(part[name], name))

    found = cells(_tables(runs, *names, *quantities, "state"), names, take)
    return [
        Point(
            {n: np.nan if v is None else v for n, v in zip(names, key, strict=True)},
            _in_words(cell.states),
            {name: _mean(cell.sums[name], name) for name in quantities},
        )
        for key, cell in found.items()
    ]


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


def overview(runs: Runs, learned_at: float, missing: int | None = None) -> Overview:
    """Runs summed up."""
    found = tuple(points(runs))
    total = sum((Counter(point.counts) for point in found), Counter())
    return Overview(counts=_in_words(total), points=found, learned_at=learned_at, missing=missing)


class Facets(Shown):
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


def facets(runs: Runs, x: str | None, y: str, by: str | None = None) -> Facets:
    """The curves of a figure: what is not named gets a panel for each value.

    If that would take several axes or more than `MOST_PANELS` panels, it is pooled. By default x is
    the scale, or the first axis if the scale does not vary.
    """
    for setting, name in (("x", x), ("y", y), ("by", by)):
        if name is not None:
            check_choice(setting, name, QUANTITIES if setting == "y" else COORDINATES)
    columns = list(dict.fromkeys(name for name in (*_AXES, x, by) if name is not None))
    seen = combinations(_tables(runs, *columns), columns)
    if x is None:
        axes = varied(seen)
        x = "scale" if "scale" in axes or not axes else axes[0]
    for setting, name in (("x", x), ("by", by)):
        if name is not None and seen[name].isna().all():
            raise SettingError(f"{setting} {name}: no run of this study has it")
    named = [x] if by is None else [x, by]
    left = _pooled(seen, named)
    # Panels for the values of an axis, if they tell all points apart and are few.
    few = [name for name in left if seen[name].nunique() <= MOST_PANELS]
    axis = next((name for name in few if not _pooled(seen, [*named, name])), None)
    pooled = {} if axis is not None else {name: seen[name].nunique() for name in left}
    panels = _panels(runs, x, y, by, axis)
    return Facets(x=x, y=y, by=by, axis=axis, panels=panels, pooled=pooled)


def _pooled(table: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Axes of the grid with several values where the named coordinates are the same.

    Data sets and repetitions are pooled on purpose.
    """
    others = [name for name in varied(table) if name not in named]
    if not others:
        return []
    values = table.groupby(list(named), dropna=False)[others].nunique().max()
    return [name for name in others if values[name] > 1]


def _panels(
    runs: Runs, x: str, y: str, by: str | None, axis: str | None
) -> tuple[tuple[str, list[Curve]], ...]:
    """For each value of an axis, the means of y along x, one curve per value of `by`."""
    known = False

    def take(cell: Cell, part: pd.DataFrame) -> None:
        nonlocal known
        known = known or bool(part[y].notna().any())
        cell.sums[y].add(_usable(part[y], y))
        for name in ("edge", "minimal_sharpness"):
            if len(cell.values[name]) < 2:
                cell.values[name] |= set(part[name].dropna().unique().tolist())

    names = [name for name in (axis, by, x) if name is not None]
    tables = _tables(runs, *names, y, "edge", "minimal_sharpness")
    found: dict[Any, dict[Any, list[tuple[Any, Cell]]]] = {}
    for key, cell in cells(tables, list(dict.fromkeys(names)), take).items():
        place = dict(zip(dict.fromkeys(names), key, strict=True))
        panel, curve = (place[name] if name else "" for name in (axis, by))
        if panel is not None and curve is not None:
            found.setdefault(panel, {}).setdefault(curve, []).append((place[x], cell))
    if not known:
        raise SettingError(f"y {y}: no run of this study has it")
    return tuple(
        (_short(panel), [_curve(_short(value), parts, y) for value, parts in group.items()])
        for panel, group in found.items()
    )


def _curve(label: str, parts: Sequence[tuple[Any, Cell]], y: str) -> Curve:
    places = [(at, _mean(cell.sums[y], y)) for at, cell in parts if at is not None]
    edge, least = (
        set[float]().union(*(cell.values[name] for _, cell in parts))
        for name in ("edge", "minimal_sharpness")
    )
    return Curve(
        label,
        np.array([at for at, _ in places], dtype=float),
        tuple(one for _, one in places),
        edge.pop() if len(edge) == 1 else None,
        least.pop() if len(least) == 1 else None,
    )


def _short(key: object) -> str:
    return f"{key:.4g}" if isinstance(key, float) else str(key)


def mean(values: Any, quantity: str) -> Mean:
    """The mean of a quantity with its band.

    >>> round(mean([1.0, 100.0], "sharpness").value, 12)
    10.0
    """
    return _mean(Sums().add(_usable(values, quantity)), quantity)


def _usable(values: Any, quantity: str) -> Float:
    """The numbers that a mean is of: finite, and of some quantities the logarithms."""
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    if quantity in LOGARITHMIC:
        numbers = np.asarray(np.log(numbers[numbers > 0]))
    return numbers


def _mean(sums: Sums, quantity: str) -> Mean:
    count = sums.count
    if not count:
        return Mean(np.nan, np.nan, np.nan, 0)
    middle = sums.mean
    if quantity in SHARES:
        return Mean(middle, *share_band(round(middle * count), count), count)
    half = half_width(sums.deviation, count) if count > 1 else 0.0
    ends = np.array([middle, middle - half, middle + half])
    value, low, high = (np.exp(ends) if quantity in LOGARITHMIC else ends).tolist()
    return Mean(value, low, high, count)
