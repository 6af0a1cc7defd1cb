"""A learning rate that was tried: the largest that safely learns, found and tested on these data.

2/S_min is a ceiling by theory. Where below it gradient descent works depends on the start: large
initial weights diverge at once, small ones wait at a saddle, weak directions of the data take long.
So rates are run, on an ensemble from the initialisation that will be used:

1. Search. From the ceiling down to a rate at which no network diverges at once; then a race of that
   rate and lower ones, eight networks each. A rate is out when one of its networks diverges; the
   race ends at one and a half times the steps in which the first rate had taught all of its
   networks, and the largest rate that has done so by then is the best. (Oscillating is no reason to
   be out: at the edge of stability many runs learn all the same, and in fewer steps.)
2. Margin. Advised is the best rate over sqrt(2), with half as many steps again as the slowest took.
3. Test. 32 networks with seeds of their own, then more up to a hundred, fewer if they are large,
   must learn within those steps (see `trial`); of a hundred one may arrive and leave again. Else
   the rate is lowered (instability) or the steps are raised (slowness), and others are tested. The
   steps are more than the slowest took to arrive, by a quarter at least, where the work allows.
4. Climb. With these steps, if twice the rate works too, sqrt(2) times the rate is tested and taken,
   or else twice the rate.

Work is counted in network steps times the flops of one, not in seconds, so that the same data
get the same advice on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_kind, check_nonnegative, check_positive
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.progress import Advance, Progress, advancing
from flatmin.core.shown import Shown
from flatmin.core.statistics import share_interval
from flatmin.data.samples import Problem, check_problem
from flatmin.dynamics.backends import step_flops
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import LEARNED_AT, State
from flatmin.dynamics.trial import trial
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, DEFAULT_SCALE, initialise
from flatmin.theory.prediction import predict

# About a second on two cores.
WORK = 2.5e10
SEARCHED = 8
TESTED, FEWEST_TESTED = 100, 32
_ALLOWED = 0.01
_FIRST_STAGE = 256
_LONGEST = 10**7
_LOWEST = 80  # halvings of the rate before giving up


class Advice(Shown, eq=True):
    """A rate with what was run to test it; `learning_rate` is None if none can be advised.

    `learned_share` of `runs` networks learned within `steps`, and with 95 % confidence at least
    `learned_share_low` of all networks do. `seeds` are the first of the tested networks and the one
    after the last: network i is drawn at the address ("advice", i) of the seed. `reason` is the
    sentence to show.
    """

    learning_rate: float | None = None
    init: str
    scale: float
    width: int
    steps: int | None = None
    learned_share: float | None = None
    learned_share_low: float | None = None
    runs: int = 0
    seeds: tuple[int, int] | None = None
    reason: str

    def rows(self) -> list[tuple[str, str]]:
        """The table of `page`; empty without a rate."""
        if self.learning_rate is None:
            return []
        learned = round((self.learned_share or 0.0) * self.runs)
        return [
            ("Tested learning rate", number(self.learning_rate)),
            ("  initialisation", f"{self.init}, scale {self.scale:g}"),
            ("  learned", f"{learned} of {self.runs} runs in {self.steps} steps"),
        ]

    def page(self) -> Page:
        """The rate with its test, and the sentence."""
        table: Page = [Listing(("Advice", ""), self.rows())] if self.rows() else []
        return [*table, Remarks(self.reason)]


def advise(
    problem: Problem,
    architecture: Architecture,
    init: str = DEFAULT_INIT,
    scale: float = DEFAULT_SCALE,
    *,
    learned_at: float = LEARNED_AT,
    seed: int = 0,
    work: float = WORK,
    progress: Progress = None,
    label: str = "testing rates",
) -> Advice:
    """A tested learning rate for networks of this architecture from this initialisation.

    `work` bounds the flops of search and test; `progress` is told of those just spent.

    >>> from flatmin.data.generators import gaussian_samples
    >>> data = gaussian_samples(seed=0).regression()
    >>> found = advise(data, Architecture.mlp(5, depth=3))
    >>> found.learned_share >= 0.99, found.learning_rate < predict(data, 3).critical_rate
    (True, True)
    """
    check_problem(problem)
    check_kind("architecture", architecture, Architecture)
    work, scale = check_positive("work", work), check_nonnegative("scale", scale)
    with advancing(progress, label, int(work)) as advance:
        lab = _Laboratory(problem, architecture, init, scale, learned_at, seed, work, advance)
        try:
            return _test(lab, *_search(lab))
        except _NoRate as reason:
            return lab.advice(str(reason))


class _NoRate(Exception):
    """Why none can be advised, in a sentence."""


@dataclass
class _Laboratory:
    """Networks on demand, and the work that is left."""

    problem: Problem
    architecture: Architecture
    init: str
    scale: float
    learned_at: float
    seed: int
    left: float
    progress: Advance | None
    drawn: int = 0

    def __post_init__(self) -> None:
        self.regression = self.problem.regression()
        self.flops = step_flops(self.problem, self.architecture)

    @property
    def ceiling(self) -> float:
        """2/S_min."""
        network = self.architecture
        return predict(self.regression, network.depth, network.output_norm).critical_rate

    def networks(self, count: int) -> Ensemble:
        """Networks that have not been used before."""
        first, self.drawn = self.drawn, self.drawn + count
        addresses = [("advice", i) for i in range(first, self.drawn)]
        return initialise(
            self.architecture, self.init, self.scale, self.seed, addresses, self.regression
        )

    def spend(self, network_steps: int) -> None:
        """Book work."""
        self.left -= network_steps * self.flops
        if self.progress is not None:
            self.progress(int(network_steps * self.flops))

    def affordable(self, runs: int, share: float = 1.0) -> int:
        """Steps that so many runs may take of a share of the work left."""
        return min(_LONGEST, int(share * max(self.left, 0.0) / (runs * self.flops)))

    def affordable_runs(self, steps: int) -> int:
        """Runs of so many steps that the work left allows."""
        return int(max(self.left, 0.0) / (steps * self.flops))

    @property
    def width(self) -> int:
        """Of the widest hidden layer, 0 if there is none."""
        return max(self.architecture.widths[:-1], default=0)

    def advice(self, reason: str, **tested: Any) -> Advice:
        """The record, without a rate unless one was tested."""
        init, scale = self.init, float(self.scale)
        return Advice(init=init, scale=scale, width=self.width, reason=reason, **tested)


@dataclass
class _Racer:
    """One rate with its networks that have not learned yet."""

    rate: float
    flat: Float
    slowest: int = 0
    taken: int = 0
    unlearned: float = math.inf
    out: bool = False

    @property
    def going(self) -> bool:
        """Whether some networks have not learned and none has diverged."""
        return not self.out and len(self.flat) > 0

    @property
    def done(self) -> bool:
        """Whether all networks have learned."""
        return not self.out and not len(self.flat)


def _advance(lab: _Laboratory, racers: list[_Racer], taken: int, steps: int) -> None:
    """So many steps of every network that has not learned, all rates in one ensemble."""
    going = [one for one in racers if one.going]
    if not going:
        return
    sizes = [len(one.flat) for one in going]
    rates = np.repeat([one.rate for one in going], sizes)
    start = Ensemble.from_flat(lab.architecture, np.concatenate([one.flat for one in going]))
    ends: Any = {"learned_at": lab.learned_at, "until_learned": True, "observe_ends": False}
    outcome = descend(lab.problem, start, rates, steps, **ends)
    lab.spend(int(outcome.steps.sum()))
    flat = outcome.ensemble.flat()
    for one, end in zip(going, np.cumsum(sizes), strict=True):
        mine = slice(int(end) - len(one.flat), int(end))
        learned = outcome.learned[mine]
        one.out = bool(np.any(outcome.state[mine] == State.DIVERGED.value))
        if learned.any():
            one.slowest = taken + int(outcome.steps[mine][learned].max())
        one.taken = taken + steps
        one.unlearned = float(outcome.excess_risk[mine].max()) / lab.regression.excess_at_zero
        one.flat = flat[mine][~learned]


def _search(lab: _Laboratory) -> tuple[float, int]:
    """The rate to test, with its steps."""
    if lab.affordable(SEARCHED) < 4 * _FIRST_STAGE:
        raise _NoRate(
            f"No rate was looked for: {lab.flops:.1g} flops a step are too many to try rates with "
            "the work allowed."
        )
    networks = lab.networks(SEARCHED).flat()
    root = math.sqrt(2.0)
    rate = lab.ceiling / root
    for _ in range(_LOWEST):
        first = _Racer(rate, networks)
        _advance(lab, [first], 0, _FIRST_STAGE)
        if first.out:
            rate /= 2.0
            continue
        racers = [_Racer(rate / 2.0**i, networks) for i in range(3)]
        taken = _race(lab, racers)
        if any(one.done for one in racers):
            break
        if not all(one.out for one in racers):
            raise _too_slow(lab, racers)
        rate = racers[-1].rate / 2.0
    else:
        raise _NoRate(
            f"No rate can be advised: from {_start(lab)} runs diverged at every rate down to "
            f"{rate:.2g}."
        )
    best = max((one for one in racers if one.done), key=lambda one: one.rate)
    # The half-octaves on both sides of the best: is it better still, and is there a margin?
    sides = [_Racer(best.rate * root, networks), _Racer(best.rate / root, networks)]
    _race(lab, sides, 2 * taken)
    above, below = sides
    advised = best if above.done else below
    if not advised.done:
        raise _too_slow(lab, sides)
    return advised.rate, _rounded_up(1.5 * advised.slowest)


def _race(lab: _Laboratory, racers: list[_Racer], most: int | None = None) -> int:
    """Stages until some rate is done and half as many steps again, or `most`; the steps taken."""
    taken, stage = 0, _FIRST_STAGE
    limit = lab.affordable(SEARCHED * len(racers), 0.6) if most is None else most
    while taken < limit and lab.left > 0.0 and any(one.going for one in racers):
        steps = min(stage, limit - taken)
        _advance(lab, racers, taken, steps)
        taken, stage = taken + steps, max(stage, taken // 2)
        if most is None and any(one.done for one in racers):
            quickest = min(one.slowest for one in racers if one.done)
            limit = min(limit, max(taken, 3 * quickest // 2))
    return taken


def _rounded_up(steps: float) -> int:
    """To two digits, and at least 100."""
    wanted = max(steps, 100.0)
    digit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return int(math.ceil(wanted / digit) * digit)


def _too_slow(lab: _Laboratory, racers: list[_Racer]) -> _NoRate:
    nearest = min((one for one in racers if not one.out), key=lambda one: one.unlearned)
    return _NoRate(
        f"No rate can be advised: from {_start(lab)} networks do not learn within the steps that "
        f"were tried; after {nearest.taken} at rate {nearest.rate:.3g} the slowest still had "
        f"{nearest.unlearned:.2g} of the excess risk of w = 0."
    )


def _start(lab: _Laboratory) -> str:
    size = f"scale {lab.scale:g}" + (f", width {lab.width}" if lab.width else "")
    return f"init {lab.init} ({size})"


def _test(lab: _Laboratory, rate: float, steps: int) -> Advice:
    """Lower the rate or raise the steps until fresh networks learn, then try to climb."""
    passed = None
    while passed is None:
        few = _tried(lab, rate, steps, FEWEST_TESTED)
        # What is named is what was tested: a run may leave again in steps that nobody looked at.
        if few is not None and few.works and few.enough() > steps:
            steps = few.enough()
            continue
        many = _and_more(lab, few, steps)
        if many is None:
            raise _NoRate(
                f"No rate can be advised yet: {rate:.3g} seems to learn within {steps} steps, but "
                f"a test of that on {FEWEST_TESTED} networks takes more work than allowed."
            )
        longer = many.works and many.enough() > steps
        if longer and lab.affordable_runs(many.enough()) >= 2 * TESTED:
            steps = many.enough()
        elif many.works:
            passed = many
        elif many.unstable:
            rate /= math.sqrt(2.0)
        else:
            steps = _rounded_up(1.5 * steps)
    # With so many steps a larger rate may do as well: runs at the edge of stability take longer.
    # (At the ceiling itself none settles.)
    while 2.0 * passed.rate < 0.98 * lab.ceiling:
        far = _tried(lab, 2.0 * passed.rate, steps, FEWEST_TESTED, why=False)
        if far is None or not far.works:
            break
        few = _tried(lab, math.sqrt(2.0) * passed.rate, steps, FEWEST_TESTED)
        higher = _and_more(lab, few, steps)
        if higher is None or not higher.works:
            # What happens at the edge need not be worse at larger rates.
            higher = _and_more(lab, far, steps)
        if higher is None or not higher.works or higher.runs < passed.runs:
            break
        passed = higher
    return _advised(lab, passed, steps)


@dataclass(frozen=True, eq=False)
class _Tried:
    """Fresh networks at a rate: how many, their numbers, and what became of them."""

    rate: float
    runs: int
    seeds: tuple[int, int]
    learned: int
    unstable: bool
    arrivals: Whole

    @property
    def works(self) -> bool:
        """Whether all arrived and stayed there; of a hundred one may have left again."""
        left_again = self.runs - self.learned
        return len(self.arrivals) == self.runs and left_again <= _ALLOWED * self.runs

    def enough(self) -> int:
        """Steps for networks slower than those seen.

        Were the logarithms of the arrivals normal, the slowest of a hundred would lie 2.3
        deviations above the median and one in a thousand beyond 3.1: that is more by the power
        0.35 of their ratio.
        """
        slowest = float(self.arrivals.max())
        tail = (slowest / max(float(np.median(self.arrivals)), 1.0)) ** 0.35
        return _rounded_up(max(1.25, tail) * slowest)


def _and_more(lab: _Laboratory, few: _Tried | None, steps: int) -> _Tried | None:
    """If all of the few learned, more, up to a hundred in all or half of the work."""
    more = min(TESTED - FEWEST_TESTED, lab.affordable_runs(steps) // 2)
    if few is None or not few.works or more <= 0:
        return few
    rest = _tried(lab, few.rate, steps, more)
    if rest is None:
        return few
    arrivals = np.concatenate([few.arrivals, rest.arrivals])
    runs, learned = few.runs + rest.runs, few.learned + rest.learned
    return _Tried(few.rate, runs, (few.seeds[0], rest.seeds[1]), learned, rest.unstable, arrivals)


def _tried(lab: _Laboratory, rate: float, steps: int, runs: int, why: bool = True) -> _Tried | None:
    """So many fresh networks; None if they are more than the work allows."""
    if runs > lab.affordable_runs(steps):
        return None
    first = lab.drawn
    found = trial(lab.problem, lab.networks(runs), rate, steps, lab.learned_at, why=why)
    lab.spend(found.network_steps)
    learned, unstable = int(found.learned.sum()), bool(found.unstable.any())
    arrivals = found.arrival[found.arrived]
    return _Tried(rate, runs, (first, lab.drawn), learned, unstable, arrivals)


def _advised(lab: _Laboratory, passed: _Tried, steps: int) -> Advice:
    rate, runs, learned = passed.rate, passed.runs, passed.learned
    low = share_interval(learned, runs)[0]
    return lab.advice(
        f"Use learning rate {rate:.4g}: from {_start(lab)} it learned in {learned} of {runs} fresh "
        f"runs within {steps} steps (at least {100 * low:.3g} % of all such runs, with 95 % "
        "confidence).",
        learning_rate=rate,
        steps=steps,
        learned_share=learned / runs,
        learned_share_low=low,
        runs=runs,
        seeds=passed.seeds,
    )
