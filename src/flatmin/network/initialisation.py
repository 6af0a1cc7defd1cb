"""Initial weights by name. Each network's noise comes from its own address (see `seeds`).

Those that people use, layer by layer, with fan-in d_{k-1} and fan-out d_k. `scale` multiplies the
weights; 1 is the standard one. Biases begin at 0, whatever the name.

| name            | entries of W_k                                                            |
| --------------- | ------------------------------------------------------------------------- |
| pytorch         | uniform on +-1/sqrt(fan-in): the default of PyTorch's Linear               |
| xavier-normal   | Gaussian of variance 2/(fan-in + fan-out) (Glorot and Bengio 2010)         |
| xavier-uniform  | uniform of the same variance                                              |
| kaiming-normal  | Gaussian of variance 2/fan-in (He et al. 2015, for ReLU)                   |
| kaiming-uniform | uniform of the same variance                                              |
| lecun           | Gaussian of variance 1/fan-in (LeCun et al. 1998)                          |
| orthogonal      | orthonormal rows or columns, uniformly distributed (Saxe et al. 2014)      |

Those of the theory:

| name       | weights                                                                         |
| ---------- | ------------------------------------------------------------------------------- |
| gaussian   | entries of standard deviation `scale`, whatever the width                       |
| residual   | W_k = I + scale/sqrt(L d) N_k; square layers only                               |
| zero-layer | one layer 0, the rest Gaussian: R(W) = R(0) with a non-zero gradient, so that    |
|            | assumption (A1) of the theory holds                                             |
| balanced   | W_{k+1}' W_{k+1} = W_k W_k' for every k, singular values scale * |N(0,1)|       |
| flattest   | a minimiser of sharpness S_min, plus Gaussian noise of standard deviation `scale` |
| minimiser  | a minimiser of sharpness `scale`                                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from flatmin.core.arrays import Float, one_or_each
from flatmin.core.checks import (
    check_choice,
    check_count,
    check_kind,
    check_nonnegative,
    check_several,
    number_of,
    shown,
)
from flatmin.core.errors import SettingError
from flatmin.core.seeds import Coordinate, generator
from flatmin.data.generators import orthonormal
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, check_problem, regression_of
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture, residual_output_vector
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser, minimiser_of_sharpness
from flatmin.theory.units import Units

Random = np.random.Generator
Draw = Callable[[Architecture, float, Random], list[Float]]


def _normal(variance: Callable[[int, int], float], *, uniform: bool = False) -> Draw:
    """Gaussian entries, or uniform ones on +-sqrt(3 variance), a function of fan-in and fan-out."""

    def draw(architecture: Architecture, scale: float, random: Random) -> list[Float]:
        layers = []
        for rows, columns in architecture.shapes:
            shape, size = (rows, columns), variance(columns, rows)
            if uniform:
                layers.append(scale * np.sqrt(3.0 * size) * random.uniform(-1, 1, shape))
            else:
                layers.append(scale * np.sqrt(size) * random.standard_normal(shape))
        return layers

    return draw


_uniform = partial(_normal, uniform=True)


def orthogonal(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """Orthonormal rows or columns, whichever are fewer, uniformly distributed, times `scale`."""
    layers = []
    for rows, columns in architecture.shapes:
        q = orthonormal(random, max(rows, columns), min(rows, columns))
        layers.append(scale * (q if rows >= columns else q.T))
    return layers


def gaussian(architecture: Architecture, scale: float, random: Random) -> list[Float]:
    """Independent entries of standard deviation `scale`."""
    return [scale * random.standard_normal(shape) for shape in architecture.shapes]


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


_RANDOM: dict[str, Draw] = {
    "pytorch": _uniform(lambda fan_in, fan_out: 1.0 / (3.0 * fan_in)),
    "xavier-normal": _normal(lambda fan_in, fan_out: 2.0 / (fan_in + fan_out)),
    "xavier-uniform": _uniform(lambda fan_in, fan_out: 2.0 / (fan_in + fan_out)),
    "kaiming-normal": _normal(lambda fan_in, fan_out: 2.0 / fan_in),
    "kaiming-uniform": _uniform(lambda fan_in, fan_out: 2.0 / fan_in),
    "lecun": _normal(lambda fan_in, fan_out: 1.0 / fan_in),
    "orthogonal": orthogonal,
    "gaussian": gaussian,
    "residual": residual,
    "zero-layer": zero_layer,
    "balanced": balanced,
}
_AT_MINIMISER = ("flattest", "minimiser")
INITIALISATIONS = (*_RANDOM, *_AT_MINIMISER)
# Products of larger weights leave the range of numbers at once.
_LARGEST = 1e100
DEFAULT_INIT, DEFAULT_SCALE = "pytorch", 1.0


def architecture_for(
    init: str,
    problem: Problem,
    depth: int,
    *,
    width: int | None = None,
    activation: str = "linear",
    biases: bool = False,
    output_norm: float = 1.0,
    p: Float | None = None,
    seed: int = 0,
) -> Architecture:
    """The architecture that goes with an initialisation and data: one output or several.

    Residual initialisation wants square layers and an output vector, p or one drawn from the seed;
    the others a perceptron with hidden layers of one width, the number of features unless given.
    """
    check_problem(problem)
    check_choice("init", init, INITIALISATIONS)
    check_choice("activation", activation, ACTIVATIONS)
    check_kind("biases", biases, bool)
    if problem.targets > 1:
        network = Architecture.multivariate(problem.d, depth, problem.targets, width)
        return replace(network, activation_name=activation, biases=biases)
    plain = activation == "linear" and not biases
    if init == "residual" and plain and width in (None, problem.d):
        vector = residual_output_vector(problem.d, seed) if p is None else p
        return Architecture.residual(problem.d, depth, output_norm * vector)
    network = Architecture.mlp(problem.d, depth, width, activation, biases=biases)
    return replace(network, output=(output_norm,))


def resolve_scale(
    scale: float | str, init: str, problem: Problem, architecture: Architecture
) -> float:
    """A scale as a number; as text it may be a multiple of the data's unit of weights.

    >>> from flatmin.data.generators import whitened_samples
    >>> data = whitened_samples(n=30, d=4, seed=0)
    >>> found = resolve_scale("0.5natural", "gaussian", data, Architecture.mlp(4, 3))
    >>> round(found / data.regression().w_star_norm ** (1 / 3), 12)
    0.5
    """
    factor, natural, rest = str(scale).partition("natural")
    value = number_of((factor or "1") if natural and not rest else scale)
    if value is None:
        raise SettingError(
            "scale must be a number, or a multiple of the size that the data ask for such as "
            f"0.5natural, got {shown(scale)}"
        )
    value = check_nonnegative("scale", value)
    if natural and init in ("residual", "minimiser"):
        raise SettingError(f"scale must be a number with init {init!r}, got {scale!r}")
    if not natural:
        return value
    data = problem.regression()
    return value * Units.of(data, architecture.depth, architecture.output_norm).weight


def initialise(
    architecture: Architecture,
    init: str,
    scale: float | Sequence[float],
    seed: int,
    addresses: Sequence[tuple[Coordinate, ...]] | None = None,
    regression: Regression | None = None,
    *,
    networks: int | None = None,
) -> Ensemble:
    """An ensemble with one network per address, or of so many `networks` at (0,), (1,), ...

    `scale` is one number or one per network.

    >>> initialise(Architecture.mlp(inputs=3, depth=2), "gaussian", 0.1, seed=0, networks=10)
    Ensemble(networks=10, inputs=3, widths=(3, 1))
    """
    check_kind("architecture", architecture, Architecture)
    regression = None if regression is None else regression_of(regression)
    if (addresses is None) == (networks is None):
        raise SettingError("initialise takes either networks, their number, or their addresses")
    if addresses is not None:
        addresses = check_several("addresses", addresses, "a list of tuples, one per network")
    count = check_count("networks", networks) if addresses is None else len(addresses)
    architecture.check_size(count)
    if addresses is None:
        addresses = [(i,) for i in range(count)]
    check_choice("init", init, INITIALISATIONS)
    scales = one_or_each("scale", scale, count)
    for value in scales:
        check_nonnegative("scale", value.item())
    with np.errstate(over="ignore"):
        drawn = [
            architecture.join(
                _draw(architecture, init, float(s), generator(seed, *address), regression)
            )
            for s, address in zip(scales, addresses, strict=True)
        ]
    flat = np.reshape(drawn, (-1, architecture.parameters))
    if not np.all(np.abs(flat) < _LARGEST):
        raise SettingError(
            f"scale must leave weights below {_LARGEST:g}, got {scales.max():g} with init {init!r}"
        )
    return Ensemble.from_flat(architecture, flat)


def _draw(
    architecture: Architecture,
    init: str,
    scale: float,
    random: Random,
    regression: Regression | None,
) -> list[Float]:
    if init in _RANDOM:
        return _RANDOM[init](architecture, scale, random)
    if not architecture.linear:
        raise SettingError(f"init {init!r} is for linear networks, got {architecture.beyond}")
    if regression is None:
        raise SettingError(f"init {init!r} starts at a minimiser and needs the data")
    if init == "minimiser":
        least = minimal_sharpness(regression, architecture.depth, architecture.output_norm).exact
        if scale < least * (1.0 - 1e-12):
            raise SettingError(
                f"scale is the sharpness with init 'minimiser', at least S_min = {least:.6g} at "
                f"depth {architecture.depth}, got {scale:g}"
            )
        return minimiser_of_sharpness(regression, architecture, scale, random)
    start = flattest_minimiser(regression, architecture, random)
    noise = gaussian(architecture, scale, random)
    return [w + n for w, n in zip(start, noise, strict=True)]
