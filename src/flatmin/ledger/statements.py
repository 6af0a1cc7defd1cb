"""The list of statements, in the order in which people read them."""

from __future__ import annotations

from flatmin.ledger import above_ceiling as above
from flatmin.ledger import convergence, flatness, invariants, residual, small_scale, stability
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.lemma_9 import lemma_9
from flatmin.ledger.record import Record
from flatmin.ledger.sharpening import progressive_sharpening
from flatmin.ledger.statement import NotApplicable, Statement, statement


@statement("Products stay well conditioned", "failure probability", "random matrices")
def lemma_3(runs: Evidence) -> list[Record]:
    # About random matrices, not runs: `ledger.lemma_3` draws them.
    raise NotApplicable("random matrices: see the preset residual", "not measured")


STATEMENTS: tuple[Statement, ...] = (
    # The paper.
    invariants.lemma_1,
    invariants.lemma_2,
    lemma_3,
    convergence.lemma_7,
    convergence.lemma_8,
    lemma_9,
    flatness.theorem_1,
    flatness.theorem_2,
    convergence.theorem_3,
    residual.theorem_4,
    residual.theorem_5,
    small_scale.corollary_1,
    small_scale.corollary_2,
    residual.corollary_3,
    convergence.gradient_sandwich,
    # The talk.
    stability.edge,
    # The paper.
    stability.linear_stability,
    flatness.rescaling,
    # This project.
    flatness.exact_minimal_sharpness,
    flatness.flattest_minimiser,
    small_scale.vanishing_scale_limit,
    progressive_sharpening,
    above.one_neuron_bounds,
    above.flip_at_the_ceiling,
    above.period_two_orbit,
    above.oscillation_balances,
    above.flow_sharpness_falls,
)
