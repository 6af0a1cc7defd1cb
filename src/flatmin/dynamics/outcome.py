"""What a run leaves behind: final weights, how it ended, and the trace that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.checks import check_choice, check_count
from flatmin.dynamics.endings import State
from flatmin.dynamics.measures import LAYER_MEASURES, LINEAR_ONLY
from flatmin.errors import SettingError
from flatmin.network import Architecture, Ensemble

Float = NDArray[np.float64]

NETWORK_MEASURES = ("excess_risk", "distance", "gradient", "sharpness")
MEASURES = (*NETWORK_MEASURES, *LAYER_MEASURES)
RENAMED = {"risk": "excess_risk"}
"""Names of quantities in older specs, studies and traces."""


def recordable(architecture: Architecture) -> tuple[str, ...]:
    """Every quantity that networks of this architecture have."""
    return tuple(name for name in MEASURES if architecture.linear or name not in LINEAR_ONLY)


@dataclass(frozen=True)
class Recording:
    """What to record, every so many steps (0, every, 2 every, ...).

    excess_risk is R - R_min, distance |w - w*|^2, gradient |grad R|; sharpness is measured to the
    relative residual `sharpness_tolerance`, each time from the last eigenvector.

    At the edge of stability these alternate from step to step, and one value in `every` draws a
    curve that is not there. So a record of gradient descent also holds the least and the largest
    value since the record before, `<name>_low` and `<name>_high`: over every step, but sharpness
    over the last `sharpness_steps` steps only, as it costs more than a step (and so the distance
    of networks with several outputs).
    """

    every: int
    quantities: Sequence[str] = ("excess_risk", "distance")
    sharpness_tolerance: float = 1e-6
    sharpness_steps: int = 2

    def __post_init__(self) -> None:
        check_count("record every", self.every)
        check_count("sharpness_steps", self.sharpness_steps)
        for name in self.quantities:
            check_choice("recorded quantity", name, MEASURES)

    def check_for(self, architecture: Architecture) -> None:
        """Refuse quantities that networks of this architecture do not have."""
        for name in self.quantities:
            if name not in recordable(architecture):
                raise SettingError(f"{name} can be recorded of linear networks only")

    @property
    def columns(self) -> list[str]:
        """The numbers per network in a record of gradient descent."""
        names = []
        for name in self.quantities:
            if name in NETWORK_MEASURES:
                names += [name, f"{name}_low", f"{name}_high"]
        if "sharpness" in self.quantities:
            names += ["sharpness_residual", "sharpness_products"]
        return names

    @property
    def layers(self) -> list[str]:
        """The quantities that are measured layer by layer."""
        return [name for name in self.quantities if name in LAYER_MEASURES]


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded quantities: `values[name]` is `[record, network]`, or `[record, network, layer]`.

    `step[record]` counts steps; for flows `time[record, network]` is the time. For descent
    `name_low` and `name_high` are the extremes since the record before (see `Recording`). After the
    end of a run its entries are NaN.
    """

    step: NDArray[np.int64]
    values: dict[str, Float] = field(repr=False)

    def frame(self, network: int = 0) -> Any:
        """One network's trace as a pandas frame; layered quantities become name_1, name_2, ..."""
        import pandas as pd

        columns: dict[str, Any] = {"step": self.step}
        for name, values in self.values.items():
            if values.ndim == 2:
                columns[name] = values[:, network]
            else:
                for k in range(values.shape[2]):
                    columns[f"{name}_{k + 1}"] = values[:, network, k]
        frame = pd.DataFrame(columns)
        return frame.dropna(subset=list(columns)[1:], how="all").reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The end of every run of an ensemble, in the order given (see `endings`).

    `learned` says which have an excess risk of at most `goal` (or had, of runs that were to end
    there). `period` of an oscillation is 0 if
    none was found; `more_steps` is how many a run that is still learning would need at its present
    speed, NaN for the others and for gradient flow.
    """

    ensemble: Ensemble
    state: NDArray[np.str_]
    steps: NDArray[np.int64]
    excess_risk: Float
    distance: Float
    gradient: Float
    goal: float
    learned: NDArray[np.bool_]
    period: NDArray[np.int64]
    more_steps: Float
    trace: Trace | None = None
    extras: dict[str, Float] = field(default_factory=dict, repr=False)

    def count(self, state: State) -> int:
        """How many runs ended so."""
        return int(np.sum(self.state == state.value))

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Which runs settled at a minimiser."""
        return np.asarray(self.state == State.SETTLED.value)
