"""Is the advised rate right? Forty tables, two hundred fresh runs each, in plain NumPy.

For each table the advised rate is run by the few lines of NumPy below, which share nothing with the
engine, on networks drawn by NumPy's own generator. It *fails* in a run that has not learned when
the steps named are over. It should fail in at most 2 % of the runs, and no rate three times as
large or more should do as well (`factor`: the largest rate found that does, over the advised
one; the search for it runs on the engine, upwards to the ceiling 2/S_min).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.harness import Result, Spread
from benchmarks.tables import Case, cases
from flatmin.core.arrays import Float, Yes
from flatmin.data.regression import Regression
from flatmin.dynamics.advice import Advice, advise
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import initialise
from flatmin.theory.prediction import predict

RUNS, ALLOWED, FACTOR = 200, 0.02, 3.0
_GRID = 1.25


@dataclass(frozen=True)
class Judged:
    """One table: the advice, the share of fresh runs in which it failed, and the factor."""

    case: Case
    advice: Advice
    fails: float | None
    factor: float | None
    seconds: float

    @property
    def good(self) -> bool:
        """Whether the bar is met; a table without advice is neither good nor bad."""
        return self.fails is None or (
            self.fails <= ALLOWED and self.factor is not None and self.factor < FACTOR
        )

    def __str__(self) -> str:
        data, depth = self.case.data, self.case.depth
        about = (
            f"{self.case.name}: d {data.d}, condition {data.condition_number:.1g}, depth {depth}"
        )
        if self.fails is None:
            return f"{about}: {self.advice.reason}"
        return (
            f"{about}: rate {self.advice.learning_rate:.3g}, {self.advice.steps} steps, fails in "
            f"{100 * self.fails:.3g} % of {RUNS} runs, factor {self.factor:.3g}, "
            f"{self.seconds:.2f} s"
        )


def pytorch_layers(rng: np.random.Generator, sizes: list[int]) -> list[Float]:
    """Weights of RUNS networks: uniform on +-1/sqrt(fan-in)."""
    return [
        rng.uniform(-1.0, 1.0, (RUNS, rows, columns)) / np.sqrt(columns)
        for columns, rows in pairwise(sizes)
    ]


def plain_learned(
    data: Regression, layers: list[Float], rate: float, steps: int, share: float = LEARNED_AT
) -> Yes:
    """Gradient descent on |y - X w|^2 / n, one obvious step after the other; who has learned."""
    sigma, w_star = data.sigma, data.w_star
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            below = [layers[0]]
            for w in layers[1:]:
                below.append(w @ below[-1])
            slope = 2.0 * (below[-1] - w_star) @ sigma  # [run, 1, d]
            above = np.ones((RUNS, 1, 1))
            moved = []
            for k in range(len(layers) - 1, -1, -1):
                reached = below[k - 1] @ slope.transpose(0, 2, 1) if k else slope.transpose(0, 2, 1)
                moved.append(
                    layers[k] - rate * above.transpose(0, 2, 1) @ reached.transpose(0, 2, 1)
                )
                above = above @ layers[k]
            layers = moved[::-1]
        error = layers[0]
        for w in layers[1:]:
            error = w @ error
        error = error[:, 0] - w_star
        excess = np.einsum("ni,ij,nj->n", error, sigma, error)
    return np.asarray(excess <= share * (w_star @ sigma @ w_star))


def judge(case: Case) -> Judged:
    """The advice for a table, tried."""
    data, depth = case.data, case.depth
    network = Architecture.mlp(data.d, depth)
    begin = time.perf_counter()
    found = advise(data, network)
    seconds = time.perf_counter() - begin
    if found.learning_rate is None or found.steps is None:
        return Judged(case, found, None, None, seconds)
    sizes = [data.d, *network.widths]
    layers = pytorch_layers(np.random.default_rng([2026, data.n, data.d, depth]), sizes)
    learned = plain_learned(data, layers, found.learning_rate, found.steps)
    fresh = initialise(network, "pytorch", 1.0, 1, [("bench", i) for i in range(RUNS)])
    ceiling, factor, rate = predict(data, depth).critical_rate, 1.0, found.learning_rate
    while rate * _GRID <= ceiling:
        rate *= _GRID
        # No early end: what counts is where a run is at its end.
        outcome = descend(data, fresh, rate, found.steps, observe_ends=False)
        if np.mean(~outcome.learned) <= ALLOWED:
            factor = rate / found.learning_rate
    return Judged(case, found, float(np.mean(~learned)), factor, seconds)


def advice() -> Result:
    """All tables, each reported on standard error as it is done."""
    judged = []
    for case in cases():
        judged.append(judge(case))
        print(f"  {'' if judged[-1].good else 'MISSED '}{judged[-1]}", file=sys.stderr, flush=True)
    given = [one for one in judged if one.fails is not None]
    fails = Spread.of([one.fails for one in given if one.fails is not None])
    factor = Spread.of([one.factor for one in given if one.factor is not None])
    return Result(
        "advice",
        f"tested advice on {len(judged)} tables; given for {len(given)}",
        "seconds for one",
        Spread.of([one.seconds for one in judged]),
        {},
        {"fails": fails, "factor": factor},
        {"fails": ALLOWED, "factor": FACTOR},
        all(one.good for one in judged),
        0.0,
        "; ".join(str(one) for one in judged),
    )
