"""Units do not matter: `theory.units` has the law, docs/theory/units.md the derivation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_iris, load_linnerud

import flatmin
from flatmin.core.arrays import Float
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.advice import advise
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.dynamics.flow import flow
from flatmin.dynamics.methods import GradientDescent, GradientFlow, HeavyBall, Method
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import architecture_for, initialise
from flatmin.theory.certificate import certify
from flatmin.theory.prediction import predict
from flatmin.theory.slowest_direction import descent_steps
from flatmin.theory.units import Units, nth_root


def _centred(load: Any) -> tuple[Float, Float]:
    X, y = load(return_X_y=True)
    return X - X.mean(axis=0), np.asarray(y - y.mean(axis=0), dtype=float)


def _gaussian() -> tuple[Float, Float]:
    data = gaussian_samples(n=50, d=5, seed=0)
    return data.X, data.y


TABLES = {
    "diabetes": _centred(load_diabetes),
    "iris": _centred(load_iris),
    "linnerud": _centred(load_linnerud),
    "gaussian": _gaussian(),
}
METHODS: dict[str, Method] = {
    "descent": GradientDescent("0.6critical"),
    "heavy ball": HeavyBall("0.05critical", 0.9),
    "flow": GradientFlow(),
}


class Rescaled:
    """A table with features times f and target times g, and numbers brought back from there."""

    def __init__(self, table: str, depth: int, f: float = 1.0, g: float = 1.0) -> None:
        X, y = TABLES[table]
        self.samples = Samples.from_arrays(f * X, g * y)
        self.data = self.samples.regression()
        self.depth, self.f, self.g = depth, f, g
        self.c = float(nth_root(g / f, depth))
        self.network = architecture_for("gaussian", self.data, depth)

    def start(self, share: float = 0.5, networks: int = 2) -> Ensemble:
        """Networks that are the same for every f and g, in the unit of weights."""
        drawn = initialise(self.network, "lecun", share, 0, networks=networks)
        size = Units.of(self.data, self.depth).weight
        return Ensemble.from_flat(self.network, drawn.flat() * size)

    def back(self, value: Any, **powers: float) -> Any:
        """A number in the table's own units: `powers` say what f, g and c multiply it by."""
        for name, power in powers.items():
            value = value / getattr(self, name) ** power
        return value

    def prediction(self) -> dict[str, Any]:
        known = predict(self.data, self.depth)
        proof = certify(self.data, self.depth)
        sharp = {
            "exact": known.exact,
            "lower": known.minimal.lower,
            "upper": known.minimal.upper,
            "proved": proof.lower,
            "above": proof.upper,
        }
        if self.data.targets == 1:
            sharp["limit"] = known.small_init_sharpness
        found = {name: self.back(value, g=2, c=-2) for name, value in sharp.items()}
        found["rate"] = self.back(known.critical_rate, g=-2, c=2)
        found["verified"] = known.verify()
        if self.data.targets == 1:
            found["steps"] = descent_steps(self.data, self.depth)
        return found

    def run(self, method: Method, steps: int) -> dict[str, Any]:
        recording = flatmin.Recording(7, ("excess_risk", "distance", "gradient", "sharpness"))
        outcome = method.run(self.data, self.start(), steps=steps, recording=recording)
        assert outcome.recorded is not None
        trace, sharp = outcome.recorded.values, flatmin.sharpness(self.data, outcome.ensemble)
        found = {
            "state": outcome.state,
            "steps": outcome.steps,
            "learned": outcome.learned,
            "period": outcome.period,
            "more_steps": outcome.more_steps,
            "excess": self.back(outcome.excess_risk, g=2),
            "distance": self.back(outcome.distance, g=2, f=-2),
            "gradient": self.back(outcome.gradient_norm, g=2, c=-1),
            "weights": self.back(outcome.ensemble.flat(), c=1),
            "sharpness": self.back(sharp.value, g=2, c=-2),
            "low": self.back(sharp.low, g=2, c=-2),
            "high": self.back(sharp.high, g=2, c=-2),
            "proof": sharp.proof,
            "excess along": self.back(trace["excess_risk"], g=2),
            "distance along": self.back(trace["distance"], g=2, f=-2),
            "gradient along": self.back(trace["gradient"], g=2, c=-1),
            "sharpness along": self.back(trace["sharpness"], g=2, c=-2),
        }
        if method.continuous:
            found["time"] = self.back(outcome.extras["time"], g=-2, c=2)
            found["drift"] = self.back(outcome.extras["drift"], c=2)
            found["error"] = self.back(outcome.extras["error"], c=1)
        return found


def _same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@st.composite
def _twos(draw: st.DrawFn) -> tuple[int, float, float]:
    """A depth, and f and g from 1e-12 to 1e12 such that f, g and c are powers of two."""
    depth = draw(st.sampled_from([1, 2, 3, 7]))
    f = draw(st.integers(-40, 40))
    c = draw(st.integers(-((40 + f) // depth), (40 - f) // depth))
    return depth, 2.0**f, 2.0 ** (f + c * depth)


@given(_twos(), st.sampled_from(sorted(TABLES)))
@settings(max_examples=12, deadline=None)
def test_powers_of_two_change_no_bit_of_a_prediction(
    units: tuple[int, float, float], table: str
) -> None:
    depth, f, g = units
    _same_bits(Rescaled(table, depth, f, g).prediction(), Rescaled(table, depth).prediction())


@given(_twos(), st.sampled_from(sorted(TABLES)), st.sampled_from(sorted(METHODS)))
@settings(max_examples=20, deadline=None)
def test_powers_of_two_change_no_bit_of_a_run(
    units: tuple[int, float, float], table: str, method: str
) -> None:
    depth, f, g = units
    there = Rescaled(table, depth, f, g).run(METHODS[method], 100)
    _same_bits(there, Rescaled(table, depth).run(METHODS[method], 100))


@pytest.mark.parametrize("powers", [(24, -18), (-37, 30), (1, -9)])
@pytest.mark.parametrize("size", [1e30, 1e34, 1e36, 1e120])
def test_whether_weights_are_too_large_does_not_hang_on_units(
    powers: tuple[int, int], size: float
) -> None:
    """A sharpness of weights far out is a number in all units, or in none."""
    f, c = powers
    found = []
    for units in (Rescaled("iris", 2), Rescaled("iris", 2, 2.0**f, 2.0 ** (f + 2 * c))):
        flat = size * units.c * np.ones((1, units.network.parameters))
        sharp = flatmin.sharpness(units.data, Ensemble.from_flat(units.network, flat))
        found.append([units.back(x, g=2, c=-2) for x in (sharp.value, sharp.low, sharp.high)])
    np.testing.assert_array_equal(found[1], found[0])


DECIMALS = [(1e-12, 1e-12), (1e12, 1e12), (1e-12, 1e12), (1e12, 1e-12), (1.0, 1e-6), (1e8, 1e8)]


@pytest.mark.parametrize(("f", "g"), DECIMALS)
@pytest.mark.parametrize("table", sorted(TABLES))
def test_other_factors_change_rounding_only(table: str, f: float, g: float) -> None:
    # Rounding of the table moves eigenvalues by eps times the condition number, 1e4 at most here.
    for depth in (1, 3, 10):
        found, expected = Rescaled(table, depth, f, g), Rescaled(table, depth)
        there, here = found.prediction(), expected.prediction()
        for name, value in here.items():
            np.testing.assert_allclose(there[name], value, rtol=1e-10, err_msg=name)


@pytest.mark.parametrize(("f", "g"), [*DECIMALS, (1e-6, 1e-6), (1e-5, 1e-5)])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_runs_end_alike_in_all_units(method: str, f: float, g: float) -> None:
    there = Rescaled("gaussian", 3, f, g).run(METHODS[method], 2000)
    here = Rescaled("gaussian", 3).run(METHODS[method], 2000)
    assert (here["state"] == State.SETTLED.value).all()
    assert (there["state"] == here["state"]).all()
    # What is at a minimiser is as exact as the rule of stopping; steps of flow hang on rounding.
    for name in ("weights", "sharpness", "low", "high"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-6, err_msg=name)
    if method != "flow":
        assert (there["steps"] == here["steps"]).all()
    assert (there["sharpness"] >= there["low"]).all()
    assert (there["low"] >= Rescaled("gaussian", 3).prediction()["lower"] * (1 - 1e-9)).all()


@given(st.sampled_from([2, 3]), st.integers(-12, 12), st.integers(-6, 6))
@settings(max_examples=6, deadline=None)
def test_relu_networks_follow_the_law_and_others_at_depth_two(depth: int, f: int, c: int) -> None:
    for activation in ("relu", "gelu-tanh") if depth == 2 else ("relu",):
        a, b = (f, f + c * depth) if activation == "relu" else (-c, c)
        found = []
        for units in (Rescaled("gaussian", depth), Rescaled("gaussian", depth, 2.0**a, 2.0**b)):
            network = Architecture.mlp(5, depth, activation=activation)
            flat = initialise(network, "lecun", 1.0, 0, networks=2).flat() * units.c
            start = Ensemble.from_flat(network, flat)
            rate = 0.1 / units.g**2 * units.c**2
            outcome = descend(units.samples, start, rate, 200)
            sharp = flatmin.sharpness(units.samples, outcome.ensemble)
            found.append(
                {
                    "state": outcome.state,
                    "steps": outcome.steps,
                    "excess": units.back(outcome.excess_risk, g=2),
                    "weights": units.back(outcome.ensemble.flat(), c=1),
                    "sharpness": units.back(sharp.value, g=2, c=-2),
                }
            )
        _same_bits(found[1], found[0])


def test_advice_is_the_same_in_all_units() -> None:
    X, y = TABLES["diabetes"]
    found = []
    for factor in (1.0, 2.0**-20):
        data = Samples.from_arrays(factor * X, factor * y).regression()
        advice = advise(data, Architecture.mlp(data.d, 2), "pytorch", 1.0, work=2e8)
        assert advice.learning_rate is None or advice.learning_rate > 0.0
        rate = None if advice.learning_rate is None else advice.learning_rate * factor**2
        found.append((rate, advice.steps, advice.learned_share, advice.seeds))
    assert found[1] == found[0]


def test_a_natural_scale_starts_alike_in_all_units() -> None:
    X, y = TABLES["gaussian"]
    runs = [
        flatmin.train_network(
            Samples.from_arrays(f * X, g * y), 3, scale="0.5natural", flow=True, seed=1
        )
        for f, g in ((1.0, 1.0), (1.0, 2.0**-21), (2.0**30, 2.0**-30))
    ]
    first, *others = runs
    for run in others:
        assert run.state == first.state == State.SETTLED.value
        assert run.outcome.steps[0] == first.outcome.steps[0]
        share = run.final_sharpness.value / run.minimal_sharpness
        assert share == first.final_sharpness.value / first.minimal_sharpness
    with pytest.raises(flatmin.FlatminError, match="halfnatural"):
        flatmin.train_network(depth=3, scale="halfnatural", flow=True)


def test_a_study_of_a_table_in_other_units(tmp_path: Any) -> None:
    X, y = TABLES["iris"]
    unit, tables = 2.0**-20, []
    for factor in (1.0, unit):
        path = tmp_path / f"table{factor:g}.npz"
        np.savez(path, X=factor * X, y=factor * y)
        study = flatmin.Study(
            problem={"file": str(path), "target": "y"},
            architecture={"depth": 3},
            initialisation={"name": "pytorch"},
            grid={"scale": [0.5, 1.0], "learning_rate": [0.3, 1.5]},
            method={"steps": 200, "learning_rate_unit": "critical"},
            repetitions=2,
        )
        tables.append(flatmin.run_study(study).runs)
    one, other = tables
    squares = ("initial_sharpness", "sharpness", "train_risk", "excess_risk", "gradient_norm")
    squares += ("minimal_sharpness", "edge")
    for name in one:
        power = 2 if name in squares or name.endswith("_residual") else 0
        power = -2 if name == "learning_rate" else power
        for here, there in zip(one[name], other[name], strict=True):
            there = there / unit**power if power else there
            np.testing.assert_array_equal(there, here, err_msg=name)


def test_checks_hold_in_all_units() -> None:
    X, y = TABLES["gaussian"]
    found = []
    for factor in (1.0, 1e-6):
        run = flatmin.train_network(
            Samples.from_arrays(factor * X, factor * y), 3, scale=0.3, init="lecun", flow=True
        )
        ledger = flatmin.check(run)
        assert not ledger.violated
        found.append({one.statement: one.verdict for one in ledger.records})
    # The paper speaks of times t >= 1, which are other times in other units.
    for other in found[1:]:
        changed = {name for name in found[0] if other[name] != found[0][name]}
        assert changed <= {"theorem-3", "lemma-7"}


def test_a_minimiser_above_the_edge_is_not_settled() -> None:
    data = Samples.from_arrays(np.eye(2), np.array([4.0, 0.0])).regression()
    network = Architecture.mlp(2, 2, 1)
    # w = 4 e_1 exactly, in powers of two: no gradient at all, and S = |W_1|^2 + W_2^2 = 20 or more.
    start = Ensemble.from_flat(network, np.array([[2.0, 0.0, 2.0], [1.0, 0.0, 4.0]]))
    sharp = flatmin.sharpness(data, start).value
    stable = descend(data, start, 1.8 / sharp, 100)
    assert stable.state.tolist() == [State.SETTLED.value] * 2
    unstable = descend(data, start, 2.2 * 2.0 / sharp, 100)
    assert (unstable.excess_risk == 0.0).all()
    assert unstable.state.tolist() == [State.STALLED.value] * 2


@pytest.mark.parametrize("scale", [0.0, 1e-308])
def test_a_flow_without_a_gradient_ends_at_once(scale: float) -> None:
    data = Rescaled("gaussian", 3).data
    start = initialise(Architecture.mlp(5, 3), "gaussian", scale, 0, networks=1)
    outcome = flow(data, start)
    assert outcome.state[0] == State.STALLED.value
    assert outcome.steps[0] == 0


@pytest.mark.parametrize("scale", [1e150, 1e308])
@pytest.mark.parametrize("init", ["gaussian", "pytorch"])
def test_scales_beyond_the_range_of_numbers_are_refused(init: str, scale: float) -> None:
    with pytest.raises(flatmin.FlatminError, match="scale must leave weights below"):
        initialise(Architecture.mlp(5, 3, 5), init, scale, 0, networks=1)
