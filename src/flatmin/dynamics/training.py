"""One run from its settings to what a person wants to know about it.

`train` draws the initial weights, runs gradient descent or gradient flow with a trace, measures
the sharpness at both ends, and returns a report that prints, saves and serialises itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.files import make_directory, writing
from flatmin.core.plain import json_text
from flatmin.curvature import Sharpness, sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.edge import EDGE_SHARE, midway, swinging
from flatmin.dynamics.endings import LEARNED_AT, State
from flatmin.dynamics.methods import GradientDescent, GradientFlow, Method
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, recordable
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, DEFAULT_SCALE, initialise
from flatmin.theory.minimal_sharpness import CONVENTION
from flatmin.theory.minimisers import product_rank
from flatmin.theory.prediction import predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDS = 200
# How often sharpness may be measured along a descent: at every step of a run no longer than this.
# Of linear networks with one output that adds an eighth to the time of 10 000 recorded steps at
# d = 5 and L = 10; others, where it costs as much as many steps, are measured in pairs of steps.
MEASUREMENTS = 20_000

FILES = {
    "summary": "summary.json",
    "trace": "trace.parquet",
    "problem": "problem.npz",
    "initial": "initial.npz",
    "final": "final.npz",
    "picture": "training.png",
}
"""What `Training.save` writes into a directory."""


@dataclass(frozen=True, eq=False)
class Training:
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

    @property
    def state(self) -> str:
        """How the run ended."""
        return str(self.outcome.state[0])

    @property
    def learning_rate(self) -> float | None:
        """eta; none for gradient flow."""
        rate: Any = self.method.learning_rate
        return None if rate is None else float(rate)

    @property
    def edge(self) -> float | None:
        """The method's edge of stability, 2/eta of gradient descent; none for gradient flow."""
        return None if self.method.edge is None else float(self.method.edge)

    @property
    def learned(self) -> bool:
        """Whether the excess risk is at most `learned_at` of that of w = 0."""
        return bool(self.outcome.learned[0])

    def interpretation(self) -> str:
        """What happened, in two sentences or three."""
        words = [self._learning(), _ENDINGS[State(self.state)](self)]
        if self.edge_share is not None and self.edge_share >= EDGE_SHARE:
            words.append(f"Edge of stability: sharpness is {self._share()}.")
        return " ".join(words)

    def _share(self) -> str:
        return f"{self.edge_share:.3g} of {self.method.edge_formula}"

    def _learning(self) -> str:
        start = self.regression.excess_at_zero
        if self.state == State.DIVERGED:
            return "Did not learn."
        share = self.outcome.excess_risk[0] / start
        word = "Learned" if self.learned else "Did not learn"
        return f"{word}: the excess risk is {max(share, 0.0):.2g} of that of w = 0."

    def _settled(self) -> str:
        value, flat = self.final_sharpness.value, ""
        if self.minimal_sharpness is not None:
            flat = f", {value / self.minimal_sharpness:.4g} times the flattest possible"
        if self.edge_share is None:
            return f"Gradient flow arrived: sharpness {value:.4g}{flat}."
        return f"Settled at a minimiser with sharpness {self._share()}{flat}."

    def _learning_still(self) -> str:
        more = self.outcome.more_steps[0]
        if self.learned or not np.isfinite(more):
            return "The risk was still falling when the run ended."
        return f"Still falling: at this speed about {more:.2g} more steps would do."

    def _oscillating(self) -> str:
        period = int(self.outcome.period[0])
        kind = f"with period {period}" if period else "without a period"
        share = "" if self.edge_share is None else f", sharpness about {self._share()}"
        return f"Oscillates {kind} and does not settle{share}{self._beyond()}."

    def _stalled(self) -> str:
        why = "a saddle" if self.architecture.linear else "a saddle, or dead units"
        return f"Stalled far from the minimum: next to no gradient ({why})."

    def _diverged(self) -> str:
        return f"Diverged at step {int(self.outcome.steps[0])}{self._beyond()}."

    def _beyond(self) -> str:
        """The rate beside the critical one, where that explains something."""
        if self.minimal_sharpness is None or self.edge is None:
            return ""
        return (
            f"; the learning rate is {self.minimal_sharpness / self.edge:.3g} times the critical "
            + self.method.edge_formula.replace("/eta", "/S_min").replace(" eta", " S_min")
        )

    def as_dict(self) -> dict[str, Any]:
        """The run as plain numbers, ready for JSON; what does not exist is None."""
        outcome, rule = self.outcome, self.method.velocity_rule

        def finite(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        excess = finite(outcome.excess_risk[0])
        return {
            "state": self.state,
            "learned": self.learned,
            "learned_at": self.learned_at,
            "period": int(outcome.period[0]) or None,
            "more_steps": finite(outcome.more_steps[0]),
            "edge_share": self.edge_share,
            "steps": int(outcome.steps[0]),
            "time": finite(outcome.extras["time"][0]) if "time" in outcome.extras else None,
            "risk": None if excess is None else self.regression.risk_min + excess,
            "risk_min": self.regression.risk_min,
            "excess_risk": excess,
            "distance": finite(outcome.distance[0]),
            "gradient_norm": finite(outcome.gradient[0]),
            "sharpness": self.final_sharpness.as_dict(),
            "initial_sharpness": self.initial_sharpness.as_dict(),
            "minimal_sharpness": self.minimal_sharpness,
            "edge": self.edge,
            "learning_rate": self.learning_rate,
            "method": self.method.name,
            "momentum": None if rule is None else rule.beta,
            "invariant_drift": (
                finite(outcome.extras["drift"][0]) if "drift" in outcome.extras else None
            ),
            "integration_error": (
                finite(outcome.extras["error"][0]) if "error" in outcome.extras else None
            ),
            "depth": self.architecture.depth,
            "widths": list(self.architecture.widths),
            "activation": self.architecture.activation_name,
            "init": self.init,
            "scale": self.scale,
            "seed": self.seed,
            "preparation": list(self.regression.preparation),
            "interpretation": self.interpretation(),
            "convention": CONVENTION,
            "notes": list(self.regression.notes()),
        }

    def plot(self) -> Figure:
        """The run: distance and risk, sharpness with 2/eta and S_min, layers."""
        from flatmin.dynamics.figures import training_figure

        title = f"depth {self.architecture.depth}, {self.init} initialisation, scale {self.scale:g}"
        assert self.outcome.trace is not None
        return training_figure(
            self.outcome.trace.frame(),
            f"{self.method.describe()}, {title}",
            self.edge,
            self.minimal_sharpness,
            self.method.edge_label,
        )

    def save(self, directory: Path) -> list[Path]:
        """The summary, the trace, the regression, the weights at both ends, and a picture."""
        from flatmin.core.figures import save

        make_directory(directory)
        paths = {name: directory / file for name, file in FILES.items()}
        with writing(paths["summary"]) as temporary:
            temporary.write_text(json_text(self.as_dict()) + "\n")
        assert self.outcome.trace is not None
        frame = self.outcome.trace.frame()
        with writing(paths["trace"]) as temporary:
            frame.to_parquet(temporary, index=False)
        arrays = {
            "problem": self.regression.arrays(),
            "initial": self._arrays(self.initial),
            "final": self._arrays(self.outcome.ensemble),
        }
        for name, content in arrays.items():
            with writing(paths[name]) as temporary:
                np.savez_compressed(temporary, **content)
        save(self.plot(), paths["picture"])
        return list(paths.values())

    def _arrays(self, ensemble: Ensemble) -> dict[str, Any]:
        arrays: dict[str, Any] = {f"W{k + 1}": w for k, w in enumerate(ensemble.matrices()[0])}
        if self.architecture.output is not None:
            arrays["p"] = self.architecture.p
        return arrays | {"Sigma": self.regression.sigma, "w_star": self.regression.w_star}


_ENDINGS = {
    State.SETTLED: Training._settled,
    State.LEARNING: Training._learning_still,
    State.OSCILLATING: Training._oscillating,
    State.STALLED: Training._stalled,
    State.DIVERGED: Training._diverged,
}


def train(
    problem: Regression | Samples,
    architecture: Architecture,
    *,
    init: str = DEFAULT_INIT,
    scale: float = DEFAULT_SCALE,
    seed: int = 0,
    learning_rate: float | None = None,
    method: Method | None = None,
    steps: int = 10_000,
    learned_at: float = LEARNED_AT,
    record_every: int | None = None,
    progress: Progress | None = None,
) -> Training:
    """One run by a method.

    A learning rate alone is gradient descent; with neither it is gradient flow.

    >>> from flatmin.data.sets import paper_samples
    >>> run = train(paper_samples(), Architecture.mlp(5, 10), learning_rate=0.02, steps=5000)
    >>> run.state, run.learned
    ('settled', True)
    """
    if method is None:
        method = GradientFlow() if learning_rate is None else GradientDescent(learning_rate)
    regression = problem.regression() if isinstance(problem, Samples) else problem
    initial = initialise(architecture, init, scale, seed, [("train",)], regression)
    every = record_every or max(1, 1 if method.continuous else steps // RECORDS)
    recording = Recording(
        every,
        recordable(architecture),
        sharpness_steps=sharpness_steps(architecture, every, steps),
    )
    outcome = method.run(
        problem,
        initial,
        steps=steps,
        learned_at=learned_at,
        recording=recording,
        progress=progress,
    )
    least = None
    if regression.targets == 1 or min(architecture.widths) >= product_rank(regression):
        least = predict(regression, architecture.depth, architecture.output_norm).exact
    last = sharpness(problem, outcome.ensemble)[0]
    return Training(
        regression,
        architecture,
        init,
        float(scale),
        seed,
        method,
        steps,
        initial,
        outcome,
        sharpness(problem, initial)[0],
        last,
        least,
        share_of_edge(problem, outcome, method, last),
        learned_at,
    )


def share_of_edge(
    problem: Regression | Samples, outcome: Outcome, method: Method, last: Sharpness
) -> float | None:
    """S over the edge at the end; None for gradient flow and after divergence (see `edge`)."""
    if method.learning_rate is None or outcome.count(State.DIVERGED):
        return None
    moving = swinging(outcome)
    if moving.any():
        last = sharpness(problem, midway(problem, outcome, method.learning_rate, moving))[0]
    share = float(np.asarray(method.learning_rate) * last.value / method.reach)
    return share if np.isfinite(share) else None


def sharpness_steps(architecture: Architecture, every: int, steps: int) -> int:
    """How many of the steps between two records sharpness is measured at."""
    if not architecture.linear or architecture.output is None:
        return 2
    return max(2, min(every, MEASUREMENTS * every // steps))
