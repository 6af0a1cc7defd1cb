"""Gradient descent with a finite step: where it can settle."""

from __future__ import annotations

import numpy as np

from flatmin.curvature import sharpness
from flatmin.dynamics.descent import descend
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.flatness import minimiser
from flatmin.ledger.record import Record, at_least, at_most, sandwich
from flatmin.ledger.statement import NotApplicable, need, statement
from flatmin.network.ensemble import Ensemble

# The rates tried, as multiples of 2/S; the kick, as a share of |W|; and how long it is followed.
MULTIPLES = np.array([0.95, 1.05])
KICK = 1e-7
STEPS = 60


@statement("S_min <= S <= 2/eta", "sharpness S", "gradient descent that settled")
def edge(runs: Evidence) -> list[Record]:
    """The talk: after gradient descent has settled, S_min <= S(W) <= 2/eta.

    Of another method than gradient descent the right side is its own edge (`dynamics.methods`).
    """
    if runs.edge is None:
        raise NotApplicable("gradient descent; this is gradient flow")
    count = f"{np.count_nonzero(runs.settled)} of {len(runs)} runs"
    records = sandwich(
        runs.minimal_sharpness if runs.linear else np.nan,
        runs.sharpness,
        runs.edge,
        hypothesis=f"gradient descent that settled: {count}",
        applies=runs.settled,
        room=runs.minimiser_room,
        place=runs.place("network"),
    )
    return records if runs.linear else records[1:]


@statement(
    "Stable only below 2/eta", "growth a step", "a minimiser of a linear network, one output"
)
def linear_stability(runs: Evidence) -> list[Record]:
    """Section 1: a minimiser is linearly stable for gradient descent only if eta <= 2/S.

    A minimiser is kicked along its top eigenvector v and followed at rates on both sides of 2/S:
    the distance along v is multiplied by |1 - eta S| a step, more than 1 above and less below.
    """
    need(runs, one_output=True, minimiser=True)
    architecture = runs.initial.architecture
    start = architecture.join(minimiser(runs))[None]
    top = sharpness(runs.regression, Ensemble.from_flat(architecture, start), tolerance=1e-10)[0]
    kick = KICK * float(np.linalg.norm(start))
    pushed = np.repeat(start + kick * top.vector[None], len(MULTIPLES), axis=0)
    rates = MULTIPLES * 2.0 / top.value
    after = descend(
        runs.regression, Ensemble.from_flat(architecture, pushed), rates, STEPS, tolerance=1e-300
    )
    moved = np.abs((after.ensemble.flat() - start) @ top.vector)
    growth = (moved / kick) ** (1.0 / STEPS)
    predicted = np.abs(1.0 - rates * top.value)
    return [
        compared(
            growth[i : i + 1],
            1.0,
            part=part,
            hypothesis=f"a minimiser with S = {top.value:.4g}, kicked along its top eigenvector",
            place=runs.place(),
            note=f"growth a step at {MULTIPLES[i]} of 2/S; |1 - eta S| = {predicted[i]:.4g}",
        )
        for i, (compared, part) in enumerate(
            ((at_most, "below 2/S it returns"), (at_least, "above 2/S it leaves"))
        )
    ]
