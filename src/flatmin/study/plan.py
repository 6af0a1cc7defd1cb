"""From a study to shards of work: which runs, in which groups, longest first.

A run is known by its coordinates. Its random stream is addressed by them, never by its index, so
neither the order of the runs nor the way they are cut into shards changes a number.

A shard holds runs of one architecture on one data set, since one call of the engine takes those.
Runs are kept as stretches (one point of the grid, consecutive repetitions), so that the plan of a
study with 10^9 runs fits in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

from flatmin.core.seeds import Coordinate
from flatmin.curvature.nonlinear import working_bytes
from flatmin.data.regression import Regression
from flatmin.dynamics.recording import NETWORK_MEASURES, Recording
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.study.grid import Point
from flatmin.study.inputs import architecture_of, data_of, inputs
from flatmin.study.spec import Study, step_limit

# About two seconds of one core (measured: 14e9 such flops a second at d = 5, L = 10).
SHARD_FLOPS = 3e10
# A small study is cut into so many shards, unless they would be shorter than a tenth of a second.
_LEAST_SHARDS = 16
_SMALLEST_FLOPS = 1.5e9
# Two blocks of lanes: fewer runs would leave lanes idle.
LEAST_RUNS = 16
MOST_RUNS = 16_384
# Memory of a shard: weights, start vectors and copies of them; and its trace.
_COPIES = 8
SHARD_BYTES = 1 << 30
# Drawing, measuring and writing a run cost as much as so many steps (measured at d = 5, L = 10).
_FIXED_STEPS = 2500
# A run of gradient flow costs about as much as so many steps of descent (measured).
_FLOW_STEPS = 6000


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its place in the table, and its coordinates.

    `learning_rate` is in the unit of the spec; None for gradient flow. `width` None is the number
    of inputs.
    """

    index: int
    dataset: int
    depth: int
    width: int | None
    init: str
    scale: float
    learning_rate: float | None
    steps: int
    repetition: int

    def address(self) -> tuple[Coordinate, ...]:
        """Where its random stream lives under the study's seed."""
        width = "inputs" if self.width is None else self.width
        rate = "flow" if self.learning_rate is None else self.learning_rate
        setting = (self.depth, width, self.init, self.scale, rate)
        return ("study", self.dataset, *setting, self.repetition)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive repetitions of one point of the grid, from `first` on."""

    first: Run
    count: int

    def runs(self) -> Iterator[Run]:
        """Every run."""
        return map(self.run, range(self.count))

    def cut(self, count: int) -> tuple[Stretch, Stretch | None]:
        """The first `count` runs and the rest, if there is one."""
        if count == self.count:
            return self, None
        return Stretch(self.first, count), Stretch(self.run(count), self.count - count)

    def run(self, number: int) -> Run:
        """One of them, from 0."""
        index, repetition = self.first.index + number, self.first.repetition + number
        return replace(self.first, index=index, repetition=repetition)


@dataclass(frozen=True, slots=True)
class Shard:
    """Runs that are done together. `id` follows from their coordinates, `cost` is in flops."""

    id: str
    cost: float
    stretches: tuple[Stretch, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run, by index."""
        runs = (run for stretch in self.stretches for run in stretch.runs())
        return tuple(sorted(runs, key=lambda run: run.index))

    @property
    def network_steps(self) -> int:
        """The largest number of steps its runs can take together."""
        return sum(stretch.first.steps * stretch.count for stretch in self.stretches)

    def __len__(self) -> int:
        return sum(stretch.count for stretch in self.stretches)


def plan(study: Study, shard_flops: float | None = None) -> list[Shard]:
    """Every shard of a study, long ones first; the same list whenever it is asked for.

    >>> from flatmin.study.spec import STARTER, parse_spec
    >>> shards = plan(parse_spec(STARTER))
    >>> sum(len(shard) for shard in shards)
    36000
    """
    features = inputs(study)
    groups: dict[tuple[int, int, int | None, int | None], list[Stretch]] = {}
    for stretch in stretches(study):
        first = stretch.first
        # One call of `flow` has one limit of steps; descent has one per run.
        limit = first.steps if study.method.continuous else None
        key = (first.dataset, first.depth, first.width, limit)
        groups.setdefault(key, []).append(stretch)

    @cache
    def cost(depth: int, width: int | None, steps: int) -> tuple[float, int]:
        """Flops of a run, and how many fit into the memory of a shard."""
        architecture = architecture_of(study, features, depth, width)
        by_memory = int(SHARD_BYTES / run_bytes(study, architecture, steps))
        return run_flops(study, architecture, steps), max(1, min(by_memory, MOST_RUNS))

    if shard_flops is None:
        total = sum(
            cost(depth, width, steps)[0] * count
            for (_, depth, width, _), members in groups.items()
            for steps, count in lengths(members).items()
        )
        shard_flops = min(SHARD_FLOPS, max(_SMALLEST_FLOPS, total / _LEAST_SHARDS))
    shards = [
        shard
        for (_, depth, width, _), members in groups.items()
        for shard in _split(partial(cost, depth, width), members, shard_flops)
    ]
    shards.sort(key=attrgetter("id"))
    shards.sort(key=attrgetter("cost"), reverse=True)  # which leaves equal ones as they are
    return shards


def lengths(some: Iterable[Stretch]) -> dict[int, int]:
    """How many runs there are of each number of steps: what a run takes follows from that."""
    counts: dict[int, int] = {}
    for one in some:
        counts[one.first.steps] = counts.get(one.first.steps, 0) + one.count
    return counts


def stretches(study: Study) -> Iterator[Stretch]:
    """Every point of the grid on every data set, by index."""
    points = [
        (int(point.get("repetitions", study.repetitions or 1)), _setting(study, point))
        for point in study.grid.points()
    ]
    index = 0
    for dataset in range(study.datasets):
        for count, setting in points:
            yield Stretch(Run(index, dataset, *setting), count)
            index += count


def start_of(
    study: Study, architecture: Architecture, runs: Sequence[Run], regression: Regression
) -> Ensemble:
    """The initial weights of runs of one initialisation, each from its own address."""
    scales, addresses = [run.scale for run in runs], [run.address() for run in runs]
    return initialise(architecture, runs[0].init, scales, study.seed, addresses, regression)


def run_flops(study: Study, architecture: Architecture, steps: int) -> float:
    """What a run may cost, in flops."""
    if study.method.continuous:
        taken = float(min(steps, _FLOW_STEPS))
    else:
        taken = steps * study.method.with_rates(1.0).rule.cost
    # A step goes through all rows of the data, unless the network is linear.
    rows = 1 if study.linear else data_of(study, 0).regression.n
    on_rows = rows * (taken + recorded_steps(study, steps))
    return 6.0 * architecture.parameters * (on_rows + _FIXED_STEPS)


def recorded_steps(study: Study, steps: int) -> float:
    """What the entries of a trace cost, in steps: about ten for a sharpness, one for the rest."""
    if study.record.every is None:
        return 0.0
    each = 1.0
    if "sharpness" in study.record.quantities:
        once = study.method.continuous
        each = 10.0 * (1 if once else min(Recording.sharpness_steps, study.record.every))
    return each * (1 + entries(study, steps))


def entries(study: Study, steps: int) -> int:
    """The number of entries in the trace of a run of so many steps."""
    if study.record.every is None:
        return 0
    if study.method.continuous:
        steps = min(steps, 200)
    return 1 + steps // study.record.every


def run_bytes(study: Study, architecture: Architecture, steps: int) -> float:
    """Memory a run takes while its shard is being done."""
    vectors = 1 + study.method.with_rates(1.0).rule.copies
    weights = 8.0 * _COPIES * architecture.parameters * vectors
    depth = architecture.depth
    layered = sum(name not in NETWORK_MEASURES for name in study.record.quantities)
    numbers = 4 + 3 * len(study.record.quantities) + layered * depth
    return weights + 16.0 * numbers * entries(study, steps) + 400.0 + 48.0 * depth


def shard_bytes(study: Study, architecture: Architecture, shard: Shard) -> float:
    """Memory a shard takes while it is being done; networks on rows are measured one by one."""
    counts = lengths(shard.stretches).items()
    measured = 0.0 if study.linear else working_bytes(architecture, data_of(study, 0).regression.n)
    return measured + sum(run_bytes(study, architecture, steps) * count for steps, count in counts)


def _setting(study: Study, point: Point) -> tuple[Any, ...]:
    """The fields of the first run of a point, from its depth on."""
    width = point.get("width", study.architecture.width)
    rate = point.get("learning_rate", study.method.learning_rate)
    depth = point.get("depth", study.architecture.depth)
    scale = point.get("scale", study.initialisation.scale)
    assert depth is not None
    assert scale is not None
    return (
        int(depth),
        None if width is None else int(width),
        study.initialisation.name,
        float(scale),
        None if rate is None else float(rate),
        step_limit(study, point.get("steps")),
        0,
    )


def _split(
    cost_of: Callable[[int], tuple[float, int]], members: list[Stretch], shard_flops: float
) -> Iterator[Shard]:
    """Shards of one architecture and data set: runs of like length together.

    `cost_of` knows for a number of steps the flops of a run, and how many fit into a shard.
    """
    held: list[Stretch] = []
    cost, count = 0.0, 0
    for stretch in sorted(members, key=lambda one: -one.first.steps):
        each, most = cost_of(stretch.first.steps)
        rest: Stretch | None = stretch
        while rest is not None:
            wanted = max(LEAST_RUNS - count, math.ceil((shard_flops - cost) / each))
            taking = min(wanted, most - count, rest.count)
            if taking <= 0:
                yield _shard(held, cost)
                held, cost, count = [], 0.0, 0
                continue
            taken, rest = rest.cut(taking)
            held.append(taken)
            cost, count = cost + each * taking, count + taking
    if held:
        yield _shard(held, cost)


# The index is left out: it depends on the other runs of the study.
_COORDINATES = attrgetter(*(field.name for field in fields(Run) if field.name != "index"))


def _shard(held: list[Stretch], cost: float) -> Shard:
    coordinates = [(*_COORDINATES(one.first), one.count) for one in held]
    text = json.dumps(coordinates).encode()
    return Shard(hashlib.blake2b(text, digest_size=8).hexdigest(), cost, tuple(held))
