"""What is measured of the layers along a run. Weights come as `[network, d_k, d_{k-1}]` per layer.

| name            | per network and layer                                                    |
| --------------- | ------------------------------------------------------------------------ |
| spectral_norm   | sigma_k = |W_k|_2                                                         |
| rank_one_defect | |W_k|_F^2 - |W_k|_2^2                                                     |
| alignment       | <v_{k+1}, u_k>^2, first singular vectors of neighbouring layers (L-1)     |
| drift           | |D_k(t) - D_k(0)|_F with D_k = W_{k+1}' W_{k+1} - W_k W_k' (L-1)          |
| theta           | |theta_k|_F = L |W_k(t) - W_k(0)|_F                                       |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Layers = Sequence[Float]


def spectral_norm(layers: Layers) -> Float:
    """|W_k|_2."""
    return np.stack([np.linalg.svd(w, compute_uv=False)[:, 0] for w in layers], axis=1)


def rank_one_defect(layers: Layers) -> Float:
    """|W_k|_F^2 - |W_k|_2^2, as the sum of the other squared singular values."""
    return np.stack(
        [np.sum(np.linalg.svd(w, compute_uv=False)[:, 1:] ** 2, axis=1) for w in layers], axis=1
    )


def alignment(layers: Layers) -> Float:
    """<v_{k+1}, u_k>^2 for k = 1..L-1."""
    pairs = [np.linalg.svd(w, full_matrices=False) for w in layers]
    squares = [
        np.einsum("ni,ni->n", upper[2][:, 0, :], lower[0][:, :, 0]) ** 2
        for lower, upper in pairwise(pairs)
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


LAYER_MEASURES: dict[str, Callable[[Layers, Layers], Float]] = {
    "spectral_norm": lambda layers, initial: spectral_norm(layers),
    "rank_one_defect": lambda layers, initial: rank_one_defect(layers),
    "alignment": lambda layers, initial: alignment(layers),
    "drift": drift,
    "theta": theta,
}
