"""What the ledger compares with: constants, rooms and measures against independent computations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import ledger_cases as cases
import oracles
from flatmin.curvature import sharpness
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics import measures
from flatmin.dynamics.flow import flow
from flatmin.dynamics.measures import Task, drift
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.convergence import lemma_7, pl_constant
from flatmin.ledger.evidence import Evidence, initial_epsilon
from flatmin.ledger.invariants import drift_bound, lemma_1
from flatmin.ledger.record import Verdict
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser


def test_epsilon_by_plain_loops() -> None:
    random = np.random.default_rng(3)
    layers = [random.standard_normal((3, *shape)) for shape in ((4, 5), (2, 4), (1, 2))]
    found = initial_epsilon(layers)
    for network in range(3):
        w = [layer[network] for layer in layers]
        largest = max(sum(float(x) ** 2 for x in layer.ravel()) for layer in w)
        total = 0.0
        for k in range(2):
            defect = w[k] @ w[k].T - w[k + 1].T @ w[k + 1]
            total += max(abs(np.linalg.eigvalsh(defect)))
        assert found[network] == pytest.approx(3.0 * largest + 2.0 * total, rel=1e-13)


def test_epsilon_of_balanced_weights_has_one_term() -> None:
    start = initialise(Architecture.mlp(5, 4), "balanced", 0.3, 0, [(0,)])
    largest = max(np.sum(w**2) for w in start[0])
    assert initial_epsilon(start.layers())[0] == pytest.approx(3.0 * largest)


@pytest.mark.parametrize("depth", [2, 3, 6])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-4, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_the_best_constant_of_theorem_3_by_a_grid(depth: int, epsilon: float, share: float) -> None:
    data = paper_samples().regression()
    at_zero = data.excess_at_zero
    mu, best = pl_constant(data, depth, epsilon, share * at_zero)
    least = np.sqrt(2.0 * epsilon) * depth
    gap = (1.0 - share) * at_zero
    kappa = min(gap / (4.0 * data.largest_eigenvalue * data.w_star_norm), data.w_star_norm)

    def value(c: Any) -> Any:
        return (
            4.0 * data.smallest_eigenvalue * np.minimum((c - least) ** (depth - 1), kappa / c) ** 2
        )

    grid = least + np.geomspace(1e-6, 10.0, 400_001)
    assert mu == pytest.approx(value(best), rel=1e-9)
    assert best > least
    highest = value(grid).max()
    assert highest * (1.0 - 1e-9) <= mu <= highest * (1.0 + 1e-3)


def test_theorem_3_without_progress_has_no_constant() -> None:
    data = paper_samples().regression()
    at_zero = data.excess_at_zero
    assert pl_constant(data, 3, 0.01, 1.1 * at_zero)[0] == 0.0


@pytest.mark.parametrize(("depth", "p"), [(2, 1.0), (3, 1.0), (3, 2.5), (6, 0.4)])
def test_the_room_of_a_minimiser_covers_what_its_risk_explains(depth: int, p: float) -> None:
    data = paper_samples().regression()
    architecture = replace(Architecture.mlp(5, depth), output=(p,))
    least = minimal_sharpness(data, depth, p).exact
    random = np.random.default_rng(depth)
    flat = architecture.join(flattest_minimiser(data, architecture, random))
    sizes = 10.0 ** np.arange(-1.0, -6.5, -0.5)
    # Shrinking all weights lowers the sharpness at first order; random directions for the rest.
    directions = [-flat / np.linalg.norm(flat)]
    directions += list(random.standard_normal((15, len(flat))))
    moved = np.array([flat + s * v / np.linalg.norm(v) for s in sizes for v in directions])
    ensemble = Ensemble.from_flat(architecture, moved)
    task = Task.of(data, architecture)
    found = sharpness(data, ensemble, tolerance=1e-12)
    count = len(moved)
    runs = Evidence(
        regression=data,
        initial=ensemble,
        init="gaussian",
        scale=np.ones(count),
        settled=np.ones(count, dtype=bool),
        steps=np.ones(count),
        excess=measures.excess_risk(measures.error_of_map(ensemble.layers(), task), task),
        sharpness=found.value,
        residual=found.residual,
    )
    short = least - found.value
    assert (short <= runs.minimiser_room).all()
    by_shrinking = short.reshape(len(sizes), -1)[:, 0]
    room = runs.minimiser_room.reshape(len(sizes), -1)[:, 0]
    # The room is needed, is not generous by more than a factor, and vanishes with the risk.
    assert (by_shrinking > 0.0).all()
    assert (room < 20.0 * by_shrinking).all()
    assert (room[1:] < 0.4 * room[:-1]).all()


def test_other_activations_have_only_the_residual_as_room() -> None:
    runs = cases.other_activation(cases.descent())
    below = replace(runs, excess=-np.ones(len(runs)))
    assert (below.minimiser_room >= runs.residual).all()
    assert (below.minimiser_room < 1e-6 * runs.sharpness).all()


@pytest.mark.parametrize("init", ["gaussian", "zero-layer"])
def test_drift_is_within_the_integrators_own_error_at_every_tolerance(init: str) -> None:
    samples = paper_samples()
    start = initialise(cases.MLP, init, 0.4, 5, [(i,) for i in range(cases.NETWORKS)])
    moved, bounds = [], []
    for rtol in (1e-6, 1e-8, 1e-10):
        outcome = flow(samples.regression(), start, rtol=rtol)
        runs = evidence_of(samples, start, outcome, init=init, scale=0.4)
        assert runs.settled.all()
        found = drift(outcome.ensemble.layers(), start.layers()).max(axis=1)
        assert (found <= drift_bound(runs)).all()
        (record,) = lemma_1(runs)
        assert record.verdict is Verdict.HOLDS
        assert record.bound == pytest.approx(drift_bound(runs).max(), rel=1.0)
        moved.append(found)
        bounds.append(drift_bound(runs))
    for values in (moved, bounds):
        assert values[1].max() < 0.2 * values[0].max()
        assert values[2].max() < 0.2 * values[1].max()


def test_the_largest_norm_is_of_the_whole_run() -> None:
    runs = cases.descent()
    first = max(np.linalg.norm(w, 2) for w in runs.initial[0])
    alone = replace(runs, trace={}, last={})
    assert alone.largest_norm[0] == pytest.approx(first)
    halved = replace(alone, last={"spectral_norm": 1e-3 * runs.last["spectral_norm"]})
    assert halved.largest_norm[0] == pytest.approx(first)
    assert runs.largest_norm[0] == pytest.approx(
        max(
            first, np.nanmax(runs.trace["spectral_norm"][:, 0]), runs.last["spectral_norm"][0].max()
        )
    )


ARCHITECTURES = {
    "one output": Architecture(4, (4, 5, 2), (0.6, -1.1)),
    "several outputs": Architecture.multivariate(4, 3, 2, width=5),
    "narrow": Architecture.mlp(4, 3, width=2),
}


@pytest.fixture(params=ARCHITECTURES)
def task(request: Any) -> tuple[Architecture, Samples, list[np.ndarray]]:
    """An architecture, data, and the layers of three networks."""
    architecture = ARCHITECTURES[request.param]
    random = np.random.default_rng(9)
    outputs = 1 if architecture.output is not None else 2
    X, Y = random.standard_normal((30, 4)), random.standard_normal((30, outputs))
    samples = Samples.from_arrays(X, Y[:, 0] if outputs == 1 else Y)
    start = initialise(architecture, "gaussian", 0.6, 0, [(i,) for i in range(3)])
    return architecture, samples, start.layers()


def test_layer_gradients_by_automatic_differentiation(task: Any) -> None:
    architecture, samples, layers = task
    found = measures.layer_gradient(layers, Task.of(samples, architecture))
    gradient = jax.grad(lambda w: oracles.risk(architecture, samples.X, samples.y, w))
    for network in range(3):
        expected = [np.linalg.norm(g) for g in gradient([w[network] for w in layers])]
        np.testing.assert_allclose(found[network], expected, rtol=1e-12)


def test_the_gradient_of_the_map_by_automatic_differentiation(task: Any) -> None:
    architecture, samples, layers = task
    found = measures.map_gradient(layers, Task.of(samples, architecture))
    outputs = samples.y.reshape(30, -1)
    gradient = jax.grad(lambda m: ((samples.X @ m.T - outputs) ** 2).sum() / 30)
    for network in range(3):
        product = np.linalg.multi_dot([w[network] for w in reversed(layers)])
        if architecture.output is not None:
            product = (architecture.p @ product)[None]
        assert found[network, 0] == pytest.approx(np.linalg.norm(gradient(product)), rel=1e-12)


def test_both_sides_of_the_sandwich_by_plain_loops(task: Any) -> None:
    architecture, samples, layers = task
    at = Task.of(samples, architecture)
    floor, ceiling = measures.gradient_floor(layers, at), measures.gradient_ceiling(layers, at)
    sigma = samples.X.T @ samples.X / 30
    low, *_, high = np.linalg.eigvalsh(sigma)
    y = samples.y.reshape(30, -1)
    best = np.linalg.lstsq(samples.X, y, rcond=None)[0]
    r_min = np.sum((y - samples.X @ best) ** 2) / 30
    for network in range(3):
        w = [layer[network] for layer in layers]
        excess = oracles.risk(architecture, samples.X, samples.y, w) - r_min
        for k in range(3):
            below, above = np.eye(4), np.eye(architecture.widths[-1])
            for layer in w[:k]:
                below = layer @ below
            for layer in reversed(w[k + 1 :]):
                above = above @ layer
            size = 2.0 * np.sqrt(excess) * architecture.output_norm
            expected = size * np.sqrt(high) * np.linalg.norm(below, 2) * np.linalg.norm(above, 2)
            assert ceiling[network, k] == pytest.approx(expected, rel=1e-10)
            # The least that |below x| and |above' x| can be for unit x: 0 where there is a kernel.
            least = np.sqrt(
                max(np.linalg.eigvalsh(below.T @ below)[0], 0.0)
                * max(np.linalg.eigvalsh(above @ above.T)[0], 0.0)
            )
            expected = size * np.sqrt(low) * least
            assert floor[network, k] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_records_that_are_not_there_do_not_change_lemma_7() -> None:
    whole = cases.residual().some(np.arange(cases.NETWORKS) == 1)
    gaps = {name: values.copy() for name, values in whole.trace.items()}
    for values in gaps.values():
        values[[3, 5, 6]] = np.nan
    fewer = {name: np.delete(values, [3, 5, 6], axis=0) for name, values in whole.trace.items()}
    found = lemma_7(replace(whole, trace=gaps))
    for one, other in zip(found, lemma_7(replace(whole, trace=fewer)), strict=True):
        assert one == other
        assert one.verdict is Verdict.HOLDS
