"""Gradient descent of deep linear networks in plain NumPy, sharing no code with flatmin.

Slow and obvious: networks in a list of arrays `[network, out, in]`, the loss |y - X w|^2 / n on the
rows themselves, layers drawn as the libraries that people use draw them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

Layers = list[Any]


def pytorch_layers(rng: Any, networks: int, inputs: int, depth: int, width: int) -> Layers:
    """torch.nn.Linear's default weights: uniform on +-1/sqrt(fan_in)."""
    sizes = [inputs, *[width] * (depth - 1), 1]
    return [
        rng.uniform(-1, 1, (networks, rows, columns)) / np.sqrt(columns)
        for columns, rows in pairwise(sizes)
    ]


def descend(X: Any, y: Any, layers: Layers, rate: float, steps: int) -> tuple[Layers, Any]:
    """The layers after so many steps, and the risk of each network (infinite if it diverged)."""
    n = len(X)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            hidden = [np.broadcast_to(X.T, (len(layers[0]), *X.T.shape))]
            for w in layers:
                hidden.append(w @ hidden[-1])
            delta = 2.0 / n * (hidden[-1] - y)
            gradients = []
            for w, h in zip(reversed(layers), reversed(hidden[:-1]), strict=True):
                gradients.append(delta @ h.transpose(0, 2, 1))
                delta = w.transpose(0, 2, 1) @ delta
            layers = [w - rate * g for w, g in zip(layers, reversed(gradients), strict=True)]
        out = np.broadcast_to(X.T, (len(layers[0]), *X.T.shape))
        for w in layers:
            out = w @ out
        risk = np.mean((out[:, 0] - y) ** 2, axis=1)
    return layers, np.where(np.isfinite(risk), risk, np.inf)


def learned(X: Any, y: Any, risk: Any, share: float = 1e-3) -> Any:
    """Excess risk of at most a share of that of w = 0, by NumPy's own least squares."""
    best = X @ np.linalg.lstsq(X, y, rcond=None)[0]
    least, zero = np.mean((y - best) ** 2), np.mean(y**2)
    return risk - least <= share * (zero - least)
