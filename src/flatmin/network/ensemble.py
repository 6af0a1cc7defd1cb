"""The weights of many networks of one architecture, laid out in lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Float, aligned, numbers
from flatmin.core.checks import check_kind, check_several
from flatmin.core.errors import SettingError
from flatmin.network.architecture import Architecture

# A block of eight lanes hides latency best; four where eight would leave a core idle or overfill
# the cache (measured: at d = 256, L = 5 eight lanes halve the speed).
_WIDE_LANES, _NARROW_LANES = 8, 4
_WIDE_BLOCK_BYTES = 4 << 20


def lane_count(parameters: int, networks: int) -> int:
    """Lanes of a block for networks of so many parameters; one that is large and alone has one."""
    if networks == 1 and parameters * _NARROW_LANES * 8 > _WIDE_BLOCK_BYTES:
        return 1
    fits = parameters * _WIDE_LANES * 8 <= _WIDE_BLOCK_BYTES
    return _WIDE_LANES if networks > _WIDE_LANES and fits else _NARROW_LANES


def laid_out(flat: NDArray[Any], lanes: int, apart: bool = False) -> NDArray[Any]:
    """Rows `[network, number]` as `[block, number, lane]`, the last block padded with zeros.

    If `apart`, blocks begin at cache lines and have a page of zeros at their ends. Threads that
    write to a line in turns wait for each other, also where one only fetched it ahead of its use,
    which ends with a page (sharpness at every step by two threads, d = 5, L = 10: 2.1 instead of
    2.9 us a step).
    """
    blocks, numbers = -(-len(flat) // lanes), flat.shape[1]
    if apart and numbers:
        line = max(64 // (lanes * flat.itemsize), 1)
        numbers = -(-numbers // line) * line + -(-4096 // (lanes * flat.itemsize))
    laid = aligned((blocks, numbers, lanes), flat.dtype)
    for lane in range(lanes):
        members = flat[lane::lanes]
        laid[: len(members), : flat.shape[1], lane] = members
    return laid


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
        check_kind("architecture", architecture, Architecture)
        flat = np.asarray(numbers("flat weights", flat), dtype=dtype)
        if flat.ndim != 2 or flat.shape[1] != architecture.parameters:
            raise SettingError(
                f"flat weights must have shape (networks, {architecture.parameters}), "
                f"got {flat.shape}"
            )
        size = flat.shape[0]
        lanes = lanes or lane_count(architecture.parameters, size)
        return cls(architecture, laid_out(flat, lanes), size)

    @classmethod
    def from_matrices(
        cls, architecture: Architecture, networks: Sequence[Sequence[ArrayLike]]
    ) -> Ensemble:
        """From a list of networks, each a list of its matrices W_1..W_L."""
        check_kind("architecture", architecture, Architecture)
        several = check_several("networks", networks, "lists of matrices, one per network")
        return cls.from_flat(architecture, [architecture.join(matrices) for matrices in several])

    def flat(self) -> Float:
        """Weights as `[network, P]`."""
        flat = self.lanes.transpose(0, 2, 1).reshape(-1, self.lanes.shape[1])[: self.size]
        # Always one layout in memory: BLAS rounds differently on others.
        return np.ascontiguousarray(flat)

    def layers(self) -> list[Float]:
        """One array `[network, d_k, d_{k-1}]` per layer: W_k, with biases [W_k b_k]."""
        return self.architecture.split(self.flat())

    def weights(self) -> list[Float]:
        """W_k alone, without biases, one array `[network, d_k, d_{k-1}]` per layer."""
        return self.architecture.matrices(self.flat())

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> list[Float]: ...

    @overload
    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> Ensemble: ...

    def __getitem__(self, which: Any) -> list[Float] | Ensemble:
        """The matrices of one network, or the ensemble of some: a slice, numbers or a mask.

        >>> three = Ensemble.from_flat(Architecture.mlp(2, depth=1), [[0, 1], [2, 3], [4, 5]])
        >>> three[-1]
        [array([[4., 5.]])]
        >>> three[[2, 0]].flat().tolist()
        [[4.0, 5.0], [0.0, 1.0]]
        >>> len(three[1:]), len(three[three.flat()[:, 0] > 3])
        (2, 1)
        """
        if isinstance(which, int | np.integer):
            place = range(self.size)[which]
            lanes = self.lanes.shape[2]
            return self.architecture.split(self.lanes[place // lanes, :, place % lanes].copy())
        return Ensemble.from_flat(self.architecture, self.flat()[which], dtype=self.lanes.dtype)

    def __iter__(self) -> Iterator[list[Float]]:
        """Every network as a list of its matrices W_1..W_L."""
        for flat in self.flat():
            yield self.architecture.split(flat)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        inputs, widths = self.architecture.inputs, self.architecture.widths
        few = repr(widths) if len(widths) <= 6 else f"({widths[0]}, {widths[1]}, ..., {widths[-1]})"
        return f"Ensemble(networks={self.size}, inputs={inputs}, widths={few})"
