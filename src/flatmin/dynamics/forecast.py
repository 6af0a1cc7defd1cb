"""What to expect before training: the theory, a rate that was tried, the curve; at some depths.

`forecast` takes plain settings and decides the rest: which architecture goes with the data and the
initialisation, what is run, and for how long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.checks import check_choice, check_depth, check_positive, check_several
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.progress import Progress
from flatmin.core.shown import Shown
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.prediction import Prediction, flattest_of, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.dynamics.advice import Advice
    from flatmin.dynamics.working_rates import RateCurve

MEASURES = ("advice", "curve", "nothing")
_SHORT = ("depth", "minimal_sharpness", "small_init_sharpness", "critical_learning_rate")


class Forecast(Shown):
    """One depth: the theory, and the advice and the curve as far as they were asked for.

    `others` are the depths to compare, this one among them if it was listed.
    """

    prediction: Prediction
    advice: Advice | None = None
    curve: RateCurve | None = None
    share: float = 0.95
    learned_at: float = 1e-3
    others: tuple[Forecast, ...] = ()

    def __repr__(self) -> str:
        rate = None if self.advice is None else self.advice.learning_rate
        found = f"critical_rate={self.prediction.critical_rate:.6g}, tested_rate={rate}"
        return f"Forecast(depth={self.prediction.depth}, {found})"

    def contents(self) -> dict[str, Any]:
        """The theory, what was run, and the same in short for the depths compared."""
        found = {**self.prediction.contents(), "learned_at": self.learned_at, **self._measured()}
        if self.others:
            found["depths"] = [
                {key: one.prediction.contents()[key] for key in _SHORT} | one._measured()
                for one in self.others
            ]
        return found

    def _measured(self) -> dict[str, Any]:
        found: dict[str, Any] = {"advice": self.advice}
        if self.curve is not None:
            found |= {
                "working_learning_rate": self.curve.largest(self.share),
                "rate_curve": self.curve,
            }
        return found

    def sentence(self) -> str:
        """What to do, in a few sentences."""
        parts = [self.prediction.sentence()]
        parts += [] if self.advice is None else [self.advice.reason]
        parts += [] if self.curve is None else [self.curve.sentence(self.share)]
        return " ".join(parts)

    def page(self) -> Page:
        """What `flatmin predict` prints."""
        rows = self.prediction.rows() + ([] if self.advice is None else self.advice.rows())
        notes = [*self.prediction.regression.preparation, *self.prediction.notes()]
        page: Page = [Listing(("Before training", ""), rows)]
        if self.others:
            flattest = flattest_of([one.prediction for one in self.others])
            assert flattest is not None
            heads = ("Depth", "S_min lower", "exact", "upper", "critical rate", "tested rate")
            cells = [one._row(one.prediction is flattest) for one in self.others]
            page.append(Listing((*heads, "steps"), cells))
            notes.append(
                f"the flattest depth for these data is {flattest.flattest_depth}; "
                "* is the flattest of those compared"
            )
        if self.curve is not None:
            page.append(self.curve.table())
        if self.advice is not None:
            from flatmin.dynamics.endings import learned_note

            notes.append(f"{learned_note(self.learned_at)} (learned_at)")
            if self.advice.learning_rate is None:
                notes.append("an effort of 10 looks longer; init, width and scale change the start")
        return [*page, Remarks(self.sentence(), notes)]

    def _row(self, flattest: bool) -> tuple[str, ...]:
        """The depth in a comparison."""
        theory, tested = self.prediction, ("", "")
        if self.advice is not None:
            rate = self.advice.learning_rate
            tested = ("none", "") if rate is None else (number(rate), str(self.advice.steps))
        least = theory.minimal
        numbers = map(number, (least.lower, least.exact, least.upper, theory.critical_rate))
        return (f"{theory.depth} *" if flattest else str(theory.depth), *numbers, *tested)

    def plot(self) -> Figure:
        """The curves that were measured, else S_min against depth."""
        from flatmin.dynamics.figures import rate_figure

        shown = [one for one in self.others or (self,) if one.curve is not None]
        if not shown:
            compared = [one.prediction.depth for one in self.others]
            return self.prediction.plot(compared) if compared else self.prediction.plot()
        curves = {f"depth {one.prediction.depth}": one.curve for one in shown if one.curve}
        rates = [None if one.advice is None else one.advice.learning_rate for one in shown]
        return rate_figure(curves, dict(zip(curves, rates, strict=True)))


@np.errstate(all="ignore")  # what overflows is judged, not warned of
def forecast(
    regression: Problem,
    depth: int | None = None,
    *,
    depths: Sequence[int] = (),
    output_norm: float = 1.0,
    measure: str = "advice",
    effort: float = 1.0,
    share: float = 0.95,
    progress: Progress = None,
    **settings: Any,
) -> Forecast:
    """The theory and a tested rate at a depth (by default the first of `depths`), and at `depths`.

    `measure` is "advice" (find a rate and test it), "curve" (also measure the share of runs that
    learn at every rate) or "nothing". `effort` is how much work to spend on the rate: 1 is about a
    second. `settings` are those of the start: init, scale, width, learned_at, seed; and of the
    curve: runs, steps.

    >>> from flatmin.data.generators import gaussian_samples
    >>> found = forecast(gaussian_samples(seed=0).regression(), depth=3)
    >>> 0.0 < found.advice.learning_rate < found.prediction.critical_rate
    True
    """
    check_choice("measure", measure, MEASURES)
    regression = regression_of(regression)
    depth = None if depth is None else check_depth(depth)
    depths = [check_depth(one) for one in check_several("depths", depths, "a list of depths")]
    if depth is None and not depths:
        raise SettingError("depth is missing: the number of layers, such as 10")
    chosen = min(depths) if depth is None else depth
    settings |= {"work": check_positive("effort", effort), "progress": progress, "share": share}
    known: dict[int, Forecast] = {}
    for one in dict.fromkeys((chosen, *sorted(depths))):
        known[one] = _forecast(predict(regression, one, output_norm), measure, **settings)
    found = known[chosen]
    if not depths:
        return found
    return replace(found, others=tuple(known[one] for one in sorted(set(depths))))


def _forecast(
    prediction: Prediction,
    measure: str,
    *,
    work: float,
    share: float,
    progress: Progress,
    init: str | None = None,
    scale: float | str = 1.0,
    width: int | None = None,
    learned_at: float = 1e-3,
    seed: int = 0,
    runs: int = 100,
    steps: int | None = None,
) -> Forecast:
    """One depth. Without measuring, nothing is imported that compiles."""
    if measure == "nothing":
        return Forecast(prediction=prediction, share=share, learned_at=learned_at)
    from flatmin.dynamics.advice import WORK, advise
    from flatmin.dynamics.working_rates import STEPS, rate_curve
    from flatmin.network.initialisation import DEFAULT_INIT, architecture_for, resolve_scale

    data, depth, init = prediction.regression, prediction.depth, init or DEFAULT_INIT
    norm = prediction.output_norm
    network = architecture_for(init, data, depth, width=width, output_norm=norm, seed=seed)
    scale = resolve_scale(scale, init, data, network)
    common: Any = {"learned_at": learned_at, "seed": seed, "progress": progress}
    label = f"depth {depth}: testing rates"
    advice = advise(data, network, init, scale, work=WORK * work, label=label, **common)
    curve = None
    if measure == "curve":
        common |= {"runs": runs, "steps": steps or max(STEPS, advice.steps or 0)}
        label = f"depth {depth}: measuring"
        curve = rate_curve(data, network, init, scale, label=label, **common)
    return Forecast(
        prediction=prediction, advice=advice, curve=curve, share=share, learned_at=learned_at
    )
