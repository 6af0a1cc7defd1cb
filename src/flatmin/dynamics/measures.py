"""What is measured of the layers along a run, a row of `LAYER_MEASURES` each.

Weights come as `[network, d_k, d_{k-1}]` per layer, without biases. In `gradient_floor` and
`gradient_ceiling` smin and smax are the extreme singular values of W_L...W_{k+1} and of
W_{k-1}...W_1 (the paper, section 5); several outputs have no |p|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Yes
from flatmin.core.spectra import singular_values, top_pairs
from flatmin.curvature.linear import backward
from flatmin.curvature.multivariate import products
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimal_sharpness import balanced_scale
from flatmin.theory.progressive_sharpening import balanced_sharpness
from flatmin.theory.units import Units

Layers = Sequence[Float]

PASSED_ON = 1e-3


@dataclass(frozen=True, eq=False)
class Task:
    """What measures may refer to besides the weights: the data, and p' or the identity."""

    regression: Regression
    output: Float

    @classmethod
    def of(cls, problem: Problem, architecture: Architecture) -> Task:
        """That of networks of this architecture on these data."""
        return cls(problem.regression(), architecture.output_map)


def units_of(problem: Problem, architecture: Architecture) -> Units:
    """The sizes of the problem for networks of this architecture."""
    return Units.of(problem.regression(), architecture.depth, architecture.output_norm)


def below_saddles(regression: Regression, architecture: Architecture) -> float:
    """The excess risk below which a small gradient means a minimiser.

    Critical points of one output that are none have w = 0; with several, other saddles lie between.
    """
    share = 1e-6 if architecture.family is Family.SEVERAL_OUTPUTS else 0.5
    return share * regression.excess_at_zero


def rounding_of_risk(regression: Regression, architecture: Architecture) -> float:
    """What rounding leaves of the excess risk of a linear network.

    w is a product of L matrices: its entries are known to about eps sum_k d_k |w*|, and the excess
    risk of such an error is at most Lam times its square.
    """
    error = np.finfo(float).eps * sum(architecture.widths) * regression.w_star_norm
    return float(regression.largest_eigenvalue * error**2)


def spectral_norm(layers: Layers) -> Float:
    """|W_k|_2."""
    return np.stack([singular_values(w)[:, 0] for w in layers], axis=1)


def rank_one_defect(layers: Layers) -> Float:
    """|W_k|_F^2 - |W_k|_2^2, as the sum of the other squared singular values."""
    return np.stack([np.sum(singular_values(w)[:, 1:] ** 2, axis=1) for w in layers], axis=1)


def alignment(layers: Layers) -> Float:
    """<v_{k+1}, u_k>^2 for k = 1..L-1."""
    squares = [
        np.einsum("ni,ni->n", upper[1], lower[0]) ** 2
        for lower, upper in pairwise(map(top_pairs, layers))
    ]
    return np.stack(squares, axis=1) if squares else np.empty((len(layers[0]), 0))


def invariants(layers: Layers) -> list[Float]:
    """D_k = W_{k+1}' W_{k+1} - W_k W_k' for k = 1..L-1: constant under gradient flow (Lemma 1)."""
    return [
        upper.transpose(0, 2, 1) @ upper - lower @ lower.transpose(0, 2, 1)
        for lower, upper in pairwise(layers)
    ]


def drift(layers: Layers, initial: Layers) -> Float:
    """|D_k(t) - D_k(0)|_F for k = 1..L-1."""
    changes = [
        np.linalg.norm(now - then, axis=(1, 2))
        for now, then in zip(invariants(layers), invariants(initial), strict=True)
    ]
    return np.stack(changes, axis=1) if changes else np.empty((len(layers[0]), 0))


def theta(layers: Layers, initial: Layers) -> Float:
    """|theta_k|_F with W_k = W_k(0) + theta_k / L."""
    return len(layers) * np.stack(
        [np.linalg.norm(w - w0, axis=(1, 2)) for w, w0 in zip(layers, initial, strict=True)], axis=1
    )


def error_of_map(layers: Layers, task: Task) -> Float:
    """P - P* as `[network, output, d]`, with P = p'W_L...W_1 for one output."""
    product = task.output @ layers[-1]
    for w in layers[-2::-1]:
        product = product @ w
    return np.asarray(product - np.atleast_2d(task.regression.w_star.T))


def excess_risk(error: Float, task: Task) -> Float:
    """R - R_min = tr((P - P*) Sigma (P - P*)') of each network."""
    return np.asarray(np.sum((error @ task.regression.sigma_root) ** 2, axis=(1, 2)))


def map_gradient(layers: Layers, task: Task) -> Float:
    """|grad R^1| = 2 |(P - P*) Sigma|_F as `[network, 1]`."""
    error = error_of_map(layers, task)
    return np.asarray(2.0 * np.linalg.norm(error @ task.regression.sigma, axis=(1, 2))[:, None])


def layer_gradient(layers: Layers, task: Task) -> Float:
    """|grad_k|_F, with grad_k = B_k' G A_k', G = 2 (P - P*) Sigma and B_L = p' or the identity."""
    g = 2.0 * error_of_map(layers, task) @ task.regression.sigma
    norms = [
        np.linalg.norm((task.output @ b).transpose(0, 2, 1) @ g @ a.transpose(0, 2, 1), axis=(1, 2))
        for a, b in products(layers)
    ]
    return np.stack(norms, axis=1)


def balanced(layers: Layers, task: Task) -> Float:
    """S and dS/dt along gradient flow of the balanced network with the same w, `[network, 2]`.

    NaN unless d_L = 1 and p = 1, and for w = 0 (`theory.progressive_sharpening`).
    """
    if task.output.shape != (1, 1) or task.output[0, 0] != 1.0:
        return np.full((len(layers[0]), 2), np.nan)
    w = backward(layers, task.output[0])[0]
    return np.stack(balanced_sharpness(task.regression, len(layers), w), axis=1)


def passes_nothing(problem: Problem, ensemble: Ensemble, excess: Float, gradient: Float) -> Yes:
    """Whether networks pass next to no gradient on, being at a saddle or dead.

    Linear: |grad|^2 is below a thousandth of L |P*|^{2-2/L} |p|^{2/L} |G|^2, about what a network
    of the size that a minimum needs makes of the gradient G = 2 (P - P*) Sigma of the map.
    Non-linear: not even halfway from w = 0.
    """
    architecture, data = ensemble.architecture, problem.regression()
    if not architecture.linear:
        return np.asarray(excess > 0.5 * data.excess_at_zero)
    usual = architecture.depth * balanced_scale(data, architecture.depth, architecture.output_norm)
    with np.errstate(over="ignore", invalid="ignore"):
        of_map = map_gradient(ensemble.layers(), Task.of(data, architecture))[:, 0]
        return np.asarray(gradient**2 < PASSED_ON * usual * of_map**2)


def gradient_ceiling(layers: Layers, task: Task) -> Float:
    """2 sqrt(Lam (R - R_min)) |p| |W_L...W_{k+1}|_2 |W_{k-1}...W_1|_2."""
    return _gradient_bound(layers, task, task.regression.largest_eigenvalue, 0)


def gradient_floor(layers: Layers, task: Task) -> Float:
    """2 sqrt(lam (R - R_min)) |p| smin(W_L...W_{k+1}) smin(W_{k-1}...W_1).

    smin is what a product takes off a vector at most, so it is 0 for one that lowers the dimension.
    """
    return _gradient_bound(layers, task, task.regression.smallest_eigenvalue, -1)


def _gradient_bound(layers: Layers, task: Task, eigenvalue: float, which: int) -> Float:
    norm = float(np.linalg.norm(task.output, 2))
    outer = 2.0 * norm * np.sqrt(eigenvalue * excess_risk(error_of_map(layers, task), task))
    # A_k acts on R^d and B_k' on the outputs: both must be at least as tall as wide for smin > 0.
    bounds = [
        outer * _extreme(a, which) * _extreme(b.transpose(0, 2, 1), which)
        for a, b in products(layers)
    ]
    return np.stack(bounds, axis=1)


def _extreme(matrices: Float, which: int) -> Float:
    rows, columns = matrices.shape[1:]
    if which == -1 and rows < columns:
        return np.zeros(len(matrices))
    return singular_values(matrices)[:, which]


@dataclass(frozen=True)
class Measure:
    """A quantity of the layers. The function names what it takes: `layers`, the weights now,
    `initial`, those at the start, and the `task`."""

    meaning: str
    of: Callable[..., Float]
    size: Callable[[int], int] = lambda depth: depth
    """How many numbers a network of some depth has of it."""
    linear_only: bool = False

    def __call__(self, layers: Layers, initial: Layers, task: Task) -> Float:
        known: dict[str, Any] = {"layers": layers, "initial": initial, "task": task}
        return self.of(**{name: known[name] for name in self._taken})

    @cached_property
    def _taken(self) -> tuple[str, ...]:
        return tuple(signature(self.of).parameters)


def _pairs(depth: int) -> int:
    return depth - 1


_linear = partial(Measure, linear_only=True)
LAYER_MEASURES: dict[str, Measure] = {
    "spectral_norm": Measure("|W_k|_2, k = 1..L", spectral_norm),
    "rank_one_defect": Measure("|W_k|_F^2 - |W_k|_2^2, k = 1..L", rank_one_defect),
    "alignment": Measure("<v_{k+1}, u_k>^2, k = 1..L-1", alignment, _pairs),
    "drift": Measure(
        "|D_k(t) - D_k(0)|_F with D_k = W_{k+1}'W_{k+1} - W_k W_k', k = 1..L-1", drift, _pairs
    ),
    "theta": Measure("L |W_k(t) - W_k(0)|_F, k = 1..L", theta),
    "layer_gradient": _linear("|grad_k|_F, k = 1..L", layer_gradient),
    "gradient_floor": _linear("what |grad_k|_F is at least, k = 1..L", gradient_floor),
    "gradient_ceiling": _linear("what |grad_k|_F is at most, k = 1..L", gradient_ceiling),
    "map_gradient": _linear(
        "norm of the gradient with respect to w, one number", map_gradient, lambda depth: 1
    ),
    "balanced_sharpness": _linear(
        "S and dS/dt of the balanced network with the same w", balanced, lambda depth: 2
    ),
}
