"""Where gradient flow from small weights ends (d_L = 1 and p = 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Yes
from flatmin.core.statistics import difference_half_width
from flatmin.ledger.convergence import a1
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.gist import Gist, Sweep
from flatmin.ledger.record import Record, at_least, at_most, sandwich
from flatmin.ledger.statement import NotApplicable, lacks, need, statement
from flatmin.theory.minimal_sharpness import corollary_2_bound
from flatmin.theory.minimal_sharpness import vanishing_scale_limit as limit_of

# Initialisations whose weights are proportional to their scale.
SMALL = ("gaussian", "zero-layer", "balanced")
HYPOTHESIS = "gradient flow, d_L = 1, p = 1, (A1), (A2)"


def a2(runs: Evidence) -> tuple[Yes, str]:
    """(A2): Sigma full rank, eps <= 1, |w*| >= 1, 32 L sqrt(eps) <= 1."""
    data, epsilon = runs.regression, runs.epsilon
    norm = data.w_star_norm
    scaled = 32.0 * runs.depth * np.sqrt(epsilon)
    # |w*| = 1 by construction in the paper's data: rounding must not decide.
    large = norm >= 1.0 - 10.0 * data.d * EPSILON
    meets = (epsilon <= 1.0) & (scaled <= 1.0) & large & data.full_rank
    words = (
        f"(A2) rank {data.rank} of {data.d}, |w*| = {norm:.4g} >= 1, eps <= {epsilon.max():.3g}, "
        f"32 L sqrt(eps) <= {scaled.max():.3g}"
    )
    return np.asarray(meets), f"{words}: met by {np.count_nonzero(meets)} of {len(runs)}"


def assumptions(runs: Evidence) -> tuple[Yes, str, str]:
    """(A1) and (A2), on runs of gradient flow that settled; which, the words, and what fails."""
    first, one = a1(runs)
    second, two = a2(runs)
    why = one if not first.any() else two if not second.any() else lacks(runs, minimiser=True)
    met = first & second & runs.settled & runs.flow
    return np.asarray(met), f"gradient flow, {one}; {two}", why


@statement("Layer norms at the end", "largest singular value σ_k", HYPOTHESIS, flow=True)
def corollary_1(runs: Evidence) -> list[Record]:
    """Corollary 1: from some time on, (|w*|/2)^{1/L} <= sigma_k <= (2 |w*|)^{1/L}."""
    need(runs, plain=True, measured=["excess_risk", "gradient"], final=["spectral_norm"])
    meets, words, why = assumptions(runs)
    norm, share = runs.regression.w_star_norm, 1.0 / runs.depth
    return sandwich(
        (norm / 2.0) ** share,
        runs.last["spectral_norm"],
        (2.0 * norm) ** share,
        hypothesis=words,
        why=why,
        applies=meets[:, None],
        note="at the end of training",
        place=runs.place("network", "layer"),
    )


@statement("Sharpness, small start", "sharpness S", HYPOTHESIS, flow=True)
def corollary_2(runs: Evidence) -> list[Record]:
    """Corollary 2: 1 <= S/S_min <= 4 Lam/lam at the end, through S <= 8 L Lam |w*|^{2-2/L}."""
    need(runs, plain=True, measured=["excess_risk", "gradient"])
    meets, words, why = assumptions(runs)
    data = runs.regression
    common: dict[str, Any] = {"hypothesis": words, "why": why, "applies": meets}
    common |= {"room": runs.minimiser_room, "place": runs.place("network")}
    least, found = runs.minimal_sharpness, runs.sharpness
    return [
        at_least(found, least, part="lower", **common),
        at_most(found, 4.0 * data.condition_number * least, part="ratio", **common),
        at_most(found, corollary_2_bound(data, runs.depth), part="value", **common),
    ]


def limit_distance(runs: Evidence) -> Float:
    """|S/limit - 1| of the runs that found a minimiser."""
    distance = np.abs(runs.sharpness / limit_of(runs.regression, runs.depth) - 1.0)
    return np.where(runs.settled, distance, np.nan)


def _same_limit(runs: Evidence) -> object:
    """Runs of one limit together: on the same data, as deep."""
    if not runs.plain or runs.init not in SMALL:
        return None
    return runs.regression.w_star.tobytes(), runs.depth


def _nearer(gists: Sequence[Gist]) -> list[Record]:
    """One record for each data set and depth with two scales of two runs or more."""
    groups: dict[object, list[Gist]] = {}
    for gist in gists:
        key = gist.regression.w_star.tobytes(), gist.depth, gist.flow
        groups.setdefault(key, []).append(gist)
    return [record for group in groups.values() for record in _limit(group)]


def _limit(group: Sequence[Gist]) -> list[Record]:
    first, room = group[0], max(gist.room for gist in group)
    limit = limit_of(first.regression, first.depth)
    counted = sorted((g for g in group if g.sums.count > 1), key=lambda gist: gist.scale)
    if len(counted) < 2:
        return []
    scales = np.array([gist.scale for gist in counted])
    distance = np.array([gist.sums.mean for gist in counted])
    unsure = [
        difference_half_width((a.deviation, b.deviation), (a.count, b.count), confidence=0.99)
        for a, b in pairwise(gist.sums for gist in counted)
    ]
    rate = np.polyfit(np.log(scales), np.log(np.maximum(distance, EPSILON)), 1)[0]
    listed = ", ".join(f"{d:.2g} at {s:.3g}" for s, d in zip(scales, distance, strict=True))
    record = at_most(
        distance[:-1],
        distance[1:],
        room=np.array(unsure) + room / limit,
        applies=first.flow,
        flow_only=not first.flow,
        error=max((gist.error for gist in group if gist.error is not None), default=None),
        place=lambda index: f"depth {first.depth}, scale {scales[index[0]]:.3g}",
        x=scales[:-1],
        x_name="initial scale",
        note=f"|S/limit - 1| is {listed}: about scale^{rate:.2g}",
    )
    return [record]


@statement(
    "Where tiny weights end",
    "|S/limit - 1|",
    "gradient flow from small weights at several scales, d_L = 1, p = 1",
    sweep=Sweep(_same_limit, limit_distance, _nearer),
)
def vanishing_scale_limit(runs: Evidence) -> list[Record]:
    """As the initial scale tends to 0, S tends to 2 t_0 lambda_max(Sigma + (L-1) z z').

    A limit has no rate, so it is checked as what it says: on the same data and depth, the mean
    distance |S/limit - 1| at each scale is less than at the next larger one. Besides the errors of
    the sharpness, the room is the half-width of a 99 % confidence interval of the difference of the
    two means (Welch's), so that a scale needs two networks.
    """
    several = "two initial scales or more, with two runs each that reached a minimiser"
    raise NotApplicable(lacks(runs, plain=True, inits=SMALL) or several, "one scale only")
