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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp
from torch.utils.checkpoint import CheckpointError

from flatmin.core.errors import SettingError
from flatmin.probes.torch_call import TorchCall, Values
from flatmin.probes.torch_gates import Gates

Product = Callable[[TorchCall, Values, Values, Any, int], Values]


def forward_over_reverse(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """jvp of grad.

    The graph of the gradient is let go as it is used; that of `torch.func.grad` is kept whole, for
    derivatives that nobody takes: twice the memory of a step instead of nearly four times.
    """

    def slope(one: Values) -> Any:
        value, back = vjp(lambda w: call.value(w, batch, number), one)
        return back(torch.ones_like(value), retain_graph=False, create_graph=False)[0]

    with plain_attention():
        found: Values = jvp(slope, (at,), (v,))[1]
    return found


def reverse_over_reverse(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """grad of <grad, v>."""
    leaves = {name: one.clone().requires_grad_() for name, one in at.items()}
    places = list(leaves.values())

    def twice(value: Tensor) -> Any:
        first = torch.autograd.grad(value, places, create_graph=True, materialize_grads=True)
        pairs = zip(leaves, first, strict=True)
        along = torch.stack([(g * v[name]).sum() for name, g in pairs]).sum()
        if not along.requires_grad:  # the loss is linear in what was chosen
            return [torch.zeros_like(one) for one in places]
        return torch.autograd.grad(along, places, materialize_grads=True)

    with plain_attention():
        return dict(zip(leaves, call.value(leaves, batch, number, twice), strict=True))


def finite_differences(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """Central differences, with kinks held where they are at these weights."""
    gates = Gates()
    if call.holds:
        with torch.no_grad(), gates:
            call.value(at, batch, number)

    def slope(h: float) -> Tensor:
        there = {name: torch.add(one, v[name], alpha=h) for name, one in at.items()}
        if call.holds:
            try:
                with gates.held():
                    return flattened(gradient(call, there, batch, number))
            except CheckpointError:  # passes of the model's own that the gates do not know of
                call.holds = False
        return flattened(gradient(call, there, batch, number))

    def split(flat: Tensor) -> Values:
        parts = torch.split(flat, [one.numel() for one in at.values()])
        named = zip(at.items(), parts, strict=True)
        return {name: part.reshape(one.shape).to(one.dtype) for (name, one), part in named}

    length, size = math.sqrt(inner(v, v)), math.sqrt(inner(at, at))
    if length == 0.0:
        return {name: torch.zeros_like(one) for name, one in at.items()}
    along = lambda flat: inner(split(flat), v)  # noqa: E731
    return split(call.differences.product(slope, size, length, along))


def inner(a: Values, b: Values) -> float:
    """<a, b>."""
    return sum(float(torch.dot(a[name].reshape(-1), b[name].reshape(-1))) for name in a)


def gradient(call: TorchCall, at: Values, batch: Any, number: int) -> Values:
    """Of the loss of a batch; the values given are the leaves."""
    leaves = {name: one.requires_grad_() for name, one in at.items()}
    places = list(leaves.values())
    once = lambda value: torch.autograd.grad(value, places, materialize_grads=True)  # noqa: E731
    return dict(zip(leaves, call.value(leaves, batch, number, once), strict=True))


def gauss_newton(
    call: TorchCall, at: Values, v: Values, batch: Any, number: int, forward: bool = True
) -> Values:
    """J' (d^2 loss / d output^2) J v; without forward mode J is the transpose of u -> J'u."""
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2):
        raise SettingError("matrix 'Gauss-Newton' needs batches that are pairs (inputs, targets)")

    def outputs(one: Values) -> Tensor:
        with call.drawing(number):
            found: Tensor = call.output(one, batch[0])
            return found

    with plain_attention():
        out, back = vjp(outputs, at)
        if forward:
            along = jvp(outputs, (at,), (v,))[1]
        else:
            along = vjp(lambda u: back(u)[0], torch.zeros_like(out))[1](v)[0]
    bent = jvp(grad(lambda o: call.loss(o, batch[1])), (out.detach(),), (along.detach(),))[1]
    result: Values = back(bent.detach(), retain_graph=False, create_graph=False)[0]
    return result


def flattened(named: Values) -> Tensor:
    """One after another."""
    dense = (one.detach().to_dense() if one.is_sparse else one.detach() for one in named.values())
    return torch.cat([one.reshape(-1) for one in dense])


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
