"""The map: how runs end, over the rate and one other setting, one pixel a run.

Every pixel is the run that a click on it shows: same seed, same start. The grid is filled in
passes, every 8th column and row first, then every 4th, 2nd, and all; a pass adds what the ones
before it left out. Networks of one pass are lanes of a few calls of `descend`, each with its own
rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatmin import Ensemble, initialise, sharpness
from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.core.plain import plain
from flatmin.core.progress import Advance
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.lab.engine import Ground, ground_of, together
from flatmin.lab.settings import MOST_TOGETHER, Setting, setting_of
from flatmin.lab.tables import Tables

SIDE = 64
STRIDES = (8, 4, 2, 1)
AXES = ("scale", "depth", "condition_number")
STATES = tuple(state.value for state in State)
MOST_STEPS = 2000
_BATCH = 512
_MAP_FLOPS = 4e10
DEPTHS = (*range(1, 17), *range(18, 49, 2))


@dataclass(frozen=True, eq=False)
class Row:
    """One value of the other setting: its ground, and where its network begins."""

    value: float
    ground: Ground
    start: Float


@dataclass(frozen=True, eq=False)
class Plan:
    """A map to be made: rates across, rows of the other setting upwards."""

    axis: str
    rates: Float
    rows: list[Row]
    steps: int
    strides: tuple[int, ...]
    problem: dict[str, Any] | None = None
    """Of a map over condition numbers: its data, but for the condition number."""

    def as_dict(self) -> dict[str, Any]:
        """What the page needs for axes and lines."""
        own = {name: plain(value) for name, value in vars(self).items() if name != "rows"}
        values = [row.value for row in self.rows]
        ceilings = plain([row.ground.ceiling for row in self.rows])
        return own | {"values": values, "ceilings": ceilings, "states": STATES}


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pixels of one ground: columns, rows, and their networks' first weights."""

    ground: Ground
    columns: Whole
    rows: Whole
    rates: Float
    start: Ensemble


def _rounded(values: Float) -> Float:
    """To four digits, so that a pixel's setting can be typed."""
    return np.array([float(f"{value:.4g}") for value in values])


def plan(setting: Setting, axis: str, tables: Tables) -> Plan:
    """Rates around the ceiling against one other setting around its present value."""
    check_choice("map axis", axis, AXES)
    if setting.method.continuous:
        raise SettingError("the map needs a learning rate, and gradient flow has none")
    problem = _of_any_condition(setting, tables) if axis == "condition_number" else None
    rows = _rows(setting, axis, tables, problem)
    ceilings = [row.ground.ceiling for row in rows if row.ground.ceiling is not None]
    centre = setting.method.learning_rate or 0.1
    low, high = (min(ceilings) / 16, max(ceilings) * 4) if ceilings else (centre / 16, centre * 8)
    rates = _rounded(np.geomspace(low, high, SIDE))
    steps = min(setting.steps, MOST_STEPS)
    cost = float(np.mean([row.ground.step_flops for row in rows])) * SIDE * len(rows)
    # A large network is not run on the finest grid, then for fewer steps.
    strides: tuple[int, ...] = STRIDES
    while cost * steps / strides[-1] ** 2 > _MAP_FLOPS and len(strides) > 2:
        strides = strides[:-1]
    steps = int(max(16, min(steps, _MAP_FLOPS * strides[-1] ** 2 / cost)))
    return Plan(axis, rates, rows, steps, strides, problem)


def _of_any_condition(setting: Setting, tables: Tables) -> dict[str, Any]:
    """Data as large and as noisy as those of a setting, whose condition number may be chosen."""
    own = setting.problem
    if own.outputs > 1:
        raise SettingError("a map over the condition number is for one output")
    samples = ground_of(setting, tables).samples
    found = {"n": max(samples.n, samples.d + 1), "d": samples.d, "noise": own.noise or 0.0}
    more = {"seed": own.seed, "alignment": own.alignment if own.generator == "spectrum" else None}
    given = {key: value for key, value in more.items() if value is not None}
    return {"generator": "spectrum"} | found | given


def _rows(setting: Setting, axis: str, tables: Tables, problem: dict[str, Any] | None) -> list[Row]:
    scale = setting.initialisation.scale
    assert scale is not None
    own = ground_of(setting, tables)
    if together(own.network) < SIDE:
        raise SettingError(
            f"the map is for networks of at most {MOST_TOGETHER // SIDE} weights, "
            f"got {own.network.parameters}"
        )
    if axis == "scale":
        centre = scale or 0.1
        values = _rounded(np.geomspace(centre / 16, centre * 4, SIDE)).tolist()
        name, data = setting.initialisation.name, own.samples.regression()
        addresses = [("train",)] * SIDE
        start = initialise(own.network, name, values, setting.seed, addresses, data).flat()
        return [Row(value, own, flat) for value, flat in zip(values, start, strict=True)]
    content = setting.plain()
    content.pop("changes", None)
    rows = []
    others = DEPTHS if problem is None else _rounded(np.geomspace(1.0, 1e4, SIDE // 2)).tolist()
    for value in others:
        if problem is None:
            content["architecture"]["depth"] = value
        else:
            content["problem"] = problem | {"condition_number": value}
        ground = ground_of(setting_of(content), tables)
        if together(ground.network) < SIDE:
            break
        rows.append(Row(float(value), ground, ground.start(1).flat()[0]))
    return rows


def batches(plan: Plan, number: int) -> Iterator[Batch]:
    """The pixels that pass `number` adds, in batches of one ground each."""
    stride = plan.strides[number]
    before = plan.strides[number - 1] if number else None
    columns = np.arange(0, len(plan.rates), stride)
    pending: list[tuple[int, Whole]] = []
    ground: Ground | None = None

    def batch() -> Batch:
        assert ground is not None
        across = np.concatenate([chosen for _, chosen in pending])
        up = np.concatenate([np.full(len(chosen), row) for row, chosen in pending])
        flat = np.stack([plan.rows[row].start for row in up])
        start = Ensemble.from_flat(ground.network, flat)
        return Batch(ground, across, up, plan.rates[across], start)

    for row in range(0, len(plan.rows), stride):
        chosen = columns
        if before is not None and row % before == 0:
            chosen = columns[columns % before != 0]
        here = plan.rows[row].ground
        size = sum(len(some) for _, some in pending) + len(chosen)
        if pending and (here is not ground or size > min(_BATCH, together(here.network))):
            yield batch()
            pending = []
        ground = here
        pending.append((row, chosen))
    if pending:
        yield batch()


def run(batch: Batch, steps: int, progress: Advance | None = None) -> Float:
    """What became of a batch, `[3, pixel]`: states as places in `STATES`, S/S_min, and the excess
    risk over that at w = 0."""
    ground = batch.ground
    how: Any = {"rule": ground.method().rule, "threads": 1, "progress": progress}
    outcome = descend(ground.samples, batch.start, batch.rates, steps, **how)
    places = np.array([STATES.index(str(state)) for state in outcome.state])
    regression = ground.samples.regression()
    ratio = np.full(len(places), np.nan)
    known = ground.prediction
    kept = np.isfinite(outcome.excess_risk)
    if ground.network.linear and known is not None and kept.any():
        ratio[kept] = sharpness(ground.samples, outcome.ensemble[kept], tolerance=1e-3).value
        ratio /= known.exact
    with np.errstate(invalid="ignore"):
        excess = outcome.excess_risk / regression.excess_at_zero
    return np.stack([places, ratio, excess])


class Picture:
    """A map as far as it has been made."""

    def __init__(self, plan: Plan) -> None:
        self._found = np.full((3, len(plan.rows), len(plan.rates)), np.nan)
        self._found[0] = -1

    def add(self, batch: Batch, found: Float) -> None:
        """Put what became of a batch where it belongs."""
        self._found[:, batch.rows, batch.columns] = found

    def at(self, stride: int) -> dict[str, Any]:
        """Every so many columns and rows, for the page; ratios to four digits."""

        def short(values: Float) -> list[list[float | None]]:
            return [
                [float(f"{v:.4g}") if np.isfinite(v) else None for v in row]
                for row in values.tolist()
            ]

        state, ratio, excess = self._found[:, ::stride, ::stride]
        found = {"ratio": short(ratio), "excess": short(excess)}
        return {"stride": stride, "state": state.astype(int).tolist(), **found}
