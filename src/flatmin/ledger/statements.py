"""The list of statements: what each is called, what it compares, and what checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flatmin.ledger.convergence import gradient_sandwich, lemma_7, lemma_8, theorem_3
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.flatness import (
    exact_minimal_sharpness,
    flattest_minimiser,
    rescaling,
    theorem_1,
    theorem_2,
)
from flatmin.ledger.invariants import lemma_1, lemma_2
from flatmin.ledger.lemma_9 import lemma_9
from flatmin.ledger.record import Record
from flatmin.ledger.residual import corollary_3, theorem_4, theorem_5
from flatmin.ledger.small_scale import corollary_1, corollary_2, vanishing_scale_limit
from flatmin.ledger.stability import edge, linear_stability

Check = Callable[[Evidence], list[Record]]
Sweep = Callable[[Sequence[Evidence]], list[Record]]


@dataclass(frozen=True)
class Statement:
    """One statement. `check` sees runs of one architecture; `sweep` sees all of them at once."""

    id: str
    title: str
    quantity: str | dict[str, str]
    """What is compared, for the axis of a picture; if parts differ, by the part's first word."""
    check: Check | None = None
    sweep: Sweep | None = None

    def quantity_of(self, part: str) -> str:
        """What a part compares."""
        if isinstance(self.quantity, str):
            return self.quantity
        return self.quantity.get(part) or self.quantity[part.partition(" ")[0]]


_THETA = {"converges": "arrived", "bounded": "max_k |θ_k|"}

STATEMENTS: tuple[Statement, ...] = (
    # The paper.
    Statement("lemma-1", "Balance is conserved", "drift |D_k(t) - D_k(0)|", lemma_1),
    Statement(
        "lemma-2",
        "Rank one, equal norms, alignment",
        {
            "equal norms": "max σ_k² - min σ_k²",
            "rank one": "|W_k|² (Frobenius) - σ_k²",
            "alignment": "1 - <v_{k+1}, u_k>²",
        },
        lemma_2,
    ),
    Statement("lemma-3", "Products stay well conditioned", "failure probability"),
    Statement("lemma-7", "Exponential decay", "R - R_min", lemma_7),
    Statement(
        "lemma-8",
        "Risk and gradient of w",
        {"lower": "|∇R¹(w)|²", "upper": "|∇R¹(w)|²", "identity": "error of the identity"},
        lemma_8,
    ),
    Statement(
        "lemma-9",
        "Perturbed products",
        {"norm": "max_k |V_k...V_1|", "smallest singular value": "min_k σ_min(V_k...V_1)"},
        lambda runs: lemma_9(runs.layers),
    ),
    Statement("theorem-1", "Bounds on S_min, |p| = 1", "S_min", theorem_1),
    Statement(
        "theorem-2",
        "Bounds on S_min, any p",
        {"lower": "S_min", "upper": "S_min", "any minimiser": "sharpness S(W)"},
        theorem_2,
    ),
    Statement("theorem-3", "Polyak-Lojasiewicz inequality", "|∇R|²", theorem_3),
    Statement("theorem-4", "Residual flow converges", _THETA, sweep=theorem_4),
    Statement("theorem-5", "Several outputs", _THETA, sweep=theorem_5),
    Statement("corollary-1", "Layer norms at the end", "largest singular value σ_k", corollary_1),
    Statement("corollary-2", "Sharpness, small start", "sharpness S", corollary_2),
    Statement(
        "corollary-3",
        "Sharpness, residual start",
        {"lower": "sharpness S", "bounded": "(S/S_min) / (Λ/λ)"},
        sweep=corollary_3,
    ),
    Statement("gradient-sandwich", "Gradient between two products", "|∇_k R|²", gradient_sandwich),
    # The talk.
    Statement("edge", "S_min <= S <= 2/eta", "sharpness S", edge),
    # The paper.
    Statement("linear-stability", "Stable only below 2/eta", "growth a step", linear_stability),
    Statement("rescaling", "Sharpness has no limit", "sharpness S(W_C)", rescaling),
    # This project.
    Statement(
        "exact-minimal-sharpness",
        "S_min as a convex problem",
        "sharpness S",
        exact_minimal_sharpness,
    ),
    Statement(
        "flattest-minimiser",
        "A minimiser with S = S_min",
        {"sharpness": "|S - S_min|", "minimiser": "|w - w*|"},
        flattest_minimiser,
    ),
    Statement(
        "vanishing-scale-limit",
        "Where tiny weights end",
        "|S/limit - 1|",
        sweep=vanishing_scale_limit,
    ),
)

FLOW_ONLY = (lemma_1, lemma_2, lemma_7, theorem_3, corollary_1, corollary_2)
"""Checks of what is proved for gradient flow and can be measured on gradient descent."""
