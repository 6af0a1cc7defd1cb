"""What to record along runs, and what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_choice, check_count, check_several
from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown
from flatmin.dynamics.measures import LAYER_MEASURES
from flatmin.network.architecture import Architecture

if TYPE_CHECKING:
    import pandas as pd

NETWORK_MEASURES = ("excess_risk", "distance", "gradient", "sharpness")
RENAMED = {"risk": "excess_risk"}
"""Names of quantities in older specs, studies and traces."""


def recordable(architecture: Architecture | None = None) -> tuple[str, ...]:
    """Every quantity that networks of this architecture have; without one, every quantity."""
    every = architecture is None or architecture.linear
    layers = (name for name, one in LAYER_MEASURES.items() if every or not one.linear_only)
    return (*NETWORK_MEASURES, *layers)


@dataclass(frozen=True)
class Recording:
    """What to record, every so many steps (0, every, 2 every, ...).

    excess_risk is R - R_min, distance |w - w*|^2, gradient |grad R|; sharpness is measured to the
    relative residual `sharpness_tolerance`, each time near the last eigenvectors. A residual says
    that an eigenvalue is near, not that it is the largest: a trace follows the largest one, looks
    for others now and then, and proves nothing. `sharpness` of the final weights does.

    At the edge of stability these alternate from step to step, and one value in `every` draws a
    curve that is not there. So an entry of gradient descent also holds the least and the largest
    value since the entry before, `<name>_low` and `<name>_high`: over every step, but sharpness
    over the last `sharpness_steps` steps only, as it costs more than a step (and so the distance
    of networks with several outputs).

    A flow ends nobody knows after how many steps: where it would have more than `most` entries,
    every other one is dropped and `every` doubled.
    """

    every: int
    quantities: Sequence[str] = ("excess_risk", "distance")
    sharpness_tolerance: float = 1e-6
    sharpness_steps: int = 2
    most: int | None = None

    def __post_init__(self) -> None:
        check_count("record every", self.every)
        check_count("sharpness_steps", self.sharpness_steps)
        for name in check_several("quantities", self.quantities, "a list of names"):
            check_choice("recorded quantity", name, recordable())

    def check_for(self, architecture: Architecture) -> None:
        """Refuse quantities that networks of this architecture do not have."""
        for name in self.quantities:
            if name not in recordable(architecture):
                raise SettingError(f"{name} can be recorded of linear networks only")

    @property
    def cost(self) -> float:
        """Of a step of small networks with what is measured of it, in steps: a sharpness is ten."""
        often = min(self.sharpness_steps, self.every) if "sharpness" in self.quantities else 0
        return 1.0 + 10.0 * often / self.every

    @property
    def columns(self) -> list[str]:
        """The numbers per network in an entry of gradient descent."""
        names = []
        for name in self.quantities:
            if name in NETWORK_MEASURES:
                names += [name, f"{name}_low", f"{name}_high"]
        if "sharpness" in self.quantities:
            names += ["sharpness_residual", "sharpness_products"]
        return names

    @property
    def plain(self) -> bool:
        """Whether more than sharpness is measured of whole networks."""
        return any(name in NETWORK_MEASURES[:3] for name in self.quantities)

    @property
    def layers(self) -> list[str]:
        """The quantities that are measured layer by layer."""
        return [name for name in self.quantities if name in LAYER_MEASURES]


class Trace(Shown):
    """Recorded quantities: `values[name]` is `[entry, network]`, or `[entry, network, layer]`.

    `step[entry]` counts steps; for flows `time[entry, network]` is the time. For descent
    `name_low` and `name_high` are the extremes since the entry before (see `Recording`). After the
    end of a run its entries are NaN.
    """

    step: Whole
    values: dict[str, Float]

    def __repr__(self) -> str:
        names = ", ".join(name for name in self.values if name in recordable())
        networks = next((values.shape[1] for values in self.values.values()), 0)
        return f"Trace(entries={len(self.step)}, networks={networks}, quantities=[{names}])"

    def frame(self, network: int = 0) -> pd.DataFrame:
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
