"""Products of a batch's Hessian with a vector, in three ways, and of its Gauss-Newton matrix.

- forward over reverse: the directional derivative of the gradient;
- reverse over reverse: the gradient of <gradient, v>;
- finite differences: (g(W + h v) - g(W - h v))/2h, where even double backward is missing. The step
  is the one of several at which two neighbours agree best.

PyTorch's own fused attention cannot be differentiated twice: the first two ways take its plain one.

The Gauss-Newton matrix is J' (d^2 loss / d output^2) J, with J the Jacobian of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp

from flatmin.core.errors import SettingError
from flatmin.probes.torch_call import TorchCall, Values

Product = Callable[[TorchCall, Values, Values, Any, int], Values]


def forward_over_reverse(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """jvp of grad."""
    with plain_attention():
        found: Values = jvp(grad(lambda one: call.value(one, batch, number)), (at,), (v,))[1]
    return found


def reverse_over_reverse(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """grad of <grad, v>."""
    leaves = {name: one.clone().requires_grad_() for name, one in at.items()}
    places = list(leaves.values())
    with plain_attention():
        value = call.value(leaves, batch, number)
    first = torch.autograd.grad(value, places, create_graph=True, materialize_grads=True)
    along = torch.stack([(g * v[name]).sum() for name, g in zip(leaves, first, strict=True)]).sum()
    if not along.requires_grad:  # the loss is linear in what was chosen
        return {name: torch.zeros_like(one) for name, one in at.items()}
    second = torch.autograd.grad(along, places, materialize_grads=True)
    return dict(zip(leaves, second, strict=True))


def finite_differences(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """Central differences."""
    length = _norm(v)
    if length == 0.0:
        return v

    def difference(step: float) -> Values:
        ends = [
            gradient(call, {name: one + h * v[name] for name, one in at.items()}, batch, number)
            for h in (step / length, -step / length)
        ]
        return {name: (ends[0][name] - ends[1][name]) * (length / (2.0 * step)) for name in at}

    if call.step is None:
        precision = max(torch.finfo(one.dtype).eps for one in at.values())
        largest = max(_norm(at), 1.0) * precision ** (1.0 / 3.0)
        steps = [largest * 3.0**-k for k in range(6)]
        found = [difference(step) for step in steps]
        gaps = [
            _norm({name: one[name] - other[name] for name in at}) for one, other in pairwise(found)
        ]
        call.step = steps[1 + gaps.index(min(gaps))]
    return difference(call.step)


def gradient(call: TorchCall, at: Values, batch: Any, number: int) -> Values:
    """Of the loss of a batch."""
    leaves = {name: one.detach().clone().requires_grad_() for name, one in at.items()}
    value = call.value(leaves, batch, number)
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def gauss_newton(call: TorchCall, at: Values, v: Values, batch: Any, number: int) -> Values:
    """J' (d^2 loss / d output^2) J v."""
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2):
        raise SettingError("matrix 'Gauss-Newton' needs batches that are pairs (inputs, targets)")

    def outputs(one: Values) -> Tensor:
        with call.drawing(number):
            found: Tensor = call.output(one, batch[0])
            return found

    with plain_attention():
        out, back = vjp(outputs, at)
        along = jvp(outputs, (at,), (v,))[1]
    bent = jvp(grad(lambda o: call.loss(o, batch[1])), (out.detach(),), (along.detach(),))[1]
    result: Values = back(bent.detach())[0]
    return result


def plain_attention() -> Any:
    """Attention that can be differentiated twice."""
    return nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)


WAYS: dict[str, Product] = {
    "forward over reverse": forward_over_reverse,
    "reverse over reverse": reverse_over_reverse,
    "finite differences": finite_differences,
}


def _norm(values: Values) -> float:
    return float(
        torch.linalg.vector_norm(torch.stack([one.double().norm() for one in values.values()]))
    )
