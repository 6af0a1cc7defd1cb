"""Gradient descent against the rivals of `rivals`, in 64 bits on the cores of this process.

Steps are compared, so nobody looks on after the last of them to tell how a run ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import rivals
from benchmarks.harness import Contender, Result, Spread, compare, seconds
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.backends import held_lanes
from flatmin.dynamics.descent import descend
from flatmin.dynamics.methods import HeavyBall, Nesterov
from flatmin.dynamics.recording import Recording
from flatmin.lanes.compiling import wide_registers
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

# Below any gradient: a benchmark takes every step.
NEVER = 1e-300
# What the machine's limit gains by all threads.
THREADS_OF_D = {"D one": ("D alone", "D")}


def start(architecture: Architecture, networks: int, scale: float) -> Ensemble:
    init = "residual" if architecture.square else "gaussian"
    return initialise(architecture, init, scale, 0, networks=networks)


def _ours(
    samples: Samples,
    ensemble: Ensemble,
    steps: int,
    recording: Recording | None = None,
    threads: int | None = None,
) -> tuple[Contender, float]:
    problem = samples.regression() if ensemble.architecture.linear else samples

    def work() -> object:
        return descend(
            problem, ensemble, rivals.RATE, steps, tolerance=NEVER, observe_ends=False,
            recording=recording, threads=threads,
        )  # fmt: skip

    return work, float(len(ensemble) * steps)


def _limits(architecture: Architecture, lanes: int, extra: int = 0) -> tuple[dict[str, Any], str]:
    """The machine's limits for a step, and the counts behind them.

    Of each weight a step needs three fused multiply-adds, two loads and a store (`linear_descent`);
    those of vectors between layers are fewer by a factor of the width. A velocity takes a load, a
    store and some `extra` multiplications.
    """
    weights, beside = architecture.parameters, int(extra > 0)
    limits = {
        "D": rivals.machine_limit(2.0 * (3 + extra) * weights),
        "D alone": rivals.machine_limit(2.0 * (3 + extra) * weights, threads=1),
        "M": rivals.traffic_limit(lanes * (1 + beside) * weights, (1 + beside) * weights),
    }
    notes = (
        f"a weight and step: {3 + extra} multiplications, {2 + beside} loads, {1 + beside} stores; "
        f"{lanes * (1 + beside) * weights * 8 / 1024:.0f} KB at a time; the limit is the larger "
        "share of D and M"
    )
    return limits, notes


def gd_linear_d5() -> Result:
    """d = 5, L = 10, 200 networks."""
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 10)
    ensemble, steps = start(architecture, 200, 0.4), 300_000
    limits, notes = _limits(architecture, 8)
    return compare(
        "gd-linear-d5",
        "GD, linear MLP d=5 L=10, 200 networks",
        "seconds per network step",
        _ours(samples, ensemble, steps),
        {
            "A": rivals.one_at_a_time(samples, architecture, ensemble.flat(), 500),
            "B": rivals.all_at_once(samples, architecture, ensemble.flat(), 50),
            "B+": rivals.all_at_once(samples, architecture, ensemble.flat(), 200, reordered=True),
            **limits,
            "one": _ours(samples, ensemble, steps, threads=1),
        },
        {"A": 1000.0, "B": 150.0, "B+": 16.0, "D": 0.4, "one": 1.9},
        rounds=9,
        notes=notes,
        beside=THREADS_OF_D,
    )


def _momentum(kind: type[HeavyBall], extra: int) -> Result:
    """A method with momentum against gradient descent, d = 5, L = 10, 200 networks."""
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 10)
    ensemble, steps = start(architecture, 200, 0.4), 20_000
    method = kind(learning_rate=0.1 * rivals.RATE, momentum=0.9)
    limits, notes = _limits(architecture, held_lanes(2 * architecture.parameters), extra)

    def work() -> object:
        return descend(
            samples.regression(), ensemble, 0.1 * rivals.RATE, steps, rule=method.rule,
            tolerance=NEVER, observe_ends=False,
        )  # fmt: skip

    return compare(
        f"{method.name}-d5",
        f"{method.title}, linear MLP d=5 L=10, 200 networks",
        "seconds per network step",
        (work, float(len(ensemble) * steps)),
        {"plain": _ours(samples, ensemble, steps), **limits},
        {"plain": 0.6},
        rounds=9,
        notes=f"plain: time of gradient descent over time with momentum; {notes}",
        beside=THREADS_OF_D,
    )


def heavy_ball_d5() -> Result:
    """Heavy ball against gradient descent."""
    return _momentum(HeavyBall, 1)


def nesterov_d5() -> Result:
    """Nesterov's method against gradient descent."""
    return _momentum(Nesterov, 2)


def _against_limits(
    id: str, title: str, samples: Samples, ensemble: Ensemble, steps: int
) -> Result:
    """A case of wide networks, which are stepped one by one, or in twos."""
    limits, notes = _limits(ensemble.architecture, 2 if wide_registers() else 1)
    return compare(
        id,
        title,
        "seconds per network step",
        _ours(samples, ensemble, steps),
        {**limits, "one": _ours(samples, ensemble, steps, threads=1)},
        {"D": 0.4, "one": 1.9},
        rounds=7,
        notes=notes,
        beside=THREADS_OF_D,
    )


def gd_linear_d20() -> Result:
    """d = 20, L = 5, 200 networks."""
    title, architecture = "GD, linear MLP d=20 L=5, 200 networks", Architecture.mlp(20, 5)
    samples, ensemble = gaussian_samples(60, 20, seed=0), start(architecture, 200, 0.2)
    return _against_limits("gd-linear-d20", title, samples, ensemble, 40_000)


def gd_residual_d64() -> Result:
    """d = 64, L = 10, 32 networks."""
    title, samples = "GD, residual d=64 L=10, 32 networks", gaussian_samples(200, 64, seed=0)
    ensemble = start(Architecture.residual(64, 10, np.eye(64)[0]), 32, 0.25)
    return _against_limits("gd-residual-d64", title, samples, ensemble, 10_000)


def gd_residual_d1024() -> Result:
    """d = 1024, L = 20, one network."""
    samples = gaussian_samples(2048, 1024, seed=0)
    architecture = Architecture.residual(1024, 20, np.eye(1024)[0])
    ensemble, weights = start(architecture, 1, 0.25), architecture.parameters
    return compare(
        "gd-residual-d1024",
        "GD, residual d=1024 L=20, one network",
        "seconds per network step",
        _ours(samples, ensemble, 100),
        {"copy": rivals.copying(weights, 24.0 * weights)},
        {"copy": 0.7},
        rounds=5,
        notes=f"a step reads {8e-6 * weights:.0f} MB of weights twice and writes them once",
    )


def gd_gelu_d5() -> Result:
    """GELU, d = 5, L = 10, n = 50, 160 networks."""
    samples = gaussian_samples(50, 5, noise=0.0, seed=0)
    architecture = Architecture.mlp(5, 10, activation="gelu-tanh")
    ensemble = start(architecture, 160, 0.5)
    return compare(
        "gd-gelu-d5",
        "GD, GELU MLP d=5 L=10 n=50, 160 networks",
        "seconds per network step",
        _ours(samples, ensemble, 4000),
        {"B": rivals.all_at_once(samples, architecture, ensemble.flat(), 100)},
        {"B": 14.0},
        rounds=5,
    )


def trace_sharpness() -> Result:
    """Sharpness at every step, against the same run without it."""
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 10)
    ensemble, steps = start(architecture, 200, 0.4), 1000
    recording = Recording(1, ("sharpness",), sharpness_tolerance=1e-6, sharpness_steps=1)
    bare = _ours(samples, ensemble, 20 * steps)
    return compare(
        "trace-sharpness",
        "sharpness at each of 1000 steps, d=5 L=10, 200 networks",
        "seconds per network step",
        _ours(samples, ensemble, steps, recording),
        {"bare": bare},
        {"bare": 1.0 / 6.0},
        rounds=31,
        notes="ratio: time of the bare run over time with sharpness (residual below 1e-6)",
    )


def scaling() -> Result:
    """Exponents of the cost of a network step against L (at d = 16) and against d (at L = 5)."""
    depths, widths = (2, 4, 8, 16, 32, 64), (5, 8, 16, 32, 64, 128, 256)
    points: list[tuple[str, int, Contender, float]] = []
    for kind, values in (("L", depths), ("d", widths)):
        for value in values:
            d, depth = (16, value) if kind == "L" else (value, 5)
            samples = gaussian_samples(2 * d, d, seed=0)
            architecture = Architecture.residual(d, depth, np.eye(d)[0])
            networks = 64 if d <= 64 else 16
            # Long enough that packing the weights, done once a run, does not count.
            flops = 1.5e9 if d <= 64 else 1e10
            steps = int(flops / (6 * architecture.parameters * networks))
            work, amount = _ours(samples, start(architecture, networks, 0.25), steps)
            points.append((kind, value, work, amount))
    compile_seconds = sum(seconds(work) for _, _, work, _ in points)
    exponents: dict[str, list[float]] = {"L": [], "d": []}
    costs: list[float] = []
    for _ in range(5):
        round_costs = [seconds(work) / amount for _, _, work, amount in points]
        costs.append(round_costs[0])
        for kind in exponents:
            x = [np.log(value) for k, value, _, _ in points if k == kind]
            y = [
                np.log(cost) for (k, *_), cost in zip(points, round_costs, strict=True) if k == kind
            ]
            exponents[kind].append(float(np.polyfit(x, y, 1)[0]))
    spreads = {kind: Spread.of(values) for kind, values in exponents.items()}
    met = abs(spreads["L"].median - 1.0) <= 0.15 and abs(spreads["d"].median - 2.0) <= 0.15
    return Result(
        "scaling",
        "exponents of cost against L (2 to 64) and d (5 to 256)",
        "seconds per network step (d=16, L=2)",
        Spread.of(costs),
        {},
        spreads,
        {"L": 1.0, "d": 2.0},
        met,
        compile_seconds,
        "the bar: within 0.15 of 1 and 2",
    )
