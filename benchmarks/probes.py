"""Do the probes' intervals hold, and what do they cost? Dense Hessians say.

Each case of `probe_models` is measured from many random starts, at several tolerances, in double
and in single precision, cold and from an earlier vector that is the worst possible: the second
eigenvector. An interval *fails* when the largest eigenvalue is outside of it. Rivals run at their
defaults and with as many products as the probe took; they are *wrong* by more than 1 % or not.

PyHessian at equal truth, to 0.1 %: its user can choose a tolerance, one for all models, and cannot
ask the truth. It finds the eigenvalue of largest magnitude, which may be another, and where others
are close it may need more than a thousand products: models for which one of its runs is then still
off are those that it cannot be relied on for. Among the others the largest power of ten is taken at
which it is right as often as our intervals promise; the medians are over them, and over all models
with the rest counted as never. For comparison: stopped by the truth, when its value is first within
0.1 %; and against our lower end alone, stopped so too. No Krylov method from the same start is
nearer than that lower end.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from benchmarks.harness import Result, Spread
from flatmin.core.errors import SettingError

if TYPE_CHECKING:
    from benchmarks.probe_models import ProbeCase

RUNS, RIVAL_RUNS, SEED, CONFIDENCE, WRONG = 52, 5, 11000, 0.999, 0.01
OUR_LOW = "low end of ours, stopped by the truth at 0.1 %"
BY_TRUTH = "PyHessian, stopped by the truth at 0.1 %"
TOLERANCES = [10.0**-k for k in range(3, 11)]


@dataclass(frozen=True)
class Measured:
    """One measurement: the tool, its error relative to the truth, products, whether it fails."""

    tool: str
    case: str
    error: float
    products: int
    fails: bool


def probes() -> Result:
    """The table on standard error, and the products against those of the rivals."""
    try:
        import curvlinops  # noqa: F401
        import hessian_eigenthings  # noqa: F401
        import pyhessian  # noqa: F401
    except ImportError as error:
        raise SettingError(
            f"the benchmark of probes compares with {error.name}, which is not installed: install "
            "PyTorch, then hessian-eigenthings and curvlinops-for-pytorch, then pyhessian with "
            "--no-deps (it would pull another PyTorch)"
        ) from None
    found = list(_measure())
    ours, certified = _medians(found, "flatmin to 1 %"), _medians(found, "flatmin to 0.1 %")
    intervals = [one for one in found if one.tool.startswith("flatmin")]
    failures = sum(one.fails for one in intervals)
    low = _medians(found, OUR_LOW)
    chosen, able = _equal_truth(found)
    print("\n".join([*_table(found), "", *_against_pyhessian(found)]), file=sys.stderr)
    ratios = {
        "ARPACK": Spread.of(_ratios(found, "curvlinops", ours)),
        "PyHessian at equal truth": Spread.of(_ratios(found, chosen, certified, able)),
        "the same, in total": _totals(found, chosen, certified, able),
        "the same against the low end": Spread.of(_ratios(found, chosen, low, able)),
        "PyHessian by truth": Spread.of(_ratios(found, BY_TRUTH, certified, able)),
        "PyHessian by truth, low end": Spread.of(_ratios(found, BY_TRUTH, low, able)),
    }
    bar = {"ARPACK": 1.0, "PyHessian at equal truth": 3.0}
    held = failures <= binom.ppf(0.95, len(intervals), 1.0 - CONFIDENCE)
    return Result(
        "probes",
        f"products to 1 %; {failures} of {len(intervals)} intervals fail at {CONFIDENCE:g}",
        "products",
        Spread.of(list(ours.values())),
        {},
        ratios,
        bar,
        bool(held) and all(ratios[name].median >= bar[name] for name in bar),
        0.0,
        "\n".join([*_table(found), "", *_against_pyhessian(found)]),
    )


def _measure() -> Iterator[Measured]:
    import torch

    import flatmin.torch as doors
    from benchmarks.probe_models import cases
    from benchmarks.probe_rivals import RIVALS
    from flatmin.probes.torch_products import plain_attention

    for case in cases():
        print(f"  {case.name}", file=sys.stderr, flush=True)
        second = doors.spectrum(case.model, case.loss, case.batch, 2, tolerance=1e-6).top_vectors[1]
        for seed in range(RUNS):
            tolerance = (1e-2, 1e-2, 1e-1, 1e-3)[seed % 4]
            start = second if seed % 8 >= 4 else None
            single = seed % 16 >= 12
            model = copy.deepcopy(case.model).float() if single else case.model
            batch = tuple(
                one.float() if single and one.is_floating_point() else one for one in case.batch
            )
            record = doors.sharpness(
                model, case.loss, batch,
                tolerance=tolerance, confidence=CONFIDENCE, start=start, seed=SEED + seed,
            )  # fmt: skip
            # Double precision itself leaves this much open.
            room = 1e-12 * float(np.abs(case.eigenvalues).max())
            fails = not record.low - room <= case.top <= record.high + room
            kind = f"flatmin to {100 * tolerance:g} %" + ", from a vector" * (start is not None)
            error = abs(record.value / case.top - 1.0)
            yield Measured(kind + ", single" * single, case.name, error, record.products, fails)
            if seed % 4 == 0 and seed // 4 < RIVAL_RUNS:
                for name, rival in RIVALS.items():
                    for words, limit in (("", None), (" at equal cost", record.products)):
                        with plain_attention(), torch.random.fork_rng():
                            value, products = rival(case, seed, limit)
                        off = abs(value / case.top - 1.0)
                        yield Measured(name + words, case.name, off, products, not off <= WRONG)
                with plain_attention(), torch.random.fork_rng():
                    yield from _to_a_thousandth(case, seed)


def _to_a_thousandth(case: ProbeCase, seed: int) -> Iterator[Measured]:
    from benchmarks.probe_rivals import pyhessian_path, pyhessian_stop
    from flatmin.probes.measure import Krylov
    from flatmin.probes.torch_model import TorchModel

    def measured(tool: str, path: list[float], products: int) -> Measured:
        off = abs(path[products - 1] / case.top - 1.0)
        return Measured(tool, case.name, off, products, off > 1e-3)

    def right(path: list[float]) -> int:
        near = (k for k, value in enumerate(path, 1) if abs(value / case.top - 1.0) <= 1e-3)
        return next(near, len(path))

    path = pyhessian_path(case, seed)
    yield measured(BY_TRUTH, path, right(path))
    for tolerance in TOLERANCES:
        yield measured(_at(tolerance), path, pyhessian_stop(path, tolerance))
    krylov = Krylov(TorchModel(case.model, case.loss, case.batch), seed)
    ours: list[float] = []
    while not krylov.exhausted and not (ours and abs(ours[-1] / case.top - 1.0) <= 1e-3):
        krylov.extend()
        ours.append(krylov.largest(CONFIDENCE)[0])
    yield measured(OUR_LOW, ours, len(ours))


def _medians(found: list[Measured], tool: str) -> dict[str, float]:
    """Median products of each case."""
    names = dict.fromkeys(one.case for one in found)
    return {
        name: float(np.median([o.products for o in found if o.case == name and o.tool == tool]))
        for name in names
    }


def _at(tolerance: float) -> str:
    return f"PyHessian at {tolerance:.0e}"


def _equal_truth(found: list[Measured]) -> tuple[str, set[str]]:
    """PyHessian with the largest tolerance that is right as often as ours, and on which cases.

    Those in which its last value always is.
    """
    last = [one for one in found if one.tool == _at(TOLERANCES[-1])]
    able = {one.case for one in last} - {one.case for one in last if one.fails}
    enough = (t for t in TOLERANCES if _right(found, _at(t), able) >= CONFIDENCE)
    return _at(next(enough)), able


def _right(found: list[Measured], tool: str, cases: set[str]) -> float:
    """The share of runs that are right to 0.1 %."""
    return float(
        np.mean([not one.fails for one in found if one.tool == tool and one.case in cases])
    )


def _ratios(
    found: list[Measured], tool: str, ours: dict[str, float], able: set[str] | None = None
) -> list[float]:
    counts = _medians(found, tool).items()
    return [k / ours[name] for name, k in counts if able is None or name in able]


def _totals(found: list[Measured], tool: str, ours: dict[str, float], able: set[str]) -> Spread:
    counts = _medians(found, tool)
    return Spread.of([sum(counts[name] for name in able) / sum(ours[name] for name in able)])


def _table(found: list[Measured]) -> list[str]:
    """The first table of docs/ask-your-model.md; a tolerance's starts and precisions in one row."""
    lines = [
        "| tool | products, median | off by more than 1 % | by more than 0.1 % "
        "| intervals that fail |",
        "| --- | --- | --- | --- | --- |",
    ]
    named = {f"flatmin to {percent} %": f"flatmin to {percent} %" for percent in ("1", "0.1", "10")}
    named |= {
        "curvlinops": "curvlinops with ARPACK, to 1 %",
        "hessian-eigenthings": "hessian-eigenthings, defaults",
        "hessian-eigenthings at equal cost": "hessian-eigenthings, as many products as flatmin",
        "PyHessian": "PyHessian, defaults (tolerance 1e-3)",
        "PyHessian at equal cost": "PyHessian, as many products as flatmin",
        _at(1e-8): "PyHessian, tolerance 1e-8",
    }
    for tool, words in named.items():
        ours = tool.startswith("flatmin")
        of = [o for o in found if o.tool == tool or (ours and o.tool.startswith(f"{tool}, "))]
        errors = np.nan_to_num([one.error for one in of], nan=np.inf)
        wrong = [100.0 * np.mean(errors > limit) for limit in (WRONG, 1e-3)]
        fails = "has none"
        if ours:
            fails = f"{sum(one.fails for one in of)} of {len(of)}"
        lines.append(
            f"| {words} | {np.median([one.products for one in of]):g} "
            f"| {wrong[0]:.1f} % | {wrong[1]:.1f} % | {fails} |"
        )
    return lines


def _against_pyhessian(found: list[Measured]) -> list[str]:
    """The second table: products of PyHessian over ours."""
    certified, low = _medians(found, "flatmin to 0.1 %"), _medians(found, OUR_LOW)
    chosen, able = _equal_truth(found)
    never = [math.inf] * (len(certified) - len(able))
    lines = [
        f"| PyHessian, to 0.1 % | right, of runs of all {len(certified)} models | of the "
        f"{len(able)} that it can be relied on for | its products over flatmin's: median of the "
        f"{len(able)} | of all, the other {len(never)} as never | all over all, of the "
        f"{len(able)} | over those of flatmin's lower end alone, stopped by the truth: median |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    tools = [_at(tolerance) for tolerance in TOLERANCES]
    for tool in (*tools, BY_TRUTH):
        ratios = _ratios(found, tool, certified, able)
        words = tool.removeprefix("PyHessian ").removeprefix("PyHessian, ")
        lines.append(
            f"| {words}{', enough' * (tool == chosen)} "
            f"| {100 * _right(found, tool, set(certified)):.1f} % "
            f"| {100 * _right(found, tool, able):.1f} % | {median(ratios):.1f} "
            f"| {median(ratios + never):.1f} | {_totals(found, tool, certified, able).median:.1f} "
            f"| {median(_ratios(found, tool, low, able)):.1f} |"
        )
    return lines
