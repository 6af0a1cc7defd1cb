"""Gradient descent with a finite step: where it can settle."""

from __future__ import annotations

import numpy as np

from flatmin.curvature import sharpness
from flatmin.dynamics.descent import descend
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.flatness import minimiser
from flatmin.ledger.lacks import lacks
from flatmin.ledger.record import Record, compare, not_applicable, sandwich
from flatmin.network.ensemble import Ensemble

# The rates tried, as multiples of 2/S; the kick, as a share of |W|; and how long it is followed.
MULTIPLES = np.array([0.95, 1.05])
KICK = 1e-7
STEPS = 60


def edge(runs: Evidence) -> list[Record]:
    """The talk: after gradient descent has settled, S_min <= S(W) <= 2/eta.

    Of another method than gradient descent the right side is its own edge (`dynamics.methods`).
    """
    if runs.edge is None:
        hypothesis = "gradient descent that settled"
        return [not_applicable("edge", hypothesis, why="gradient descent; this is gradient flow")]
    hypothesis = (
        f"gradient descent that settled: {np.count_nonzero(runs.settled)} of {len(runs)} runs"
    )
    linear = runs.initial.architecture.linear
    records = sandwich(
        "edge",
        runs.least_sharpness if linear else np.nan,
        runs.sharpness,
        runs.edge,
        hypothesis=hypothesis,
        applies=runs.settled,
        room=runs.minimiser_room,
        place=runs.place("network"),
    )
    return records if linear else records[1:]


def linear_stability(runs: Evidence) -> list[Record]:
    """Section 1: a minimiser is linearly stable for gradient descent only if eta <= 2/S.

    A minimiser is kicked along its top eigenvector v and followed at rates on both sides of 2/S:
    the distance along v is multiplied by |1 - eta S| a step, more than 1 above and less below.
    """
    if not runs.one_output or not runs.settled.any():
        hypothesis = "a minimiser of a linear network, one output"
        why = lacks(runs, one_output=True, minimiser=True)
        return [not_applicable("linear-stability", hypothesis, why=why)]
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
        compare(
            "linear-stability",
            smaller,
            larger,
            measured=measured,
            part=part,
            hypothesis=f"a minimiser with S = {top.value:.4g}, kicked along its top eigenvector",
            place=lambda index: f"depth {runs.depth}",
            note=f"growth a step at {share} of 2/S; |1 - eta S| = {factor:.4g}",
        )
        for smaller, larger, measured, part, share, factor in (
            (growth[:1], 1.0, "smaller", "below 2/S it returns", MULTIPLES[0], predicted[0]),
            (1.0, growth[1:], "larger", "above 2/S it leaves", MULTIPLES[1], predicted[1]),
        )
    ]
