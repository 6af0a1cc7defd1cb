"""Adversarial weights: the sharpness and its interval against dense Hessians.

    python -m tests.adversary.weights --cases 10000 [--seed 0] [--first 0]

A case is an architecture, data and weights, all from its number. Weights come in groups of one
architecture and data, so that they run side by side as an ensemble does, and the first of each
group alone as well.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from adversary.dense import hessian, largest_eigenvalue
from flatmin.core.errors import FlatminError
from flatmin.curvature import sharpness
from flatmin.data.samples import Samples
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

GROUP = 10
GROSS = 1e-3


def architecture(rng):
    """One of all kinds, small enough for a dense Hessian."""
    kind = rng.integers(8)
    d, depth, width = (int(x) for x in rng.integers((1, 1, 1), (5, 6, 5)))
    if kind == 0:
        return Architecture.mlp(d, depth, width)
    if kind == 1:
        return Architecture.residual(d, min(depth, 4), rng.standard_normal(d))
    if kind == 2:
        return Architecture.mlp(min(d, 2), int(rng.integers(6, 12)), 2)
    if kind == 3:
        widths = tuple(int(x) for x in rng.integers(1, 5, min(depth, 4)))
        return Architecture(d, widths, tuple(rng.standard_normal(widths[-1]).tolist()))
    if kind in (4, 5):
        return Architecture.multivariate(min(d, 3), min(depth, 4), int(rng.integers(2, 4)), width)
    name, biases = rng.choice(list(ACTIVATIONS)).item(), bool(rng.integers(2))
    biases |= name == "linear"
    if rng.random() < 0.03:
        return Architecture.mlp(4, 6, 6, name, biases=biases)  # beyond the size of whole spectra
    return Architecture.mlp(min(d, 3), min(depth, 4), min(width, 3), name, biases=biases)


def data(rng, network):
    """Rows: Gaussian, white, ill-conditioned, of low rank, of whole numbers, in odd units."""
    d, m = network.inputs, network.widths[-1] if network.output is None else 1
    n = d + int(rng.integers(2, 5))
    X = rng.standard_normal((n, d))
    kind = rng.integers(6)
    if kind == 1:
        X = np.linalg.qr(X)[0] * np.sqrt(n)
    elif kind == 2:
        X *= 10.0 ** -rng.uniform(0, 6, d)
    elif kind == 3 and d > 1:
        X[:, -1] = X[:, 0]
    elif kind == 4:
        X = rng.integers(-2, 3, (n, d)).astype(float)
    elif kind == 5:
        X *= 10.0 ** rng.uniform(-6, 6)
    Y = X @ rng.standard_normal((d, m)) + rng.choice([0.0, 0.3]) * rng.standard_normal((n, m))
    if rng.random() < 0.2:
        Y *= 10.0 ** rng.uniform(-6, 6)
    return Samples.from_arrays(X, Y[:, 0] if m == 1 else Y)


def at_minimiser(rng, network, problem):
    """A minimiser of a linear network where its widths allow one, by the last layer solved for."""
    layers = gaussian(rng, network, 1.0)
    p = np.eye(network.widths[-1]) if network.output is None else network.p[None]
    w_star = np.atleast_2d(problem.regression().w_star.T)
    rest = np.eye(network.inputs)
    for w in layers[:-1]:
        rest = w @ rest
    layers[-1] = np.linalg.pinv(p) @ w_star @ np.linalg.pinv(rest)
    return layers


def gaussian(rng, network, scale):
    return [scale * rng.standard_normal(shape) for shape in network.shapes]


def weights(rng, network, problem):
    """The name of a kind and weights of it."""
    kinds = [
        *("gaussian", "zero layers", "saddle", "identity", "near identity", "huge or tiny"),
        *("unbalanced", "minimiser", "near minimiser", "rank one", "whole", "blocks", "saturated"),
    ]
    kind = kinds[rng.integers(len(kinds))]
    layers = gaussian(rng, network, 10.0 ** rng.uniform(-1, 0.5))
    if kind == "zero layers":
        for k in rng.integers(0, network.depth, rng.integers(1, 3)):
            layers[k] = np.zeros(network.shapes[k])
    elif kind == "saddle":
        # A map that fits part of the target, and layers that vanish on the rest.
        for k, (rows, columns) in enumerate(network.shapes):
            keep = rng.integers(0, min(rows, columns) + 1)
            layers[k] = np.zeros((rows, columns))
            layers[k][range(keep), range(keep)] = rng.choice([1.0, 2.0, 10.0])
    elif kind in ("identity", "near identity"):
        noise = 0.0 if kind == "identity" else 10.0 ** rng.uniform(-16, -4)
        scale = rng.choice([0.5, 1.0, 2.0])
        layers = [
            scale * np.eye(*shape) + noise * rng.standard_normal(shape) for shape in network.shapes
        ]
    elif kind == "huge or tiny":
        layers = gaussian(rng, network, 10.0 ** rng.uniform(-30, 12))
    elif kind == "unbalanced":
        layers = [10.0 ** rng.uniform(-5, 5) * w for w in layers]
    elif kind in ("minimiser", "near minimiser"):
        layers = at_minimiser(rng, network, problem)
        if kind == "near minimiser":
            noise = 10.0 ** rng.uniform(-16, -3)
            layers = [w + noise * rng.standard_normal(w.shape) for w in layers]
    elif kind == "rank one":
        layers = [
            np.outer(rng.standard_normal(rows), rng.standard_normal(columns))
            for rows, columns in network.shapes
        ]
    elif kind == "whole":
        layers = [rng.integers(-1, 2, shape).astype(float) for shape in network.shapes]
    elif kind == "blocks":
        # Units that do not meet: the sharp direction does not see where the gradient is.
        layers = [
            np.where(np.eye(*shape) > 0, 10.0 ** rng.uniform(-3, 1, shape), 0.0)
            for shape in network.shapes
        ]
    elif kind == "saturated":
        layers = gaussian(rng, network, 10.0 ** rng.uniform(0.5, 2.5))
    if network.biases:
        size = rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-5, 5)])
        layers = [np.column_stack([w, size * rng.standard_normal(len(w))]) for w in layers]
    return kind, layers


def group(seed, number):
    """Architecture, data, and kinds and weights of one group."""
    rng = np.random.default_rng([seed, number])
    while True:
        network = architecture(rng)
        try:
            problem = data(rng, network)
            problem.regression()
        except FlatminError:
            continue  # such as a target that the features do not explain at all
        return network, problem, [weights(rng, network, problem) for _ in range(GROUP)]


class Score:
    """What came of the cases."""

    def __init__(self):
        self.count, self.failures = Counter(), []
        self.worst = 0.0

    def judge(self, place, kind, network, record, truth, error):
        """Against the largest eigenvalue of the dense Hessian, known up to `error`."""
        self.count["cases"] += 1
        name = network.beyond or "linear"
        if not np.isfinite(truth):
            self.count["beyond the range of numbers"] += 1
            wrong = bool(record.converged)
            text = "converged beyond the range of numbers"
        else:
            self.count[record.proof] += 1
            self.count["converged"] += bool(record.converged)
            apart = abs(record.value - truth) - error
            gross = not apart <= GROSS * abs(truth) + error
            self.count["off, and flagged"] += gross and not record.converged
            if not record.converged:
                self.count[f"not certain: {name}, {kind}"] += 1
            wrong = record.proof != "none" and not (
                record.low <= truth + error and record.high >= truth - error
            )
            wrong |= bool(gross and record.converged)
            text = f"true {truth:.17g} +- {error:.1e}"
        if wrong:
            self.failures.append(f"{place}: {kind}, {network}: {record!r} {text}")


def run(cases, seed=0, first=0):
    """Cases first .. first + cases - 1."""
    score = Score()
    for number in range(first // GROUP, -(-(first + cases) // GROUP)):
        network, problem, made = group(seed, number)
        ensemble = Ensemble.from_matrices(network, [layers for _, layers in made])
        found = sharpness(problem, ensemble)
        alone = (
            sharpness(problem, made[0][1], network.p if network.output else None)
            if network.linear
            else sharpness(problem, ensemble[:1])[0]
        )
        for i, (kind, layers) in enumerate(made):
            place = number * GROUP + i
            if not first <= place < first + cases:
                continue
            with np.errstate(all="ignore"):
                matrix = hessian(problem, network, layers)
            truth, error = np.nan, 0.0
            if np.isfinite(matrix.astype(float)).all():
                truth, error = largest_eigenvalue(matrix)
            score.judge(place, kind, network, found[i], truth, error)
            if i == 0:
                score.judge(f"{place} alone", kind, network, alone, truth, error)
                score.count["cases"] -= 1
    return score


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    score = run(options.cases, options.seed, options.first)
    print(f"seed {options.seed}, {time.perf_counter() - began:.0f} s")
    for name, count in sorted(score.count.items(), key=lambda item: -item[1]):
        print(f"{count:7d}  {name}")
    for failure in score.failures:
        print(failure)
    print(f"{len(score.failures)} failures")
    return bool(score.failures)


if __name__ == "__main__":
    sys.exit(main())
