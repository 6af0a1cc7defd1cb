"""What gradient descent does just above the ceiling, and what one neuron a layer shows.

These statements need the data, the depth and |p| of the runs only: each is put to the test on
chains, or scalar networks, made for it, once for every data set and depth among the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.dynamics.descent import descend
from flatmin.dynamics.measures import error_of_map, task
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.lacks import lacks
from flatmin.ledger.record import Describe, Record, compare, not_applicable, sandwich
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.theory.flip import flip
from flatmin.theory.minimal_sharpness import lower_bound
from flatmin.theory.minimal_sharpness import vanishing_scale_limit as limit_of
from flatmin.theory.minimisers import flattest_minimiser
from flatmin.theory.one_neuron import flow_sharpness, pull_limit, small_limit_bounds
from flatmin.theory.oscillation import imbalance_factor, mode_orbit, one_mode
from flatmin.theory.units import Units

# The rate of an orbit that is looked at, how far from it a run begins, and for how many periods.
ORBIT_RATE, OFF, PERIODS = 1.1, 1e-3, 200
# Rates c - 1 at which the flip's amplitude is measured, below it, and the steps this takes.
NEAR, BELOW, FLIP_STEPS = np.array([0.004, 0.016]), 0.99, 8000
# By how much the layers are off balance at first, and the steps followed.
UNEVEN, BALANCE_STEPS = 0.02, 60
# Scalar networks: starts, rates as multiples of the ceiling, steps.
SCALAR_STARTS, SCALAR_RATES, SCALAR_STEPS = 4, (0.5, 0.9, 1.1), 25
# The largest gap of the two top eigenvalues, as a share, that counts as none.
SIMPLE = 1e-6
# A tolerance that no gradient meets: these runs are not to stop.
NEVER = 1e-300


def period_two_orbit(cases: Sequence[Evidence]) -> list[Record]:
    """If Sigma w* = a w* and Lam <= L a, balanced chains at c > 1 have the orbit u, z u with
    u^L (1 + z^{2L-1}) = 1 + z^{L-1} and z = 1 + (2c/L) u^{L-2} (1 - u^L), and below c_4 nearby runs
    of gradient descent are drawn to it by its multiplier a period."""
    name = "period-two-orbit"
    hypothesis = "one output, L >= 2, w* an eigenvector of Sigma with Lam <= L a"
    records = []
    for runs in _each(cases, 2):
        data, depth = runs.regression, runs.depth
        if not one_mode(data, depth):
            continue
        orbit = mode_orbit(depth, ORBIT_RATE)
        network = runs.initial.architecture
        size = Units.of(data, depth, network.output_norm).weight
        start = _chain(network, data.w_star / data.w_star_norm, np.full(depth, size * orbit.low))
        start *= 1.0 + OFF
        steps = 2 * PERIODS + np.arange(2)
        end = _after(runs, np.tile(start, (2, 1)), ORBIT_RATE, steps)
        u = _output(runs, end) ** (1.0 / depth)
        # What the multiplier leaves of the first distance, twice, and the rounding of 2 L factors.
        left = 2.0 * OFF * abs(orbit.multiplier) ** PERIODS + 100.0 * EPSILON * depth
        records.append(
            compare(
                name,
                np.abs(u / [orbit.low, orbit.high] - 1.0)[:, None],
                np.full((2, 1), left),
                measured="smaller",
                hypothesis=hypothesis,
                network_axis=1,
                place=_at(f"depth {depth}", "point"),
                note=f"c = {ORBIT_RATE:g}, from {OFF:g} off; a period multiplies by "
                f"{orbit.multiplier:.3g}",
            )
        )
    return records or [_nothing(name, hypothesis, cases, 2, "w* an eigenvector of Sigma")]


def flip_at_the_ceiling(cases: Sequence[Evidence]) -> list[Record]:
    """If S_min is a simple eigenvalue at the flattest chain and D > 0, gradient descent settles
    there below c = 1, and above has an orbit of period two with half-width
    eps^2 = (S_min/D)(c - 1) (1 + O(c - 1)): a quarter of c - 1 leaves a quarter of the error, and
    certainly less than half of it."""
    name = "flip-at-the-ceiling"
    hypothesis = "one output, L >= 2, S_min simple and D > 0"
    records = []
    for runs in _each(cases, 2):
        found = flip(runs.regression, runs.depth, runs.output_norm)
        if not found.supercritical or found.gap < SIMPLE:
            continue
        c = np.append(1.0 + NEAR, BELOW)
        network, flat, x = runs.initial.architecture, *_flattest_chain(runs)
        size = np.sqrt([abs(found.amplitude_squared(one)) for one in c])
        start = np.repeat(flat + size[:, None] * x, 2, axis=0)
        steps = FLIP_STEPS + np.tile(np.arange(2), len(c))
        end = _after(runs, start, np.repeat(c, 2), steps).reshape(len(c), 2, network.parameters)
        width = 0.5 * np.linalg.norm(end[:, 1] - end[:, 0], axis=1)
        error = np.abs(width[:2] ** 2 / size[:2] ** 2 - 1.0)
        place = f"depth {runs.depth}"
        records += [
            compare(
                name,
                error[:1],
                0.5 * error[1:],
                measured="smaller",
                part="amplitude",
                hypothesis=hypothesis,
                room=1e-6,
                place=_at(f"{place}, c = {1 + NEAR[0]:g}"),
                note=f"eps^2/predicted - 1 is {error[0]:.2g} at c - 1 = {NEAR[0]:g} and "
                f"{error[1]:.2g} at {NEAR[1]:g}",
            ),
            compare(
                name,
                width[2:] / size[2:],
                np.array([0.5]),
                measured="smaller",
                part="below it settles",
                hypothesis=hypothesis,
                place=_at(f"{place}, c = {BELOW:g}"),
                note=f"what is left of the same width after {FLIP_STEPS} steps, against a half",
            ),
        ]
    return records or [_nothing(name, hypothesis, cases, 2, "a simple S_min and D > 0")]


def oscillation_balances(cases: Sequence[Evidence]) -> list[Record]:
    """In a chain, a step multiplies r_j^2 - r_k^2, 2 <= j < k, by 1 - (eta g/(r_j r_k))^2 exactly;
    so an oscillation with eta |g| < sqrt(2) r_j r_k throughout balances the layers."""
    name, hypothesis = "oscillation-balances", "one output, L >= 3"
    records = []
    for runs in _each(cases, 3):
        flat, x = _flattest_chain(runs)
        size = np.sqrt(flip(runs.regression, runs.depth, runs.output_norm).amplitude_squared(1.05))
        network = runs.initial.architecture
        layers = network.split(flat + size * x)
        layers[1], layers[2] = layers[1] * (1.0 + UNEVEN), layers[2] / (1.0 + UNEVEN)
        path = followed(runs, network.join(layers))
        r = np.array([np.linalg.norm(w, axis=(1, 2)) for w in network.split(path)])[1:3]
        gap = r[0] ** 2 - r[1] ** 2
        pull = _pull(runs, path)[:-1]
        predicted = gap[:-1] * imbalance_factor(pull, r[0, :-1], r[1, :-1])
        where = f"depth {runs.depth}, layers 2 and 3"
        # Of a norm, and of eta g, whose own error the small gap does not multiply up.
        rounding = 100.0 * EPSILON * runs.widest * float(np.max(r)) ** 2
        within = np.abs(pull) < np.sqrt(2.0) * r[0, :-1] * r[1, :-1]
        records += [
            compare(
                name,
                np.abs(gap[1:] - predicted)[:, None],
                np.full((BALANCE_STEPS, 1), rounding),
                measured="smaller",
                part="factor",
                hypothesis=hypothesis,
                network_axis=1,
                place=_at(where, "step"),
                note="the bound is rounding",
            ),
            compare(
                name,
                np.abs(gap[1:])[:, None],
                np.abs(gap[:-1])[:, None],
                measured="smaller",
                part="balances",
                hypothesis=f"{hypothesis}, eta |g| < sqrt(2) r_j r_k",
                applies=within[:, None],
                room=rounding,
                network_axis=1,
                place=_at(where, "step"),
            ),
        ]
    return records or [_nothing(name, hypothesis, cases, 3)]


def flow_sharpness_falls(cases: Sequence[Evidence]) -> list[Record]:
    """In a scalar network a step with eta |g| <= |w_i w_j| for all i != j does not increase the
    sharpness at which gradient flow would end from there. (Kreisler et al. 2023; the condition and
    the proof are this project's: `theory.one_neuron`.)"""
    name = "flow-sharpness-falls"
    hypothesis = "scalar networks with the data's a and |w*|, L >= 2, eta |g| <= |w_i w_j|"
    records = []
    for runs in _each(cases, 2):
        data, depth = runs.regression, runs.depth
        target, size = data.w_star_norm, Units.of(data, depth).weight
        ceiling = 2.0 / lower_bound(data, depth)
        random = generator(0, "scalar", depth)
        w = size * np.exp(0.2 * random.standard_normal((SCALAR_STARTS, len(SCALAR_RATES), depth)))
        path, met = [w], []
        with np.errstate(all="ignore"):
            for _ in range(SCALAR_STEPS):
                w, pull = scalar_step(w, ceiling * np.array(SCALAR_RATES), target, data.a)
                met.append(np.abs(pull) <= pull_limit(path[-1]))
                path.append(w)
            values = flow_sharpness(np.array(path), target, data.a)
        records.append(
            compare(
                name,
                values[1:, ..., None],
                values[:-1, ..., None],
                measured="smaller",
                hypothesis=hypothesis,
                applies=np.array(met)[..., None],
                room=1e3 * EPSILON * depth * np.nan_to_num(values[:-1, ..., None]),
                network_axis=3,
                place=_at(f"depth {depth}", "step", "start", "rate"),
                why="steps that are small enough",
            )
        )
    return records or [_nothing(name, hypothesis, cases, 2)]


def one_neuron_bounds(cases: Sequence[Evidence]) -> list[Record]:
    """lambda_max(Sigma + (L-1) z z') lies between Lam + (L-1) z_1^2 and Lam + (L-1) |z|^2: this is,
    times 2 t_0, the bounds that Yoo, Song and Yun (2025) give for one neuron a layer, around the
    exact limit of the sharpness from vanishing weights."""
    name, hypothesis = "one-neuron-bounds", "one output, L >= 2"
    records: list[Record] = []
    for runs in _each(cases, 2):
        low, high = small_limit_bounds(runs.regression, runs.depth, runs.output_norm)
        limit = limit_of(runs.regression, runs.depth, runs.output_norm)
        records += sandwich(
            name,
            np.array([low]),
            np.array([limit]),
            np.array([high]),
            hypothesis=hypothesis,
            room=100.0 * EPSILON * high,
            place=_at(f"depth {runs.depth}"),
        )
    return records or [_nothing(name, hypothesis, cases, 2)]


def _each(cases: Sequence[Evidence], layers: int) -> list[Evidence]:
    """One piece of evidence for every data set, shape and |p| that the statements are about."""
    kept: dict[tuple[bytes, tuple[int, ...], float], Evidence] = {}
    for runs in cases:
        if not lacks(runs, one_output=True, layers=layers):
            widths = runs.initial.architecture.widths
            key = (runs.regression.w_star.tobytes(), widths, runs.output_norm)
            kept.setdefault(key, runs)
    return list(kept.values())


def _nothing(
    name: str, hypothesis: str, cases: Sequence[Evidence], layers: int, other: str = ""
) -> Record:
    why = lacks(cases[0], one_output=True, layers=layers)
    return not_applicable(name, hypothesis, why=why or other)


def _at(prefix: str, *axes: str) -> Describe:
    """Names for entries: the prefix, and after each word the number along its axis, from 1."""

    def describe(index: tuple[int, ...]) -> str:
        numbers = [f"{word} {i + 1}" for word, i in zip(axes, index, strict=False)]
        return ", ".join([prefix, *numbers])

    return describe


def _chain(network: Architecture, first: Float, sizes: Float) -> Float:
    """Flat weights of W_1 = r_1 e_1 f', W_k = r_k e_k e_{k-1}', with e_L = p/|p|."""
    units = [np.eye(width)[0] for width in network.widths[:-1]]
    units.append(network.p / network.output_norm)
    below = [first, *units[:-1]]
    return network.join([r * np.outer(e, f) for r, e, f in zip(sizes, units, below, strict=True)])


def _flattest_chain(runs: Evidence) -> tuple[Float, Float]:
    """The flattest chain and its top eigenvector, both flat."""
    network = runs.initial.architecture
    found = flip(runs.regression, runs.depth, runs.output_norm)
    flat = network.join(flattest_minimiser(runs.regression, network))
    others = np.full(runs.depth - 1, found.others / np.sqrt(runs.depth - 1.0))
    return flat, _chain(network, found.first, np.append(1.0, others))


def _after(runs: Evidence, start: Float, c: float | Float, steps: int | np.ndarray) -> Float:
    """Flat weights after so many steps at the rate c."""
    ensemble = Ensemble.from_flat(runs.initial.architecture, start)
    rates = np.broadcast_to(2.0 * np.asarray(c) / runs.least_sharpness, (len(start),))
    end = descend(runs.regression, ensemble, rates, steps, tolerance=NEVER, observe_ends=False)
    return end.ensemble.flat()


def followed(runs: Evidence, start: Float) -> Float:
    """Flat weights before and after every step at c = 1.05."""
    count = BALANCE_STEPS
    later = _after(runs, np.tile(start, (count, 1)), 1.05, np.arange(1, count + 1))
    return np.concatenate([start[None], later])


def _pull(runs: Evidence, flat: Float) -> Float:
    """eta g = 2 eta (w - w*)' Sigma w at c = 1.05."""
    network, data = runs.initial.architecture, runs.regression
    layers = network.split(flat)
    error = error_of_map(layers, task(data, network))[:, 0]
    eta = 2.0 * 1.05 / runs.least_sharpness
    return np.asarray(2.0 * eta * np.sum((error @ data.sigma) * (error + data.w_star), axis=1))


def _output(runs: Evidence, flat: Float) -> Float:
    """w'Sigma w*/(w*'Sigma w*)."""
    network, data = runs.initial.architecture, runs.regression
    error = error_of_map(network.split(flat), task(data, network))[:, 0]
    return np.asarray(1.0 + error @ data.sigma @ data.w_star / (data.q @ data.q))


def scalar_step(w: Float, eta: Float, target: float, a: float) -> tuple[Float, Float]:
    """A step of scalar networks `[..., L]`, and eta g."""
    product = np.prod(w, axis=-1)
    pull = 2.0 * eta * a * (product - target) * product
    return w - pull[..., None] / w, pull
