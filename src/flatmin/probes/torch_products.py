"""Products of a batch's Hessian with a vector, in three ways, and of its Gauss-Newton matrix.

- forward over reverse: the directional derivative of the gradient;
- reverse over reverse: the gradient of <gradient, v>;
- finite differences of gradients, where even double backward is missing, or memory is short: they
  take that of a training step.

PyTorch's own fused attention cannot be differentiated twice: the first two ways take its plain one.

The Gauss-Newton matrix is J' (d^2 loss / d output^2) J, with J the Jacobian of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch._functorch import pyfunctorch
from torch.func import debug_unwrap, jvp, vjp
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from flatmin.core.errors import SettingError
from flatmin.probes.differences import Glance
from flatmin.probes.torch_call import TorchCall, Values
from flatmin.probes.torch_gates import Gates
from flatmin.probes.torch_pieces import Sketch, Sum, groups

# Out of the derivatives that are being taken, where a sum may be added to. A version of PyTorch
# without it refuses, and goes reverse over reverse.
_outside: Callable[[], Any] = getattr(
    pyfunctorch, "temporarily_clear_interpreter_stack", nullcontext
)


CHANNELS = 8  # groups of them that batch normalisation goes through, in forward mode
Total = TypeVar("Total", Sum, Sketch)
Product = Callable[[TorchCall, Values, Values, Any, int, Sum], None]


def forward_over_reverse(
    call: TorchCall, at: Values, v: Values, batch: Any, number: int, total: Sum
) -> None:
    """jvp of grad; tangents of the gradient are taken as they come, the gradient is let go."""

    def take(name: str, slope: Tensor) -> Tensor:
        found = forward_mode.unpack_dual(slope).tangent
        if found is not None:
            with _outside():
                total.add(name, debug_unwrap(found))
        return slope.new_zeros(()).expand_as(slope)

    def watched(values: Values) -> Tensor:
        for name, one in values.items():
            one.register_hook(partial(take, name))
        found: Tensor = call.value(values, batch, number)
        return found

    def slope(one: Values) -> Tensor:
        # The graph is let go as it is used; that of `torch.func.grad` is kept whole.
        value, back = vjp(watched, one)
        back(torch.ones_like(value), retain_graph=False, create_graph=False)
        found: Tensor = value
        return found

    with plain_attention(), Squares():
        jvp(slope, (at,), (v,))


def reverse_over_reverse(
    call: TorchCall, at: Values, v: Values, batch: Any, number: int, total: Sum
) -> None:
    """grad of <grad, v>."""
    leaves = _leaves(at)

    def twice(value: Tensor) -> None:
        along = _slope(value, None, leaves, v)
        _pass_on(leaves, total.add)
        if along.requires_grad:  # else the loss is linear in what was chosen
            # The first half of a gradient waits for the other, but only in its group.
            *others, last = groups(leaves, call.waiting)
            for some in others:
                along.backward(inputs=list(some.values()), retain_graph=True)
            along.backward(inputs=list(last.values()))

    with plain_attention():
        call.value(leaves, batch, number, twice)


def finite_differences(
    call: TorchCall, at: Values, v: Values, batch: Any, number: int, total: Sum
) -> None:
    """Central differences, with kinks held where they are at these weights."""
    length, size = math.sqrt(inner(v, v)), math.sqrt(inner(at, at))
    if length > 0.0:
        pairs = _Pairs(call, at, v, batch, number)
        total.add_flat(call.differences.product(pairs, size, length))


class _Pairs:
    """Gradients on both sides of the weights, a parameter at a time."""

    def __init__(self, call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> None:
        self._call, self._at, self._v, self._batch, self._number = call, at, v, batch, number
        self._gates = Gates()
        if call.holds:
            with torch.no_grad(), self._gates:
                call.value(at, batch, number)

    def between(self, h: float) -> Tensor:
        """Flat."""
        return self._sum(h, lambda: Sum(self._at)).flat

    def glance(self, h: float, kept: Tensor | None) -> Glance:
        """Pieces are let go as they come."""
        return self._sum(h, lambda: self._sketch(kept)).glance

    def look(self, vector: Tensor, kept: Tensor | None) -> Glance:
        """At all of its pieces."""
        found = self._sketch(kept)
        for name, one in Sum(self._at).split(vector).items():
            found.add(name, one)
        return found.glance

    def _sketch(self, kept: Tensor | None) -> Sketch:
        return Sketch(self._v, None if kept is None else Sum(self._at).split(kept))

    def _sum(self, h: float, make: Callable[[], Total]) -> Total:
        """H v is the sum of H u over the parts u of v that belong to groups of parameters: only
        those of a group have a copy at a time."""
        call, found = self._call, make()
        try:
            for group in groups(self._at, call.moved):
                for found.weight in (1.0, -1.0):
                    there = {
                        name: torch.add(one, self._v[name], alpha=found.weight * h)
                        if name in group
                        else one.detach()
                        for name, one in self._at.items()
                    }
                    with self._gates.held() if call.holds else nullcontext():
                        gradient(call, there, self._batch, self._number, found.add)
                    del there
            return found
        except CheckpointError:  # passes of the model's own that the gates do not know of
            if not call.holds:
                raise
        call.holds = False
        return self._sum(h, make)


def inner(a: Values, b: Values) -> float:
    """<a, b>."""
    return sum(float(torch.dot(a[name].reshape(-1), b[name].reshape(-1).to(a[name]))) for name in a)


def gradient(
    call: TorchCall, at: Values, batch: Any, number: int, add: Callable[[str, Tensor], None]
) -> None:
    """Of the loss of a batch, a parameter at a time; the values given become the leaves."""
    leaves = {name: one.requires_grad_() for name, one in at.items()}
    _pass_on(leaves, add)

    def back(value: Tensor) -> None:
        if value.requires_grad:
            value.backward()

    call.value(leaves, batch, number, back)


def _leaves(at: Values) -> Values:
    return {name: one.detach().requires_grad_() for name, one in at.items()}


def _pass_on(leaves: Values, add: Callable[[str, Tensor], None]) -> None:
    """Gradients that a backward pass finds are passed on, and not kept."""

    def drop(leaf: Tensor) -> None:
        leaf.grad = None

    for name, leaf in leaves.items():
        leaf.register_hook(partial(add, name))  # sees tangents, which what is kept has not
        leaf.register_post_accumulate_grad_hook(drop)


def _slope(value: Tensor, weights: Tensor | None, leaves: Values, v: Values) -> Tensor:
    """<gradient, v>, differentiable; the gradient by the leaves is let go as it comes."""
    found = []

    def take(name: str, slope: Tensor) -> Tensor:
        dense = slope.to_dense() if slope.is_sparse else slope
        found.append((dense * v[name]).sum())
        return torch.zeros((), dtype=slope.dtype, device=slope.device).expand(slope.shape)

    hooks = [leaf.register_hook(partial(take, name)) for name, leaf in leaves.items()]
    torch.autograd.grad(value, list(leaves.values()), weights, create_graph=True, allow_unused=True)
    for one in hooks:
        one.remove()
    return torch.stack(found).sum() if found else torch.zeros(())


def gauss_newton(
    call: TorchCall,
    at: Values,
    v: Values,
    batch: Any,
    number: int,
    total: Sum,
    forward: bool = True,
) -> None:
    """J' (d^2 loss / d output^2) J v; without forward mode J is the transpose of u -> J'u.

    What J v needs is let go before J' is applied: a second pass costs less than memory.
    """
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2):
        raise SettingError("matrix 'Gauss-Newton' needs batches that are pairs (inputs, targets)")
    leaves = _leaves(at)

    def transposed(out: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.zeros_like(out, requires_grad=True)
        return out.detach(), torch.autograd.grad(_slope(out, u, leaves, v), u)[0]

    with plain_attention(), call.drawing(number):
        if forward:
            with Channels():
                out, along = jvp(lambda one: call.output(one, batch[0]), (at,), (v,))
        else:
            out, along = call.output(leaves, batch[0], transposed)
    if not isinstance(out, Tensor):
        kind = type(out).__name__
        raise SettingError(f"matrix 'Gauss-Newton' needs an output that is a tensor, got a {kind}")
    place = out.detach().requires_grad_()
    slope = torch.autograd.grad(call.loss(place, batch[1]), place, create_graph=True)[0]
    if not slope.requires_grad:  # the loss is linear in the output
        return
    bent = torch.autograd.grad(slope, place, along.detach())[0]
    del out, along, slope, place
    _pass_on(leaves, total.add)
    with plain_attention(), call.drawing(number):
        call.output(leaves, batch[0], lambda out: out.backward(bent))


class Squares(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Squared errors by their formula: PyTorch's own have no forward derivative of second order."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A call with tensors anywhere in the pass."""
        named = kwargs or {}
        kind = named.get("reduction", "mean")
        if function is not functional.mse_loss or len(args) != 2 or kind == "none":
            return function(*args, **named)
        square = (args[0] - args[1]) ** 2
        return square.mean() if kind == "mean" else square.sum()


class Channels(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Batch normalisation some channels at a time: its forward derivative makes many copies."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A call with tensors anywhere in the pass."""
        named = kwargs or {}
        if function is not functional.batch_norm or args[0].ndim < 2:
            return function(*args, **named)
        given = signature(function).bind(*args, **named).arguments
        x = given.pop("input")
        found = torch.empty_like(x)
        for some in torch.arange(x.shape[1]).tensor_split(min(CHANNELS, x.shape[1])):
            place = slice(int(some[0]), int(some[-1]) + 1)
            each = {k: one[place] if isinstance(one, Tensor) else one for k, one in given.items()}
            found[:, place] = function(x[:, place], **each)
        return found


def plain_attention() -> Any:
    """Attention that can be differentiated twice."""
    return nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)


GAUSS_NEWTON_WAYS: dict[str, Product] = {
    "forward over reverse": gauss_newton,
    "reverse over reverse": partial(gauss_newton, forward=False),
}
WAYS: dict[str, Product] = {
    "forward over reverse": forward_over_reverse,
    "reverse over reverse": reverse_over_reverse,
    "finite differences": finite_differences,
}
