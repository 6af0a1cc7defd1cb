"""What a study will take, without running it: a few of its runs are tried on one core."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

from flatmin.core.pages import Listing, Page
from flatmin.core.shown import Shown
from flatmin.core.threads import thread_count
from flatmin.study.execute import run_shard
from flatmin.study.inputs import architecture_of, inputs
from flatmin.study.plan import Shard, Stretch, entries, lengths, plan, run_flops, shard_bytes
from flatmin.study.spec import Study

# Of up to so many architectures, up to so many runs each and so many flops (half a second).
_ARCHITECTURES = 4
_PILOT_RUNS = 64
_PILOT_FLOPS = 6e9
# Footer, schema and page headers of a shard's file.
_FILE_BYTES = 20_000

Group = tuple[int, int | None]


class Estimate(Shown, eq=True):
    """Size of a study and what it will take on this machine; early ends make it shorter."""

    name: str
    runs: int
    network_steps: int
    shards: int
    threads: int
    seconds: float
    memory_bytes: int
    disk_bytes: int

    def page(self) -> Page:
        """What `flatmin study check` prints."""
        rows = [
            ("Runs", f"{self.runs:,}"),
            ("Network steps, at most", f"{self.network_steps:,}"),
            ("Shards", f"{self.shards:,}"),
            ("Time, estimated", f"{_duration(self.seconds)} with {self.threads} threads"),
            ("Memory", _size(self.memory_bytes)),
            ("Disk", _size(self.disk_bytes)),
        ]
        return [Listing((f"Study {self.name}", ""), rows)]


@dataclass(frozen=True)
class _Pilot:
    """Measured on a few runs of one architecture: seconds, their nominal cost, and bytes."""

    seconds: float
    flops: float
    row_bytes: float
    entry_bytes: float


def estimate(study: Study, threads: int | None = None) -> Estimate:
    """Runs, steps, seconds, memory and disk of a study; takes a few seconds itself."""
    workers = thread_count(threads)
    shards = plan(study)
    cost: dict[Group, float] = {}
    members: dict[Group, list[Stretch]] = {}
    for shard in shards:
        first = shard.stretches[0].first
        group = (first.depth, first.width)
        cost[group] = cost.get(group, 0.0) + shard.cost
        members.setdefault(group, []).extend(shard.stretches)
    groups, few = sorted(cost, key=str), min(len(cost), _ARCHITECTURES)
    spaced = [groups[i * len(groups) // few] for i in range(few)]
    tried = {group: _try(study, members[group]) for group in spaced}
    seconds = sum(cost[group] * one.seconds / one.flops for group, one in tried.items())
    share = sum(cost[group] for group in tried) / sum(cost.values())
    rows = sum(one.row_bytes for one in tried.values()) / len(tried)
    entry = sum(one.entry_bytes for one in tried.values()) / len(tried)
    every = lengths(one for shard in shards for one in shard.stretches)
    recorded = sum(count * entries(study, steps) for steps, count in every.items())
    files = len(shards) * (1 if study.record.every is None else 2)
    largest = max(_bytes(study, shard) for shard in shards[: 100 * workers])
    return Estimate(
        name=study.name,
        runs=study.runs,
        network_steps=sum(steps * count for steps, count in every.items()),
        shards=len(shards),
        threads=workers,
        seconds=seconds / share / min(workers, len(shards)),
        memory_bytes=int(_resident() + workers * largest),
        disk_bytes=int(study.runs * rows + recorded * entry + files * _FILE_BYTES),
    )


def _try(study: Study, stretches: list[Stretch]) -> _Pilot:
    """Some runs of one architecture and data set, with fewer steps if they are long."""
    here = [one for one in stretches if one.first.dataset == stretches[0].first.dataset]
    if study.method.continuous:
        here = [one for one in here if one.first.steps == here[0].first.steps]
    first = here[0].first
    architecture = architecture_of(study, inputs(study), first.depth, first.width)
    runs = max(1, min(_PILOT_RUNS, int(_PILOT_FLOPS / run_flops(study, architecture, 16))))
    chosen = [here[i * len(here) // runs] for i in range(min(runs, len(here)))]
    each = -(-runs // len(chosen))
    longest = max(one.first.steps for one in chosen)
    flops = run_flops(study, architecture, longest) * runs
    limit = max(16, int(longest * min(1.0, _PILOT_FLOPS / flops)))
    pilot = _shard(chosen, each, limit)
    # The first call compiles, or loads what was compiled: for wide blocks of lanes and narrow ones.
    # A run that takes long by itself is tried once, and what is compiled counts.
    if runs > 1:
        for warm in dict.fromkeys((_shard(chosen[:1], 1, 16), _shard(chosen, each, 16))):
            run_shard(study, warm, threads=1)
    begin = time.perf_counter()
    result = run_shard(study, pilot, threads=1)
    seconds = time.perf_counter() - begin
    kept = sum(one.count * entries(study, one.first.steps) for one in pilot.stretches)
    return _Pilot(
        seconds,
        sum(run_flops(study, architecture, s.first.steps) * s.count for s in pilot.stretches),
        result.rows.nbytes / len(pilot),
        0.0 if result.traces is None else result.traces.nbytes / kept,
    )


def _shard(stretches: list[Stretch], each: int, limit: int) -> Shard:
    shorter = tuple(
        Stretch(replace(one.first, steps=min(one.first.steps, limit)), min(each, one.count))
        for one in stretches
    )
    return Shard("pilot", 0.0, shorter)


def _bytes(study: Study, shard: Shard) -> float:
    first = shard.stretches[0].first
    architecture = architecture_of(study, inputs(study), first.depth, first.width)
    return shard_bytes(study, architecture, shard)


def _resident() -> int:
    """The most memory this process has held so far, in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.1f} KiB"
