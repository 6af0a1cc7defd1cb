"""Gradient descent instead of flow: how far statements about flow are missed, and at what rate.

Gradient descent with step eta follows the flow with an error of order eta: per step it moves the
invariants of Lemma 1 by eta^2 (grad_{k+1}' grad_{k+1} - grad_k grad_k'). Where runs have one rate
only, the same initial weights are trained again at it, one half and one quarter of it, for as long
in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
# entries at the same times; and the largest number of steps repeated.
MOST_RATES = 6
SHARES = (1.0, 0.5, 0.25)
ENTRIES = 100
MOST_STEPS = 1_000_000
# Networks repeated at once, for the memory of their traces.
REPEATED = 1024


def rate_notes(runs: Evidence | None) -> dict[tuple[str, str], str]:
    """(statement, part) -> how it is missed as eta grows, for statements about flow.

    `runs` are those that `better_sample` chose.
    """
    found: dict[tuple[str, str], dict[float, Record]] = {}
    about_flow = [statement for statement in STATEMENTS if statement.flow]
    for rate, parts in sorted(_by_rate(runs).items()) if runs is not None else ():
        cases = map(as_flow, parts)
        for record in merge(r for one in cases for statement in about_flow for r in statement(one)):
            # Where another hypothesis fails, eta is not to blame.
            if record.verdict is not Verdict.NOT_APPLICABLE:
                found.setdefault((record.statement, record.part), {})[rate] = record
    return {key: _note(records) for key, records in found.items() if len(records) > 1}


def better_sample(before: Evidence | None, runs: Evidence) -> Evidence | None:
    """Runs that differ in their rate only (one data set, architecture and initial scale): those
    of the largest number of rates, `before` if there are not more."""
    if runs.method.name != "descent" or not runs.linear:  # which it is repeated by
        return before
    for scale in np.unique(runs.scale):
        chosen = runs.scale == scale
        assert runs.learning_rate is not None
        if before is None or len(np.unique(runs.learning_rate[chosen])) > len(_rates(before)):
            before = runs.some(chosen)
    return before


def _by_rate(runs: Evidence) -> dict[float, Iterable[Evidence]]:
    """The runs at some of their rates; if they have one, repeated at shares of it, in parts."""
    rates = _rates(runs)
    if len(rates) > 1:
        few = np.linspace(0, len(rates) - 1, min(len(rates), MOST_RATES)).astype(int)
        return {float(rate): [runs.some(runs.learning_rate == rate)] for rate in rates[few]}
    if np.max(runs.steps) / min(SHARES) > MOST_STEPS:
        return {}
    return {share * float(rates[0]): _repeats(runs, share) for share in SHARES}


def _repeats(runs: Evidence, share: float) -> Iterator[Evidence]:
    number = np.arange(len(runs)) // REPEATED
    for part in range(number[-1] + 1):
        again = repeated(runs.some(number == part), share)
        if len(again):
            yield again


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
    every = max(1, int(np.max(steps)) // ENTRIES)
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
