"""What a monitor saw: one record a check, as a line, a table, a file or a picture."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from io import BytesIO
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


TREND = 5  # checks from which a trend is read


class Check(Shown, eq=True):
    """One look at the edge.

    - measured: what the gauge reads, between `low` and `high` (with `confidence`, or None);
    - edge: the largest stable value of it; headroom is edge over measured;
    - rate, largest_rate: of now, and the largest that would still be stable here;
    - full: whether a fresh random start was followed until the interval was narrow.

    For gauges of a preconditioned matrix `measured` includes the rate; for plain descent, heavy
    ball and Nesterov it is the sharpness itself.
    """

    step: int
    seconds: float
    gauge: str
    measured: float
    low: float
    high: float
    edge: float
    rate: float
    products: int
    full: bool

    @property
    def headroom(self) -> float:
        """Above 1: stable. Infinite where nothing curves upwards."""
        return self.edge / self.measured if self.measured > 0.0 else math.inf

    @property
    def largest_rate(self) -> float:
        """The largest stable rate, here and now."""
        return self.rate * self.headroom

    def __str__(self) -> str:
        return (
            f"step {self.step}: headroom {self.headroom:.3g} ({self.gauge}: {self.measured:.4g} "
            f"against {self.edge:.4g}); rate {self.rate:.3g}, stable up to {self.largest_rate:.3g}"
        )


@dataclass
class Watch:
    """All checks of a training."""

    checks: list[Check]

    @property
    def edge_reached(self) -> int | None:
        """The first step at which the headroom was 1 or less; None if it never was."""
        return next((one.step for one in self.checks if one.headroom <= 1.0), None)

    def rate_ahead(self, steps: int) -> float | None:
        """The largest rate that would be stable until so many steps after the last check.

        The least of the last check's and of the one that its trend leads to: the median of the
        slopes of its logarithm between the last checks. None before the first check.
        """
        last = [one for one in self.checks[-TREND:] if one.largest_rate < math.inf]
        if not last:
            return self.checks[-1].largest_rate if self.checks else None
        slopes = [
            math.log(b.largest_rate / a.largest_rate) / (b.step - a.step)
            for a, b in combinations(last, 2)
            if b.step > a.step
        ]
        trend = median(slopes) if len(slopes) > 1 else 0.0
        return last[-1].largest_rate * math.exp(min(0.0, trend) * steps)

    def table(self) -> pd.DataFrame:
        """A row a check."""
        import pandas as pd

        rows = []
        for one in self.checks:
            rows.append(asdict(one) | {"headroom": one.headroom, "largest_rate": one.largest_rate})
        return pd.DataFrame(rows)

    def write(self, path: str | Path) -> None:
        """The table as Parquet."""
        from flatmin.core.files import writing

        with writing(Path(path)) as temporary:
            self.table().to_parquet(temporary)

    def plot(self) -> Figure:
        """What was measured against the edge, and the headroom."""
        from flatmin.probes.figures import watch_figure

        return watch_figure(self)


def tell(check: Check, writer: Any) -> None:
    """Scalars for TensorBoard, or anything with its `add_scalar`."""
    for name in ("headroom", "measured", "edge", "largest_rate"):
        writer.add_scalar(f"flatmin/{name}", getattr(check, name), check.step)


class LivePicture:
    """The plot of a watch in a notebook, in one place; `seconds` is what the last one took."""

    def __init__(self) -> None:
        try:
            self._shows: Any = import_module("IPython.display")
        except ImportError:
            raise SettingError(
                "live: pictures are drawn in notebooks; IPython is missing"
            ) from None
        self._place: Any = None
        self.seconds = 0.0

    def draw(self, watch: Watch) -> None:
        """In the place of the picture before."""
        begun, file = time.perf_counter(), BytesIO()
        watch.plot().savefig(file, format="png")
        image = self._shows.Image(file.getvalue())
        if self._place is None:
            self._place = self._shows.display(image, display_id=True)
        else:
            self._place.update(image)
        self.seconds = time.perf_counter() - begun
