"""What is shown of a run besides its curves: layers, a few eigenvalues, and the ledger.

Layers and eigenvalues are measured at some points along the run, of its first network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from flatmin import Ensemble, Recording, flow
from flatmin.core.arrays import Float
from flatmin.core.errors import SettingError
from flatmin.core.plain import plain
from flatmin.core.progress import Advance
from flatmin.core.seeds import generator
from flatmin.core.spectra import singular_values
from flatmin.curvature.operators import HessianOperator
from flatmin.curvature.sharpness import hessian_at
from flatmin.dynamics.measures import alignment
from flatmin.dynamics.recording import recordable
from flatmin.lab.engine import Ground, advance, segments, together
from flatmin.ledger.check import check
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.statements import STATEMENTS

POINTS = 60
EIGENVALUES = 4
_SMALL, _TOLERANCE = 250, 1e-7
_ENTRIES = 40
_MOST_MEASURED = 8_000_000
"""Of singular value decompositions of all layers, m n min(m, n): about ten seconds of checks."""


@dataclass(frozen=True, eq=False)
class Snapshots:
    """The weights of one run at some of its points: `step`, or `time` of a flow."""

    at: Float
    weights: Ensemble


def points(ground: Ground) -> int:
    """Of how many snapshots the weights are kept: of large networks of fewer."""
    return max(2, min(POINTS, together(ground.network)))


def snapshots(
    ground: Ground, until: int, times: Float | None = None, progress: Advance | None = None
) -> Snapshots:
    """Weights at about so many points of a run, up to step `until` (of a flow, at these times)."""
    now = ground.start(1)
    taken = [(0.0, now.flat()[0])]
    way = _of_descent(ground, now, until, progress)
    if times is not None:
        way = _of_flow(ground, now, times, progress)
    taken += [(at, weights.flat()[0]) for at, weights in way]
    at, flat = zip(*taken, strict=True)
    return Snapshots(np.array(at), Ensemble.from_flat(ground.network, np.array(flat)))


def _of_flow(
    ground: Ground, now: Ensemble, times: Float, progress: Advance | None
) -> Iterator[tuple[float, Ensemble]]:
    options: Any = {"threads": 1, "progress": progress}
    for begin, end in itertools.pairwise(times):
        now = flow(ground.samples.regression(), now, end=float(end - begin), **options).ensemble
        yield float(end), now


def _of_descent(
    ground: Ground, now: Ensemble, until: int, progress: Advance | None
) -> Iterator[tuple[float, Ensemble]]:
    options: Any = {"tolerance": 1e-200, "observe_ends": False, "progress": progress}
    stride = max(1, -(-until // points(ground)))
    if stride > 1:  # even: what alternates from step to step is seen on one side
        stride += stride % 2
    beside = None
    for part in segments(ground.setting):
        step = part.begin
        while step < min(part.end, until):
            count = min(stride - step % stride, part.end - step, until - step)
            found = advance(ground, now, beside, part.rate, count, **options)
            now, beside, step = found.ensemble, found.beside, step + count
            if not np.isfinite(found.excess_risk[0]):
                return
            yield float(step), now


def layers(ground: Ground, taken: Snapshots, progress: Advance | None = None) -> dict[str, Any]:
    """Two largest singular values of every layer, alignments, eigenvalues of the Hessian."""
    matrices = taken.weights.weights()
    values = [singular_values(w)[:, :2] for w in matrices]
    first = np.stack([v[:, 0] for v in values], axis=1)
    second = np.stack([v[:, 1] if v.shape[1] > 1 else 0.0 * v[:, 0] for v in values], axis=1)
    thin = 1 if ground.network.parameters <= _SMALL else 3
    found = {
        "at": taken.at,
        "first": first.T,
        "second": second.T,
        "alignment": alignment(matrices).T,
        "eigenvalues": eigenvalues(ground, taken.weights[::thin], progress),
        "eigenvalues_at": taken.at[::thin],
    }
    result: dict[str, Any] = plain(found)
    return result


@np.errstate(all="ignore")  # of weights that ran away
def eigenvalues(ground: Ground, weights: Ensemble, progress: Advance | None = None) -> Float:
    """The largest few eigenvalues of the Hessian, `[which, network]`.

    Of few weights from the whole matrix, a column for each; of many by SciPy's Lanczos iterations.
    NaN where the weights are too large for numbers. Progress is told as of one more run.
    """
    size = ground.network.parameters
    tell, steps = progress or (lambda done: None), ground.setting.steps
    if size > _SMALL:
        rows = []
        for i in range(len(weights)):
            rows.append(_largest(ground, weights[i : i + 1], tell))
            tell(steps // len(weights))
        return np.stack(rows, axis=1)
    hessian = hessian_at(ground.samples, weights)
    matrix = np.empty((len(weights), size, size))
    unit = np.zeros((len(weights), size))
    for j in range(size):
        unit[:, j] = 1.0
        matrix[:, :, j] = hessian.lift(hessian.product(hessian.restrict(unit)))
        unit[:, j] = 0.0
        tell(steps * (j + 1) // size - steps * j // size)
    kept = np.isfinite(matrix).all(axis=(1, 2))
    matrix[~kept] = 0.0
    found = np.linalg.eigvalsh(0.5 * (matrix + matrix.transpose(0, 2, 1)))
    return np.where(kept, found[:, ::-1][:, :EIGENVALUES].T, np.nan)


def _largest(ground: Ground, weights: Ensemble, progress: Advance) -> Float:
    """Of one network."""
    size = ground.network.parameters
    hessian = HessianOperator(hessian_at(ground.samples, weights), size).to_scipy()

    def product(vector: Float) -> Float:
        progress(0)
        found: Float = hessian @ vector
        return found

    operator = LinearOperator((size, size), matvec=product, dtype=float)
    start = generator(0, "eigenvalues").standard_normal(size)
    try:
        found = eigsh(operator, EIGENVALUES, which="LA", v0=start, tol=_TOLERANCE)[0]
    except ArpackError:
        return np.full(EIGENVALUES, np.nan)
    return np.sort(found)[::-1]


def ledger(ground: Ground, until: int, progress: Advance | None = None) -> list[dict[str, Any]]:
    """Every statement of the theory on the run so far: one row each.

    A run whose rate was changed is judged by its last stretch of one rate.
    """
    shapes = itertools.pairwise((ground.network.inputs, *ground.network.widths))
    size = sum(a * b * min(a, b) for a, b in shapes) * ground.setting.networks
    if size > _MOST_MEASURED:
        raise SettingError(
            f"the ledger of {ground.setting.networks} networks of {ground.network.parameters} "
            "weights takes too long for the lab: save the run, and flatmin check will take the time"
        )
    now, setting = ground.start(), ground.setting
    initial, beside, rate = now, None, setting.method.learning_rate
    part = segments(setting)[0]
    for part in segments(setting):
        if part.end >= until or part.end == setting.steps:
            break
        steps = part.end - part.begin
        done = advance(ground, now, beside, part.rate, steps, observe_ends=False, progress=progress)
        initial = now = done.ensemble
        beside = done.beside
    rate, steps = part.rate, max(1, until - part.begin)
    method = ground.method(rate)
    watch = Recording(max(1, steps // _ENTRIES), recordable(ground.network))
    outcome = method.run(
        ground.samples, now, steps=steps, recording=watch, threads=1, progress=progress
    )
    evidence = evidence_of(
        ground.samples,
        initial,
        outcome,
        init=setting.initialisation.name,
        scale=setting.initialisation.scale,
        method=method,
    )
    titles = {one.id: one.title for one in STATEMENTS}
    return [
        {
            "statement": record.statement,
            "title": titles[record.statement],
            "verdict": "flow only" if record.flow_only else record.verdict.value,
            "applies": record.networks > 0,
            "slack": plain(record.slack),
            "bound": plain(record.bound),
            "measured": plain(record.measured),
            "at": f"needs {record.why}" if record.why and not record.flow_only else record.at,
        }
        for record in check([evidence]).lines
    ]
