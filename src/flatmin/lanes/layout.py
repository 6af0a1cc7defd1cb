"""What kernels are given, by name: a network with its data, the lanes' runs, when they stop.

Arrays are made read-only where kernels only read: the compiler has another kernel for arrays that
may be written.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Whole, aligned
from flatmin.lanes.compiling import helper


class Layout(NamedTuple):
    """Where a network's numbers lie, counted in lane vectors."""

    widths: Whole  # d_0 .. d_L
    layers: Whole  # W_{k+1}, [d_{k+1}, d_k] row major, begins at layers[k]; the end is layers[L]
    nodes: Whole  # vectors of d_k numbers (b_k, a_{k+1}, h_k) begin at nodes[k]; the end is last


class Linear(NamedTuple):
    """A linear network x -> p' W_L ... W_1 x, or W_L ... W_1 x, and its regression."""

    layout: Layout
    p: NDArray[Any]  # [d_L], or [0] for d_L outputs of their own
    sigma: NDArray[Any]
    target: NDArray[Any]  # w*, or P* as [output, d_0]


class Sampled(NamedTuple):
    """A network of any activation and its samples."""

    layout: Layout
    biases: int  # 1 if every layer has a last column that multiplies 1, else 0
    p: NDArray[Any]  # [d_L], or [0] for d_L outputs of their own
    inputs: NDArray[Any]  # [samples, d_0]
    target: NDArray[Any]  # [outputs, samples], one output if there is a p
    activation: int  # a code of `activations`
    floor: float  # what is taken off the risk to give the excess, such as the least risk


class Runs(NamedTuple):
    """The runs of all lanes, `[block, lane]` each."""

    rate: NDArray[Any]  # learning rates, set to 0 in the lanes that have stopped
    left: NDArray[Any]  # steps left (whole numbers), lowered by one for each step taken
    excess: NDArray[Any]  # results at the returned weights: excess risk,
    gradient: NDArray[Any]  # squared gradient norm,
    distance: NDArray[Any]  # |w - w*|^2; infinite for a diverged lane
    extremes: NDArray[Any]  # [block, 6, lane] widened by what every step leads to: least and
    # largest excess, distance, squared gradient; or [block, 0, lane]


class Stop(NamedTuple):
    """When a lane stops."""

    check: int  # arrived only when the count of all steps is a multiple, however they are cut
    tolerance: float  # arrived: |grad|^2 at most this,
    relative: float  # or at most this times |b_1|^4,
    settled: float  # and excess risk below this, so not at the saddle w = 0
    limit: float  # diverged: before the step at which the excess risk is not below this


class Held(NamedTuple):
    """A form of networks whose layers but the last are d x d, stepped as in `held`."""

    layer: tuple[float, ...]  # of these, as of those of `Wide`, only the lengths are used: d
    top: tuple[float, ...]  # d_L


class Wide(NamedTuple):
    """A form of networks in blocks of one lane, stepped as in `wide`."""

    vector: tuple[float, ...]  # the numbers of a vector
    row: tuple[float, ...]  # the vectors of a row, if all layers but the last are square; or none


class Twins(NamedTuple):
    """A form of networks in blocks of two lanes, stepped as in `twins`."""

    row: tuple[float, ...]  # the vectors of a row


def is_form(form: Any, kind: type) -> bool:
    """Whether this is the compiler's type of a form of that kind."""
    return getattr(form, "instance_class", None) is kind


def layout(widths: Sequence[int], biases: int = 0) -> Layout:
    """The layout of networks of widths d_0 .. d_L; with biases layers are [d_{k+1}, d_k + 1]."""
    d = np.array(widths, dtype=np.int64)
    layers, nodes = np.cumsum(d[1:] * (d[:-1] + biases)), np.cumsum(d + biases)
    return Layout(d, np.concatenate([[0], layers]), np.concatenate([[0], nodes]))


def sampled(
    widths: Sequence[int],
    biases: bool,
    p: ArrayLike,
    inputs: ArrayLike,
    target: ArrayLike,
    activation: int,
    floor: float,
    kind: Any = float,
) -> Sampled:
    """The network and its samples, in the precision `kind`."""
    p, inputs, target = (read_only(array, kind) for array in (p, inputs, target))
    where, wide = layout(widths, int(biases)), int(biases)
    return Sampled(where, wide, p, inputs, target, activation, float(floor))


def linear(
    widths: Sequence[int], p: ArrayLike, sigma: ArrayLike, target: ArrayLike, kind: Any = float
) -> Linear:
    """The network and its regression, in the precision `kind`."""
    return Linear(layout(widths), *(read_only(array, kind) for array in (p, sigma, target)))


def read_only(array: ArrayLike, kind: Any) -> NDArray[Any]:
    """Row-major, of one precision, from a cache line on, and not to be written."""
    result = aligned(np.shape(array), kind)
    result[...] = array
    result.flags.writeable = False
    return result


@helper
def scratch(size, like):
    """Zeros of the type of `like` that begin at a cache line."""
    room = unfilled(size, like)
    room[:] = 0.0
    return room


@helper
def unfilled(size, like):
    """As `scratch`, with whatever is there."""
    line = 64 // like.itemsize
    buffer = np.empty(size + line, like.dtype)
    start = -(buffer.ctypes.data // like.itemsize) % line
    return buffer[start : start + size]


@helper
def block_of(runs, block):
    """The runs of one block."""
    return Runs(
        runs.rate[block], runs.left[block], runs.excess[block], runs.gradient[block],
        runs.distance[block], runs.extremes[block].reshape(-1),
    )  # fmt: skip
