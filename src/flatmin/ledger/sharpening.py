"""What gradient flow does to sharpness on the way (`theory.progressive_sharpening`)."""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature import sharpness
from flatmin.curvature.linear import backward, forward
from flatmin.dynamics.measures import invariants
from flatmin.ledger.evidence import EPSILON, Evidence, largest_error
from flatmin.ledger.record import Record, at_least, at_most
from flatmin.ledger.statement import lacks, need, statement
from flatmin.theory.progressive_sharpening import balanced_sharpness


@statement(
    "Sharpness on the way",
    {"closed": "|S - closed form|", "floor": "sharpness S"},
    "one output, L >= 2",
)
def progressive_sharpening(runs: Evidence) -> list[Record]:
    """*Closed form*: under gradient flow from a balanced start the sharpness is at every time that
    of the closed form of w alone, so that it rises and falls as the form says.

    *Floor*: S >= max_k |a_k| |b_{k+1}|, k = 1..L-1, at any weights. For the direction V_k =
    xi a_k'/|a_k|, V_{k+1} = b_{k+1} xi'/|b_{k+1}| with a unit vector xi, over sqrt(2), the part of
    V'HV that comes from the second derivative of w is |a_k| |b_{k+1}|, and the other part,
    2 |Sigma^{1/2} Dw[V]|^2, is not negative.
    """
    need(runs, one_output=True, layers=2)
    return [_closed_form(runs), _floor(runs)]


def _closed_form(runs: Evidence) -> Record:
    hypothesis = "gradient flow, d_L = 1 and p = 1, a balanced start"
    off = np.max([np.linalg.norm(d, axis=(1, 2)) for d in invariants(runs.layers)], axis=0)
    size = np.max([np.linalg.norm(w, axis=(1, 2)) for w in runs.layers], axis=0)
    even = off <= 100.0 * EPSILON * runs.widest * size**2
    why = lacks(runs, plain=True)
    if not why and not runs.flow:
        why = "gradient flow"
    if not why and not even.any():
        why = f"a balanced start (here |D_k(0)| is {off.min():.2g} or more)"
    if why:
        return Record(hypothesis=hypothesis, why=why, part="closed form")
    found, expected, residual = _along(runs)
    return at_most(
        np.abs(found - expected),
        _room(runs) + residual,
        part="closed form",
        hypothesis=hypothesis,
        applies=np.broadcast_to(even, found.shape),
        place=runs.place("entry", "network"),
        error=largest_error(runs),
        note="the bound is what the integrator's own error and the residual explain",
    )


def _along(runs: Evidence) -> tuple[Float, Float, Float]:
    """S, the closed form and the residual of S: at the entries that have both, and at the end."""
    parts = []
    if "sharpness" in runs.trace and "balanced_sharpness" in runs.trace:
        found = runs.trace["sharpness"]
        residual = runs.trace.get("sharpness_residual", 1e-6 * found)
        parts.append((found, runs.trace["balanced_sharpness"][..., 0], residual))
    if runs.final is not None:
        w = backward(runs.final.layers(), runs.initial.architecture.p)[0]
        expected = balanced_sharpness(runs.regression, runs.depth, w)[0]
        parts.append((runs.sharpness[None], expected[None], runs.residual[None]))
    if not parts:
        empty = np.full((1, len(runs)), np.nan)
        return empty, empty, empty
    found, expected, residual = (np.concatenate(column) for column in zip(*parts, strict=True))
    return found, expected, residual


def _room(runs: Evidence) -> Float:
    """How far S can be from the closed form if the integrator's errors take a run off balance by E.

    |grad S| <= L^{3/2} M^{L-3} (6 Lam M^L + |g|), M the largest norm of a layer: three derivatives
    of the risk with |D^j w| <= L^{j/2} M^{L-j}. The balanced network of the same w is within
    sqrt(1 + L) E of the balanced one that is nearest.
    """
    rounding = EPSILON * (runs.steps + runs.widest) * runs.widest
    norm, depth, largest = runs.largest_norm, runs.depth, runs.regression.largest_eigenvalue
    force = 2.0 * largest * (norm**depth + runs.regression.w_star_norm)
    steep = depth**1.5 * norm ** (depth - 3.0) * (6.0 * largest * norm**depth + force)
    error = runs.integration_error + rounding * norm
    return np.asarray(steep * (1.0 + np.sqrt(1.0 + depth)) * error)


def _floor(runs: Evidence) -> Record:
    data, p = runs.regression, runs.initial.architecture.p
    b = backward(runs.layers, p)
    a = forward(runs.layers, 2.0 * (b[0] - data.w_star) @ data.sigma)
    products = [
        np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        for x, y in zip(a[:-1], b[2:], strict=True)
    ]
    found = sharpness(data, runs.initial, tolerance=1e-8)
    return at_least(
        found.value,
        np.max(products, axis=0),
        part="floor",
        hypothesis="one output, L >= 2, at the initial weights",
        room=found.residual + 100.0 * EPSILON * runs.widest * runs.depth * found.value,
        place=runs.place("network"),
    )
