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
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Yes
from flatmin.core.statistics import mean_half_width
from flatmin.ledger.evidence import Evidence, largest_error
from flatmin.ledger.record import Record, at_least, at_most
from flatmin.ledger.statement import NotApplicable, lacks, statement

Measure = Callable[[Evidence], Float | None]

SIZES: dict[str, Callable[[Evidence], int]] = {
    "L": lambda runs: runs.depth,
    "d": lambda runs: runs.regression.d,
}

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


@statement("Residual flow converges", _THETA, WORDS, sweep=True)
def theorem_4(cases: Sequence[Evidence]) -> list[Record]:
    """Theorem 4: from W_k(0) = I + s/sqrt(Ld) N_k with R(W(0)) - R_min small, gradient flow
    converges to W_k(0) + theta_k/L with |theta_k|_F bounded by a number that depends on s only."""
    why = lacks(cases[0], one_output=True, inits=["residual"])
    return _bounded_theta(_residual(cases, one_output=True, why=why))


@statement("Several outputs", _THETA, WORDS, sweep=True)
def theorem_5(cases: Sequence[Evidence]) -> list[Record]:
    """Theorem 5: Theorem 4 for several outputs, P = W_L...W_1 without p."""
    several = "several outputs (here 1)" if cases[0].one_output else ""
    why = lacks(cases[0]) or several or lacks(cases[0], inits=["residual"])
    return _bounded_theta(_residual(cases, one_output=False, why=why))


@statement(
    "Sharpness, residual start",
    {"lower": "sharpness S", "bounded": "(S/S_min) / (Λ/λ)"},
    WORDS,
    sweep=True,
)
def corollary_3(cases: Sequence[Evidence]) -> list[Record]:
    """Corollary 3: 1 <= S/S_min <= C Lam/lam with C depending on s only."""
    why = lacks(cases[0], one_output=True, inits=["residual"])
    chosen = _residual(cases, one_output=True, why=why)
    lower = [
        at_least(
            runs.sharpness,
            runs.minimal_sharpness,
            part="lower",
            hypothesis=_hypothesis(chosen),
            applies=runs.settled & runs.regression.full_rank & runs.flow,
            why=lacks(runs, minimiser=True)
            or f"Sigma of full rank (here {runs.regression.rank} of {runs.regression.d})",
            room=runs.minimiser_room,
            **_of_flow(runs),
        )
        for runs in chosen
    ]
    return lower + _no_growth("C", chosen, sharpness_ratio)


def _of_flow(runs: Evidence) -> dict[str, Any]:
    """What a comparison of runs that is about gradient flow says."""
    error = largest_error(runs)
    return {"place": runs.place("network"), "flow_only": not runs.flow, "error": error}


def _bounded_theta(cases: Sequence[Evidence]) -> list[Record]:
    arrived = [
        at_least(
            _arrived(runs),
            1.0,
            part="converges",
            hypothesis=_hypothesis(cases),
            applies=_near(runs)[0] & runs.flow,
            why=_near(runs)[1],
            **_of_flow(runs),
            note="1 if gradient flow arrived at a minimiser, 0 if it stands still elsewhere",
        )
        for runs in cases
    ]
    return arrived + _no_growth("max |theta_k|", cases, theta_norm)


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


def _residual(cases: Sequence[Evidence], one_output: bool, why: str) -> list[Evidence]:
    """Runs from residual initialisation, those of one scale s together; `why` there may be none."""
    chosen = [
        runs
        for runs in cases
        if runs.linear and runs.init == "residual" and runs.one_output == one_output
    ]
    if not chosen:
        raise NotApplicable(why)
    return [runs.some(runs.scale == s) for runs in chosen for s in np.unique(runs.scale)]


def _hypothesis(cases: Sequence[Evidence]) -> str:
    """The hypothesis with the number that must be small: C_4 is not given in numbers."""
    ratios = [
        float(np.max(runs.excess_risk[0]))
        * runs.regression.largest_eigenvalue
        / (runs.regression.smallest_eigenvalue * runs.output_norm) ** 2
        for runs in cases
        if "excess_risk" in runs.trace
    ]
    if not ratios:
        return WORDS
    return f"{WORDS}, (R(W(0)) - R_min) Lam/(lam |p|)^2 <= {max(ratios):.3g}"


def _no_growth(name: str, cases: Sequence[Evidence], measure: Measure) -> list[Record]:
    """One record for each size that was doubled twice and kind of start, with or without noise."""
    records = []
    for kind, noisy in (("with noise", True), ("without noise", False)):
        starts = [runs for runs in cases if bool(np.any(runs.scale > 0.0)) == noisy]
        for letter, other in (("L", "d"), ("d", "L")):
            # Runs that differ in one size only.
            groups: dict[tuple[int, float], list[Evidence]] = {}
            for runs in starts:
                groups.setdefault((SIZES[other](runs), float(runs.scale[0])), []).append(runs)
            for group in groups.values():
                table = _table(group, letter, measure)
                if len(table) >= 3:
                    part = {"part": f"bounded in {letter}, {kind}", "error": largest_error(*group)}
                    part["hypothesis"] = _hypothesis(cases)
                    records.append(_doubling(name, letter, table, cases[0].flow, part))
    return records


def _table(group: Sequence[Evidence], letter: str, measure: Measure) -> dict[int, list[float]]:
    """size -> the mean over networks, one number per data set, data sets in the order given."""
    found: dict[tuple[int, object], list[Float]] = {}
    for runs in sorted(group, key=SIZES[letter]):
        values = measure(runs)
        if values is not None:
            found.setdefault((SIZES[letter](runs), runs.subject), []).append(values)
    table: dict[int, list[float]] = {}
    for (size, _), parts in found.items():
        values = np.concatenate(parts)
        if np.isfinite(values).any():
            table.setdefault(size, []).append(float(np.nanmean(values)))
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
