"""Architectures: all of a network but its weights.

A network of depth L maps x -> p' W_L phi(W_{L-1} ... phi(W_1 x)), with W_k of shape
d_k x d_{k-1} and d_0 = d. The vector p is fixed. With biases W_k h stands for W_k h + b_k, and a
layer is the matrix [W_k b_k]. Three kinds matter:

- multi-layer perceptron: d_L = 1 and p = 1;
- residual: every W_k is d x d, close to the identity, and p is a fixed unit vector;
- multivariate: no p, the output is the vector W_L ... W_1 x.

>>> arch = Architecture.mlp(inputs=5, depth=3)
>>> arch.shapes
((5, 5), (5, 5), (1, 5))
>>> arch.parameters
55
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import (
    check_choice,
    check_count,
    check_depth,
    check_kind,
    check_positive,
    check_several,
)
from flatmin.core.errors import SettingError
from flatmin.core.memory import check_memory
from flatmin.core.seeds import generator
from flatmin.data.samples import Problem, Samples, check_problem
from flatmin.network.activations import ACTIVATIONS, Activation

MAX_LAYERS = 10_000
_LANES = 4  # a network alone takes the room of so many


class Family(Enum):
    """What a network's Hessian, descent and flow rest on; each room has a table keyed by it."""

    ONE_OUTPUT = "linear with one output: vectors, from Sigma and w*"
    SEVERAL_OUTPUTS = "linear with several outputs: matrices, from Sigma and P*"
    SAMPLES = "with an activation or biases: signals of every row"


@dataclass(frozen=True)
class Architecture:
    """Shapes and fixed parts of a network: all but its weights."""

    inputs: int
    widths: tuple[int, ...]
    output: tuple[float, ...] | None = (1.0,)
    activation_name: str = "linear"
    biases: bool = False

    def __post_init__(self) -> None:
        check_count("number of inputs", self.inputs)
        for name in ("widths", "output") if self.output is not None else ("widths",):
            value = tuple(check_several(name, getattr(self, name), "a list of numbers"))
            object.__setattr__(self, name, value)
        check_depth(len(self.widths))
        for k, width in enumerate(self.widths, start=1):
            check_count(f"width of layer {k}", width)
        if self.output is not None:
            if len(self.output) != self.widths[-1]:
                raise SettingError(
                    f"output vector p must have the last layer's width {self.widths[-1]}, "
                    f"got length {len(self.output)}"
                )
            size = np.linalg.norm(numbers("the output vector p", self.output))
            check_positive("norm of the output vector p", size)
        check_choice("activation", self.activation_name, ACTIVATIONS)
        check_kind("biases", self.biases, bool)
        if self.output is None and not self.linear:
            raise SettingError(f"a network of several outputs must be linear, got {self.beyond}")

    @classmethod
    def mlp(
        cls,
        inputs: int,
        depth: int,
        width: int | None = None,
        activation: str = "linear",
        *,
        biases: bool = False,
    ) -> Architecture:
        """Hidden layers of one width (the input's unless given), one output, p = 1."""
        network = cls.multivariate(inputs, depth, 1, width)
        return cls(inputs, network.widths, (1.0,), activation, biases)

    @classmethod
    def residual(cls, inputs: int, depth: int, p: ArrayLike) -> Architecture:
        """Square layers and a fixed output vector p."""
        vector = tuple(numbers("p", p).ravel().tolist())
        return cls(inputs, (inputs,) * check_depth(depth), vector)

    @classmethod
    def multivariate(
        cls, inputs: int, depth: int, outputs: int, width: int | None = None
    ) -> Architecture:
        """Several outputs, no p."""
        depth = check_depth(depth)
        hidden = (inputs if width is None else check_count("width", width),) * (depth - 1)
        return cls(inputs, (*hidden, outputs), None)

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return len(self.widths)

    @property
    def linear(self) -> bool:
        """Whether x -> f(x) is linear: phi is the identity, and there are no biases."""
        return self.activation_name == "linear" and not self.biases

    @property
    def beyond(self) -> str:
        """What it has that linear networks do not, in words; empty for those."""
        activation = [] if self.activation_name == "linear" else [self.activation_name]
        return " and ".join(activation + ["biases"] * self.biases)

    @property
    def family(self) -> Family:
        """What its Hessian, descent and flow rest on."""
        if not self.linear:
            return Family.SAMPLES
        return Family.SEVERAL_OUTPUTS if self.output is None else Family.ONE_OUTPUT

    @property
    def activation(self) -> Activation:
        """phi with its derivatives."""
        return ACTIVATIONS[self.activation_name]

    @property
    def square(self) -> bool:
        """Whether every layer is d x d, as residual initialisation requires."""
        return all(width == self.inputs for width in self.widths)

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(d_k, d_{k-1}) for k = 1..L: the shapes of W_k, without biases."""
        return tuple(zip(self.widths, (self.inputs, *self.widths[:-1]), strict=True))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each layer starts in the flat parameter vector, with the end as last entry."""
        sizes = (rows * (columns + self.biases) for rows, columns in self.shapes)
        return tuple(accumulate(sizes, initial=0))

    @property
    def parameters(self) -> int:
        """The number of entries of all layers."""
        return self.offsets[-1]

    def check_size(self, networks: int = 1) -> None:
        """A SettingError if they are too deep to be run, or if so many of them, which a run holds
        in six copies, are too large."""
        if self.depth > MAX_LAYERS:
            raise SettingError(
                f"networks are run up to a depth of {MAX_LAYERS}, got {self.depth}; "
                "only predictions go deeper"
            )
        check_memory(
            f"{networks} network(s) of {self.parameters} weights",
            6.0 * 8.0 * max(networks, _LANES) * self.parameters,
        )

    @cached_property
    def p(self) -> Float:
        """The output vector (univariate networks only)."""
        if self.output is None:
            raise SettingError("a network of several outputs has no output vector p")
        return np.array(self.output)

    @cached_property
    def output_map(self) -> Float:
        """p' as a matrix of one row, or the identity: `[outputs, d_L]`."""
        return np.eye(self.widths[-1]) if self.output is None else self.p[None]

    @property
    def output_norm(self) -> float:
        """|p|, or 1 for several outputs."""
        return 1.0 if self.output is None else float(np.linalg.norm(self.p))

    def check_fits(self, problem: Problem) -> None:
        """Refuse data with other numbers of features or targets, or without rows it needs."""
        check_problem(problem)
        if self.inputs != problem.d:
            raise SettingError(
                f"the network takes {self.inputs} inputs but the data have {problem.d}"
            )
        outputs = len(self.output_map)
        if outputs != problem.targets:
            raise SettingError(f"the data have {problem.targets} targets, the network {outputs}")
        if not self.linear and not isinstance(problem, Samples):
            raise SettingError(f"a network with {self.beyond} needs the samples, not their summary")

    def split(self, flat: Float) -> list[Float]:
        """The layers W_k, with biases [W_k b_k], of flat parameters `[..., P]`, as views."""
        lead = flat.shape[:-1]
        return [
            flat[..., start:stop].reshape(*lead, rows, columns + self.biases)
            for (rows, columns), start, stop in zip(
                self.shapes, self.offsets[:-1], self.offsets[1:], strict=True
            )
        ]

    def matrices(self, flat: Float) -> list[Float]:
        """W_k alone, `[..., d_k, d_{k-1}]`."""
        return [
            layer[..., :columns]
            for layer, (_, columns) in zip(self.split(flat), self.shapes, strict=True)
        ]

    def join(self, layers: Sequence[ArrayLike]) -> Float:
        """Flat parameters `[..., P]` from the layers; biases that are not given are 0."""
        layers = check_several("the weights", layers, "a list of matrices")
        if len(layers) != self.depth:
            raise SettingError(f"expected {self.depth} weight matrices, got {len(layers)}")
        arrays = []
        for k, (layer, shape) in enumerate(zip(layers, self.shapes, strict=True), start=1):
            array, full = numbers(f"W_{k}", layer), (shape[0], shape[1] + self.biases)
            if self.biases and array.shape[-2:] == shape:
                array = np.concatenate([array, np.zeros_like(array[..., :1])], axis=-1)
            if array.shape[-2:] != full:
                raise SettingError(f"W_{k} must have shape {shape}, got {array.shape[-2:]}")
            arrays.append(array.reshape(*array.shape[:-2], full[0] * full[1]))
        return np.concatenate(arrays, axis=-1)


def residual_output_vector(inputs: int, seed: int) -> Float:
    """A random unit vector p for a residual network: Gaussian, divided by its norm."""
    p = generator(seed, "output vector").standard_normal(inputs)
    return np.asarray(p / np.linalg.norm(p))
