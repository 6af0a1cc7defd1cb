"""Which matrix an optimiser feels, and how large its eigenvalue may be: a gauge for each.

With the preconditioner P frozen, a step of every optimiser here is that of descent, heavy ball or
Nesterov in the coordinates of `scaled`, with D the rate over P. Along an eigenvector of
D^{1/2} H D^{1/2} with the eigenvalue s these are linear, and stable up to the s at which a root of
their characteristic polynomial passes -1:

| optimiser              | D                                       | s, at most                   |
| ---------------------- | --------------------------------------- | ---------------------------- |
| SGD                    | eta                                     | 2                            |
| SGD, momentum beta     | eta (1 - dampening)                     | 2 (1 + beta)                 |
| SGD, Nesterov          | eta                                     | 2 (1 + beta)/(1 + 2 beta)    |
| Adam, AdamW            | eta (1 - beta_1)/(sqrt(v) + eps)        | (2 - eta lambda)(1 + beta_1) |
| RMSprop, momentum beta | eta/(sqrt(v) + eps)                     | 2 (1 + beta)                 |
| Adagrad                | eta/(sqrt(sum) + eps)                   | 2                            |

lambda is decoupled weight decay; a penalty (SGD, Adam, RMSprop, Adagrad) adds to H instead. Adam's
averages are corrected as Adam does. For small batches without momentum the gauge is batch
sharpness, the mean of g_B'H_B g_B/|g_B|^2, which settles at 2/eta (Andreyev and Beneventano 2024);
with momentum no such edge is known here, and the gauge is that of the mean loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatmin.core.errors import SettingError


@dataclass(frozen=True)
class Gauge:
    """What is measured and where its edge is.

    `root` and `shift` are D^{1/2} and the penalty, flat, in the order of the parameters; `reach` is
    the largest stable eigenvalue; `rate` the learning rate of the first group.
    """

    name: str
    reach: float
    rate: float
    root: Tensor
    shift: Tensor
    plain: bool


def gauge_of(optimizer: Any, parameters: list[Tensor]) -> Gauge | None:
    """The gauge for these parameters; None while the optimiser has no state, or the rate is 0."""
    kind = type(optimizer).__name__
    if kind not in _RULES and hasattr(optimizer, "optimizer"):  # a trainer's wrapper of one
        return gauge_of(optimizer.optimizer, parameters)
    if kind not in _RULES:
        known = ", ".join(_RULES)
        raise SettingError(f"optimizer: no edge of stability is known for {kind}, only for {known}")
    found = {}
    for group in optimizer.param_groups:
        if group.get("maximize"):
            raise SettingError("optimizer: maximize=True has no edge of stability")
        for one in group["params"]:
            found[id(one)] = _RULES[kind](group, optimizer.state.get(one, {}), one)
    each = [found[id(one)] for one in parameters]
    rules = [rule for rule in each if rule is not None]
    if not rules or not all(bool((rule.scale > 0.0).all()) for rule in rules):
        return None
    if len({rule.reach for rule in rules}) > 1:
        raise SettingError("optimizer: its groups have different momenta; no common edge is known")
    # What has no state beside others that have does not move: no gradient ever reached it.
    still = (_Rule(rules[0].name, torch.zeros_like(one), 0.0, 0.0) for one in parameters)
    pairs = [(a or b, one) for a, b, one in zip(each, still, parameters, strict=True)]
    return Gauge(
        name=rules[0].name,
        reach=rules[0].reach,
        rate=float(optimizer.param_groups[0]["lr"]),
        root=_flat([rule.scale.detach().sqrt().expand_as(one) for rule, one in pairs]),
        shift=_flat([torch.full_like(one, rule.penalty).detach() for rule, one in pairs]),
        plain=rules[0].name == "SGD",
    )


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in parts])


@dataclass(frozen=True)
class _Rule:
    name: str
    scale: Tensor
    reach: float
    penalty: float


def _sgd(group: Any, state: Any, one: Tensor) -> _Rule:
    rate, beta = float(group["lr"]), float(group["momentum"])
    scale = torch.as_tensor(
        rate * (1.0 - group["dampening"] * (beta > 0)), dtype=one.dtype, device=one.device
    )
    penalty = float(group["weight_decay"])
    if group["nesterov"]:
        return _Rule("Nesterov", scale, 2.0 * (1.0 + beta) / (1.0 + 2.0 * beta), penalty)
    return _Rule("heavy ball" if beta else "SGD", scale, 2.0 * (1.0 + beta), penalty)


def _adam(group: Any, state: Any, one: Tensor) -> _Rule | None:
    if "exp_avg_sq" not in state:
        return None
    first, second = (float(beta) for beta in group["betas"])
    steps, rate = float(state["step"]), float(group["lr"])
    square = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    root = (square / (1.0 - second**steps)).sqrt() + group["eps"]
    scale = rate * (1.0 - first) / (1.0 - first**steps) / root
    decoupled = bool(group.get("decoupled_weight_decay"))
    decay = float(group["weight_decay"])
    reach = (2.0 - rate * decay * decoupled) * (1.0 + first)
    return _Rule("AdamW" if decoupled else "Adam", scale, reach, 0.0 if decoupled else decay)


def _rmsprop(group: Any, state: Any, one: Tensor) -> _Rule | None:
    if "square_avg" not in state:
        return None
    square = state["square_avg"]
    if group["centered"]:
        square = (square - state["grad_avg"] ** 2).clamp(min=0.0)
    scale = float(group["lr"]) / (square.sqrt() + group["eps"])
    return _Rule("RMSprop", scale, 2.0 * (1.0 + group["momentum"]), float(group["weight_decay"]))


def _adagrad(group: Any, state: Any, one: Tensor) -> _Rule | None:
    if "sum" not in state or float(state["step"]) == 0.0:
        return None
    rate = float(group["lr"]) / (1.0 + (float(state["step"]) - 1.0) * group["lr_decay"])
    scale = rate / (state["sum"].sqrt() + group["eps"])
    return _Rule("Adagrad", scale, 2.0, float(group["weight_decay"]))


_RULES: dict[str, Callable[[Any, Any, Tensor], _Rule | None]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
}
