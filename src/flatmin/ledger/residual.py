"""Gradient flow from residual initialisation: constants that must not grow with L or d.

The constants of Theorems 4 and 5 and of Corollary 3 are not given, so the statements are checked
as what they say. A quantity that is bounded in L cannot grow by as much every time L is doubled:
with means x_1, x_2, x_3 at sizes L_1 < L_2 < L_3,

    x_3 <= max(x_1, x_2) + r max(x_2 - x_1, 0),   r = log(L_3/L_2) / log(L_2/L_1),

which fails for any power of L and is an equality for its logarithm; r = 1 if L is doubled twice.
The room is the half-width of a 99 % confidence interval over data sets (Student's); with fewer than
three of them the constant is shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Yes
from flatmin.core.statistics import mean_half_width
from flatmin.data.regression import Regression
from flatmin.ledger.evidence import Evidence, largest_error
from flatmin.ledger.gist import Gist, Sweep
from flatmin.ledger.record import Record, at_least, at_most
from flatmin.ledger.statement import NotApplicable, lacks, need, statement

Measure = Callable[[Evidence], Float | None]

# A run stands still if its gradient has fallen to this share of what it was.
STILL = 1e-6
# Data sets without which a spread between sizes says nothing.
LEAST_DATA = 3
WORDS = "gradient flow from residual initialisation"
_THETA = {"converges": "arrived", "bounded": "max_k |θ_k|"}


def theta_norm(runs: Evidence) -> Float | None:
    """max_k |theta_k|_F at the end, with W_k = W_k(0) + theta_k / L."""
    theta = runs.last.get("theta")
    if theta is None and "theta" in runs.trace:
        theta = runs.last_recorded("theta")
    return None if theta is None else np.max(theta, axis=1)


def sharpness_ratio(runs: Evidence) -> Float:
    """(S/S_min) / (Lam/lam) of the runs that found a minimiser."""
    ratio = runs.sharpness / runs.minimal_sharpness / runs.regression.condition_number
    return np.where(runs.settled, ratio, np.nan)


def _size(gist: Gist, letter: str) -> int:
    return gist.depth if letter == "L" else gist.regression.d


def _no_growth(name: str, gists: Sequence[Gist]) -> list[Record]:
    """One record for each size that was doubled twice and kind of start, with or without noise."""
    ratios = [_start_ratio(gist.start, gist.regression, gist.output_norm) for gist in gists]
    records, words = [], _hypothesis(ratios)
    for kind, noisy in (("with noise", True), ("without noise", False)):
        starts = [gist for gist in gists if (gist.scale > 0.0) == noisy]
        for letter, other in (("L", "d"), ("d", "L")):
            # Runs that differ in one size only.
            groups: dict[object, list[Gist]] = {}
            for gist in starts:
                groups.setdefault((_size(gist, other), gist.scale, gist.flow), []).append(gist)
            for group in groups.values():
                table = _table(group, letter)
                if len(table) >= 3:
                    errors = [gist.error for gist in group if gist.error is not None]
                    part: dict[str, Any] = {"part": f"bounded in {letter}, {kind}"}
                    part |= {"hypothesis": words, "error": max(errors, default=None)}
                    records.append(_doubling(name, letter, table, group[0].flow, part))
    return records


def _table(group: Sequence[Gist], letter: str) -> dict[int, list[float]]:
    """size -> the mean over networks, one number per data set, data sets in the order given."""
    table: dict[int, list[float]] = {}
    for gist in sorted(group, key=lambda gist: _size(gist, letter)):
        if gist.sums.count:
            table.setdefault(_size(gist, letter), []).append(gist.sums.mean)
    return table


def _doubling(
    name: str, letter: str, table: dict[int, list[float]], flow: bool, fields: dict[str, Any]
) -> Record:
    """x_3 <= max(x_1, x_2) + r max(x_2 - x_1, 0) for the means at any three sizes in a row.

    Data set number i is paired across sizes (for a sweep of L it is the same data set).
    """
    sizes = list(table)
    count = min(len(values) for values in table.values())
    x = np.array([values[:count] for values in table.values()])
    means, bound, room = x.mean(axis=1), np.full(len(x), np.nan), np.zeros(len(x))
    gaps = np.diff(np.log(sizes))
    for i in range(2, len(x)):
        rise = gaps[i - 1] / gaps[i - 2] * (x[i - 1] - x[i - 2])
        limit = x[i - 1] + rise if means[i - 1] > means[i - 2] else x[i - 2]
        bound[i], room[i] = limit.mean(), mean_half_width(x[i] - limit, 0.99)
    listed = ", ".join(f"{mean:.4g} at {size}" for size, mean in zip(sizes, means, strict=True))
    return at_most(
        means,
        bound,
        room=room,
        applies=flow and count >= LEAST_DATA,
        why=f"{LEAST_DATA} data sets or more (here {count})",
        flow_only=not flow,
        place=lambda index: f"{letter} = {sizes[index[0]]}",
        x=sizes,
        x_name=letter,
        note=f"constant measured: {name} by {letter}: {listed}",
        **fields,
    )


def _start_ratio(start: float | None, data: Regression, output_norm: float) -> float:
    """(R(W(0)) - R_min) Lam/(lam |p|)^2, which must be small; NaN where it was not recorded."""
    if start is None:
        return np.nan
    return start * data.largest_eigenvalue / (data.smallest_eigenvalue * output_norm) ** 2


def _hypothesis(ratios: Sequence[float]) -> str:
    """The hypothesis with the number that must be small: C_4 is not given in numbers."""
    known = [ratio for ratio in ratios if not np.isnan(ratio)]
    if not known:
        return WORDS
    return f"{WORDS}, (R(W(0)) - R_min) Lam/(lam |p|)^2 <= {max(known):.3g}"


def _sweep(one_output: bool, name: str, measure: Measure) -> Sweep:
    """That a measure of runs from residual initialisation does not grow."""

    def key(runs: Evidence) -> object:
        fits = runs.linear and runs.init == "residual" and runs.one_output == one_output
        return runs.subject if fits else None

    return Sweep(key, measure, partial(_no_growth, name))


@statement(
    "Residual flow converges", _THETA, WORDS, sweep=_sweep(True, "max |theta_k|", theta_norm)
)
def theorem_4(runs: Evidence) -> list[Record]:
    """Theorem 4: from W_k(0) = I + s/sqrt(Ld) N_k with R(W(0)) - R_min small, gradient flow
    converges to W_k(0) + theta_k/L with |theta_k|_F bounded by a number that depends on s only."""
    need(runs, one_output=True, inits=["residual"])
    return list(map(_converges, _by_scale(runs)))


@statement("Several outputs", _THETA, WORDS, sweep=_sweep(False, "max |theta_k|", theta_norm))
def theorem_5(runs: Evidence) -> list[Record]:
    """Theorem 5: Theorem 4 for several outputs, P = W_L...W_1 without p."""
    need(runs)
    if runs.one_output:
        raise NotApplicable("several outputs (here 1)")
    need(runs, inits=["residual"])
    return list(map(_converges, _by_scale(runs)))


@statement(
    "Sharpness, residual start",
    {"lower": "sharpness S", "bounded": "(S/S_min) / (Λ/λ)"},
    WORDS,
    sweep=_sweep(True, "C", sharpness_ratio),
)
def corollary_3(runs: Evidence) -> list[Record]:
    """Corollary 3: 1 <= S/S_min <= C Lam/lam with C depending on s only."""
    need(runs, one_output=True, inits=["residual"])
    return [
        at_least(
            some.sharpness,
            some.minimal_sharpness,
            part="lower",
            applies=some.settled & some.regression.full_rank & some.flow,
            why=lacks(some, minimiser=True)
            or f"Sigma of full rank (here {some.regression.rank} of {some.regression.d})",
            room=some.minimiser_room,
            **_of_flow(some),
        )
        for some in _by_scale(runs)
    ]


def _of_flow(runs: Evidence) -> dict[str, Any]:
    """What a comparison of runs that is about gradient flow says."""
    common = {"place": runs.place("network"), "flow_only": not runs.flow}
    start = float(np.max(runs.excess_risk[0])) if "excess_risk" in runs.trace else None
    words = _hypothesis([_start_ratio(start, runs.regression, runs.output_norm)])
    return common | {"error": largest_error(runs), "hypothesis": words}


def _by_scale(runs: Evidence) -> list[Evidence]:
    """Runs of one scale s together."""
    return [runs.some(runs.scale == s) for s in np.unique(runs.scale)]


def _converges(runs: Evidence) -> Record:
    meets, why = _near(runs)
    return at_least(
        _arrived(runs),
        1.0,
        part="converges",
        applies=meets & runs.flow,
        why=why,
        **_of_flow(runs),
        note="1 if gradient flow arrived at a minimiser, 0 if it stands still elsewhere",
    )


def _arrived(runs: Evidence) -> Float:
    """1 at a minimiser, 0 at rest elsewhere; NaN for a run that was ended on its way."""
    found = np.where(runs.settled, 1.0, np.nan)
    gradient = runs.trace.get("gradient", np.empty((0, len(runs))))
    for network in np.flatnonzero(~runs.settled):
        known = gradient[np.isfinite(gradient[:, network]), network]
        if len(known) and known[-1] <= STILL * known[0]:
            found[network] = 0.0
    return found


def _near(runs: Evidence) -> tuple[Yes, str]:
    """Which runs begin below every saddle, so that gradient flow cannot end at one; and if none
    does, why.

    C_4 is not given; this much is needed. At a critical point that is no minimiser the map lacks a
    direction of P* Sigma^{1/2}, which costs at least its smallest singular value squared.
    """
    if "excess_risk" not in runs.trace:
        return np.zeros(len(runs), dtype=bool), lacks(runs, measured=["excess_risk"])
    start = runs.excess_risk[0]
    saddle = np.linalg.svd(np.atleast_2d(runs.regression.q.T), compute_uv=False)[-1] ** 2
    below = f"R(W(0)) - R_min below every saddle's, {saddle:.3g}"
    return np.asarray(start < saddle), f"{below} (here {np.min(start):.3g} or more)"
