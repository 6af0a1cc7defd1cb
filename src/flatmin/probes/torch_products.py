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
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch._functorch import pyfunctorch
from torch.func import debug_unwrap, jvp, vjp
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from flatmin.core.errors import SettingError
from flatmin.probes.torch_call import TorchCall, Values
from flatmin.probes.torch_gates import Gates

# Out of the derivatives that are being taken, where a sum may be added to. A version of PyTorch
# without it refuses, and goes reverse over reverse.
_outside: Callable[[], Any] = getattr(
    pyfunctorch, "temporarily_clear_interpreter_stack", nullcontext
)


class Sum:
    """A flat vector to which pieces of vectors are added, a parameter at a time.

    Backward passes hand over the gradient of each parameter as soon as it is there: no second
    vector is ever whole.
    """

    def __init__(self, like: Values) -> None:
        self._places, end, kind = {}, 0, torch.float32
        for name, one in like.items():
            self._places[name] = slice(end, end + one.numel())
            end, kind = end + one.numel(), torch.promote_types(kind, one.dtype)
        self._size, self._as = end, {"dtype": kind, "device": one.device}
        self._flat: Tensor | None = None
        self.weight = 1.0

    @property
    def flat(self) -> Tensor:
        """The sum so far."""
        if self._flat is None:
            self._flat = torch.zeros(self._size, **self._as)
        return self._flat

    def add(self, name: str, one: Tensor) -> None:
        """What belongs to one parameter."""
        dense = one.to_dense() if one.is_sparse else one
        self.flat[self._places[name]].add_(dense.detach().reshape(-1), alpha=self.weight)

    def split(self, flat: Tensor) -> Values:
        """Another vector, by parameter."""
        return {name: flat[place] for name, place in self._places.items()}

    def add_flat(self, one: Tensor) -> None:
        """A vector, which is not used any more."""
        if self._flat is None:
            self._flat = one.mul_(self.weight)
        else:
            self._flat.add_(one, alpha=self.weight)


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
            along.backward()

    with plain_attention():
        call.value(leaves, batch, number, twice)


def finite_differences(
    call: TorchCall, at: Values, v: Values, batch: Any, number: int, total: Sum
) -> None:
    """Central differences, with kinks held where they are at these weights."""
    gates = Gates()
    if call.holds:
        with torch.no_grad(), gates:
            call.value(at, batch, number)

    def difference(h: float) -> Tensor:
        try:
            found = Sum(at)
            for side in (1.0, -1.0):
                found.weight = side
                there = {name: torch.add(one, v[name], alpha=side * h) for name, one in at.items()}
                with gates.held() if call.holds else nullcontext():
                    gradient(call, there, batch, number, found.add)
                del there
            return found.flat
        except CheckpointError:  # passes of the model's own that the gates do not know of
            if not call.holds:
                raise
        call.holds = False
        return difference(h)

    def along(flat: Tensor) -> float:
        return inner(total.split(flat), v)

    length, size = math.sqrt(inner(v, v)), math.sqrt(inner(at, at))
    if length > 0.0:
        total.add_flat(call.differences.product(difference, size, length, along, torch.dot))


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
