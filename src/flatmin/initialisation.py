"""Initial weights by name. Each network's noise comes from its own address (see `seeds`).

| name       | weights                                                                         |
| ---------- | ------------------------------------------------------------------------------- |
| gaussian   | entries of standard deviation `scale`                                           |
| residual   | W_k = I + scale/sqrt(L d) N_k; square layers only                               |
| zero-layer | one layer 0, the rest Gaussian: R(W) = R(0) with a non-zero gradient, so that    |
|            | assumption (A1) of the theory holds                                             |
| balanced   | W_{k+1}' W_{k+1} = W_k W_k' for every k, singular values scale * |N(0,1)|       |
| flattest   | a minimiser of sharpness S_min, plus Gaussian noise of standard deviation `scale` |
| minimiser  | a minimiser of sharpness `scale`                                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flatmin.checks import check_choice, check_nonnegative
from flatmin.errors import SettingError
from flatmin.network import Architecture, Ensemble
from flatmin.problem import Regression
from flatmin.seeds import Coordinate, generator
from flatmin.theory.minimisers import flattest_minimiser, minimiser_of_sharpness

Float = NDArray[np.float64]
Random = np.random.Generator


def gaussian(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """Independent entries of standard deviation `scale`."""
    return architecture.split(scale * random.standard_normal(architecture.parameters))


def residual(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """W_k = I + s/sqrt(L d) N_k."""
    if not architecture.square:
        raise SettingError(
            "residual initialisation needs every layer to be "
            f"{architecture.inputs} x {architecture.inputs}, got widths {architecture.widths}"
        )
    d = architecture.inputs
    noise = gaussian(architecture, scale / np.sqrt(architecture.depth * d), random)
    return [np.eye(d) + n for n in noise]


def zero_layer(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """Gaussian, with the first layer 0. (Which layer is zero does not matter to R or (A1).)"""
    layers = gaussian(architecture, scale, random)
    layers[0] = np.zeros_like(layers[0])
    return layers


def balanced(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """W_k = F_k D F_{k-1}' with orthonormal columns in F_k and one diagonal D for all layers."""
    widths = (architecture.inputs, *architecture.widths)
    rank = min(widths)
    diagonal = scale * np.abs(random.standard_normal(rank))
    frames = [np.linalg.qr(random.standard_normal((width, rank)))[0] for width in widths]
    return [(frames[k + 1] * diagonal) @ frames[k].T for k in range(architecture.depth)]


Draw = Callable[[Architecture, float, Random], list[Float]]
_RANDOM: dict[str, Draw] = {
    "gaussian": gaussian,
    "residual": residual,
    "zero-layer": zero_layer,
    "balanced": balanced,
}
_AT_MINIMISER = ("flattest", "minimiser")
INITIALISATIONS = (*_RANDOM, *_AT_MINIMISER)


def initialise(
    architecture: Architecture,
    init: str,
    scale: float | Sequence[float],
    seed: int,
    addresses: Sequence[tuple[Coordinate, ...]],
    regression: Regression | None = None,
) -> Ensemble:
    """An ensemble with one network per address; `scale` is one number or one per network.

    >>> arch = Architecture.mlp(inputs=3, depth=2)
    >>> len(initialise(arch, "gaussian", 0.1, seed=0, addresses=[(i,) for i in range(10)]))
    10
    """
    check_choice("init", init, INITIALISATIONS)
    scales = np.broadcast_to(np.asarray(scale, dtype=float), (len(addresses),))
    for value in scales:
        check_nonnegative("scale", value.item())
    networks = [
        architecture.join(
            _draw(architecture, init, float(s), generator(seed, *address), regression)
        )
        for s, address in zip(scales, addresses, strict=True)
    ]
    return Ensemble.from_flat(architecture, np.reshape(networks, (-1, architecture.parameters)))


def _draw(
    architecture: Architecture,
    init: str,
    scale: float,
    random: Random,
    regression: Regression | None,
) -> list[Float]:
    if init in _RANDOM:
        return _RANDOM[init](architecture, scale, random)
    if regression is None:
        raise SettingError(f"init {init!r} starts at a minimiser and needs the data")
    if init == "minimiser":
        return minimiser_of_sharpness(regression, architecture, scale, random)
    start = flattest_minimiser(regression, architecture, random)
    noise = gaussian(architecture, scale, random)
    return [w + n for w, n in zip(start, noise, strict=True)]
