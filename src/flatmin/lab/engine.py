"""From a setting to numbers: the lab's only calls of the engine.

A run is a function of its setting, so that the same address shows the same run, to the bit. It is
made ahead of what the page has shown, in pieces: one of most runs, several of those that take
long. Pieces end at entries and at multiples of 16 steps, where the engine looks whether a run has
settled, so how a run is cut changes no weight. (A sharpness is found from the last eigenvector, and
at the beginning of a piece anew: there its last digits, below its tolerance, may differ.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatmin import Architecture, Ensemble, Outcome, Recording, Samples, initialise
from flatmin.core.arrays import Float
from flatmin.core.errors import SettingError
from flatmin.core.progress import Advance
from flatmin.core.seeds import Coordinate
from flatmin.data.sets import paper_output_vector
from flatmin.dynamics.backends import step_flops
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.dynamics.method import Method, Options
from flatmin.dynamics.training import Training, report, sharpness_steps
from flatmin.lab.settings import MOST_TOGETHER, MOST_WEIGHTS, MOST_WORK, Setting
from flatmin.lab.tables import Tables
from flatmin.network.architecture import Family
from flatmin.study.inputs import architecture_of, data_of
from flatmin.theory.minimisers import product_rank
from flatmin.theory.prediction import Prediction, predict

QUANTITIES = ("excess_risk", "distance", "gradient", "sharpness")
BAND = (0.1, 0.9)
"""The quantiles between which an ensemble's band lies."""
# About a tenth of a second; and what a sharpness costs that is not compiled.
_PIECE_FLOPS, _PLAIN_SHARPNESS = 2e8, 5e6
_ALIGNED = 16


@dataclass(frozen=True, eq=False)
class Ground:
    """What a run stands on: data, network, and what is known of both beforehand."""

    setting: Setting
    samples: Samples
    network: Architecture

    @cached_property
    def prediction(self) -> Prediction | None:
        """The theory's numbers; none with biases, or with layers too narrow for a minimiser."""
        regression = self.samples.regression()
        if self.network.biases or min(self.network.widths) < product_rank(regression):
            return None
        return predict(regression, self.network.depth, self.network.output_norm)

    def method(self, rate: float | None = None) -> Method:
        """The method, at the first rate unless another is given."""
        method = self.setting.method
        return method.with_rates(method.learning_rate if rate is None else rate)

    @property
    def reach(self) -> float:
        """The largest stable eta S; 2 for gradient flow, which has none, to compare with."""
        reach = self.method().reach
        return reach if np.isfinite(reach) else 2.0

    @property
    def ceiling(self) -> float | None:
        """The rate above which no minimiser is stable."""
        return None if self.prediction is None else self.reach / self.prediction.exact

    def start(self, networks: int | None = None) -> Ensemble:
        """The initial weights; the first network is that of `flatmin train`."""
        count = self.setting.networks if networks is None else networks
        addresses: list[tuple[Coordinate, ...]] = [("train",), *((i,) for i in range(1, count))]
        init = self.setting.initialisation
        regression = self.samples.regression()
        assert init.scale is not None
        return initialise(
            self.network, init.name, init.scale, self.setting.seed, addresses, regression
        )

    @property
    def step_flops(self) -> float:
        """Of one step of one network."""
        return step_flops(self.samples, self.network)


def ground_of(setting: Setting, tables: Tables) -> Ground:
    """Data and network of a setting, within the lab's limits."""
    problem = setting.problem
    if problem.file is not None:
        samples = tables.samples(
            problem.file, tuple(problem.target_names), problem.features, problem.preparation()
        )
    elif problem.outputs > 1:
        from flatmin.data.generators import gaussian_samples

        assert problem.n is not None
        assert problem.d is not None
        seed = setting.seed if problem.seed is None else problem.seed
        samples = gaussian_samples(
            problem.n, problem.d, problem.noise or 0.0, seed, problem.outputs
        )
    else:
        made = data_of(setting, 0).samples
        assert made is not None
        samples = made
    ground = Ground(setting, samples, _network(setting, samples))
    weights = ground.network.parameters * setting.networks
    if weights > MOST_WEIGHTS:
        raise SettingError(
            f"networks of {ground.network.parameters} weights, {setting.networks} of them: "
            f"the lab takes at most {MOST_WEIGHTS} weights"
        )
    work = ground.step_flops * setting.networks * setting.steps
    if work > MOST_WORK:
        most = int(MOST_WORK / work * setting.steps)
        raise SettingError(
            f"method.steps must be at most {most} for networks of this size in the lab, "
            f"got {setting.steps}"
        )
    return ground


def _network(setting: Setting, samples: Samples) -> Architecture:
    network = setting.architecture
    assert network.depth is not None
    if samples.targets > 1:
        return Architecture.multivariate(samples.d, network.depth, samples.targets, network.width)
    own = network.output is None and setting.problem.paper in ("linear", "nonlinear")
    if network.kind == "residual" and own:  # the paper's p with the paper's data, as in `train`
        return Architecture.residual(samples.d, network.depth, paper_output_vector())
    return architecture_of(setting, samples.d, network.depth, network.width)


def together(network: Architecture) -> int:
    """How many networks of an architecture may be in memory for a picture."""
    return MOST_TOGETHER // network.parameters


@dataclass(frozen=True, eq=False)
class Piece:
    """Some entries of a run, the first of them number `first`.

    Columns have one number an entry; of an ensemble `name` is the median over networks and
    `name_low`, `name_high` are the ends of its band.
    """

    first: int
    columns: dict[str, Float]
    rate: float | None
    end: End | None = None

    def __len__(self) -> int:
        return len(self.columns["step"])


@dataclass(frozen=True)
class End:
    """How a run ended."""

    state: str
    learned: bool
    steps: int
    sentence: str
    states: dict[str, int]
    learned_count: int


@dataclass(frozen=True)
class Segment:
    """Steps at one rate: from step `begin` to step `end`."""

    begin: int
    end: int
    rate: float | None


def segments(setting: Setting) -> list[Segment]:
    """A run as steps at one rate each."""
    begins = [(0, setting.method.learning_rate), *setting.changes]
    ends = [step for step, _ in setting.changes] + [setting.steps]
    return [Segment(begin, end, rate) for (begin, rate), end in zip(begins, ends, strict=True)]


def recording(ground: Ground) -> Recording:
    """What is kept of a run: as `flatmin train` keeps it."""
    setting = ground.setting
    often = sharpness_steps(ground.network, setting.every, setting.steps)
    return Recording(setting.every, QUANTITIES, sharpness_steps=often)


def piece_steps(ground: Ground) -> int:
    """How many steps a piece of the run takes at most."""
    setting = ground.setting
    lanes = max(4, setting.networks)
    often = min(recording(ground).sharpness_steps, setting.every)
    compiled = ground.network.family is Family.ONE_OUTPUT
    measured = often / setting.every
    cost = ground.step_flops * lanes * (1.0 + 10.0 * measured)
    if not compiled:
        cost += _PLAIN_SHARPNESS * setting.networks * measured
    unit = setting.every * _ALIGNED
    return max(unit, int(_PIECE_FLOPS / cost) // unit * unit)


def advance(
    ground: Ground,
    weights: Ensemble,
    beside: Float | None,
    rate: float | None,
    steps: int,
    **options: Any,
) -> Outcome:
    """Some steps at one rate from given weights; `options` are those of `descend`."""
    method = ground.method(rate)
    options |= {"rule": method.rule, "beside": beside, "threads": 1}
    return descend(ground.samples, weights, method.learning_rate, steps, **options)


def follow(ground: Ground, progress: Advance | None = None) -> Iterator[Piece]:
    """A run from its first entry to its end, piece by piece."""
    if ground.setting.method.continuous:
        yield _flow(ground, progress)
        return
    setting, most = ground.setting, piece_steps(ground)
    options = {"recording": recording(ground), "progress": progress}
    initial = now = ground.start()
    beside, held, at, number = None, _Held(setting.networks), 0, 0
    parts = segments(setting)
    for part in parts:
        while at < part.end:
            steps = min(most, part.end - at)
            last = at + steps == setting.steps
            outcome = advance(ground, now, beside, part.rate, steps, observe_ends=last, **options)
            if not last and setting.networks == 1 and part is parts[-1]:
                if outcome.count(State.SETTLED):  # perhaps by chance: look again
                    outcome = advance(ground, now, beside, part.rate, steps, **options)
                last = outcome.count(State.SETTLED) + outcome.count(State.DIVERGED) > 0
            columns = held.columns(outcome, at, first=at == 0)
            end = None
            if last:
                end = _end(ground, initial, outcome, part.rate, at + int(outcome.steps.max()))
            yield Piece(number, columns, part.rate, end)
            if last:
                return
            now, beside = outcome.ensemble, outcome.beside
            at, number = at + steps, number + len(columns["step"])


class _Held:
    """Columns of one network, or medians and bands of many.

    Of many, a run that ended keeps its last value, or none (infinity) where it diverged.
    """

    def __init__(self, networks: int) -> None:
        self._many = networks > 1
        self._last: dict[str, Float] = {}

    def columns(self, outcome: Outcome, begin: int, first: bool) -> dict[str, Float]:
        assert outcome.recorded is not None
        skip = 0 if first else 1
        values = outcome.recorded.values
        found: dict[str, Float] = {"step": np.asarray(outcome.recorded.step[skip:] + begin, float)}
        if "time" in values and not self._many:
            found["time"] = values["time"][:, 0]
        for name in QUANTITIES:
            if self._many:
                found |= self._band(name, values[name][skip:], outcome)
                continue
            found |= {
                column: values[column][skip:, 0]
                for column in (name, f"{name}_low", f"{name}_high", f"{name}_residual")
                if column in values
            }
        if self._many:
            return found
        kept = np.isfinite(found["excess_risk"])
        kept[:1] |= first
        return {name: column[kept] for name, column in found.items()}

    def _band(self, name: str, values: Float, outcome: Outcome) -> dict[str, Float]:
        filled = np.array(values)
        before = self._last.get(name, np.full(values.shape[1], np.inf))
        lost = np.where(outcome.state == State.DIVERGED.value, np.inf, np.nan)
        for row in filled:
            gone = np.isnan(row)
            row[gone] = np.where(np.isinf(lost), np.inf, before)[gone]
            before = row
        self._last[name] = before
        levels = (0.5, *BAND)
        middle, low, high = np.quantile(filled, levels, axis=1, method="inverted_cdf")
        return {name: middle, f"{name}_low": low, f"{name}_high": high}


def _flow(ground: Ground, progress: Advance | None) -> Piece:
    """The whole of a gradient flow; its steps are the integrator's own."""
    initial, method = ground.start(), ground.method()
    options: Options = {"recording": recording(ground), "threads": 1, "progress": progress}
    outcome = method.run(ground.samples, initial, steps=ground.setting.steps, **options)
    columns = _Held(ground.setting.networks).columns(outcome, 0, first=True)
    if ground.setting.networks > 1:
        used = int(outcome.steps.max()) // ground.setting.every + 1
        columns = {name: column[:used] for name, column in columns.items()}
    end = _end(ground, initial, outcome, None, int(outcome.steps.max()))
    return Piece(0, columns, None, end)


def _end(ground: Ground, initial: Ensemble, outcome: Outcome, rate: float | None, at: int) -> End:
    setting, states = ground.setting, {state.value: outcome.count(state) for state in State}
    states = {state: count for state, count in states.items() if count}
    if len(initial) == 1:
        sentence = training(ground, initial, outcome, ground.method(rate)).interpretation()
    else:
        words = ", ".join(f"{count} {state}" for state, count in states.items())
        sentence = f"{int(outcome.learned.sum())} of {setting.networks} learned; {words}."
    most, learned = max(states, key=lambda state: states[state]), int(outcome.learned.sum())
    return End(most, bool(outcome.learned.all()), at, sentence, states, learned)


def training(ground: Ground, initial: Ensemble, outcome: Outcome, method: Method) -> Training:
    """One run as `flatmin train` reports it."""
    setting, init = ground.setting, ground.setting.initialisation
    settings = {"init": init.name, "scale": init.scale, "seed": setting.seed}
    settings |= {"steps": setting.steps, "learned_at": setting.method.learned_at}
    return report(ground.samples, initial, outcome, method, **settings)


def facts(ground: Ground) -> dict[str, Any]:
    """What the page draws before any step: lines, marks and a few numbers of the data."""
    data, network, known = ground.samples.regression(), ground.network, ground.prediction
    one = data.targets == 1
    return {
        "n": ground.samples.n,
        "d": ground.samples.d,
        "targets": ground.samples.targets,
        "features": list(ground.samples.feature_names),
        "weights": network.parameters,
        "depth": network.depth,
        "widths": list(network.widths),
        "condition_number": data.condition_number,
        "w_star_norm": data.w_star_norm,
        "risk_min": data.risk_min,
        "excess_at_zero": data.excess_at_zero,
        "goal": ground.setting.method.learned_at * data.excess_at_zero,
        "linear": network.linear,
        "ceiling": ground.ceiling,
        "minimal": None if known is None else known.exact,
        "lower": None if known is None or not one else known.minimal.lower,
        "upper": None if known is None or not one else known.minimal.upper,
        "small_scale": None if known is None else known.small_init_sharpness,
        "reach": ground.reach,
        "edge": None if ground.method().edge is None else float(ground.method().edge),  # type: ignore[arg-type]
        "edge_formula": ground.method().edge_formula,
        "every": ground.setting.every,
        "steps": ground.setting.steps,
    }
