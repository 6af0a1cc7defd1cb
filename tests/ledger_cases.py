"""Evidence for tests of the ledger: real runs, honest corruptions of them, and synthetic sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.flow import flow
from flatmin.dynamics.measures import LAYER_MEASURES, Task
from flatmin.dynamics.methods import GradientDescent, GradientFlow
from flatmin.dynamics.recording import Recording, recordable
from flatmin.ledger.collect import LAST, evidence_of
from flatmin.ledger.evidence import Evidence, initial_epsilon
from flatmin.ledger.presets import near
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

NETWORKS = 4
MLP = Architecture.mlp(5, 3)
RESIDUAL = Architecture.residual(5, 3, paper_output_vector())
SEVERAL = Architecture.multivariate(4, 3, 4)


def run(
    samples: Samples,
    architecture: Architecture,
    init: str,
    scale: float,
    learning_rate: float | None = None,
    rtol: float = 1e-10,
) -> Evidence:
    """Runs with everything recorded but the sharpness on the way."""
    addresses = [("case", i) for i in range(NETWORKS)]
    initial = initialise(architecture, init, scale, 7, addresses)
    quantities = [name for name in recordable(architecture) if name != "sharpness"]
    regression = samples.regression()
    if learning_rate is None:
        outcome = flow(regression, initial, rtol=rtol, recording=Recording(2, quantities))
    else:
        outcome = descend(
            regression, initial, learning_rate, 4000, recording=Recording(20, quantities)
        )
    method = GradientFlow(rtol) if learning_rate is None else GradientDescent(learning_rate)
    return evidence_of(samples, initial, outcome, init=init, scale=scale, method=method)


def allowed_scale() -> float:
    """A scale that meets (A2)."""
    unit = initialise(MLP, "zero-layer", 1.0, 7, [("case", i) for i in range(NETWORKS)])
    return float(0.9 / (32.0 * MLP.depth * np.sqrt(initial_epsilon(unit.layers()).max())))


@cache
def small() -> Evidence:
    """Gradient flow from weights that meet (A1) and (A2)."""
    return run(paper_samples(), MLP, "zero-layer", allowed_scale())


@cache
def large() -> Evidence:
    """Gradient flow from weights that meet (A1) and not (A2)."""
    return run(paper_samples(), MLP, "zero-layer", 0.2)


@cache
def residual() -> Evidence:
    """Gradient flow of residual networks, |p| = 1, the target near p."""
    return run(near(paper_output_vector()[None], 0, "case"), RESIDUAL, "residual", 0.1)


@cache
def several() -> Evidence:
    """Gradient flow with four outputs, the target near the identity."""
    return run(near(np.eye(4), 0, "case"), SEVERAL, "residual", 0.1)


@cache
def descent() -> Evidence:
    """Gradient descent."""
    return run(paper_samples(), MLP, "gaussian", 0.3, learning_rate=0.05)


def other_activation(runs: Evidence) -> Evidence:
    """The same numbers, as if the networks were not linear: nothing that needs linear is there."""
    architecture = replace(runs.initial.architecture, activation_name="tanh")
    left = {name: v for name, v in runs.trace.items() if name in recordable(architecture)}
    return replace(
        runs,
        initial=Ensemble.from_flat(architecture, runs.initial.flat()),
        final=None,
        trace=left,
    )


def unfinished(runs: Evidence) -> Evidence:
    """As if no run had settled."""
    return replace(runs, settled=np.zeros(len(runs), dtype=bool))


def spoilt(runs: Evidence, network: int, **changes: Callable[[Any], Any]) -> Evidence:
    """Fields of one network changed, such as `sharpness=lambda s: 2 * s`, or its learning rate."""
    new = {}
    for name, change in changes.items():
        values = np.array(getattr(runs, name))
        values[network] = change(values[network])
        new[name] = values
    if "learning_rate" in new:
        new["method"] = replace(runs.method, learning_rate=new.pop("learning_rate"))
    return replace(runs, **new)


def spoilt_trace(runs: Evidence, network: int, **changes: Callable[[Any], Any]) -> Evidence:
    """Recorded quantities of one network changed."""
    new = dict(runs.trace)
    for name, change in changes.items():
        new[name] = new[name].copy()
        new[name][:, network] = change(new[name][:, network])
    return replace(runs, trace=new)


def with_final(runs: Evidence, network: int, matrices: Sequence[Any]) -> Evidence:
    """Other final weights of one network, measured as they are, and claimed to be where runs end.

    The excess risk is not measured again: it is the run's.
    """
    architecture = runs.initial.architecture
    flat = runs.final.flat()
    flat[network] = architecture.join(matrices)
    final = Ensemble.from_flat(architecture, flat)
    found = sharpness(runs.regression, final, tolerance=1e-10)
    task = Task.of(runs.regression, architecture)
    last = {name: LAYER_MEASURES[name](final.layers(), runs.layers, task) for name in LAST}
    return replace(runs, final=final, sharpness=found.value, residual=found.residual, last=last)


def final_of(runs: Evidence, network: int) -> list[np.ndarray]:
    """The final weights of one network."""
    return runs.final[network]


@cache
def _data(d: int, number: int, outputs: int) -> Regression:
    one = gaussian_samples(n=60, d=d, seed=number).regression()
    if outputs == 1:
        return one
    names = tuple(f"y{i}" for i in range(outputs))
    return replace(one, w_star=np.eye(d) + 0.01 * np.eye(d, k=1), target_names=names)


def synthetic(
    d: int, depth: int, number: int, theta: float, ratio: float = 2.0, outputs: int = 1
) -> Evidence:
    """Residual networks that ended with |theta_k|_F = theta and S/S_min = ratio Lam/lam."""
    data = _data(d, number, outputs)
    if outputs == 1:
        architecture = Architecture.residual(d, depth, np.eye(d)[0])
    else:
        architecture = Architecture.multivariate(d, depth, d)
    flat = architecture.join([np.eye(d)[None].repeat(2, axis=0)] * depth)
    runs = Evidence(
        regression=data,
        initial=Ensemble.from_flat(architecture, flat),
        init="residual",
        scale=np.full(2, 0.25),
        settled=np.ones(2, dtype=bool),
        steps=np.full(2, 50.0),
        excess=np.zeros(2),
        sharpness=np.ones(2),
        residual=np.zeros(2),
        trace={"excess_risk": np.array([[1e-6, 1e-6], [1e-9, 1e-9]])},
        last={"theta": np.full((2, depth), theta)},
        error=np.full(2, 1e-9),
    )
    value = ratio * data.condition_number * runs.minimal_sharpness
    return replace(runs, sharpness=np.full(2, value))


def sweep(
    growth: Callable[[float], float],
    sizes: Sequence[int] = (5, 10, 20),
    letter: str = "L",
    outputs: int = 1,
    noise: float = 0.01,
) -> list[Evidence]:
    """Three data sets at several sizes: theta and S/S_min grow as given, up to noise."""
    random = np.random.default_rng(11)
    cases = []
    for number in range(3):
        for size in sizes:
            value = growth(size) * (1.0 + noise * random.standard_normal())
            d, depth = (4, size) if letter == "L" else (size, 5)
            wide = d if outputs > 1 else 1
            cases.append(synthetic(d, depth, number, value, value, wide))
    return cases


def at_scales(distance: Callable[[float], float], scales: Sequence[float]) -> list[Evidence]:
    """Runs whose sharpness is (1 + distance(scale)) times the limit for vanishing scales."""
    from flatmin.theory.minimal_sharpness import vanishing_scale_limit

    runs = small()
    limit = vanishing_scale_limit(runs.regression, runs.depth)
    spread = 1.0 + 0.01 * np.arange(NETWORKS)
    return [
        replace(
            runs,
            scale=np.full(NETWORKS, scale),
            sharpness=limit * (1.0 + distance(scale) * spread),
        )
        for scale in scales
    ]
