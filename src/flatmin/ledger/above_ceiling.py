"""What gradient descent does just above the ceiling, and what one neuron a layer shows.

These statements need the data, the depth and |p| of the runs only: each is put to the test on
chains, or scalar networks, made for it, once for every data set and depth among the evidence.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.dynamics.descent import descend
from flatmin.dynamics.measures import Task, error_of_map
from flatmin.ledger.evidence import EPSILON, Evidence
from flatmin.ledger.record import Record, at_most, sandwich
from flatmin.ledger.statement import NotApplicable, need, statement
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


@statement(
    "The orbit of one mode",
    "|u/predicted - 1|",
    "one output, L >= 2, w* an eigenvector of Sigma with Lam <= L a",
    once=True,
)
def period_two_orbit(runs: Evidence) -> Record:
    """If Sigma w* = a w* and Lam <= L a, balanced chains at c > 1 have the orbit u, z u with
    u^L (1 + z^{2L-1}) = 1 + z^{L-1} and z = 1 + (2c/L) u^{L-2} (1 - u^L), and below c_4 nearby runs
    of gradient descent are drawn to it by its multiplier a period."""
    need(runs, one_output=True, layers=2)
    data, depth, network = runs.regression, runs.depth, runs.initial.architecture
    if not one_mode(data, depth):
        raise NotApplicable("w* an eigenvector of Sigma")
    orbit = mode_orbit(depth, ORBIT_RATE)
    size = Units.of(data, depth, network.output_norm).weight
    start = _chain(network, data.w_star / data.w_star_norm, np.full(depth, size * orbit.low))
    start *= 1.0 + OFF
    end = _after(runs, np.tile(start, (2, 1)), ORBIT_RATE, 2 * PERIODS + np.arange(2))
    u = _output(runs, end) ** (1.0 / depth)
    # What the multiplier leaves of the first distance, twice, and the rounding of 2 L factors.
    left = 2.0 * OFF * abs(orbit.multiplier) ** PERIODS + 100.0 * EPSILON * depth
    factor = f"a period multiplies by {orbit.multiplier:.3g}"
    return at_most(
        np.abs(u / [orbit.low, orbit.high] - 1.0),
        left,
        place=runs.place("point"),
        note=f"c = {ORBIT_RATE:g}, from {OFF:g} off; {factor}",
    )


@statement(
    "An orbit is born at 2/S_min",
    {"amplitude": "|ε²/predicted - 1|", "below it settles": "width left"},
    "one output, L >= 2, S_min simple and D > 0",
    once=True,
)
def flip_at_the_ceiling(runs: Evidence) -> list[Record]:
    """If S_min is a simple eigenvalue at the flattest chain and D > 0, gradient descent settles
    there below c = 1, and above has an orbit of period two with half-width
    eps^2 = (S_min/D)(c - 1) (1 + O(c - 1)): a quarter of c - 1 leaves a quarter of the error, and
    certainly less than half of it."""
    need(runs, one_output=True, layers=2)
    found = flip(runs.regression, runs.depth, runs.output_norm)
    if not found.supercritical or found.gap < SIMPLE:
        raise NotApplicable("a simple S_min and D > 0")
    c = np.append(1.0 + NEAR, BELOW)
    flat, x = _flattest_chain(runs)
    size = np.sqrt([abs(found.amplitude_squared(one)) for one in c])
    start = np.repeat(flat + size[:, None] * x, 2, axis=0)
    steps = FLIP_STEPS + np.tile(np.arange(2), len(c))
    end = _after(runs, start, np.repeat(c, 2), steps).reshape(len(c), 2, -1)
    width = 0.5 * np.linalg.norm(end[:, 1] - end[:, 0], axis=1)
    error = np.abs(width[:2] ** 2 / size[:2] ** 2 - 1.0)
    return [
        at_most(
            error[:1],
            0.5 * error[1:],
            part="amplitude",
            room=1e-6,
            place=runs.place(more=f", c = {1 + NEAR[0]:g}"),
            note=f"eps^2/predicted - 1 is {error[0]:.2g} at c - 1 = {NEAR[0]:g} and "
            f"{error[1]:.2g} at {NEAR[1]:g}",
        ),
        at_most(
            width[2:] / size[2:],
            0.5,
            part="below it settles",
            place=runs.place(more=f", c = {BELOW:g}"),
            note=f"what is left of the same width after {FLIP_STEPS} steps, against a half",
        ),
    ]


@statement(
    "Oscillating balances layers",
    {"factor": "error of the factor", "balances": "|r_2² - r_3²|"},
    "one output, L >= 3",
    once=True,
)
def oscillation_balances(runs: Evidence) -> list[Record]:
    """In a chain, a step multiplies r_j^2 - r_k^2, 2 <= j < k, by 1 - (eta g/(r_j r_k))^2 exactly;
    so an oscillation with eta |g| < sqrt(2) r_j r_k throughout balances the layers."""
    need(runs, one_output=True, layers=3)
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
    # Of a norm, and of eta g, whose own error the small gap does not multiply up.
    rounding = 100.0 * EPSILON * runs.widest * float(np.max(r)) ** 2
    place = runs.place("step", more=", layers 2 and 3")
    return [
        at_most(
            np.abs(gap[1:] - predicted),
            rounding,
            part="factor",
            place=place,
            note="the bound is rounding",
        ),
        at_most(
            np.abs(gap[1:]),
            np.abs(gap[:-1]),
            part="balances",
            hypothesis="one output, L >= 3, eta |g| < sqrt(2) r_j r_k",
            applies=np.abs(pull) < np.sqrt(2.0) * r[0, :-1] * r[1, :-1],
            room=rounding,
            place=place,
        ),
    ]


@statement(
    "The flow's sharpness falls",
    "sharpness the flow reaches",
    "scalar networks with the data's a and |w*|, L >= 2, eta |g| <= |w_i w_j|",
    once=True,
)
def flow_sharpness_falls(runs: Evidence) -> Record:
    """In a scalar network a step with eta |g| <= |w_i w_j| for all i != j does not increase the
    sharpness at which gradient flow would end from there. (Kreisler et al. 2023; the condition and
    the proof are this project's: docs/theory/flow-sharpness-falls.md.)"""
    need(runs, one_output=True, layers=2)
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
    return at_most(
        values[1:],
        values[:-1],
        applies=met,
        room=1e3 * EPSILON * depth * np.nan_to_num(values[:-1]),
        place=runs.place("step", "start", "rate"),
        why="steps that are small enough",
    )


@statement(
    "Around the limit of tiny weights", "limit of the sharpness", "one output, L >= 2", once=True
)
def one_neuron_bounds(runs: Evidence) -> list[Record]:
    """lambda_max(Sigma + (L-1) z z') lies between Lam + (L-1) z_1^2 and Lam + (L-1) |z|^2: this is,
    times 2 t_0, the bounds that Yoo, Song and Yun (2025) give for one neuron a layer, around the
    exact limit of the sharpness from vanishing weights."""
    need(runs, one_output=True, layers=2)
    low, high = small_limit_bounds(runs.regression, runs.depth, runs.output_norm)
    limit = limit_of(runs.regression, runs.depth, runs.output_norm)
    return sandwich([low], [limit], [high], room=100.0 * EPSILON * high, place=runs.place())


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
    rates = np.broadcast_to(2.0 * np.asarray(c) / runs.minimal_sharpness, (len(start),))
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
    error = error_of_map(layers, Task.of(data, network))[:, 0]
    eta = 2.0 * 1.05 / runs.minimal_sharpness
    return np.asarray(2.0 * eta * np.sum((error @ data.sigma) * (error + data.w_star), axis=1))


def _output(runs: Evidence, flat: Float) -> Float:
    """w'Sigma w*/(w*'Sigma w*)."""
    network, data = runs.initial.architecture, runs.regression
    error = error_of_map(network.split(flat), Task.of(data, network))[:, 0]
    return np.asarray(1.0 + error @ data.sigma @ data.w_star / (data.q @ data.q))


def scalar_step(w: Float, eta: Float, target: float, a: float) -> tuple[Float, Float]:
    """A step of scalar networks `[..., L]`, and eta g."""
    product = np.prod(w, axis=-1)
    pull = 2.0 * eta * a * (product - target) * product
    return w - pull[..., None] / w, pull
