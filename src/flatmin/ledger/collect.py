"""Evidence from runs in memory: the outcome of a flow or a descent, measured at its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.curvature import Sharpness, sharpness
from flatmin.data.samples import Problem, Samples
from flatmin.dynamics.endings import State
from flatmin.dynamics.measures import LAYER_MEASURES, Task
from flatmin.dynamics.methods import GradientFlow, Method
from flatmin.dynamics.outcome import Outcome
from flatmin.ledger.evidence import Evidence
from flatmin.network.ensemble import Ensemble

# What is measured of the final weights.
LAST = ("spectral_norm", "rank_one_defect", "alignment", "drift", "theta")


def evidence_of(
    problem: Problem,
    initial: Ensemble,
    outcome: Outcome,
    *,
    init: str,
    scale: Any,
    method: Method | None = None,
    names: Any = (),
    found: Sharpness | None = None,
) -> Evidence:
    """What an outcome of a method, gradient flow if not given, shows; without diverged runs.

    `found` is the sharpness of the final weights, where it is known.
    """
    regression = problem.regression()
    architecture, count = initial.architecture, len(initial)
    kept = np.asarray(outcome.state != State.DIVERGED.value)
    flat = np.where(kept[:, None], outcome.ensemble.flat(), 0.0)
    final = Ensemble.from_flat(architecture, flat)
    found = sharpness(problem, final, tolerance=1e-10) if found is None else found
    task = Task.of(regression, architecture)
    layers, start = final.weights(), initial.weights()
    recorded = outcome.recorded
    trace = {} if recorded is None else dict(recorded.values)
    if recorded is not None and "time" not in trace:  # of a descent
        trace["step"] = np.repeat(recorded.step[:, None].astype(float), count, axis=1)
    runs = Evidence(
        regression=regression,
        initial=initial,
        init=init,
        scale=np.broadcast_to(np.asarray(scale, dtype=float), (count,)).copy(),
        settled=outcome.settled,
        steps=outcome.steps.astype(float),
        excess=np.where(kept, outcome.excess_risk, np.nan),
        sharpness=np.atleast_1d(found.value),
        residual=np.atleast_1d(found.residual),
        trace=trace,
        last={name: LAYER_MEASURES[name](layers, start, task) for name in LAST},
        method=method or GradientFlow(),
        error=outcome.extras.get("error"),
        final=final,
        samples=problem if isinstance(problem, Samples) else None,
        names=names,
    )
    return runs if kept.all() else runs.some(kept)
