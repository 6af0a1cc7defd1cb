"""Gradients against risk: how fast gradient flow must go down, and that it does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Yes
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.measures import Task, error_of_map
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.invariants import FLOW
from flatmin.ledger.record import Record, at_least, at_most, sandwich
from flatmin.ledger.statement import need, span, statement
from flatmin.theory.roots import root


@statement(
    "Risk and gradient of w",
    {"lower": "|∇R¹(w)|²", "upper": "|∇R¹(w)|²", "identity": "error of the identity"},
    "linear network",
)
def lemma_8(runs: Evidence) -> list[Record]:
    """Lemma 8: R = R_min + |X(w* - w)|^2/n, and

    4 lam (R - R_min) <= |grad R^1(w)|^2 <= 4 Lam (R - R_min).
    """
    need(runs, "not measured", measured=["excess_risk", "map_gradient"])
    gradient, excess = runs.trace["map_gradient"][:, :, 0], runs.excess_risk
    largest = runs.regression.largest_eigenvalue
    room = runs.gradient_error(gradient, layers=False) + 4.0 * largest * runs.risk_error(excess)
    records = sandwich(
        4.0 * runs.regression.smallest_eigenvalue * excess,
        gradient**2,
        4.0 * largest * excess,
        place=runs.place("entry", "network"),
        room=room,
    )
    return records if runs.samples is None else [*records, _identity(runs, runs.samples)]


def _identity(runs: Evidence, samples: Samples) -> Record:
    """The identity of Lemma 8 at the initial weights, from the rows themselves."""
    excess = runs.excess_risk[0]
    error = error_of_map(runs.layers, Task.of(runs.regression, runs.initial.architecture))
    maps = error + np.atleast_2d(runs.regression.w_star.T)
    y = samples.y.reshape(samples.n, -1)
    risk = np.mean(np.sum((y - samples.X @ maps.transpose(0, 2, 1)) ** 2, axis=2), axis=1)
    size = np.mean(np.sum(y**2, axis=1)) + risk
    return at_most(
        np.abs(risk - runs.regression.risk_min - excess),
        EPSILON * samples.n * runs.regression.d * size,
        part="identity",
        place=runs.place("network"),
        note="the bound is rounding; the risk is taken from the rows",
    )


@statement("Gradient between two products", "|∇_k R|²", "linear network")
def gradient_sandwich(runs: Evidence) -> list[Record]:
    """Section 5: for every layer, with Pi_{L:k} = W_L...W_k and Pi_{k:1} = W_k...W_1,

    4 lam |p|^2 smin(Pi_{L:k+1})^2 smin(Pi_{k-1:1})^2 (R - R_min)  <=  |grad_k|_F^2
                             <=  4 Lam |p|^2 |Pi_{L:k+1}|^2 |Pi_{k-1:1}|^2 (R - R_min).
    """
    names = ["layer_gradient", "gradient_floor", "gradient_ceiling"]
    need(runs, "not measured", measured=["excess_risk", *names])
    gradient, floor, ceiling = (runs.trace[name] for name in names)
    return sandwich(
        floor**2,
        gradient**2,
        ceiling**2,
        place=runs.place("entry", "network", "layer"),
        # Both sides hold the same error of w.
        room=2.0 * runs.gradient_error(gradient),
    )


def a1(runs: Evidence) -> tuple[Yes, str]:
    """(A1): R(W(0)) <= R_0 and grad R(W(0)) != 0; which runs meet it, and the numbers."""
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


@statement(
    "Polyak-Lojasiewicz inequality", "|∇R|²", "gradient flow, d_L = 1, p = 1, (A1)", flow=True
)
def theorem_3(runs: Evidence) -> Record:
    """Theorem 3: |grad R|^2 >= mu (R - R_min) for t >= 1, with the mu of `pl_constant`.

    The proof works from any time t_0 on with R(W(t_0)) in the place of R(W(1)); t_0 is the first
    entry at which t >= 1.
    """
    need(runs, "not measured along flow", plain=True, measured=["excess_risk", "gradient"])
    excess, gradient = runs.excess_risk, runs.trace["gradient"]
    meets, words = a1(runs)
    mu = np.full(len(runs), np.nan)
    best = np.full(len(runs), np.nan)
    begun = runs.time >= 1.0
    for network in range(len(runs)):
        if begun[:, network].any():
            start = excess[np.argmax(begun[:, network]), network]
            mu[network], best[network] = pl_constant(
                runs.regression, runs.depth, float(runs.epsilon[network]), float(start)
            )
    return at_least(
        gradient**2,
        np.where(begun, mu * excess, np.nan),
        hypothesis=f"gradient flow, d_L = 1, p = 1, {words}",
        applies=(meets & (mu > 0.0) & runs.flow)[None, :],
        room=runs.depth * runs.gradient_error(gradient) + mu * runs.risk_error(excess),
        why=words if not meets.any() else "mu above 0" if begun.any() else "an entry at t >= 1",
        note=f"best mu from {span(mu)}, best C from {span(best)}",
        place=runs.place("entry", "network"),
    )


@statement("Exponential decay", "R - R_min", FLOW, flow=True)
def lemma_7(runs: Evidence) -> list[Record]:
    """Lemma 7: if |grad R|^2 >= mu (R - R_min) from time 0 on, then
    R(t) - R_min <= (R(0) - R_min) exp(-mu t) under gradient flow.

    mu is what the paper's proofs use: the least value along the run of the lower side of the
    gradient sandwich, summed over layers. The lemma does not depend on where time begins: it is
    checked from the start of the run, and from where half of the excess risk is gone, since near a
    saddle mu is almost 0.
    """
    names = ["excess_risk", "gradient", "gradient_floor"]
    need(runs, "not measured along flow", measured=names)
    gone = runs.excess_risk <= 0.5 * runs.excess_risk[0]
    records = [_decay(runs, np.zeros(len(runs), dtype=int), "from the start")]
    if gone.any(axis=0).all():
        records.append(_decay(runs, np.argmax(gone, axis=0), "from half the risk"))
    return records


def _held(values: Float) -> Float:
    """Entries that are not there (a step was rejected, or a run has ended) as the one before."""
    entry = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    return np.take_along_axis(values, np.maximum.accumulate(entry, axis=0), axis=0)


def _decay(runs: Evidence, start: NDArray[np.int_], part: str) -> Record:
    """Lemma 7 from entry `start` of each network on."""
    excess, gradient, time = runs.excess_risk, runs.trace["gradient"], runs.time
    networks = np.arange(len(runs))
    later = np.arange(len(time))[:, None] >= start
    floor = np.sum(runs.trace["gradient_floor"] ** 2, axis=2)
    rate = floor / np.where(excess > 0.0, excess, np.nan)
    rate = np.where(later, _held(rate), np.nan)
    mu = np.nanmin(rate, axis=0)
    passed = np.maximum(time - time[start, networks], 0.0)
    # Between two entries the rate may be lower than at both, by as much as it changes across, and
    # so lower than mu: what this may take off the integral of the rate up to each entry.
    lowest = np.minimum(rate[:-1], rate[1:]) - np.abs(np.diff(rate, axis=0))
    missing = np.clip(mu - lowest, 0.0, mu) * np.diff(_held(time), axis=0)
    between = np.vstack([np.zeros(len(runs)), np.nancumsum(missing, axis=0)])
    bound = excess[start, networks] * np.exp(-mu * passed)
    # The integrator's error e moves the risk by at most |grad R| e.
    error = gradient * runs.integration_error + runs.risk_error(excess)
    return at_most(
        np.where(passed > 0.0, excess, np.nan),
        bound,
        part=part,
        hypothesis=f"gradient flow, |grad R|^2 >= mu (R - R_min) with mu = {span(mu)}",
        applies=((mu > 0.0) & runs.flow)[None, :],
        room=error + np.expm1(between) * bound,
        place=runs.place("entry", "network"),
    )
