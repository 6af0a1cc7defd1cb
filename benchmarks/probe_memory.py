"""Does a measurement take the memory of a training step?

Counted are the bytes that PyTorch's allocator holds at once, beyond those before (its profiler's
record of every allocation: the same in every run, and without what an interpreter and its libraries
take, which a model does not change). A *step* is forward, backward and the step of plain SGD, the
optimiser that takes least, from gradients that are not there yet. A *measurement* is
`flatmin.torch.sharpness` with all that it does, from reading batches to the last vector; taken off
are the vectors that it keeps (`record.memory`: the basis, with the one that is being made). The bar
is 1.2 times a step, for steps of 2 MB and more: below, nothing is done about memory, which is then
less than a hundredth of what PyTorch itself takes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Result, Spread
from flatmin.core.errors import SettingError

BAR, LEAST, BUDGET = 1.2, 2e6, 3


@dataclass(frozen=True)
class Held:
    """Bytes of one case, how its products went, and of which samples."""

    name: str
    step: int
    measurement: int
    how: str
    data: str

    @property
    def ratio(self) -> float:
        """Measurement over step."""
        return self.measurement / self.step

    @property
    def row(self) -> str:
        """Of a table."""
        mega = self.step / 1e6, self.measurement / 1e6
        return (
            f"| {self.name} | {mega[0]:.1f} MB | {mega[1]:.1f} MB | {self.ratio:.2f} | {self.how}, "
            f"{self.data} |"
        )


def probe_memory() -> Result:
    """The table on standard error."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SettingError("the benchmark of the probes' memory needs PyTorch") from None
    rows = [
        "| model | a step | a measurement, but for the vectors kept | ratio | products |",
        "| --- | --- | --- | --- | --- |",
    ]
    found = []
    for one in measured():
        found.append(one)
        rows.append(one.row)
        print(f"  {one.row}", file=sys.stderr, flush=True)
    ratios = Spread.of([one.ratio for one in found if one.step >= LEAST])
    return Result(
        "probe-memory",
        f"peak memory of a measurement over that of a training step, {len(found)} cases",
        "of a step",
        ratios,
        {},
        {"a step": Spread.of([1.0 / one.ratio for one in found if one.step >= LEAST])},
        {"a step": 1.0 / BAR},
        ratios.high <= BAR,
        0.0,
        "\n".join(rows),
    )


def measured() -> Iterator[Held]:
    """Every case, with the Hessian and the Gauss-Newton matrix."""
    from benchmarks.probe_sizes import sizes

    for name, make in sizes().items():
        model, loss, batch = make()
        step = _step(model, loss, batch)
        for matrix in ("Hessian", "Gauss-Newton"):
            words = name if matrix == "Hessian" else f"{name}, {matrix}"
            yield _measurement(words, step, model, loss, batch, matrix)


def _step(model: Any, loss: Any, batch: Any) -> int:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    found = peak(step)
    optimizer.zero_grad()
    return found


def _measurement(words: str, step: int, model: Any, loss: Any, batch: Any, matrix: str) -> Held:
    import flatmin.torch as probes

    records: list[Any] = []
    found = peak(
        lambda: records.append(probes.sharpness(model, loss, batch, budget=BUDGET, matrix=matrix))
    )
    return Held(words, step, found - records[0].memory, records[0].how, records[0].data)


def peak(work: Callable[[], object]) -> int:
    """The largest number of bytes that PyTorch held at once, beyond those before."""
    import torch

    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as watch:
        work()
    events: Any = watch.profiler
    changes = [e.nbytes() for e in events.kineto_results.events() if e.name() == "[memory]"]
    return int(np.cumsum(changes).max())
