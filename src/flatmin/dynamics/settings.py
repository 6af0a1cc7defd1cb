"""One run from plain settings: which data, architecture, method and rate, and how many steps."""

from __future__ import annotations

from typing import Any

from flatmin.core.checks import check_count
from flatmin.core.errors import SettingError
from flatmin.core.progress import Progress
from flatmin.data.samples import Problem
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.dynamics import backends
from flatmin.dynamics.advice import advise
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.dynamics.methods import METHODS, asked_for, method_of
from flatmin.dynamics.training import Training, train
from flatmin.lanes.step_control import FLOW_STEPS
from flatmin.network.initialisation import (
    DEFAULT_INIT,
    DEFAULT_SCALE,
    architecture_for,
    resolve_scale,
)

STEPS = 10_000
# Flops that a flow may take unless its steps are given: some minutes, where weights are in memory.
FLOW_WORK = 2e11


def train_network(
    problem: Problem | None = None,
    depth: int = 10,
    *,
    width: int | None = None,
    activation: str = "linear",
    biases: bool = False,
    init: str = DEFAULT_INIT,
    scale: float | str = DEFAULT_SCALE,
    learning_rate: float | str | None = None,
    steps: int | None = None,
    seed: int = 0,
    learned_at: float = LEARNED_AT,
    record_every: int | None = None,
    progress: Progress = None,
    **choice: Any,
) -> Training:
    """Train the network that goes with the data (by default the paper's) and the initialisation.

    `choice` is of the method: a flag such as `flow=True`, and settings of its own (`methods`).
    Without a learning rate one is looked for and tested (see `advice`), and the run is as long as
    its test was; where none can be advised, that is a SettingError with the reason. A flow ends
    after 100 000 steps, or after 2e11 flops if they are fewer steps but at least 300.

    >>> run = train_network(depth=5, learning_rate="0.5critical")
    >>> run.learned, round(run.edge / run.minimal_sharpness, 12)
    (True, 2.0)
    """
    steps = None if steps is None else check_count("steps", steps)
    name, own = asked_for(learning_rate, **choice)
    flow = METHODS[name].continuous
    data = paper_samples("linear") if problem is None else problem
    p = paper_output_vector() if problem is None else None
    network = architecture_for(
        init, data, depth, width=width, activation=activation, biases=biases, p=p, seed=seed
    )
    scale, advice = resolve_scale(scale, init, data, network), None
    if learning_rate is None and not flow:
        backends.expect_sharpness(data, network)
        advice = advise(
            data, network, init, scale, learned_at=learned_at, seed=seed, progress=progress
        )
        if advice.learning_rate is None:
            raise SettingError(f"{advice.reason} Give a learning rate, or flow")
        learning_rate, steps = advice.learning_rate, steps or advice.steps
    method, default = method_of(name, learning_rate=learning_rate, **own), STEPS
    if flow:
        step = method.rule.cost * backends.step_flops(data, network)
        default = int(min(FLOW_STEPS, max(FLOW_WORK / step, 300.0)))
    return train(
        data,
        network,
        init=init,
        scale=scale,
        seed=seed,
        method=method,
        steps=steps or default,
        learned_at=learned_at,
        record_every=record_every,
        progress=progress,
        advice=advice,
    )
