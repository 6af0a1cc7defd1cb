"""One run from plain settings: which data, architecture, method and rate, and how many steps."""

from __future__ import annotations

from flatmin.core.errors import SettingError
from flatmin.core.progress import Progress
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.dynamics.advice import advise
from flatmin.dynamics.backends import step_flops
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.dynamics.methods import Method, method_of
from flatmin.dynamics.training import Training, train
from flatmin.network.initialisation import (
    DEFAULT_INIT,
    DEFAULT_SCALE,
    architecture_for,
    resolve_scale,
)

STEPS, FLOW_STEPS = 10_000, 100_000
# Flops that a flow may take unless its steps are given: some ten minutes.
FLOW_WORK = 1e12


def train_network(
    problem: Regression | Samples | None = None,
    depth: int = 10,
    *,
    width: int | None = None,
    activation: str = "linear",
    biases: bool = False,
    init: str = DEFAULT_INIT,
    scale: float | str = DEFAULT_SCALE,
    learning_rate: float | str | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    flow: bool = False,
    central: bool = False,
    steps: int | None = None,
    seed: int = 0,
    learned_at: float = LEARNED_AT,
    record_every: int | None = None,
    progress: Progress = None,
) -> Training:
    """Train the network that goes with the data (by default the paper's) and the initialisation.

    Without a learning rate one is looked for and tested (see `advice`), and the run is as long as
    its test was; where none can be advised, that is a SettingError with the reason. A flow ends
    after 100 000 steps, or after 1e12 flops if they are fewer steps but at least 1000.

    >>> run = train_network(depth=5, learning_rate="0.5critical")
    >>> run.learned, round(run.edge / run.minimal_sharpness, 12)
    (True, 2.0)
    """
    if flow and learning_rate is not None:
        raise SettingError("learning_rate and flow exclude each other: give one of them")
    if momentum is not None and learning_rate is None:
        raise SettingError("momentum needs learning_rate: rates are tested without momentum")
    if nesterov and momentum is None:
        raise SettingError("nesterov needs momentum")
    if central and (flow or momentum is not None or learning_rate is None):
        raise SettingError("central needs learning_rate, without flow or momentum")
    data = paper_samples("linear") if problem is None else problem
    p = paper_output_vector() if problem is None else None
    network = architecture_for(
        init, data, depth, width=width, activation=activation, biases=biases, p=p, seed=seed
    )
    scale, advice = resolve_scale(scale, init, data, network), None
    if learning_rate is None and not flow:
        advice = advise(
            data, network, init, scale, learned_at=learned_at, seed=seed, progress=progress
        )
        if advice.learning_rate is None:
            raise SettingError(f"{advice.reason} Give a learning rate, or flow")
        learning_rate, steps = advice.learning_rate, steps or advice.steps
    name = "flow" if flow else "central-flow" if central else "descent"
    if momentum is not None:
        name = "nesterov" if nesterov else "heavy-ball"
    method: Method = method_of(name, learning_rate=learning_rate, momentum=momentum)
    default = STEPS
    if flow:
        step = method.rule.cost * step_flops(data, network)
        default = int(min(FLOW_STEPS, max(FLOW_WORK / step, 1000.0)))
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
