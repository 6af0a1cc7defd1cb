"""How flat minimisers are: bounds on S_min, its exact value, and that there is no upper limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature import sharpness
from flatmin.dynamics.measures import Task, error_of_map
from flatmin.ledger.evidence import EPSILON, Evidence, largest_error
from flatmin.ledger.record import Place, Record, at_least, at_most, sandwich
from flatmin.ledger.statement import lacks, need, statement
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimal_sharpness import minimal_sharpness, network_lower_bound
from flatmin.theory.minimisers import flattest_minimiser as flattest
from flatmin.theory.minimisers import product_rank

# The paper's p has norm 1 in single precision.
NORM_ERROR = 1e-6
# Factors by which the rescaling construction moves weight from one layer to another.
FACTORS = 10.0 ** np.arange(0.0, 3.5, 0.5)


@statement("Bounds on S_min, |p| = 1", "S_min")
def theorem_1(runs: Evidence) -> list[Record]:
    """Theorem 1 (|p| = 1): 2 |w*|^{2-2/L} L a <= S_min
    <= 2 |w*|^{2-2/L} sqrt((2L-1) Lam^2 + (L-1)^2 a^2)."""
    hypothesis = f"one output, |p| = 1 (here {runs.output_norm:.4g})"
    if not runs.one_output:
        return [Record(hypothesis=hypothesis, why=lacks(runs, one_output=True))]
    met = abs(runs.output_norm - 1.0) < NORM_ERROR
    return _bounds(runs, hypothesis=hypothesis, applies=[met])


@statement(
    "Bounds on S_min, any p",
    {"lower": "S_min", "upper": "S_min", "any minimiser": "sharpness S(W)"},
    "one output",
)
def theorem_2(runs: Evidence) -> list[Record]:
    """Theorem 2, for any p: 2 t_0 L a <= S_min <= 2 t_0 sqrt((2L-1) Lam^2 + (L-1)^2 a^2) with
    t_0 = |w*|^{2-2/L} |p|^{2/L}; and for any minimiser W,

    S(W) >= 2 a |w*|^{2-1/L} |p|^{1/L} sum_k 1/|W_k|_F.
    """
    need(runs, one_output=True)
    records = _bounds(runs)
    norms, defects = runs.last.get("spectral_norm"), runs.last.get("rank_one_defect")
    if norms is None or defects is None:
        return records
    frobenius = np.sqrt(norms**2 + defects)
    bound = network_lower_bound(runs.regression, runs.depth, frobenius, runs.output_norm)
    return [*records, _of_minimisers(runs, bound, part="any minimiser")]


def _of_minimisers(runs: Evidence, bound: Any, **fields: Any) -> Record:
    """bound <= S(W) for the minimisers that runs found."""
    return at_least(
        runs.sharpness,
        bound,
        hypothesis=_minimisers(runs),
        applies=runs.settled,
        room=runs.minimiser_room,
        place=runs.place("network"),
        error=largest_error(runs),
        **fields,
    )


def _bounds(runs: Evidence, **fields: Any) -> list[Record]:
    found = minimal_sharpness(runs.regression, runs.depth, runs.output_norm)
    return sandwich(
        [found.lower],
        [found.exact],
        [found.upper],
        room=100.0 * EPSILON * found.exact,
        place=runs.place(),
        x=[runs.depth],
        x_name="depth L",
        **fields,
    )


def _minimisers(runs: Evidence) -> str:
    return f"a minimiser: {np.count_nonzero(runs.settled)} of {len(runs)} runs settled"


@statement("S_min as a convex problem", "sharpness S", "linear network")
def exact_minimal_sharpness(runs: Evidence) -> Record:
    """No minimiser is flatter than S_min = min_t 2 lambda_max(t Sigma + (L-1) (|p|^2/t)^{1/(L-1)}
    q q'); with several outputs, than min_t 2 lambda_max(t Sigma + (L-1) t^{-1/(L-1)} Q'Q)."""
    need(runs)
    return _of_minimisers(runs, runs.minimal_sharpness)


@statement("A minimiser with S = S_min", {"sharpness": "|S - S_min|", "minimiser": "|w - w*|"})
def flattest_minimiser(runs: Evidence) -> list[Record]:
    """The explicit chain, of rank one or of the rank of P*, is a minimiser and its sharpness is
    S_min, not just near it."""
    architecture, rank = runs.initial.architecture, product_rank(runs.regression)
    hypothesis = f"linear network, hidden layers of at least {rank} units"
    if not runs.linear or min(architecture.widths) < rank:
        why = lacks(runs) or f"widths of at least {rank} (here {min(architecture.widths)})"
        return [Record(hypothesis=hypothesis, why=why)]
    chain = Ensemble.from_matrices(architecture, [flattest(runs.regression, architecture)])
    found = sharpness(runs.regression, chain, tolerance=1e-10)
    error = error_of_map(chain.layers(), Task.of(runs.regression, architecture))
    rounding = 100.0 * EPSILON * runs.depth
    common: dict[str, Any] = {"hypothesis": hypothesis, "place": runs.place()}
    return [
        at_most(
            np.abs(found.value - runs.minimal_sharpness),
            found.residual + rounding * runs.minimal_sharpness,
            part="sharpness",
            note="the bound is the residual of the sharpness, with rounding",
            **common,
        ),
        at_most(
            np.linalg.norm(error, axis=(1, 2)),
            rounding * runs.regression.w_star_norm,
            part="minimiser",
            note="|w - w*| against rounding",
            **common,
        ),
    ]


@statement("Sharpness has no limit", "sharpness S(W_C)")
def rescaling(runs: Evidence) -> Record:
    """Section 3: W_C = (C W_1, W_2/C, W_3, ..., W_L) computes the same function as the minimiser W,
    and S(W_C) >= 2 a |w*|^{2-1/L} |p|^{1/L} C / |W_2|_F, which has no limit."""
    hypothesis = f"one output, L >= 2, {_minimisers(runs)}"
    why = lacks(runs, one_output=True, layers=2, minimiser=True)
    if why:
        return Record(hypothesis=hypothesis, why=why)
    layers = minimiser(runs)
    data, depth = runs.regression, runs.depth
    moved = [[layers[0] * factor, layers[1] / factor, *layers[2:]] for factor in FACTORS.tolist()]
    found = sharpness(data, Ensemble.from_matrices(runs.initial.architecture, moved))
    second = np.linalg.norm(layers[1]) / FACTORS
    bound = network_lower_bound(data, depth, second[:, None], runs.output_norm)
    return at_least(
        found.value,
        bound,
        hypothesis=hypothesis,
        room=found.residual + float(runs.minimiser_room[np.argmax(runs.settled)]),
        place=Place(lambda index: f"depth {depth}, C = {FACTORS[index[0]]:.3g}", ("C",)),
        x=FACTORS,
        x_name="C",
        note=f"S grows from {found.value[0]:.4g} at C = 1 to {found.value[-1]:.4g} at "
        f"C = {FACTORS[-1]:.4g}",
    )


def minimiser(runs: Evidence) -> list[Float]:
    """A minimiser that the runs found; where its weights were not kept, the flattest one."""
    if runs.final is None:
        return flattest(runs.regression, runs.initial.architecture)
    return runs.final[int(np.argmax(runs.settled))]
