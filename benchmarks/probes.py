"""Do the probes' intervals hold, and what do they cost? Dense Hessians say.

Each case of `probe_models` is measured from many random starts, at several tolerances, in double
and in single precision, cold and from an earlier vector that is the worst possible: the second
eigenvector. An interval *fails* when the largest eigenvalue is outside of it. Rivals run at their
defaults and with as many products as the probe took; they are *wrong* by more than 1 % or not.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from benchmarks.harness import Result, Spread
from flatmin.core.errors import SettingError

RUNS, RIVAL_RUNS, CONFIDENCE, WRONG = 52, 5, 0.999, 0.01


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
            "PyTorch, then pyhessian, hessian-eigenthings and curvlinops-for-pytorch"
        ) from None
    found = list(_measure())
    tools = list(dict.fromkeys(one.tool for one in found))
    for line in _table(found, tools):
        print(line, file=sys.stderr)
    ours = _medians(found, "ours to 1 %")
    intervals = [one for one in found if one.tool.startswith("ours")]
    failures = sum(one.fails for one in intervals)
    ratios = {
        "ARPACK": _ratios(found, "curvlinops", ours),
        "PyHessian": _ratios(found, "PyHessian, right to 0.1 %", _medians(found, "ours to 0.1 %")),
    }
    bar = {"ARPACK": 1.0, "PyHessian": 3.0}
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
        "\n".join(_table(found, tools)),
    )


def _measure() -> Iterator[Measured]:
    import torch

    import flatmin.torch as doors
    from benchmarks.probe_models import cases
    from benchmarks.probe_rivals import RIVALS, pyhessian_in_truth
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
                tolerance=tolerance, confidence=CONFIDENCE, start=start, seed=seed + 1000,
            )  # fmt: skip
            # Double precision itself leaves this much open.
            room = 1e-12 * float(np.abs(case.eigenvalues).max())
            fails = not record.low - room <= case.top <= record.high + room
            kind = f"ours to {100 * tolerance:g} %" + ", warm" * (start is not None)
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
                    value, products = pyhessian_in_truth(case, seed, None)
                off = abs(value / case.top - 1.0)
                yield Measured("PyHessian, right to 0.1 %", case.name, off, products, off > 1e-3)


def _medians(found: list[Measured], tool: str) -> dict[str, float]:
    """Median products of each case."""
    names = dict.fromkeys(one.case for one in found)
    return {
        name: float(np.median([o.products for o in found if o.case == name and o.tool == tool]))
        for name in names
    }


def _ratios(found: list[Measured], tool: str, ours: dict[str, float]) -> Spread:
    return Spread.of([count / ours[name] for name, count in _medians(found, tool).items()])


def _table(found: list[Measured], tools: list[str]) -> list[str]:
    lines = [
        "| tool | measurements | products, median | error, median | error, largest "
        "| off by more than 1 % | interval fails |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for tool in sorted(tools):
        of = [one for one in found if one.tool == tool]
        errors = np.nan_to_num([one.error for one in of], nan=np.inf)
        wrong = 100.0 * np.mean(errors > WRONG)
        fails = str(sum(one.fails for one in of)) if tool.startswith("ours") else "has none"
        lines.append(
            f"| {tool} | {len(of)} | {np.median([one.products for one in of]):g} "
            f"| {np.median(errors):.1e} | {errors.max():.1e} | {wrong:.1f} % | {fails} |"
        )
    return lines
