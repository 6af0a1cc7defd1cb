"""Lemma 9: singular values of products of weights that move a little.

Let W_1..W_L be square with |W_k...W_1|_2 <= M and smin(W_k...W_1) >= m for every k, M >= 1 and
m in (0, 1). Then for every theta with max_k |theta_k|_2 <= m^2 / (4 M^2),

    |W~_k...W~_1|_2 <= 2 M   and   smin(W~_k...W~_1) >= m / 2,   W~_k = W_k + theta_k / L.

M and m are measured: the best constants of the weights given. The lemma is about every theta of a
ball, and a supremum over it is not computable, so theta is tried on the ball's sphere in random
directions and in those that are hardest to first order (`rank_one_directions`): for the product
with the largest norm or smallest singular value, and for the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.core.spectra import singular_values
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Describe, Record, at_least, at_most
from flatmin.ledger.statement import span, statement

Int = NDArray[np.intp]
Layers = Sequence[Float]

STATEMENT = "lemma-9"
NORM, FLOOR = "norm", "smallest singular value"
RANDOM_DIRECTIONS = 4
# Relative error of a product of many matrices and of its singular values.
_ROUNDING = 1e-12


@statement(
    "Perturbed products",
    {"norm": "max_k |V_k...V_1|", "smallest singular value": "min_k σ_min(V_k...V_1)"},
    "square layers whose products have singular values above 0",
)
def lemma_9(runs: Evidence) -> list[Record]:
    return lemma_9_of(runs.layers)


def lemma_9_of(layers: Layers, seed: int = 0) -> list[Record]:
    """Both parts of Lemma 9 for weights `[network, d, d]` per layer.

    >>> [record.verdict.value for record in lemma_9_of([np.eye(3)[None]] * 2)]
    ['holds', 'holds']
    """
    if any(w.shape[1:] != (layers[0].shape[2],) * 2 for w in layers):
        shapes = [f"{w.shape[1]} x {w.shape[2]}" for w in layers]
        why = f"square layers of one size (here {', '.join(dict.fromkeys(shapes))})"
        return [Record(at="layers are not square", part=part, why=why) for part in (NORM, FLOOR)]
    ceiling, floor = constants(layers)
    tried = hard_thetas(layers, ball_radius(ceiling, floor), seed)
    return lemma_9_at(layers, tried, ceiling, floor)


def hard_thetas(layers: Layers, radius: Float, seed: int = 0) -> dict[str, list[Float]]:
    """Thetas on the sphere by name: random ones, and the hardest ones to first order."""
    norms, smallest = product_extremes(layers)
    tried = {
        f"random direction {i + 1}": random_theta(layers, radius, seed, i)
        for i in range(RANDOM_DIRECTIONS)
    }
    last = np.full(len(radius), len(layers) - 1)
    for k, up, down in (
        ("its extreme", np.argmax(norms, axis=1), np.argmin(smallest, axis=1)),
        ("the last layer", last, last),
    ):
        tried[f"pushing the norm up at {k}"] = rank_one_theta(layers, up, radius, 0)
        tried[f"pushing the smallest singular value down at {k}"] = rank_one_theta(
            layers, down, -radius, -1
        )
    return tried


def lemma_9_at(
    layers: Layers, tried: dict[str, list[Float]], ceiling: Float, floor: Float
) -> list[Record]:
    """|W~_k...W~_1|_2 <= 2 M and m / 2 <= smin(W~_k...W~_1) at the hardest of the thetas tried,
    for claimed constants M = ceiling and m = floor."""
    names = list(tried)
    pairs = [product_extremes(perturbed(layers, theta)) for theta in tried.values()]
    norms = np.stack([norm.max(axis=1) for norm, _ in pairs])
    smallest = np.stack([low.min(axis=1) for _, low in pairs])

    def hardest(theta: Int) -> Describe:
        return lambda index: f"network {index[0]}, theta: {names[theta[index[0]]]}"

    common: dict[str, Any] = {
        "hypothesis": f"square layers, M = max_k |W_k...W_1|_2 or 1 = {span(ceiling)}, "
        f"m = min_k smin(W_k...W_1) = {span(floor)}, "
        f"max_k |theta_k|_2 = {span(ball_radius(ceiling, floor))}",
        "applies": (ceiling >= 1.0) & (floor > 0.0) & (floor < 1.0),
    }
    up: dict[str, Any] = {"part": NORM, "room": _ROUNDING * 2.0 * ceiling}
    down: dict[str, Any] = {"part": FLOOR, "room": _ROUNDING * ceiling}
    up["place"] = hardest(np.argmax(norms, axis=0))
    down["place"] = hardest(np.argmin(smallest, axis=0))
    most, least = norms.max(axis=0), smallest.min(axis=0)
    return [
        at_most(most, 2.0 * ceiling, **up, **common),
        at_least(least, floor / 2.0, **down, **common),
    ]


def ball_radius(ceiling: ArrayLike, floor: ArrayLike) -> Float:
    """m^2 / (4 M^2), Lemma 9."""
    return np.asarray(np.square(np.asarray(floor, float) / ceiling) / 4.0)


def constants(layers: Layers) -> tuple[Float, Float]:
    """The best M >= 1 and m < 1 of each network."""
    norms, smallest = product_extremes(layers)
    below_one = np.nextafter(1.0, 0.0)
    return np.maximum(1.0, norms.max(axis=1)), np.minimum(below_one, smallest.min(axis=1))


def product_extremes(layers: Layers) -> tuple[Float, Float]:
    """|W_k...W_1|_2 and smin(W_k...W_1) as `[network, layer]`."""
    products = accumulate(layers, lambda product, w: w @ product)
    values = np.stack([singular_values(product) for product in products], axis=1)
    return values[:, :, 0], values[:, :, -1]


def perturbed(layers: Layers, theta: Layers) -> list[Float]:
    """W~_k = W_k + theta_k / L."""
    return [w + t / len(layers) for w, t in zip(layers, theta, strict=True)]


def random_theta(layers: Layers, radius: Float, seed: int, direction: int) -> list[Float]:
    """Gaussian theta_k of spectral norm `radius`, each network from its own address."""
    networks, d = layers[0].shape[0], layers[0].shape[2]
    theta = np.stack(
        [
            generator(seed, STATEMENT, direction, network).standard_normal((len(layers), d, d))
            for network in range(networks)
        ]
    )
    theta *= radius[:, None, None, None] / np.linalg.norm(theta, 2, axis=(2, 3))[..., None, None]
    return [theta[:, k] for k in range(len(layers))]


def rank_one_theta(layers: Layers, at: Int, radius: Float, which: int) -> list[Float]:
    """theta_k = radius c_k e_k' with the directions of `rank_one_directions`."""
    left, right = rank_one_directions(layers, at, which)
    return [
        radius[:, None, None] * c[:, :, None] * e[:, None, :]
        for c, e in zip(left, right, strict=True)
    ]


def rank_one_directions(layers: Layers, at: Int, which: int) -> tuple[list[Float], list[Float]]:
    """Unit vectors c_k and e_k such that theta_k = r c_k e_k' moves one singular value the most.

    Let s v x' be the first (`which` 0) or last (-1) singular triple of Pi = W_K...W_1, K - 1 = `at`
    for each network. To first order Pi + sum_k W_K...W_{k+1} theta_k W_{k-1}...W_1 / L has the
    singular value s + sum_k a_k' theta_k h_{k-1} / L with a_k = (W_K...W_{k+1})' v and
    h_k = W_k...W_1 x, and |theta_k|_2 <= r allows at most r |a_k| |h_{k-1}| for each term. Hence
    c_k = a_k / |a_k| and e_k = h_{k-1} / |h_{k-1}|; after layer K both are 0.
    """
    first, last = singular_pair(layers, at, which)
    right, h = [], first
    for k, w in enumerate(layers):
        right.append(_unit(np.where(np.less_equal(k, at)[:, None], h, 0.0)))
        h = np.einsum("nij,nj->ni", w, h)
    left, a = [], np.zeros_like(last)
    for k in range(len(layers) - 1, -1, -1):
        a = np.where(np.equal(at, k)[:, None], last, a)
        left.append(_unit(a))
        a = np.einsum("nij,ni->nj", layers[k], a)
    return left[::-1], right


def singular_pair(layers: Layers, at: Int, which: int) -> tuple[Float, Float]:
    """Right and left singular vectors of W_K...W_1, K - 1 = `at`, first (0) or last (-1)."""
    product = chosen = np.asarray(layers[0])
    for k, w in enumerate(layers[1:], start=1):
        product = w @ product
        chosen = np.where(np.equal(at, k)[:, None, None], product, chosen)
    left, _, right = np.linalg.svd(chosen)
    return right[:, which, :], left[:, :, which]


def _unit(vectors: Float) -> Float:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms == 0.0, 1.0, norms))
