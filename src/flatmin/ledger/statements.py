"""The list of statements: what each is called, where it comes from, and what checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flatmin.ledger import above_ceiling as above
from flatmin.ledger import convergence, flatness, invariants, residual, small_scale, stability
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.lemma_9 import lemma_9
from flatmin.ledger.record import Record

Check = Callable[[Evidence], list[Record]]
Sweep = Callable[[Sequence[Evidence]], list[Record]]


@dataclass(frozen=True)
class Statement:
    """One statement. `check` sees runs of one architecture; `sweep` sees all of them at once."""

    id: str
    title: str
    source: str
    check: Check | None = None
    sweep: Sweep | None = None
    quantity: str | dict[str, str] = "both sides"
    """What is compared, for the axis of a picture; if parts differ, by the part's first word."""

    def quantity_of(self, part: str) -> str:
        """What a part compares."""
        if isinstance(self.quantity, str):
            return self.quantity
        return self.quantity.get(part) or self.quantity[part.partition(" ")[0]]


def _lemma_9(runs: Evidence) -> list[Record]:
    return lemma_9(runs.layers)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "lemma-1",
        "Balance is conserved",
        "the paper, Lemma 1",
        invariants.lemma_1,
        quantity="drift |D_k(t) - D_k(0)|",
    ),
    Statement(
        "lemma-2",
        "Rank one, equal norms, alignment",
        "the paper, Lemma 2",
        invariants.lemma_2,
        quantity={
            "equal norms": "max σ_k² - min σ_k²",
            "rank one": "|W_k|² (Frobenius) - σ_k²",
            "alignment": "1 - <v_{k+1}, u_k>²",
        },
    ),
    Statement(
        "lemma-3",
        "Products stay well conditioned",
        "the paper, Lemma 3",
        quantity="failure probability",
    ),
    Statement(
        "lemma-7",
        "Exponential decay",
        "the paper, Lemma 7",
        convergence.lemma_7,
        quantity="R - R_min",
    ),
    Statement(
        "lemma-8",
        "Risk and gradient of w",
        "the paper, Lemma 8",
        convergence.lemma_8,
        quantity={"lower": "|∇R¹(w)|²", "upper": "|∇R¹(w)|²", "identity": "error of the identity"},
    ),
    Statement(
        "lemma-9",
        "Perturbed products",
        "the paper, Lemma 9",
        _lemma_9,
        quantity={"norm": "max_k |V_k...V_1|", "smallest singular value": "min_k σ_min(V_k...V_1)"},
    ),
    Statement(
        "theorem-1",
        "Bounds on S_min, |p| = 1",
        "the paper, Theorem 1",
        flatness.theorem_1,
        quantity="S_min",
    ),
    Statement(
        "theorem-2",
        "Bounds on S_min, any p",
        "the paper, Theorem 2",
        flatness.theorem_2,
        quantity={"lower": "S_min", "upper": "S_min", "any minimiser": "sharpness S(W)"},
    ),
    Statement(
        "theorem-3",
        "Polyak-Lojasiewicz inequality",
        "the paper, Theorem 3",
        convergence.theorem_3,
        quantity="|∇R|²",
    ),
    Statement(
        "theorem-4",
        "Residual flow converges",
        "the paper, Theorem 4",
        sweep=residual.theorem_4,
        quantity={"converges": "arrived", "bounded": "max_k |θ_k|"},
    ),
    Statement(
        "theorem-5",
        "Several outputs",
        "the paper, Theorem 5",
        sweep=residual.theorem_5,
        quantity={"converges": "arrived", "bounded": "max_k |θ_k|"},
    ),
    Statement(
        "corollary-1",
        "Layer norms at the end",
        "the paper",
        small_scale.corollary_1,
        quantity="largest singular value σ_k",
    ),
    Statement(
        "corollary-2",
        "Sharpness, small start",
        "the paper",
        small_scale.corollary_2,
        quantity="sharpness S",
    ),
    Statement(
        "corollary-3",
        "Sharpness, residual start",
        "the paper",
        sweep=residual.corollary_3,
        quantity={"lower": "sharpness S", "bounded": "(S/S_min) / (Λ/λ)"},
    ),
    Statement(
        "gradient-sandwich",
        "Gradient between two products",
        "the paper, section 5",
        convergence.gradient_sandwich,
        quantity="|∇_k R|²",
    ),
    Statement("edge", "S_min <= S <= 2/eta", "the talk", stability.edge, quantity="sharpness S"),
    Statement(
        "linear-stability",
        "Stable only below 2/eta",
        "the paper",
        stability.linear_stability,
        quantity="growth a step",
    ),
    Statement(
        "rescaling",
        "Sharpness has no limit",
        "the paper, section 3",
        flatness.rescaling,
        quantity="sharpness S(W_C)",
    ),
    Statement(
        "exact-minimal-sharpness",
        "S_min as a convex problem",
        "this project",
        flatness.exact_minimal_sharpness,
        quantity="sharpness S",
    ),
    Statement(
        "flattest-minimiser",
        "A minimiser with S = S_min",
        "this project",
        flatness.flattest_minimiser,
        quantity={"sharpness": "|S - S_min|", "minimiser": "|w - w*|"},
    ),
    Statement(
        "vanishing-scale-limit",
        "Where tiny weights end",
        "this project",
        sweep=small_scale.vanishing_scale_limit,
        quantity="|S/limit - 1|",
    ),
    Statement(
        "one-neuron-bounds",
        "Around the limit of tiny weights",
        "Yoo, Song and Yun 2025",
        sweep=above.one_neuron_bounds,
        quantity="limit of the sharpness",
    ),
    Statement(
        "flip-at-the-ceiling",
        "An orbit is born at 2/S_min",
        "this project",
        sweep=above.flip_at_the_ceiling,
        quantity={"amplitude": "|ε²/predicted - 1|", "below it settles": "width left"},
    ),
    Statement(
        "period-two-orbit",
        "The orbit of one mode",
        "Ghosh et al. 2025",
        sweep=above.period_two_orbit,
        quantity="|u/predicted - 1|",
    ),
    Statement(
        "oscillation-balances",
        "Oscillating balances layers",
        "this project",
        sweep=above.oscillation_balances,
        quantity={"factor": "error of the factor", "balances": "|r_2² - r_3²|"},
    ),
    Statement(
        "flow-sharpness-falls",
        "The flow's sharpness falls",
        "Kreisler et al. 2023",
        sweep=above.flow_sharpness_falls,
        quantity="sharpness the flow reaches",
    ),
)

FLOW_ONLY = (
    invariants.lemma_1,
    invariants.lemma_2,
    convergence.lemma_7,
    convergence.theorem_3,
    small_scale.corollary_1,
    small_scale.corollary_2,
)
"""Checks of what is proved for gradient flow and can be measured on gradient descent."""
