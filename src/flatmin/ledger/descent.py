"""Gradient descent instead of flow: how far statements about flow are missed, and at what rate.

Gradient descent with step eta follows the flow with an error of order eta: per step it moves the
invariants of Lemma 1 by eta^2 (grad_{k+1}' grad_{k+1} - grad_k grad_k'). Where runs have one rate
only, the same initial weights are trained again at it, one half and one quarter of it, for as long
in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flatmin.core.arrays import Float
from flatmin.dynamics.methods import GradientDescent, GradientFlow
from flatmin.dynamics.recording import Recording
from flatmin.ledger.collect import LAST, evidence_of
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.ledger.statements import STATEMENTS

# Rates that are looked at; shares of the only one at which its runs are repeated, with so many
# records at the same times; and the largest number of steps repeated.
MOST_RATES = 6
SHARES = (1.0, 0.5, 0.25)
RECORDS = 100
MOST_STEPS = 1_000_000


def rate_notes(cases: Sequence[Evidence]) -> dict[tuple[str, str], str]:
    """(statement, part) -> how it is missed as eta grows, for statements about flow."""
    found: dict[tuple[str, str], dict[float, Record]] = {}
    for rate, runs in sorted(_by_rate(cases).items()):
        about_flow = (statement for statement in STATEMENTS if statement.flow)
        for record in merge(r for statement in about_flow for r in statement(as_flow(runs))):
            # Where another hypothesis fails, eta is not to blame.
            if record.verdict is not Verdict.NOT_APPLICABLE:
                found.setdefault((record.statement, record.part), {})[rate] = record
    return {key: _note(records) for key, records in found.items() if len(records) > 1}


def _by_rate(cases: Sequence[Evidence]) -> dict[float, Evidence]:
    """Runs that differ in their rate only: of one data set, architecture and initial scale."""
    groups = [
        runs.some(runs.scale == scale)
        for runs in cases
        if runs.method.name == "descent"  # which it is repeated by
        and runs.linear
        for scale in np.unique(runs.scale)
    ]
    if not groups:
        return {}
    runs = max(groups, key=lambda group: len(_rates(group)))
    rates = _rates(runs)
    if len(rates) > 1:
        few = np.linspace(0, len(rates) - 1, min(len(rates), MOST_RATES)).astype(int)
        return {float(rate): runs.some(runs.learning_rate == rate) for rate in rates[few]}
    if np.max(runs.steps) / min(SHARES) > MOST_STEPS:
        return {}
    again = {share * float(rates[0]): repeated(runs, share) for share in SHARES}
    return {rate: repeat for rate, repeat in again.items() if len(repeat)}


def _rates(runs: Evidence) -> Float:
    assert runs.learning_rate is not None
    return np.unique(runs.learning_rate)


def as_flow(runs: Evidence) -> Evidence:
    """The same measurements, taken for those of gradient flow at time eta times the step."""
    trace = runs.trace | {"time": runs.time} if "step" in runs.trace else runs.trace
    return replace(runs, method=GradientFlow(), trace=trace)


def repeated(runs: Evidence, share: float) -> Evidence:
    """The same initial weights at a share of the learning rate, for as long in time."""
    assert runs.learning_rate is not None
    rates, steps = runs.learning_rate * share, np.maximum(np.ceil(runs.steps / share), 1.0)
    every = max(1, int(np.max(steps)) // RECORDS)
    recording = Recording(every, ("excess_risk", "gradient", "gradient_floor", *LAST))
    method = GradientDescent(rates)
    outcome = method.run(runs.regression, runs.initial, steps=steps, recording=recording)
    return evidence_of(
        runs.regression,
        runs.initial,
        outcome,
        init=runs.init,
        scale=runs.scale,
        method=method,
        names=runs.names,
    )


def _note(records: dict[float, Record]) -> str:
    """By how much a statement is missed at each rate, and the power of eta; else its slack."""
    rates = np.array(list(records))
    measured, bound, slack = (
        np.array([getattr(record, name) for record in records.values()], dtype=float)
        for name in ("measured", "bound", "slack")
    )
    missed = np.where(slack < 0.0, 1.0, -1.0) * np.abs(measured - bound)
    if np.all(missed > 0.0):
        power = np.polyfit(np.log(rates), np.log(missed), 1)[0]
        listed = ", ".join(f"{m:.2g} at {r:.3g}" for r, m in zip(rates, missed, strict=True))
        return f"missed by {listed}: about eta^{power:.2g}"
    listed = ", ".join(f"{s:.2g} at {r:.3g}" for r, s in zip(rates, slack, strict=True))
    return f"slack by eta: {listed}"
