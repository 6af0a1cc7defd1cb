"""Kinks held where they are, so that finite differences see the Hessian alone.

A network of ReLUs is made of smooth pieces, and its Hessian is that of the piece on which the
weights lie. Gradients at W + h v and W - h v lie on other pieces, and what they differ by includes
the kinks between: one per cent to the size of the matrix itself, in single precision. So it is
noted at W on which side of its kinks every entry is, and the sides noted are kept at W + h v and
W - h v: the function there is the piece at W, continued. A side is one bit; they are noted anew for
every product.

Held are ReLU, leaky ReLU, ReLU6 and hardtanh, which are affine between kinks, and the places of
maxima in pooling. Other kinks stay as they are, and show in the error of the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Pieces:
    """A function that is slope x + offset on each side of its kinks.

    `sides` has a mask a kink, packed: whether an entry is above it. Lines are those below the first
    kink, and above each.
    """

    lines: list[tuple[float, float]]
    sides: list[Tensor]

    def slopes(self, like: Tensor) -> Tensor:
        """Of every entry."""
        return self._chosen([slope for slope, _ in self.lines], like)

    def offsets(self, like: Tensor) -> Tensor | float:
        """Of every entry."""
        every = [offset for _, offset in self.lines]
        return self._chosen(every, like) if any(every) else 0.0

    def _chosen(self, values: list[float], like: Tensor) -> Tensor:
        found = torch.full_like(like, values[0])
        for value, side in zip(values[1:], self.sides, strict=True):
            found.masked_fill_(_unpacked(side, like.shape), value)
        return found


@dataclass(frozen=True)
class Places:
    """Where the maxima of a pooling are, in the last `axes` axes as one."""

    axes: int
    index: Tensor


class Gates(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """First notes the sides of kinks, then keeps them; a side has the number of its call."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[Pieces | Places | None] = []
        self._next: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """A pass whose kinks are those noted."""
        self._next = 0
        with self:
            yield

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A call with tensors anywhere in the pass."""
        named = kwargs or {}
        if function not in _KINKED:
            return function(*args, **named)
        if self._next is None:
            self._noted.append(_KINKED[function](function, *args, **named))
            return function(*args, **named)
        noted = self._noted[self._next] if self._next < len(self._noted) else None
        self._next += 1
        if noted is None:
            return function(*args, **named)
        x = args[0]
        if isinstance(noted, Places):
            return _Maxima.apply(x, noted)
        in_place = named.get("inplace", False) or function in (torch.relu_, Tensor.relu_)
        return _Affine.apply(x, noted, in_place)


class _Affine(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Keeps nothing for the backward pass but bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pieces: Pieces, in_place: bool) -> Tensor:
        ctx.pieces = pieces
        slopes, offsets = pieces.slopes(x), pieces.offsets(x)
        if not in_place:
            return slopes.mul_(x).add_(offsets)
        ctx.mark_dirty(x)
        return x.mul_(slopes).add_(offsets)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override, unused-ignore]
        return ctx.pieces.slopes(g).mul_(g), None, None


class _Maxima(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Places) -> Tensor:
        ctx.places, ctx.shape = places, x.shape
        index = places.index.long()
        return x.flatten(-places.axes).gather(-1, index.flatten(-places.axes)).reshape(index.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override, unused-ignore]
        axes, index = ctx.places.axes, ctx.places.index.long()
        found = g.new_zeros(ctx.shape)
        found.flatten(-axes).scatter_add_(-1, index.flatten(-axes), g.flatten(-axes))
        return found, None


def _relu(_: Any, x: Tensor, inplace: bool = False) -> Pieces:
    return Pieces([(0.0, 0.0), (1.0, 0.0)], [_packed(x > 0)])


def _leaky(_: Any, x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Pieces:
    return Pieces([(negative_slope, 0.0), (1.0, 0.0)], [_packed(x > 0)])


def _clipped(
    _: Any, x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Pieces:
    lines = [(0.0, min_val), (1.0, 0.0), (0.0, max_val)]
    return Pieces(lines, [_packed(x > min_val), _packed(x >= max_val)])


def _clipped_at_6(function: Any, x: Tensor, inplace: bool = False) -> Pieces:
    return _clipped(function, x, 0.0, 6.0)


def _pooled(axes: int) -> Callable[..., Places | None]:
    def note(function: Any, x: Tensor, *sizes: Any, **named: Any) -> Places | None:
        try:
            index = function(x, *sizes, **{**named, "return_indices": True})[1]
        except TypeError:  # given by its place
            return None
        return None if named.get("return_indices") else Places(axes, index.to(torch.int32))

    return note


def _packed(mask: Tensor) -> Tensor:
    """Eight in a byte."""
    flat = mask.reshape(-1)
    room = functional.pad(flat, (0, -flat.numel() % 8)).reshape(-1, 8).to(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (room << places).sum(1, dtype=torch.uint8)


def _unpacked(bits: Tensor, shape: torch.Size) -> Tensor:
    powers = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[:, None] & powers) != 0).reshape(-1)[: shape.numel()].reshape(shape)


_KINKED: dict[Any, Callable[..., Pieces | Places | None]] = {
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _relu),
    functional.leaky_relu: _leaky,
    functional.hardtanh: _clipped,
    functional.relu6: _clipped_at_6,
    functional.max_pool1d: _pooled(1),
    functional.max_pool2d: _pooled(2),
    functional.max_pool3d: _pooled(3),
    functional.adaptive_max_pool1d: _pooled(1),
    functional.adaptive_max_pool2d: _pooled(2),
    functional.adaptive_max_pool3d: _pooled(3),
}
