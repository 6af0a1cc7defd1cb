"""Gradients against risk: how fast gradient flow must go down, and that it does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Yes
from flatmin.data.regression import Regression
from flatmin.dynamics.measures import error_of_map, task
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.invariants import of_flow
from flatmin.ledger.lacks import lacks, span
from flatmin.ledger.record import Record, compare, not_applicable, sandwich
from flatmin.theory.roots import root


def lemma_8(runs: Evidence) -> list[Record]:
    """Lemma 8: R = R_min + |X(w* - w)|^2/n, and

    4 lam (R - R_min) <= |grad R^1(w)|^2 <= 4 Lam (R - R_min).
    """
    gradient, excess = runs.trace.get("map_gradient"), runs.excess_risk
    if gradient is None or excess is None:
        why = lacks(runs, measured=["excess_risk", "map_gradient"])
        return [not_applicable("lemma-8", "linear network", "not measured", why=why)]
    squares = gradient[:, :, 0] ** 2
    largest = runs.regression.largest_eigenvalue
    room = runs.gradient_error(gradient[:, :, 0], layers=False)
    room = room + 4.0 * largest * runs.risk_error(excess)
    records = sandwich(
        "lemma-8",
        4.0 * runs.regression.smallest_eigenvalue * excess,
        squares,
        4.0 * largest * excess,
        hypothesis="linear network",
        place=runs.place("record", "network"),
        network_axis=1,
        room=room,
    )
    return records + _identity(runs)


def _identity(runs: Evidence) -> list[Record]:
    """The identity of Lemma 8 at the initial weights, from the rows themselves."""
    if runs.samples is None or runs.excess_risk is None:
        return []
    excess = runs.excess_risk[0]
    error = error_of_map(runs.layers, task(runs.regression, runs.initial.architecture))
    maps = error + np.atleast_2d(runs.regression.w_star.T)
    y = runs.samples.y.reshape(runs.samples.n, -1)
    risk = np.mean(np.sum((y - runs.samples.X @ maps.transpose(0, 2, 1)) ** 2, axis=2), axis=1)
    size = np.mean(np.sum(y**2, axis=1)) + risk
    return [
        compare(
            "lemma-8",
            np.abs(risk - runs.regression.risk_min - excess),
            EPSILON * runs.samples.n * runs.regression.d * size,
            measured="smaller",
            part="identity",
            hypothesis="linear network",
            place=runs.place("network"),
            note="the bound is rounding; the risk is taken from the rows",
        )
    ]


def gradient_sandwich(runs: Evidence) -> list[Record]:
    """Section 5: for every layer, with Pi_{L:k} = W_L...W_k and Pi_{k:1} = W_k...W_1,

    4 lam |p|^2 smin(Pi_{L:k+1})^2 smin(Pi_{k-1:1})^2 (R - R_min)  <=  |grad_k|_F^2
                             <=  4 Lam |p|^2 |Pi_{L:k+1}|^2 |Pi_{k-1:1}|^2 (R - R_min).
    """
    gradient, excess = runs.trace.get("layer_gradient"), runs.excess_risk
    floor, ceiling = runs.trace.get("gradient_floor"), runs.trace.get("gradient_ceiling")
    if gradient is None or floor is None or ceiling is None or excess is None:
        names = ["excess_risk", "layer_gradient", "gradient_floor", "gradient_ceiling"]
        why = lacks(runs, measured=names)
        return [not_applicable("gradient-sandwich", "linear network", "not measured", why=why)]
    return sandwich(
        "gradient-sandwich",
        floor**2,
        gradient**2,
        ceiling**2,
        hypothesis="linear network",
        place=runs.place("record", "network", "layer"),
        network_axis=1,
        # Both sides hold the same error of w.
        room=2.0 * runs.gradient_error(gradient),
    )


def a1(runs: Evidence) -> tuple[Yes, str]:
    """(A1): R(W(0)) <= R_0 and grad R(W(0)) != 0; which runs meet it, and the numbers."""
    assert runs.excess_risk is not None
    excess, gradient = runs.excess_risk[0], runs.trace["gradient"][0]
    # A layer that is 0 gives R(W(0)) = R_0 up to rounding.
    low = excess <= runs.regression.excess_at_zero + np.ravel(runs.risk_error(runs.excess_risk)[0])
    meets = low & (gradient > 0.0)
    ratio = float(np.max(excess)) / runs.regression.excess_at_zero
    words = f"(A1) (R(W(0)) - R_min)/(R_0 - R_min) = {ratio:.6g} <= 1, gradient not 0"
    return meets, f"{words}: met by {np.count_nonzero(meets)} of {len(runs)}"


def pl_constant(
    regression: Regression, depth: int, epsilon: float, excess: float
) -> tuple[float, float]:
    """Theorem 3: mu and the best C, from R(W(t_0)) - R_min = `excess`.

    mu = 4 lam mu_1 with sqrt(mu_1) = min((C - sqrt(2 eps) L)^{L-1}, kappa / C), where
    kappa = min((R_0 - R(W(t_0))) / (4 Lam |w*|), |w*|), for any C > sqrt(2 eps) L. The first rises
    with C and the second falls, so the best C is where they meet.
    """
    gap = regression.excess_at_zero - excess
    norm = regression.w_star_norm
    kappa = min(gap / (4.0 * regression.largest_eigenvalue * norm), norm)
    least = np.sqrt(2.0 * epsilon) * depth
    if not kappa > 0.0:
        return 0.0, float(least)

    if depth == 1:
        best = float(max(kappa, least))
    else:
        # They have met where (C - sqrt(2 eps) L)^L = kappa.
        high = float(least + kappa ** (1.0 / depth))
        best = root(lambda c: float((c - least) ** (depth - 1) * c - kappa), float(least), high)
    lesser = min((best - least) ** (depth - 1), kappa / best)
    return float(4.0 * regression.smallest_eigenvalue * lesser**2), best


def theorem_3(runs: Evidence) -> list[Record]:
    """Theorem 3: |grad R|^2 >= mu (R - R_min) for t >= 1, with the mu of `pl_constant`.

    The proof works from any time t_0 on with R(W(t_0)) in the place of R(W(1)); t_0 is the first
    record at which t >= 1.
    """
    hypothesis = "gradient flow, d_L = 1, p = 1, (A1)"
    time = runs.time
    if not runs.plain or time is None or not {"excess_risk", "gradient"} <= set(runs.trace):
        why = lacks(runs, plain=True, measured=["excess_risk", "gradient"])
        return [not_applicable("theorem-3", hypothesis, "not measured along flow", why=why)]
    excess, gradient = runs.excess_risk, runs.trace["gradient"]
    assert excess is not None
    meets, words = a1(runs)
    mu = np.full(len(runs), np.nan)
    best = np.full(len(runs), np.nan)
    begun = time >= 1.0
    for network in range(len(runs)):
        if begun[:, network].any():
            start = excess[np.argmax(begun[:, network]), network]
            mu[network], best[network] = pl_constant(
                runs.regression, runs.depth, float(runs.epsilon[network]), float(start)
            )
    return [
        compare(
            "theorem-3",
            np.where(begun, mu * excess, np.nan),
            gradient**2,
            measured="larger",
            hypothesis=f"gradient flow, d_L = 1, p = 1, {words}",
            applies=(meets & (mu > 0.0) & runs.flow)[None, :],
            room=runs.depth * runs.gradient_error(gradient) + mu * runs.risk_error(excess),
            why=words if not meets.any() else "mu above 0" if begun.any() else "a record at t >= 1",
            note=f"best mu from {span(mu)}, best C from {span(best)}",
            **of_flow(runs, "record", "network"),
        )
    ]


def lemma_7(runs: Evidence) -> list[Record]:
    """Lemma 7: if |grad R|^2 >= mu (R - R_min) from time 0 on, then
    R(t) - R_min <= (R(0) - R_min) exp(-mu t) under gradient flow.

    mu is what the paper's proofs use: the least value along the run of the lower side of the
    gradient sandwich, summed over layers. The lemma does not depend on where time begins: it is
    checked from the start of the run, and from where half of the excess risk is gone, since near a
    saddle mu is almost 0.
    """
    hypothesis = "gradient flow of a linear network"
    if runs.time is None or not {"excess_risk", "gradient", "gradient_floor"} <= set(runs.trace):
        why = lacks(runs, measured=["excess_risk", "gradient", "gradient_floor"])
        return [not_applicable("lemma-7", hypothesis, "not measured along flow", why=why)]
    assert runs.excess_risk is not None
    gone = runs.excess_risk <= 0.5 * runs.excess_risk[0]
    records = [_decay(runs, np.zeros(len(runs), dtype=int), "from the start")]
    if gone.any(axis=0).all():
        records.append(_decay(runs, np.argmax(gone, axis=0), "from half the risk"))
    return records


def _held(values: Float) -> Float:
    """Records that are not there (a step was rejected, or a run has ended) as the one before."""
    record = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    return np.take_along_axis(values, np.maximum.accumulate(record, axis=0), axis=0)


def _decay(runs: Evidence, start: NDArray[np.int_], part: str) -> Record:
    """Lemma 7 from record `start` of each network on."""
    excess, gradient, time = runs.excess_risk, runs.trace["gradient"], runs.time
    assert excess is not None
    assert time is not None
    networks = np.arange(len(runs))
    later = np.arange(len(time))[:, None] >= start
    floor = np.sum(runs.trace["gradient_floor"] ** 2, axis=2)
    rate = floor / np.where(excess > 0.0, excess, np.nan)
    rate = np.where(later, _held(rate), np.nan)
    mu = np.nanmin(rate, axis=0)
    passed = np.maximum(time - time[start, networks], 0.0)
    # Between two records the rate may be lower than at both, by as much as it changes across, and
    # so lower than mu: what this may take off the integral of the rate up to each record.
    lowest = np.minimum(rate[:-1], rate[1:]) - np.abs(np.diff(rate, axis=0))
    missing = np.clip(mu - lowest, 0.0, mu) * np.diff(_held(time), axis=0)
    between = np.vstack([np.zeros(len(runs)), np.nancumsum(missing, axis=0)])
    bound = excess[start, networks] * np.exp(-mu * passed)
    # The integrator's error e moves the risk by at most |grad R| e.
    error = np.zeros(len(runs)) if runs.error is None else runs.error
    return compare(
        "lemma-7",
        np.where(passed > 0.0, excess, np.nan),
        bound,
        measured="smaller",
        part=part,
        hypothesis=f"gradient flow, |grad R|^2 >= mu (R - R_min) with mu = {span(mu)}",
        applies=((mu > 0.0) & runs.flow)[None, :],
        room=gradient * error + runs.risk_error(excess) + np.expm1(between) * bound,
        **of_flow(runs, "record", "network"),
    )
