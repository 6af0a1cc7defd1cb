"""One run from its settings to what a person wants to know about it.

`train` draws the initial weights, runs gradient descent or gradient flow with a trace, measures
the sharpness at both ends, and returns a report that prints, saves and serialises itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.checks import check_count, check_kind, check_nonnegative
from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory, remove, writing
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.plain import json_text
from flatmin.core.progress import Progress
from flatmin.core.shown import Shown
from flatmin.curvature import Sharpness
from flatmin.curvature.sharpness import sharpness_of_one
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.dynamics.edge import EDGE_SHARE, midway, swinging
from flatmin.dynamics.endings import LEARNED_AT, State, learned_note
from flatmin.dynamics.method import WITHOUT_BIASES, Options
from flatmin.dynamics.methods import OWN, GradientDescent, Method
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import NETWORK_MEASURES, Recording, recordable
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, DEFAULT_SCALE, initialise
from flatmin.theory.minimal_sharpness import CONVENTION
from flatmin.theory.minimisers import product_rank
from flatmin.theory.prediction import predict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from flatmin.dynamics.advice import Advice

ENTRIES = 200
FLOW_ENTRIES = 1000
# How often sharpness may be measured along a descent: at every step of a run no longer than this.
# Of linear networks with one output that adds an eighth to the time of 10 000 recorded steps at
# d = 5 and L = 10; others, where it costs as much as many steps, are measured in pairs of steps.
MEASUREMENTS = 20_000

# Flops that the singular values of all layers may take along a run, about as many for each cubed
# width. Wider layers are measured only if asked for, and such runs have fewer entries.
LAYER_WORK, SINGULAR_VALUES, WIDE_ENTRIES = 1e12, 40.0, 20

FILES = {
    "summary": "summary.json",
    "trace": "trace.parquet",
    "problem": "problem.npz",
    "initial": "initial.npz",
    "final": "final.npz",
    "picture": "training.png",
}
"""What `Training.save` writes into a directory."""


class Training(Shown):
    """One finished run with its settings."""

    regression: Regression
    architecture: Architecture
    init: str
    scale: float
    seed: int
    method: Method
    steps: int
    initial: Ensemble
    outcome: Outcome
    initial_sharpness: Sharpness
    final_sharpness: Sharpness
    minimal_sharpness: float | None
    edge_share: float | None
    learned_at: float
    advice: Advice | None = None

    def __repr__(self) -> str:
        run = f"method={self.method.name!r}, depth={self.architecture.depth}, state={self.state!r}"
        sharp = f"sharpness={self.final_sharpness.value:.6g}"
        return f"Training({run}, learned={self.learned}, {sharp})"

    @property
    def state(self) -> str:
        """How the run ended."""
        return str(self.outcome.state[0])

    @property
    def learning_rate(self) -> float | None:
        """eta; none for gradient flow."""
        return None if self.method.continuous else float(self.method.learning_rate)

    @property
    def edge(self) -> float | None:
        """The method's edge of stability, 2/eta of gradient descent; none for gradient flow."""
        return None if self.method.edge is None else float(self.method.edge)

    @property
    def learned(self) -> bool:
        """Whether the excess risk is at most `learned_at` of that of w = 0."""
        return bool(self.outcome.learned[0])

    @property
    def about_least(self) -> str:
        """What S_min means for a network that is not linear; empty for one that is."""
        if self.architecture.biases:
            return WITHOUT_BIASES
        of_others = "S_min is that of linear networks of the same depth"
        return "" if self.architecture.linear else of_others

    def interpretation(self) -> str:
        """What happened, in two sentences or three."""
        words = [self._learning(), self._ending()]
        if self.edge_share is not None and self.edge_share >= EDGE_SHARE:
            words.append(f"Edge of stability: sharpness is {self._share()}.")
        return " ".join(words)

    def _share(self) -> str:
        return f"{self.edge_share:.3g} of {self.method.edge_formula}"

    def _learning(self) -> str:
        if self.state == State.DIVERGED:
            return "Did not learn."
        share = self.outcome.excess_risk[0] / self.regression.excess_at_zero
        word = "Learned" if self.learned else "Did not learn"
        return f"{word}: the excess risk is {max(share, 0.0):.2g} of that of w = 0."

    def _ending(self) -> str:
        outcome, value = self.outcome, self.final_sharpness.value
        if self.state == State.SETTLED:
            flat = ""
            if self.minimal_sharpness is not None:
                flat = f", {value / self.minimal_sharpness:.4g} times the flattest possible"
            if self.edge_share is None:
                return f"{self.method.title} arrived: sharpness {value:.4g}{flat}."
            return f"Settled at a minimiser with sharpness {self._share()}{flat}."
        if self.state == State.LEARNING:
            more = outcome.more_steps[0]
            if self.learned or not np.isfinite(more):
                return "The risk was still falling when the run ended."
            return f"Still falling: at this speed about {more:.2g} more steps would do."
        if self.state == State.OSCILLATING:
            period = int(outcome.period[0])
            kind = f"with period {period}" if period else "without a period"
            share = "" if self.edge_share is None else f", sharpness about {self._share()}"
            return f"Oscillates {kind} and does not settle{share}{self._beyond()}."
        if self.state == State.STALLED and self.learned and self.edge_share is not None:
            there = f"with sharpness {self._share()}, which the least disturbance would leave"
            return f"Rests exactly on a minimiser {there}: it is not stable at this rate."
        if self.state == State.STALLED:
            dead = "" if self.architecture.linear else ", or dead units"
            return f"Stalled far from the minimum: next to no gradient (a saddle{dead})."
        return f"Diverged at step {int(outcome.steps[0])}{self._beyond()}."

    def _beyond(self) -> str:
        """The rate beside the critical one, where that explains something."""
        if self.minimal_sharpness is None or self.edge is None:
            return ""
        return (
            f"; the learning rate is {self.minimal_sharpness / self.edge:.3g} times the critical "
            + self.method.edge_formula.replace("/eta", "/S_min").replace(" eta", " S_min")
        )

    def contents(self) -> dict[str, Any]:
        """The run and its settings; what does not exist is None."""
        outcome, settings = self.outcome, self.method.settings()
        extras = {name: values[0] for name, values in outcome.extras.items()}
        return {
            "state": self.state,
            "learned": self.learned,
            "learned_at": self.learned_at,
            "period": int(outcome.period[0]) or None,
            "more_steps": outcome.more_steps[0],
            "edge_share": self.edge_share,
            "steps": int(outcome.steps[0]),
            "time": extras.get("time"),
            "risk": self.regression.risk_min + outcome.excess_risk[0],
            "risk_min": self.regression.risk_min,
            "excess_risk": outcome.excess_risk[0],
            "distance": outcome.distance[0],
            "gradient_norm": outcome.gradient_norm[0],
            "sharpness": self.final_sharpness,
            "initial_sharpness": self.initial_sharpness,
            "minimal_sharpness": self.minimal_sharpness,
            "edge": self.edge,
            "learning_rate": self.learning_rate,
            "method": self.method.name,
            **{name: settings.get(name) for name in OWN},
            "invariant_drift": extras.get("drift"),
            "integration_error": extras.get("error"),
            "depth": self.architecture.depth,
            "widths": self.architecture.widths,
            "activation": self.architecture.activation_name,
            "biases": self.architecture.biases,
            "init": self.init,
            "scale": self.scale,
            "seed": self.seed,
            "preparation": self.regression.preparation,
            "interpretation": self.interpretation(),
            "convention": CONVENTION,
            "notes": [*self.regression.notes(), *self._remarks()],
        }

    def _remarks(self) -> list[str]:
        """What is said of this run besides."""
        remarks = [self.about_least] if self.about_least else []
        recorded = self.outcome.recorded
        if recorded and wide(self.architecture, self.method) and "theta" not in recorded.values:
            remarks.append(
                "layers: not measured along the run; give the steps between two entries to measure "
                "layers as wide as these"
            )
        return remarks

    def page(self) -> Page:
        """What `flatmin train` prints."""
        outcome = self.outcome
        rows = [
            ("Learned", "yes" if self.learned else "no"),
            ("How it ended", self.state),
            ("Steps", str(int(outcome.steps[0]))),
            ("Final risk above R_min", number(outcome.excess_risk[0])),
            ("Distance |w - w*|²", number(outcome.distance[0])),
            ("Gradient norm", number(outcome.gradient_norm[0])),
            ("Sharpness", _with_error(self.final_sharpness)),
            ("  at initialisation", _with_error(self.initial_sharpness)),
        ]
        if self.minimal_sharpness is not None:
            rows.append(("  S_min, exact", number(self.minimal_sharpness)))
        if self.edge is not None:
            rows.append((f"  {self.method.edge_label}", number(self.edge)))
        if "time" in outcome.extras:
            rows.append(("Time", number(outcome.extras["time"][0])))
            rows.append(("Drift of the invariants", number(outcome.extras["drift"][0])))
        data = self.regression
        notes = [*data.preparation, f"sharpness: {CONVENTION}", learned_note(self.learned_at)]
        notes += [*data.notes(), *self._remarks()]
        advice: Page = [] if self.advice is None else [Remarks(self.advice.reason)]
        report = Remarks(self.interpretation(), notes)
        return [*advice, Listing(("After training", ""), rows), report]

    @property
    def trace(self) -> pd.DataFrame:
        """What was recorded along the run."""
        return self.outcome.trace

    def plot(self) -> Figure:
        """The run: distance and risk, sharpness with 2/eta and S_min, layers."""
        from flatmin.dynamics.figures import training_figure

        title = f"depth {self.architecture.depth}, {self.init} initialisation, scale {self.scale:g}"
        return training_figure(
            self.trace,
            f"{self.method.describe()}, {title}",
            self.edge,
            self.minimal_sharpness,
            self.method.edge_label,
        )

    def save(self, directory: str | Path) -> list[Path]:
        """The trace, the regression, the weights at both ends, a picture, and the summary.

        The summary is written last and an older one removed first: where it is, all of one run is.
        """
        from flatmin.core.figures import save

        folder = Path(directory)
        make_directory(folder)
        paths = {name: folder / file for name, file in FILES.items()}
        remove(paths["summary"])
        with writing(paths["trace"]) as temporary:
            self.trace.to_parquet(temporary, index=False)
        arrays = {
            "problem": self.regression.arrays(),
            "initial": self._arrays(self.initial),
            "final": self._arrays(self.outcome.ensemble),
        }
        for name, content in arrays.items():
            with writing(paths[name]) as temporary:
                np.savez_compressed(temporary, **content)
        save(self.plot(), paths["picture"])
        with writing(paths["summary"]) as temporary:
            temporary.write_text(json_text(self) + "\n")
        return list(paths.values())

    def _arrays(self, ensemble: Ensemble) -> dict[str, Any]:
        architecture, arrays = self.architecture, {}
        for k, (layer, (_, columns)) in enumerate(
            zip(ensemble[0], architecture.shapes, strict=True), start=1
        ):
            arrays[f"W{k}"] = layer[:, :columns]
            if architecture.biases:
                arrays[f"b{k}"] = layer[:, columns]
        if architecture.output is not None:
            arrays["p"] = architecture.p
        return arrays | {"Sigma": self.regression.sigma, "w_star": self.regression.w_star}


def _with_error(record: Sharpness) -> str:
    if not np.isfinite(record.value):
        return "none: the weights are too large"
    certain = "" if record.converged else ", not certain to be the largest"
    return f"{number(record.value)} +- {record.residual:.1e}{certain}"


@np.errstate(all="ignore")  # what overflows is judged, not warned of
def train(
    problem: Problem,
    architecture: Architecture,
    *,
    init: str = DEFAULT_INIT,
    scale: float = DEFAULT_SCALE,
    seed: int = 0,
    learning_rate: float | str | None = None,
    method: Method | None = None,
    steps: int = 10_000,
    learned_at: float = LEARNED_AT,
    record_every: int | None = None,
    quantities: Sequence[str] | None = None,
    progress: Progress = None,
    advice: Advice | None = None,
) -> Training:
    """One run by a method.

    `method` is one of `methods`, or a learning rate (a number or such as "0.5critical") says that
    it is gradient descent. All `quantities` that such networks have are recorded unless some are
    named; then sharpness is measured at the last two steps before an entry only. Unless
    `record_every` is given, networks of wide layers have few entries, without their layers.
    `advice` is what the rate was taken from, to be shown with the run.

    >>> from flatmin.data.sets import paper_samples
    >>> run = train(paper_samples(), Architecture.mlp(5, 10), learning_rate=0.02, steps=5000)
    >>> run.state, run.learned
    ('settled', True)
    """
    regression, steps = regression_of(problem), check_count("steps", steps)
    check_kind("architecture", architecture, Architecture)
    scale = check_nonnegative("scale", scale)
    record_every = None if record_every is None else check_count("record_every", record_every)
    if method is None and learning_rate is not None:
        method = GradientDescent(learning_rate)
    elif method is None or learning_rate is not None:
        raise SettingError("train takes either a method or the learning rate of gradient descent")
    method = check_kind("method", method, Method).resolved(regression, architecture)
    initial = initialise(architecture, init, scale, seed, [("train",)], regression)
    every = record_every or max(1, 1 if method.continuous else steps // ENTRIES)
    few = record_every is None and wide(architecture, method)
    if few:
        every = max(1, steps // WIDE_ENTRIES)
    measured = 2 if few or quantities is not None else sharpness_steps(architecture, every, steps)
    if quantities is None:
        quantities = NETWORK_MEASURES if few else recordable(architecture)
    recording = Recording(
        every,
        quantities,
        sharpness_steps=measured,
        most=None if record_every else FLOW_ENTRIES,
    )
    options: Options = {"recording": recording, "learned_at": learned_at, "progress": progress}
    outcome = method.run(problem, initial, steps=steps, **options)
    settings = {"init": init, "scale": float(scale), "seed": seed, "steps": steps}
    settings |= {"learned_at": learned_at, "advice": advice}
    return report(problem, initial, outcome, method, **settings)


def report(
    problem: Problem, initial: Ensemble, outcome: Outcome, method: Method, **settings: Any
) -> Training:
    """What came of one run; `settings` are the fields of `Training` that are not measured."""
    regression, architecture = problem.regression(), initial.architecture
    least = None
    if not architecture.biases and min(architecture.widths) >= product_rank(regression):
        least = predict(regression, architecture.depth, architecture.output_norm).exact
    last = sharpness_of_one(problem, outcome.ensemble)
    return Training(
        regression=regression,
        architecture=architecture,
        method=method,
        initial=initial,
        outcome=outcome,
        initial_sharpness=sharpness_of_one(problem, initial),
        final_sharpness=last,
        minimal_sharpness=least,
        edge_share=share_of_edge(problem, outcome, method, last),
        **settings,
    )


def share_of_edge(
    problem: Problem, outcome: Outcome, method: Method, last: Sharpness
) -> float | None:
    """S over the edge at the end; None for gradient flow and after divergence (see `edge`)."""
    if method.continuous or outcome.count(State.DIVERGED):
        return None
    moving = swinging(outcome)
    if moving.any():
        ends = midway(problem, outcome, method.learning_rate, moving)
        last = sharpness_of_one(problem, ends)
    share = float(np.asarray(method.learning_rate) * last.value / method.reach)
    return share if np.isfinite(share) else None


def wide(architecture: Architecture, method: Method) -> bool:
    """Whether measuring the layers at every entry would take too long."""
    cubes = sum(float(rows) * columns * min(rows, columns) for rows, columns in architecture.shapes)
    entries = FLOW_ENTRIES if method.continuous else ENTRIES
    return entries * SINGULAR_VALUES * cubes > LAYER_WORK


def sharpness_steps(architecture: Architecture, every: int, steps: int) -> int:
    """How many of the steps between two entries sharpness is measured at."""
    if architecture.family is not Family.ONE_OUTPUT:
        return 2
    return max(2, min(every, MEASUREMENTS * every // steps))
