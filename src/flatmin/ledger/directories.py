"""Evidence from directories: what `flatmin train --out` and `flatmin study run --out` leave.

Neither keeps the weights along a run. A study does not keep final weights either; its initial
weights are drawn again from their seeds.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_positive
from flatmin.core.errors import DataError
from flatmin.core.files import read_text
from flatmin.data.regression import Regression
from flatmin.data.tables.named import load_npz
from flatmin.data.tables.source import place_of
from flatmin.dynamics.endings import State
from flatmin.dynamics.measures import LAYER_MEASURES, Task
from flatmin.dynamics.methods import OWN, method_of
from flatmin.dynamics.recording import RENAMED
from flatmin.dynamics.training import FILES
from flatmin.ledger.collect import LAST
from flatmin.ledger.evidence import Evidence
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.study.inputs import architecture_of, data_of
from flatmin.study.older import words
from flatmin.study.plan import Run, plan, start_of, stretches
from flatmin.study.shard_files import shard_id
from flatmin.study.spec import Study
from flatmin.study.store import Store

# Of a piece of a study's evidence; numbers of a row, and bytes of a cell of a trace.
PIECE_BYTES = 1 << 24
ROW_NUMBERS, TRACE_BYTES = 60, 16
# What is looked at of a run's row.
LAYERS = ("spectral_norm", "rank_one_defect", "alignment")
COLUMNS = (
    *("run", "state", "scale", "learning_rate", "steps", "excess_risk", "sharpness"),
    *("sharpness_residual", "integration_error", *LAYERS),
)
# What reading a file that was cut, mixed up or written by something else may raise.
DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def directory_evidence(directory: Path) -> Iterator[Evidence]:
    """The evidence in a directory of `flatmin train` or `flatmin study run`, piece by piece."""
    if (directory / "study.json").is_file():
        yield from study_evidence(directory)
        return
    if not (directory / FILES["summary"]).is_file():
        raise DataError(
            f"{str(directory)!r} holds neither a study nor a run: there is no study.json and no "
            f"{FILES['summary']} in it"
        )
    try:
        yield training_evidence(directory)
    except DAMAGE as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error) or "a file is empty"
        raise DataError(
            f"{str(directory)!r} is not a complete run of flatmin train: {what}"
        ) from None


def training_evidence(directory: Path) -> Evidence:
    """One run of `flatmin train --out`."""
    import pandas as pd

    for name in FILES.values():
        path = directory / name
        if path.exists() and (path.is_symlink() or not path.is_file()):
            raise DataError(f"{str(path)!r} is not a plain file")  # a pipe could wait for ever
    summary = json.loads(read_text(directory / FILES["summary"]))
    trace = pd.read_parquet(directory / FILES["trace"]).rename(columns=RENAMED)
    problem, initial, final = (
        load_npz(place_of(directory / FILES[name])) for name in ("problem", "initial", "final")
    )
    diverged = summary["state"] == State.DIVERGED.value
    for name, array in [*initial.items(), *(() if diverged else final.items())]:
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"its weights {name} are not finite numbers in double precision")
    regression = Regression.from_saved(problem)
    architecture = Architecture(
        regression.d,
        tuple(summary["widths"]),
        tuple(map(float, initial["p"])) if "p" in initial else None,
        summary["activation"],
        summary.get("biases", False),
    )
    start, end = (_ensemble(architecture, arrays) for arrays in (initial, final))
    sharp, followed = summary["sharpness"], summary["integration_error"] is not None
    method = method_of(summary["method"], **_settings(summary))
    task = Task.of(regression, architecture)
    layers, first = end.weights(), start.weights()
    return _fitting(
        regression=regression,
        initial=start,
        init=summary["init"],
        scale=_number(summary, "scale"),
        settled=np.array([words(summary["state"]) == State.SETTLED.value]),
        steps=_number(summary, "steps"),
        excess=_number(summary, "excess_risk"),
        sharpness=_number(sharp, "value"),
        residual=_number(sharp, "residual"),
        trace=_frame_trace(trace),
        last={name: LAYER_MEASURES[name](layers, first, task) for name in LAST if not diverged},
        method=method,
        error=_number(summary, "integration_error") if followed else None,
        final=None if diverged else end,
        names=["the run"],
    )


def _fitting(**parts: Any) -> Evidence:
    """What files say must be of these networks: a scale, steps, and numbers of their layers."""
    found = Evidence(**parts)
    if not np.isfinite([found.scale, found.steps]).all():
        raise DataError("there are runs without a scale or steps: they are not flatmin's")
    clock = "time" if found.flow else "step"
    if found.trace and clock not in found.trace:
        raise DataError(f"its trace has no {clock}")
    for where, entries in ((found.trace, 1), (found.last, 0)):
        for name in where.keys() & LAYER_MEASURES.keys():
            size, wanted = where[name].shape[1 + entries :], LAYER_MEASURES[name].size(found.depth)
            if size != (wanted,):
                raise DataError(f"{name!r} does not have {wanted} numbers: it is not of these runs")
    return found


def _settings(summary: dict[str, Any]) -> dict[str, float]:
    """Of the method, checked."""
    checks = {"learning_rate": check_positive} | {name: own.check for name, own in OWN.items()}
    given = [name for name in checks if summary.get(name) is not None]
    return {name: checks[name](name, float(_number(summary, name)[0])) for name in given}


def _number(record: dict[str, Any], name: str) -> Float:
    """Of the one run; what a summary leaves open is not a number."""
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f"{name} is {value!r:.40}, which is no number")
    return np.array([np.nan if value is None else value], dtype=float)


def _ensemble(architecture: Architecture, arrays: dict[str, Any]) -> Ensemble:
    matrices = [
        np.column_stack([arrays[f"{name}{k + 1}"] for name in "Wb"[: 1 + architecture.biases]])
        for k in range(architecture.depth)
    ]
    return Ensemble.from_matrices(architecture, [matrices])


def _frame_trace(frame: Any) -> dict[str, Float]:
    """The columns of one run's trace; name_1, name_2, ... are the layers of one quantity."""
    trace: dict[str, Float] = {}
    columns = [str(column) for column in frame.columns] if len(frame) else []
    for name, group in groupby(columns, key=_quantity):
        values = frame[list(group)].to_numpy(dtype=float)
        layered = name in LAYER_MEASURES
        trace[name] = values[:, None, :] if layered else values[:, :1]
    return trace


def _quantity(column: str) -> str:
    name, _, number = column.rpartition("_")
    return name if number.isdigit() else column


def study_evidence(directory: Path) -> Iterator[Evidence]:
    """The finished runs of a study, one piece of evidence per data set and architecture, or several
    of at most about `PIECE_BYTES`; the shards are read one after the other."""
    store = Store.open(directory)
    study = _study(directory, json.loads(store.study_text))
    rows, traces = store.rows(), store.traces()
    run_of, place = _by_index(study), {shard.id: i for i, shard in enumerate(plan(study))}
    first: dict[int, Run] = {}
    for index, _, _, _, number in rows.spans().tolist():
        first.setdefault(number, run_of(index))
    recorded = {path.name: number for number, path in enumerate(traces.paths)}

    def order(number: int) -> tuple[Any, ...]:
        """Runs of one architecture together, the shards of it as the plan has them."""
        name = shard_id(rows.paths[number])
        return _group(first[number]), place.get(str(name), len(place)), first[number].index

    held = _Piece(study)
    for number in sorted(first, key=order):
        table = rows.read(number).select(COLUMNS).to_pandas()
        table = table[table["state"] != State.DIVERGED.value].set_index("run", drop=False)
        trace = recorded.get(rows.paths[number].name)
        frames = {} if trace is None else dict(list(traces.read(trace).to_pandas().groupby("run")))
        for _, members in groupby(map(run_of, table.index), key=_group):
            group = list(members)
            if not held.takes(group[0]):
                yield from held.evidence()
                held = _Piece(study)
            held.add(group, table.loc[[run.index for run in group]], frames)
    yield from held.evidence()


def _by_index(study: Study) -> Callable[[int], Run]:
    """The run of a number."""
    every = list(stretches(study))
    begins = [stretch.first.index for stretch in every]

    def run(index: int) -> Run:
        at = bisect_right(begins, index) - 1
        if at < 0 or index >= begins[at] + every[at].count:
            raise DataError(f"there is no run {index} in the study: its shards are not its own")
        return every[at].run(index - begins[at])

    return run


class _Piece:
    """Runs of one data set and architecture, as many as may be in memory at once."""

    def __init__(self, study: Study) -> None:
        self._study, self._bytes = study, 0.0
        self._runs: list[Run] = []
        self._tables: list[Any] = []
        self._frames: dict[int, Any] = {}

    def takes(self, run: Run) -> bool:
        """Whether a run belongs here, and there is room."""
        same = not self._runs or _group(run) == _group(self._runs[0])
        return same and self._bytes < PIECE_BYTES

    def add(self, runs: list[Run], table: Any, frames: dict[int, Any]) -> None:
        """Some more runs: their rows, and the traces of all runs of their shard."""
        self._runs += runs
        self._tables.append(table)
        mine = {run.index: frames[run.index] for run in runs if run.index in frames}
        self._frames |= mine
        numbers = _architecture(self._study, runs[0]).parameters + ROW_NUMBERS
        numbers *= len(runs)
        self._bytes += 8.0 * numbers + sum(one.size * TRACE_BYTES for one in mine.values())

    def evidence(self) -> Iterator[Evidence]:
        """The piece, if it has runs."""
        if self._runs:
            import pandas as pd

            frames = [self._frames.get(run.index) for run in self._runs]
            yield _study_case(self._study, self._runs, pd.concat(self._tables), frames)


def _architecture(study: Study, run: Run) -> Architecture:
    data = data_of(study, run.dataset)
    return architecture_of(study, data.regression.d, run.depth, run.width)


def _study(directory: Path, content: dict[str, Any]) -> Study:
    """The study that was run, from the text that its shards name; `study.toml` may be edited.

    Only where the data file is comes from there, and its content must be the one that was read.
    """
    digest = content.get("problem", {}).get("file")
    if digest is None:
        return Study(content)
    place = Study(directory / "study.toml").problem.file
    study = Study(content | {"problem": content["problem"] | {"file": place}})
    if json.loads(study.canonical())["problem"]["file"] != digest:
        raise DataError(f"{place!r} is not the data file that the study was run on")
    return study


def missing_runs(place: Any) -> int:
    """Runs of a study's folder that are not there."""
    if not isinstance(place, str | Path) or not (Path(place) / "study.json").is_file():
        return 0
    return Store.open(Path(place)).missing() or 0


def _group(run: Run) -> tuple[Any, ...]:
    return run.dataset, run.depth, -1 if run.width is None else run.width, run.init


def _study_case(study: Study, runs: Sequence[Run], table: Any, frames: Sequence[Any]) -> Evidence:
    first = runs[0]
    data = data_of(study, first.dataset)
    architecture = _architecture(study, first)
    initial = start_of(study, architecture, runs, data.regression)
    descent = not study.method.continuous
    return _fitting(
        regression=data.regression,
        initial=initial,
        init=first.init,
        scale=table["scale"].to_numpy(dtype=float),
        settled=table["state"].to_numpy() == State.SETTLED.value,
        steps=table["steps"].to_numpy(dtype=float),
        excess=table["excess_risk"].to_numpy(dtype=float),
        sharpness=table["sharpness"].to_numpy(dtype=float),
        residual=table["sharpness_residual"].to_numpy(dtype=float),
        trace=_study_trace(frames, descent),
        last={name: _array(table[name]) for name in LAYERS if table[name].notna().all()},
        method=study.method.with_rates(table["learning_rate"].to_numpy(dtype=float)),
        error=None if descent else table["integration_error"].to_numpy(dtype=float),
        samples=data.samples,
        names=np.array([run.index for run in runs]),
    )


def _array(column: Any, shape: tuple[int, ...] | None = None) -> Float:
    """Numbers, or lists of so many for each layer, as an array; a forged shard may mix them."""
    values = column.to_list()
    kinds = {np.shape(one) for one in values} | ({shape} if shape is not None else set())
    if len(kinds) > 1:
        raise DataError(
            f"{column.name!r} is of different lengths in different rows: its shard is not a study's"
        )
    return np.array(values, dtype=float)


def _study_trace(frames: Sequence[Any], descent: bool) -> dict[str, Float]:
    """Traces of each run in a column of its own; NaN where a run has ended."""
    known = [frame for frame in frames if frame is not None]
    if not known:
        return {}
    length = max(len(frame) for frame in known)
    trace: dict[str, Float] = {}
    for name in known[0].columns:
        if name == "run" or name == ("time" if descent else "step") or known[0][name].isna().all():
            continue
        for network, frame in enumerate(frames):
            if frame is None:
                continue
            values = _array(frame[name], trace[name].shape[2:] if name in trace else None)
            if name not in trace:
                trace[name] = np.full((length, len(frames), *values.shape[1:]), np.nan)
            trace[name][: len(values), network] = values
    return trace
