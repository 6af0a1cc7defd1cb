"""What gradient flow keeps: the balance of neighbouring layers, and what follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.record import Record, at_most
from flatmin.ledger.statement import NotApplicable, lacks, need, statement

FLOW = "gradient flow of a linear network"
PLAIN = f"{FLOW}, d_L = 1 and p = 1"


@statement("Balance is conserved", "drift |D_k(t) - D_k(0)|", FLOW, flow=True)
def lemma_1(runs: Evidence) -> Record:
    """Lemma 1: D_k = W_{k+1}' W_{k+1} - W_k W_k' is constant in time under gradient flow.

    Exact flow conserves D_k from any weights, so errors of the integrator add up and do not grow: a
    local error e moves D_k by at most 2 (|W_k|_2 + |W_{k+1}|_2) |e| + |e|^2. The bound is that sum
    over all steps, with rounding.
    """
    need(runs, "not measured", layers=2, measured=["drift"])
    drift = runs.along("drift")
    assert drift is not None
    # Gradient descent has no integrator: what it conserves is nothing, by eta^2 a step.
    note = "exact flow: 0; the bound is what the integrator's own error explains"
    return at_most(
        drift,
        drift_bound(runs)[None, :, None],
        applies=runs.flow,
        note=note if runs.flow else "",
        place=runs.place("entry", "network", "layer"),
    )


def drift_bound(runs: Evidence) -> Float:
    """The largest drift of D_k that the integrator's local errors and rounding explain."""
    error, norm = runs.integration_error, runs.largest_norm
    rounding = EPSILON * (runs.steps + runs.widest) * 4.0 * runs.widest * norm**2
    return np.asarray(4.0 * norm * error + error**2 + rounding)


@statement(
    "Rank one, equal norms, alignment",
    {
        "equal norms": "max σ_k² - min σ_k²",
        "rank one": "|W_k|² (Frobenius) - σ_k²",
        "alignment": "1 - <v_{k+1}, u_k>²",
    },
    PLAIN,
    flow=True,
)
def lemma_2(runs: Evidence) -> list[Record]:
    """Lemma 2, at all times of gradient flow, with eps from the initial weights:

    |W_k|_F^2 - |W_k|_2^2 <= eps,   |sigma_k^2 - sigma_j^2| <= eps,
    1 - <v_{k+1}, u_k>^2 <= eps / sigma_{k+1}^2.

    The proof adds up |D_k|_2 and |tr D_k|; what the D_k have drifted is the room.
    """
    norms, aligned = runs.along("spectral_norm"), runs.along("alignment")
    why = lacks(runs, plain=True, measured=["spectral_norm"])
    if norms is None or not runs.linear:
        raise NotApplicable(why, "not measured")
    squares = norms**2
    with np.errstate(divide="ignore"):
        inverse = 1.0 / squares[:, :, 1:]
    # part -> what is measured, and what multiplies eps
    parts: dict[str, tuple[Float | None, Any]] = {
        "equal norms": (np.ptp(squares, axis=2), 1.0),
        "rank one": (runs.along("rank_one_defect"), 1.0),
        "alignment": (None if aligned is None else np.maximum(1.0 - aligned, 0.0), inverse),
    }
    room = (2.0 + np.sqrt(runs.regression.d)) * (runs.depth - 1) * drift_bound(runs)
    return [
        at_most(
            measured,
            _by_network(runs.epsilon, measured) * factor,
            part=part,
            hypothesis=f"{PLAIN}; eps = {_range(runs.epsilon)}",
            applies=runs.flow and runs.plain,
            room=_by_network(room, measured) * factor + 10.0 * EPSILON,
            why=why,
            place=runs.place(*("entry", "network", "layer")[: measured.ndim]),
        )
        for part, (measured, factor) in parts.items()
        if measured is not None and measured.size
    ]


def _by_network(values: Float, like: Float) -> Float:
    """One number per network, for an array `[entry, network]` or `[entry, network, layer]`."""
    return values.reshape(1, -1, *(1,) * (like.ndim - 2))


def _range(values: Float) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.3g}" if high - low <= 1e-3 * high else f"{low:.3g} to {high:.3g}"
