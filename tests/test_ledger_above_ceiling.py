"""Statements about what is above the ceiling: shown what satisfies and what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ledger_cases as cases
from flatmin.data.generators import spectrum_samples, whitened_samples
from flatmin.ledger import above_ceiling as above
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.ledger.statements import STATEMENTS

Patch = Callable[[Any], None]


def white() -> Evidence:
    """Runs on data with Sigma = I, as if they were the paper's."""
    return replace(cases.small(), regression=whitened_samples(seed=2).regression())


def shallow(runs: Evidence, depth: int) -> Evidence:
    """As if the networks had fewer layers."""
    from flatmin.network.architecture import Architecture
    from flatmin.network.ensemble import Ensemble

    network = Architecture.mlp(runs.regression.d, depth)
    return replace(runs, initial=Ensemble.from_flat(network, np.zeros((1, network.parameters))))


def wrong(name: str, change: Callable[[Any], Any]) -> Patch:
    """A function of the module whose result is changed."""
    right = getattr(above, name)
    return lambda monkeypatch: monkeypatch.setattr(
        above, name, lambda *given, **more: change(right(*given, **more))
    )


@dataclass(frozen=True)
class Case:
    """What satisfies a statement, what breaks each of its parts, and what it is not about."""

    good: tuple[Callable[[], Evidence], ...]
    broken: dict[str, Patch]
    outside: tuple[Callable[[], Evidence], ...]


def several() -> Evidence:
    return cases.several()


def two_directions() -> Evidence:
    """Runs as if on data whose S_min is not a simple eigenvalue."""
    data = spectrum_samples(100, d=5, condition_number=100.0, alignment="weak", seed=0)
    return replace(cases.small(), regression=data.regression())


def one_layer() -> Evidence:
    return shallow(cases.small(), 1)


def two_layers() -> Evidence:
    return shallow(cases.small(), 2)


def not_linear() -> Evidence:
    return cases.other_activation(cases.small())


ANY = (cases.small, cases.residual, white)
CASES = {
    "one-neuron-bounds": Case(
        (*ANY, two_layers),
        {
            "lower": wrong("limit_of", lambda s: 0.3 * s),
            "upper": wrong("limit_of", lambda s: 3.0 * s),
        },
        (several, one_layer, not_linear),
    ),
    "flip-at-the-ceiling": Case(
        (*ANY, two_layers),
        {
            "amplitude": wrong("flip", lambda f: replace(f, coefficient=1.05 * f.coefficient)),
            "below it settles": lambda patch: patch.setattr(above, "BELOW", 1.01),
        },
        (several, one_layer, not_linear, two_directions),
    ),
    "period-two-orbit": Case(
        (white,),
        {"": wrong("mode_orbit", lambda orbit: replace(orbit, low=1.0001 * orbit.low))},
        (several, one_layer, not_linear, cases.small),
    ),
    "oscillation-balances": Case(
        ANY,
        {
            "factor": wrong("imbalance_factor", lambda factor: 2.0 - factor),
            "balances": wrong("followed", lambda path: path[::-1]),
        },
        (several, one_layer, two_layers, not_linear),
    ),
    "flow-sharpness-falls": Case(
        (*ANY, two_layers),
        {"": wrong("flow_sharpness", lambda s: 1.0 / s)},
        (several, one_layer, not_linear),
    ),
}


def records(statement: str, runs: Evidence) -> list[Record]:
    (found,) = [one for one in STATEMENTS if one.id == statement]
    return merge(found([runs]))


GOOD = [(name, make) for name, case in CASES.items() for make in case.good]


@pytest.mark.parametrize(("statement", "make"), GOOD)
def test_holds_where_it_should(statement: str, make: Callable[[], Evidence]) -> None:
    found = records(statement, make())
    assert {record.part for record in found} == set(CASES[statement].broken)
    for record in found:
        assert record.verdict is Verdict.HOLDS, record
        assert (record.violations, record.networks) == (0, 1)
        assert record.at.startswith("depth ")


BROKEN = [(name, part) for name, case in CASES.items() for part in case.broken]


@pytest.mark.parametrize(("statement", "part"), BROKEN)
def test_breaks_where_it_should(statement: str, part: str, monkeypatch: Any) -> None:
    case = CASES[statement]
    runs = case.good[0]()
    case.broken[part](monkeypatch)
    (record,) = [one for one in records(statement, runs) if one.part == part]
    assert record.verdict is Verdict.VIOLATED, record
    assert record.violations > 0


OUTSIDE = [(name, make) for name, case in CASES.items() for make in case.outside]


@pytest.mark.parametrize(("statement", "make"), OUTSIDE)
def test_says_nothing_elsewhere(statement: str, make: Callable[[], Evidence]) -> None:
    (record,) = records(statement, make())
    assert record.verdict is Verdict.NOT_APPLICABLE
    assert record.hypothesis
    assert record.why


def test_data_are_looked_at_once() -> None:
    found = above.one_neuron_bounds([cases.small(), cases.large(), white()])
    assert len(found) == 4  # two data sets, two parts
