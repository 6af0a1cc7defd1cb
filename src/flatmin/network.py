"""Architectures, and ensembles of networks of one architecture.

A network of depth L maps x -> p' W_L phi(W_{L-1} ... phi(W_1 x)), with W_k of shape
d_k x d_{k-1} and d_0 = d. The vector p is fixed. Three kinds matter:

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.activations import ACTIVATIONS, Activation
from flatmin.checks import check_choice, check_count, check_depth, check_positive
from flatmin.errors import SettingError
from flatmin.seeds import generator

Float = NDArray[np.float64]

# A block of eight lanes hides latency best; four where eight would leave a core idle or overfill
# the cache (measured: at d = 256, L = 5 eight lanes halve the speed).
_WIDE_LANES, _NARROW_LANES = 8, 4
_WIDE_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Architecture:
    """Shapes and fixed parts of a network: all but its weights."""

    inputs: int
    widths: tuple[int, ...]
    output: tuple[float, ...] | None = (1.0,)
    activation_name: str = "linear"

    def __post_init__(self) -> None:
        check_count("number of inputs", self.inputs)
        check_depth(len(self.widths))
        for k, width in enumerate(self.widths, start=1):
            check_count(f"width of layer {k}", width)
        if self.output is not None:
            if len(self.output) != self.widths[-1]:
                raise SettingError(
                    f"output vector p must have the last layer's width {self.widths[-1]}, "
                    f"got length {len(self.output)}"
                )
            check_positive("norm of the output vector p", np.linalg.norm(self.output))
        check_choice("activation", self.activation_name, ACTIVATIONS)
        if self.output is None and not self.linear:
            raise SettingError(
                "a network of several outputs must be linear, "
                f"got activation {self.activation_name!r}"
            )

    @classmethod
    def mlp(
        cls, inputs: int, depth: int, width: int | None = None, activation: str = "linear"
    ) -> Architecture:
        """Hidden layers of one width (the input's unless given), one output, p = 1."""
        depth = check_depth(depth)
        hidden = (inputs if width is None else check_count("width", width),) * (depth - 1)
        return cls(inputs, (*hidden, 1), (1.0,), activation)

    @classmethod
    def residual(cls, inputs: int, depth: int, p: ArrayLike) -> Architecture:
        """Square layers and a fixed output vector p."""
        vector = tuple(np.asarray(p, dtype=float).ravel().tolist())
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
        """Whether phi is the identity."""
        return self.activation_name == "linear"

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
        """(d_k, d_{k-1}) for k = 1..L."""
        return tuple(zip(self.widths, (self.inputs, *self.widths[:-1]), strict=True))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each layer starts in the flat parameter vector, with the end as last entry."""
        return (0, *np.cumsum([rows * columns for rows, columns in self.shapes]).tolist())

    @property
    def parameters(self) -> int:
        """The number of entries of all W_k."""
        return self.offsets[-1]

    @cached_property
    def p(self) -> Float:
        """The output vector (univariate networks only)."""
        if self.output is None:
            raise SettingError("a network of several outputs has no output vector p")
        return np.array(self.output)

    @property
    def output_norm(self) -> float:
        """|p|, or 1 for several outputs."""
        return 1.0 if self.output is None else float(np.linalg.norm(self.p))

    def check_fits(self, inputs: int, targets: int) -> None:
        """Refuse data with other numbers of features or targets."""
        if self.inputs != inputs:
            raise SettingError(f"the network takes {self.inputs} inputs but the data have {inputs}")
        outputs = self.widths[-1] if self.output is None else 1
        if outputs != targets:
            raise SettingError(f"the data have {targets} targets, the network {outputs}")

    def split(self, flat: Float) -> list[Float]:
        """The layers inside flat parameters `[..., P]`, as views of shape `[..., d_k, d_{k-1}]`."""
        lead = flat.shape[:-1]
        return [
            flat[..., start:stop].reshape(*lead, *shape)
            for shape, start, stop in zip(
                self.shapes, self.offsets[:-1], self.offsets[1:], strict=True
            )
        ]

    def join(self, layers: Sequence[ArrayLike]) -> Float:
        """Flat parameters `[..., P]` from layers of shape `[..., d_k, d_{k-1}]`."""
        if len(layers) != self.depth:
            raise SettingError(f"expected {self.depth} weight matrices, got {len(layers)}")
        arrays = [np.asarray(layer, dtype=float) for layer in layers]
        for k, (array, shape) in enumerate(zip(arrays, self.shapes, strict=True), start=1):
            if array.shape[-2:] != shape:
                raise SettingError(f"W_{k} must have shape {shape}, got {array.shape[-2:]}")
        return np.concatenate([a.reshape(*a.shape[:-2], -1) for a in arrays], axis=-1)


def residual_output_vector(inputs: int, seed: int) -> Float:
    """A random unit vector p for a residual network: Gaussian, divided by its norm."""
    p = generator(seed, "output vector").standard_normal(inputs)
    unit: Float = p / np.linalg.norm(p)
    return unit


def lane_count(parameters: int, networks: int) -> int:
    """Lanes of a block for networks of so many parameters."""
    fits = parameters * _WIDE_LANES * 8 <= _WIDE_BLOCK_BYTES
    return _WIDE_LANES if networks > _WIDE_LANES and fits else _NARROW_LANES


def aligned(shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Zeros that begin at a cache line, so that no lane vector straddles two."""
    kind = np.dtype(dtype)
    size, line = int(np.prod(shape)), 64 // kind.itemsize
    buffer = np.zeros(size + line, dtype=kind)
    start = -buffer.ctypes.data // kind.itemsize % line
    return buffer[start : start + size].reshape(shape)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The weights of many networks of one architecture.

    `lanes` has shape [block, parameter, lane]: the network index is innermost, so one SIMD
    instruction advances several networks and a block stays in cache for thousands of steps.
    Network i is lane i % n of block i // n, where n is `lane_count`; the last block is padded with
    zeros.
    Layer k of a block is `lanes[block, offset_k : offset_{k+1}]`, row-major.
    """

    architecture: Architecture
    lanes: Float
    size: int

    @classmethod
    def from_flat(
        cls,
        architecture: Architecture,
        flat: ArrayLike,
        lanes: int | None = None,
        dtype: Any = np.float64,
    ) -> Ensemble:
        """From flat parameters `[network, P]`."""
        flat = np.asarray(flat, dtype=dtype)
        if flat.ndim != 2 or flat.shape[1] != architecture.parameters:
            raise SettingError(
                f"flat weights must have shape (networks, {architecture.parameters}), "
                f"got {flat.shape}"
            )
        size = flat.shape[0]
        lanes = lanes or lane_count(architecture.parameters, size)
        laid = aligned((-(-size // lanes), architecture.parameters, lanes), dtype)
        for lane in range(lanes):
            members = flat[lane::lanes]
            laid[: len(members), :, lane] = members
        return cls(architecture, laid, size)

    @classmethod
    def from_matrices(
        cls, architecture: Architecture, networks: Sequence[Sequence[ArrayLike]]
    ) -> Ensemble:
        """From a list of networks, each a list of its matrices W_1..W_L."""
        return cls.from_flat(architecture, [architecture.join(matrices) for matrices in networks])

    def flat(self) -> Float:
        """Weights as `[network, P]`."""
        flat = self.lanes.transpose(0, 2, 1).reshape(-1, self.lanes.shape[1])[: self.size]
        # Always one layout in memory: BLAS rounds differently on others.
        return np.ascontiguousarray(flat)

    def layers(self) -> list[Float]:
        """Weights as one array `[network, d_k, d_{k-1}]` per layer."""
        return self.architecture.split(self.flat())

    def matrices(self) -> list[list[Float]]:
        """Weights as a list of networks, each a list of its matrices W_1..W_L."""
        return list(self)

    def __iter__(self) -> Iterator[list[Float]]:
        for flat in self.flat():
            yield self.architecture.split(flat)

    def __len__(self) -> int:
        return self.size
