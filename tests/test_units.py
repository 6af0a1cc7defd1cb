"""Units do not matter: `theory.units` has the law, docs/theory/units.md the derivation."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_iris, load_linnerud

import flatmin
from flatmin.core.arrays import Float
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.methods import GradientDescent, GradientFlow, HeavyBall, Method
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
            "gradient": self.back(outcome.gradient, g=2, c=-1),
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
@settings(max_examples=40, deadline=None)
def test_powers_of_two_change_no_bit_of_a_prediction(
    units: tuple[int, float, float], table: str
) -> None:
    depth, f, g = units
    _same_bits(Rescaled(table, depth, f, g).prediction(), Rescaled(table, depth).prediction())


@given(_twos(), st.sampled_from(sorted(TABLES)), st.sampled_from(sorted(METHODS)))
@settings(max_examples=25, deadline=None)
def test_powers_of_two_change_no_bit_of_a_run(
    units: tuple[int, float, float], table: str, method: str
) -> None:
    depth, f, g = units
    there = Rescaled(table, depth, f, g).run(METHODS[method], 100)
    _same_bits(there, Rescaled(table, depth).run(METHODS[method], 100))
