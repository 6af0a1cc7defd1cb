"""The outcome of runs as tables: one row per run, one row per entry of a trace.

Where the number of networks measured together could show in the last bits, each is measured alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow

from flatmin.core.arrays import Float, Yes
from flatmin.curvature import sharpness
from flatmin.curvature.linear import backward
from flatmin.curvature.nonlinear import NonlinearHessian
from flatmin.curvature.record import Sharpness
from flatmin.curvature.sharpness import in_lanes, on_few_rows
from flatmin.data.samples import Problem
from flatmin.dynamics.edge import midway, swinging
from flatmin.dynamics.endings import State
from flatmin.dynamics.measures import alignment, rank_one_defect, spectral_norm
from flatmin.dynamics.methods import Method
from flatmin.dynamics.outcome import Outcome
from flatmin.network.architecture import Family
from flatmin.network.ensemble import Ensemble
from flatmin.study.inputs import Data
from flatmin.study.plan import Run
from flatmin.study.schema import ROWS_SCHEMA, TRACE_COLUMNS, schema_of, trace_column
from flatmin.study.spec import Study

pa: Any = pyarrow

SHARPNESS_TOLERANCE = 1e-8
# Networks on rows that are measured at once.
_TOGETHER = 16
ROW_LAYERS = {
    "spectral_norm": spectral_norm,
    "rank_one_defect": rank_one_defect,
    "alignment": alignment,
}


def rows_table(
    study: Study,
    data: Data,
    runs: Sequence[Run],
    rates: Float,
    method: Method,
    least: float,
    initial: Ensemble,
    outcome: Outcome,
) -> Any:
    """One row per run, as `schema.ROWS_SCHEMA` has it."""
    problem, final = data.problem(study.linear), outcome.ensemble
    every = np.ones(len(runs), dtype=bool)
    kept = np.asarray(outcome.state != State.DIVERGED.value)
    architecture = final.architecture
    width = architecture.widths[0] if architecture.depth > 1 else architecture.inputs
    critical = study.method.learning_rate_unit == "critical"
    relative = [r.learning_rate for r in runs] if critical else rates * least / method.reach
    columns: dict[str, Any] = {
        "run": [run.index for run in runs],
        "dataset": [run.dataset for run in runs],
        "depth": [run.depth for run in runs],
        "width": [width] * len(runs),
        "init": [run.init for run in runs],
        "scale": [run.scale for run in runs],
        "learning_rate": _numbers(rates),
        "relative_rate": _numbers(relative),
        "step_limit": [run.steps for run in runs],
        "repetition": [run.repetition for run in runs],
        "state": outcome.state.tolist(),
        "learned": outcome.learned,
        "period": pa.array(outcome.period, mask=outcome.period == 0),
        "more_steps": _numbers(outcome.more_steps),
        "steps": outcome.steps,
        "time": _numbers(outcome.extras.get("time", np.full(len(runs), np.nan))),
        "integration_error": _numbers(outcome.extras.get("error", np.full(len(runs), np.nan))),
        "initial_distance": _numbers(_distance(data, initial, every)),
        "distance": _numbers(_distance(data, final, kept)),
        "train_risk": _numbers(
            np.where(kept, data.regression.risk_min + outcome.excess_risk, np.nan)
        ),
        "excess_risk": _numbers(np.where(kept, outcome.excess_risk, np.nan)),
        "test_risk": _numbers(_test_risk(data, final, kept)),
        "gradient_norm": _numbers(np.where(kept, outcome.gradient_norm, np.nan)),
        "minimal_sharpness": _numbers([least] * len(runs)),
        "edge": _numbers(method.reach / rates),
    }
    columns |= _sharpness("initial_sharpness", problem, initial, every)
    columns |= _sharpness("sharpness", problem, final, kept)
    columns["edge_share"] = _numbers(
        _edge_share(problem, outcome, rates, method, columns["sharpness"])
    )
    columns |= _layers(final, kept if study.record.layers else ~every)
    return pa.table([columns[name] for name in ROWS_SCHEMA.names], schema=ROWS_SCHEMA)


def _numbers(values: Any) -> Any:
    """A column in which what is not finite is null."""
    array = np.asarray(values, dtype=float)
    return pa.array(array, mask=~np.isfinite(array))


def _weights(ensemble: Ensemble, chosen: Yes) -> list[Float]:
    """The layers of the chosen runs, row-major whatever their number: BLAS rounds by layout."""
    return ensemble.architecture.matrices(np.ascontiguousarray(ensemble.flat()[chosen]))


def _spread(values: Float, chosen: Yes) -> Float:
    """Values of the chosen runs in their places, NaN elsewhere."""
    full = np.full(len(chosen), np.nan)
    full[chosen] = values
    return full


def _sharpness(name: str, problem: Problem, ensemble: Ensemble, chosen: Yes) -> dict[str, Any]:
    """Value, residual and convergence of the chosen runs; null elsewhere."""
    found = _measured(problem, ensemble[chosen])
    value, residual, converged = (
        _spread(np.concatenate([np.empty(0), *(getattr(one, field) for one in found)]), chosen)
        for field in ("value", "residual", "converged")
    )
    return {
        name: _numbers(value),
        f"{name}_residual": _numbers(residual),
        f"{name}_converged": pa.array(converged == 1.0, mask=~np.isfinite(value)),
    }


def _edge_share(
    problem: Problem, outcome: Outcome, rates: Float, method: Method, final: Any
) -> Float:
    """S over the edge, of runs that still move midway to their next weights; NaN for flow."""
    value = np.array(final.to_pylist(), dtype=float)
    moving = swinging(outcome) & np.isfinite(rates)
    found = _measured(problem, midway(problem, outcome, rates, moving))
    value[moving] = np.concatenate([np.empty(0), *(one.value for one in found)])
    return value * rates / method.reach


def _measured(problem: Problem, ensemble: Ensemble) -> list[Sharpness]:
    """The sharpness of an ensemble's networks, in parts.

    Compiled lanes do not see their neighbours. Elsewhere `sharpness` treats an ensemble as a whole
    and may choose another road for it, so that each network is measured alone; but those on few
    rows several at once, which takes a third of the time, where all of them ended their search.
    """
    architecture, networks = ensemble.architecture, len(ensemble)
    together = max(networks, 1) if in_lanes(architecture) else 1
    if architecture.family is Family.SAMPLES and on_few_rows(architecture, problem.n):
        together = _TOGETHER

    def measured(some: Ensemble) -> list[Sharpness]:
        found = sharpness(problem, some, tolerance=SHARPNESS_TOLERANCE)
        ended = found.converged & (found.residual <= SHARPNESS_TOLERANCE * found.value)
        if ended.all() or len(some) == 1 or in_lanes(architecture):
            return [found]
        return [one for i in range(len(some)) for one in measured(some[[i]])]

    parts = (ensemble[at : at + together] for at in range(0, networks, together))
    return [one for part in parts for one in measured(part)]


def _distance(data: Data, ensemble: Ensemble, chosen: Yes) -> Float:
    """|w - w*|^2 of linear networks, as far as it is a number."""
    architecture = ensemble.architecture
    if not architecture.linear:
        return np.full(len(ensemble), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        w = backward(_weights(ensemble, chosen), architecture.p)[0]
        return _spread(np.sum((w - data.regression.w_star) ** 2, axis=1), chosen)


def _test_risk(data: Data, ensemble: Ensemble, chosen: Yes) -> Float:
    """The risk on the test rows, where there are any."""
    if data.test is None:
        return np.full(len(ensemble), np.nan)
    test, architecture = data.test, ensemble.architecture
    if architecture.linear:
        maps = backward(_weights(ensemble, chosen), architecture.p)[0]
        risks = [test.risk(w) for w in maps]
    else:
        risks = [
            NonlinearHessian(test, architecture, flat[None].copy()).risk.item()
            for flat in ensemble.flat()[chosen]
        ]
    return _spread(np.array(risks), chosen)


def _layers(ensemble: Ensemble, chosen: Yes) -> dict[str, Any]:
    """Per-layer summaries of the chosen runs; null elsewhere."""
    layers = _weights(ensemble, chosen)
    measured = {
        name: measure(layers) if chosen.any() else np.empty((0, 0))
        for name, measure in ROW_LAYERS.items()
    }
    return {name: _lists(values, chosen) for name, values in measured.items()}


def _lists(values: Float, chosen: Yes) -> Any:
    """A column of lists, one per chosen row, null elsewhere."""
    offsets = np.concatenate([[0], np.cumsum(np.where(chosen, values.shape[1], 0))])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(values.ravel()), mask=pa.array(~chosen)
    )


def traces_table(runs: Sequence[Run], outcome: Outcome) -> Any:
    """One row per entry, run by run, without those after the end of a run; None if not asked."""
    trace = outcome.recorded
    if trace is None:
        return None
    there = np.zeros((len(runs), len(trace.step)), dtype=bool)
    for values in trace.values.values():
        known = np.isfinite(values)
        there |= (known if values.ndim == 2 else known.any(axis=2)).T
    run, entry = np.nonzero(there)
    every = np.ones(len(run), dtype=bool)
    documented = [name for name, _, _ in TRACE_COLUMNS]
    others = (
        trace_column(name, values.ndim == 3)
        for name, values in trace.values.items()
        if name not in documented
    )
    described, columns = (*TRACE_COLUMNS, *others), []
    for name, kind, _ in described:
        if name == "run":
            columns.append(pa.array(np.array([one.index for one in runs])[run], kind))
        elif name == "step":
            columns.append(pa.array(trace.step[entry], kind))
        elif name not in trace.values:
            columns.append(pa.nulls(len(run), kind))
        elif trace.values[name].ndim == 2:
            columns.append(_numbers(trace.values[name][entry, run]))
        else:
            columns.append(_lists(trace.values[name][entry, run], every))
    return pa.table(columns, schema=schema_of(described))
