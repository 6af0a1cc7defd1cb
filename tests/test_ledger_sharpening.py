"""The ledger's statement about sharpness on the way: it holds, it breaks, it does not apply."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import flatmin
import ledger_cases as cases
import oracles
from flatmin.data.generators import gaussian_samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics.methods import GradientDescent, GradientFlow
from flatmin.dynamics.recording import Recording, recordable
from flatmin.ledger import sharpening
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict
from flatmin.network.architecture import Architecture

MLP = Architecture.mlp(5, 4)


@cache
def balanced(learning_rate: float | None = None) -> Evidence:
    """Runs from balanced starts with their sharpness on the way."""
    samples = paper_samples()
    start = flatmin.initialise(MLP, "balanced", 0.6, 0, networks=4)
    recording = Recording(5, recordable(MLP), sharpness_tolerance=1e-9)
    if learning_rate is None:
        outcome = flatmin.flow(samples.regression(), start, rtol=1e-9, recording=recording)
    else:
        outcome = flatmin.descend(
            samples.regression(), start, learning_rate, 200, recording=recording
        )
    method = GradientFlow() if learning_rate is None else GradientDescent(learning_rate)
    return evidence_of(samples, start, outcome, init="balanced", scale=0.6, method=method)


def parts(runs: Evidence) -> dict[str, Record]:
    return {record.part: record for record in sharpening.progressive_sharpening.of(runs)}


def test_it_holds_along_flows_from_balanced_starts() -> None:
    found = parts(balanced())
    assert {r.verdict for r in found.values()} == {Verdict.HOLDS}
    assert found["closed form"].networks == 4
    along = balanced().trace["sharpness"]
    assert np.nanmax(along) > 1.5 * np.nanmin(along)  # there is something to follow
    np.testing.assert_allclose(along, balanced().trace["balanced_sharpness"][..., 0], rtol=1e-5)


def test_the_closed_form_breaks_if_one_record_is_off() -> None:
    runs = cases.spoilt_trace(balanced(), 2, sharpness=lambda s: 1.02 * s)
    record = parts(runs)["closed form"]
    assert record.verdict is Verdict.VIOLATED
    assert record.violations == 1


def test_the_floor_breaks_if_sharpness_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sharpening.sharpness

    def low(*settings: object, **options: object) -> object:
        found = right(*settings, **options)
        return replace(found, value=0.1 * found.value)

    monkeypatch.setattr(sharpening, "sharpness", low)
    assert parts(balanced())["floor"].verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (cases.small, "a balanced start"),
        (lambda: balanced(0.02), "gradient flow"),
        (cases.residual, "d_L = 1 and p = 1"),
    ],
)
def test_the_closed_form_asks_for_a_balanced_flow(runs: object, words: str) -> None:
    found = parts(runs())
    assert found["closed form"].verdict is Verdict.NOT_APPLICABLE
    assert words in found["closed form"].why
    assert found["floor"].verdict is Verdict.HOLDS


def test_several_outputs_and_other_activations_are_left_alone() -> None:
    for runs in (cases.several(), cases.other_activation(cases.small())):
        (record,) = sharpening.progressive_sharpening(runs)
        assert record.verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_the_floor_against_the_dense_hessian(depth: int) -> None:
    """From the rows and plain products, not from the sweeps of the package."""
    samples = gaussian_samples(n=20, d=3, seed=3)
    architecture = Architecture.mlp(3, depth, width=2)
    random, data = np.random.default_rng(depth), samples.regression()
    for _ in range(20):
        layers = [random.standard_normal(shape) for shape in architecture.shapes]
        product = np.linalg.multi_dot([np.eye(3)] + [w.T for w in layers])[:, 0]
        a, floors = 2.0 * data.sigma @ (product - data.w_star), []
        for k in range(depth - 1):
            b = np.ones(1)
            for w in layers[: k + 1 : -1]:
                b = w.T @ b
            floors.append(np.linalg.norm(a) * np.linalg.norm(b))
            a = layers[k] @ a
        assert oracles.sharpness(samples, architecture, layers) >= max(floors) * (1.0 - 1e-12)
