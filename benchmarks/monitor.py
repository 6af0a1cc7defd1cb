"""Is the monitor right about the edge? Three trainings, and a bisection that really trains.

Of each training: the step at which the headroom passes 1, and the step from which the loss rises;
the monitor's share of the time, measured, at a budget of 3 %; products a check. Where the headroom
first falls below 1.25 the training is continued at other rates, each twice: as it is, and after a
kick along the top eigenvector that raises the loss by 2 %. A rate is *stable* if the two losses
approach each other over the next 60 steps. The largest stable rate by bisection is compared with
the one that the monitor predicts.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Result, Spread
from flatmin.core.errors import SettingError

BUDGET, AGREE, STRIDE, NEAR, KICK, LATER = 0.03, 0.10, 10, 1.25, 0.02, 60


@dataclass(frozen=True)
class Judged:
    """One training; `watch` is what the monitor saw at every tenth step."""

    name: str
    watch: Any
    rises: int | None
    predicted: float
    bisected: float
    share: float
    products: float

    @property
    def ratio(self) -> float:
        """Predicted over bisected largest rate."""
        return self.predicted / self.bisected

    def __str__(self) -> str:
        return (
            f"{self.name}: headroom passes 1 at step {self.watch.edge_reached}, the loss rises "
            f"from step {self.rises} on; largest stable rate {self.predicted:.4g} predicted, "
            f"{self.bisected:.4g} by bisection (ratio {self.ratio:.3f}); share of time "
            f"{100 * self.share:.2f} %, {self.products:g} products a check (median)"
        )


def monitor() -> Result:
    """All trainings, each reported on standard error as it is done."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SettingError("the benchmark of the monitor needs PyTorch") from None
    from benchmarks.probe_trainings import trainings

    judged = []
    for training in trainings():
        judged.append(judge(training))
        print(f"  {judged[-1]}", file=sys.stderr, flush=True)
    right = all(abs(one.ratio - 1.0) <= AGREE for one in judged)
    return Result(
        "monitor",
        "predicted largest stable rate over that of a bisection that trains",
        "products a check",
        Spread.of([one.products for one in judged]),
        {},
        {"rate": Spread.of([one.ratio for one in judged])},
        {"rate": 1.0},
        right and all(one.products <= 4 and one.share <= BUDGET for one in judged),
        0.0,
        "; ".join(str(one) for one in judged),
    )


def judge(training: Any) -> Judged:
    """A training watched twice, and continued at other rates."""
    from flatmin.torch import Monitor

    start = copy.deepcopy(training.model)
    optimizer = training.make(training.model, training.rate)
    watch = Monitor(training.model, training.loss, training.batch, optimizer, None)
    losses, near = [], None
    for number in range(training.steps):
        losses.append(_step(training, training.model, optimizer))
        if number % STRIDE == STRIDE - 1:
            check = watch.check(number + 1)
            if near is None and check is not None and check.headroom <= NEAR:
                near = copy.deepcopy((training.model, optimizer.state_dict())), check, watch.top
    if near is None:
        raise AssertionError(f"{training.name} does not come near the edge")
    (model, state), check, top = near
    budgeted = training.make(start, training.rate)
    other = Monitor(start, training.loss, training.batch, budgeted, BUDGET)
    for _ in range(2 * training.steps):
        _step(training, start, budgeted)
        other()
    quick = [one.products for one in watch.checks]
    return Judged(
        training.name,
        watch,
        _rises(losses),
        check.largest_rate,
        _bisect(training, model, state, top, check.largest_rate),
        other.share,
        float(np.median(quick)),
    )


def _step(training: Any, model: Any, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss = training.loss(model(training.batch[0]), training.batch[1])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _rises(losses: list[float]) -> int | None:
    """The first step from which on the loss rises in a tenth of fifty steps, after the start."""
    up = np.diff(losses) > 0.0
    for step in range(100, len(up) - 50):
        if up[step] and up[step : step + 50].mean() >= 0.1:
            return step + 1
    return None


def _bisect(training: Any, model: Any, state: Any, top: Any, guess: float) -> float:
    """The largest stable rate, to one per cent."""
    low, high = 0.5 * guess, 2.0 * guess
    while high / low > 1.01:
        middle = float(np.sqrt(low * high))
        if _stable(training, model, state, top, middle):
            low = middle
        else:
            high = middle
    return float(np.sqrt(low * high))


def _stable(training: Any, model: Any, state: Any, top: Any, rate: float) -> bool:
    import torch

    runs = []
    for kick in (False, True):
        one = copy.deepcopy(model)
        optimizer = training.make(one, rate)
        optimizer.load_state_dict(copy.deepcopy(state))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if kick:
            flat = torch.nn.utils.parameters_to_vector(one.parameters()).detach()
            before = float(training.loss(one(training.batch[0]), training.batch[1]).detach())
            length = 1e-3
            while True:  # long enough to raise the loss by KICK, on either side
                ends = []
                for sign in (1.0, -1.0):
                    moved = flat + sign * length * top
                    torch.nn.utils.vector_to_parameters(moved, one.parameters())
                    loss = training.loss(one(training.batch[0]), training.batch[1])
                    ends.append(float(loss.detach()))
                if np.mean(ends) >= (1.0 + KICK) * before:
                    break
                length *= 1.3
        runs.append([_step(training, one, optimizer) for _ in range(LATER)])
    gap = np.abs(np.array(runs[0]) - np.array(runs[1]))
    later = float(np.nan_to_num(gap[LATER // 2 :], nan=np.inf).max())
    return later < float(gap[:3].max())
