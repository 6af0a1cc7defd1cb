"""One shard: draw, train, measure, and put the results into rows.

Everything here is a function of the study and the run's own coordinates; threads and the other
runs of the shard change no bit of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow

from flatmin.core.memory import check_memory
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.recording import Recording
from flatmin.network.architecture import Architecture
from flatmin.study.inputs import Data, architecture_of, data_of, minimal_sharpness_of
from flatmin.study.plan import Run, Shard, shard_bytes, start_of
from flatmin.study.rows import rows_table, traces_table
from flatmin.study.spec import Study

pa: Any = pyarrow


@dataclass(frozen=True, eq=False)
class ShardResult:
    """The rows of a shard by run index, and its traces or None: tables of pyarrow."""

    rows: Any
    traces: Any


def run_shard(
    study: Study, shard: Shard, threads: int | None = None, progress: Progress | None = None
) -> ShardResult:
    """All runs of a shard. `progress` is called with network steps done or saved."""
    runs = shard.runs
    first = runs[0]
    data = data_of(study, first.dataset)
    architecture = architecture_of(study, data.regression.d, first.depth, first.width)
    check_memory(
        f"a shard of {len(runs)} networks of {architecture.parameters} parameters",
        shard_bytes(study, architecture, shard),
    )
    parts = [[run] for run in runs] if _alone(study) else [runs]
    with np.errstate(all="ignore"):
        results = [_run_part(study, data, architecture, part, threads, progress) for part in parts]
    if len(results) == 1:
        return results[0]
    rows = pa.concat_tables([result.rows for result in results]).combine_chunks()
    traces = pa.concat_tables([result.traces for result in results]).combine_chunks()
    return ShardResult(rows, traces)


def _alone(study: Study) -> bool:
    """Whether each run is a call of its own.

    A recorded sharpness starts from the last eigenvector; outside the compiled kernel of linear
    descent that is done for a block of networks at once, and their number shows in the last bits.
    """
    recorded = study.record.every is not None and "sharpness" in study.record.quantities
    return recorded and not (study.linear and not study.method.continuous)


def _run_part(
    study: Study,
    data: Data,
    architecture: Architecture,
    runs: Sequence[Run],
    threads: int | None,
    progress: Progress | None,
) -> ShardResult:
    """Runs of one architecture on one data set, in one call of the engine."""
    least = minimal_sharpness_of(data, architecture)
    # Learning rates as the engine takes them; NaN for gradient flow.
    critical = study.method.learning_rate_unit == "critical"
    unit = study.method.with_rates(1.0).reach / least if critical else 1.0
    rates = np.array([np.nan if r.learning_rate is None else r.learning_rate * unit for r in runs])
    initial = start_of(study, architecture, runs, data.regression)
    method = study.method.with_rates(rates)
    record, steps = study.record, np.array([run.steps for run in runs])
    outcome = method.run(
        data.problem(study.linear),
        initial,
        steps=steps,
        recording=None if record.every is None else Recording(record.every, record.quantities),
        tolerance=study.method.tolerance,
        learned_at=study.method.learned_at,
        threads=threads,
        progress=None if method.continuous else progress,
    )
    if method.continuous and progress is not None:
        # How many steps the integrator needs is not known before: a shard counts when it is done.
        progress(int(steps.sum()))
    rows = rows_table(study, data, runs, rates, method, least, initial, outcome)
    return ShardResult(rows, traces_table(runs, outcome))
