"""Is the monitor right about the edge? Three trainings, and a bisection that really trains.

A training *goes to the edge* where a small kick along the top eigenvector grows in the steps that
follow, at its own rate; that step is compared with the one at which the headroom passes 1. Twice
the training is continued at other rates: on the way, where the headroom first falls below 1.25, and
at its end, after a hundred steps at half the rate. Each rate is run twice, as it is and after the
kick. It is *stable* if the two are nearer to each other along the eigenvector from the 13th to the
18th step after the kick than in the first six. The largest stable rate by bisection is compared
with the one that the monitor predicts before the 18 steps for their middle, from the trend of its
last checks (`rate_ahead`); on the way the gauge itself moves within them. Beside it: what it
measures before them and, continued at the bisected rate, in their middle.

The monitor's share of the time, at a budget of 3 %, is that of the calls of it, measured from
outside; products a check are those of all checks.
"""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Result, Spread
from flatmin.core.errors import SettingError

BUDGET, AGREE, STRIDE, NEAR, KICK, LATER = 0.03, 0.10, 10, 1.25, 1e-6, 18
SETTLING, LONGER = 100, 3


@dataclass(frozen=True)
class Direction:
    """The top eigenvector in the weights, and the coordinate along it: <dual, W>."""

    vector: Any
    dual: Any


@dataclass(frozen=True)
class Rates:
    """The largest stable rate: predicted before the steps, measured before them and in their
    middle, and bisected."""

    predicted: float
    before: float
    middle: float
    bisected: float

    @property
    def ratio(self) -> float:
        """Predicted over bisected."""
        return self.predicted / self.bisected

    def __str__(self) -> str:
        early, middle = self.before / self.bisected, self.middle / self.bisected
        return (
            f"{self.bisected:.4g} bisected, predicted {self.ratio:.3f} times that, measured "
            f"{early:.3f} times before, {middle:.3f} times in the middle"
        )


@dataclass(frozen=True)
class Judged:
    """One training; `watch` is what the monitor saw at every tenth step."""

    name: str
    watch: Any
    grows: int | None
    rises: int | None
    way: Rates
    end: Rates
    share: float
    checks: int
    products: float

    def __str__(self) -> str:
        return (
            f"{self.name}: headroom passes 1 at step {self.watch.edge_reached}, kicks grow from "
            f"step {self.grows} on, the loss rises from {self.rises} on; largest stable rate on "
            f"the way {self.way}, at the end {self.end}; "
            f"{self.checks} checks in {100 * self.share:.2f} % of the time of {LONGER} times the "
            f"steps, at a budget of {100 * BUDGET:g} %; {self.products:g} products a "
            "check (median)"
        )

    @property
    def row(self) -> str:
        """Of the table in docs/ask-your-model.md."""
        way, end = self.way, self.end
        return (
            f"| {self.name} | step {self.watch.edge_reached} | step {self.grows} | step "
            f"{self.rises} | {way.ratio:.3f} (of the moment: {way.before / way.bisected:.3f}) "
            f"| {end.ratio:.3f} ({end.before / end.bisected:.3f}) | {100 * self.share:.1f} % |"
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
        print(f"  {judged[-1]}\n{judged[-1].row}", file=sys.stderr, flush=True)
    right = all(abs(rates.ratio - 1.0) <= AGREE for one in judged for rates in (one.way, one.end))
    return Result(
        "monitor",
        "predicted largest stable rate over that of a bisection that trains",
        "products a check",
        Spread.of([one.products for one in judged]),
        {},
        {
            "at the end": Spread.of([one.end.ratio for one in judged]),
            "on the way": Spread.of([one.way.ratio for one in judged]),
        },
        {"at the end": 1.0},
        right and all(one.products <= 4 and one.share <= BUDGET for one in judged),
        0.0,
        "; ".join(str(one) for one in judged),
    )


def judge(training: Any) -> Judged:
    """A training watched twice, and continued at other rates."""
    from flatmin.torch import Monitor

    model, start = training.model, copy.deepcopy(training.model)
    optimizer = training.make(model, training.rate)
    watch = Monitor(model, training.loss, training.batch, optimizer, None)
    losses, way, grows = [], None, None
    for number in range(1, training.steps + 1):
        losses.append(_step(training, model, optimizer))
        if number % STRIDE == 0:
            check = watch.check(number)
            if way is None and check is not None and check.headroom <= NEAR:
                way = _rates(training, model, optimizer, watch)
            if way is not None and grows is None:
                top = _direction(model, optimizer, watch.top)
                state = copy.deepcopy(optimizer.state_dict())
                grows = None if _stable(training, model, state, top, training.rate) else number
    if way is None:
        raise AssertionError(f"{training.name} does not come near the edge")
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * training.rate
    for number in range(1, SETTLING + 1):
        _step(training, model, optimizer)
        if number % STRIDE == 0:
            watch.check(training.steps + number)
    return Judged(
        training.name,
        watch,
        grows,
        _rises(losses),
        way,
        _rates(training, model, optimizer, watch),
        *_share(training, start),
        float(np.median([one.products for one in watch.checks])),
    )


def _share(training: Any, model: Any) -> tuple[float, int]:
    """The share of the time that calls of the monitor take at its budget, and its checks."""
    from flatmin.torch import Monitor

    optimizer = training.make(model, training.rate)
    watch = Monitor(model, training.loss, training.batch, optimizer, BUDGET)
    begun, taken = time.perf_counter(), 0.0
    for _ in range(LONGER * training.steps):
        _step(training, model, optimizer)
        before = time.perf_counter()
        watch()
        taken += time.perf_counter() - before
    return taken / (time.perf_counter() - begun), len(watch.checks)


def _rates(training: Any, model: Any, optimizer: Any, seen: Any) -> Rates:
    from flatmin.torch import Monitor

    watch = Monitor(model, training.loss, training.batch, optimizer, None)
    check = watch.check()
    assert check is not None
    top, guess = _direction(model, optimizer, watch.top), seen.checks[-1].largest_rate
    state = copy.deepcopy(optimizer.state_dict())
    bisected = _bisect(training, model, state, top, guess)
    one, continued = _continued(training, model, state, bisected)
    for _ in range(LATER // 2):
        _step(training, one, continued)
    later = Monitor(one, training.loss, training.batch, continued, None).check()
    assert later is not None
    return Rates(seen.rate_ahead(LATER // 2), guess, later.largest_rate, bisected)


def _continued(training: Any, model: Any, state: Any, rate: float) -> tuple[Any, Any]:
    """A copy of the model with its optimiser, at another rate."""
    one = copy.deepcopy(model)
    optimizer = training.make(one, rate)
    optimizer.load_state_dict(copy.deepcopy(state))
    for group in optimizer.param_groups:
        group["lr"] = rate
    return one, optimizer


def _direction(model: Any, optimizer: Any, top: Any) -> Direction:
    from flatmin.probes.torch_gauges import gauge_of

    gauge = gauge_of(optimizer, list(model.parameters()))
    assert gauge is not None
    return Direction(top, top / gauge.root**2)


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


def _bisect(training: Any, model: Any, state: Any, top: Direction, guess: float) -> float:
    """The largest stable rate, to one per cent."""
    low, high = 0.5 * guess, 2.0 * guess
    while high / low > 1.01:
        middle = float(np.sqrt(low * high))
        if _stable(training, model, state, top, middle):
            low = middle
        else:
            high = middle
    return float(np.sqrt(low * high))


def _stable(training: Any, model: Any, state: Any, top: Direction, rate: float) -> bool:
    import torch

    ends = []
    kick = KICK * float(torch.linalg.vector_norm(_flat(model))) / float(top.vector.norm())
    for length in (0.0, kick):
        one, optimizer = _continued(training, model, state, rate)
        moved = _flat(one) + length * top.vector
        torch.nn.utils.vector_to_parameters(moved, one.parameters())
        places = []
        for _ in range(LATER):
            _step(training, one, optimizer)
            places.append(float(_flat(one) @ top.dual))
        ends.append(places)
    gap = np.abs(np.array(ends[0]) - np.array(ends[1]))
    third = LATER // 3
    return float(np.nan_to_num(gap[-third:], nan=np.inf).max()) < float(gap[:third].max())


def _flat(model: Any) -> Any:
    import torch

    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()
