"""Comparisons with rivals: ratios measured in one run, with their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

from benchmarks.harness import Result
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError

CASES = {
    "sharpness-ensemble": "sharpness:sharpness_ensemble",
    "sharpness-large": "sharpness:sharpness_large",
    "sharpness-outputs": "sharpness:sharpness_outputs",
    "sharpness-gelu": "sharpness:sharpness_gelu",
    "gd-linear-d5": "descent:gd_linear_d5",
    "heavy-ball-d5": "descent:heavy_ball_d5",
    "nesterov-d5": "descent:nesterov_d5",
    "gd-linear-d20": "descent:gd_linear_d20",
    "gd-residual-d64": "descent:gd_residual_d64",
    "gd-residual-d1024": "descent:gd_residual_d1024",
    "gd-gelu-d5": "descent:gd_gelu_d5",
    "trace-sharpness": "descent:trace_sharpness",
    "flow-d5": "flow:flow_d5",
    "flow-outputs": "flow:flow_outputs",
    "central-flow-d5": "central:central_flow_d5",
    "scaling": "descent:scaling",
}
ON_REQUEST = {
    "advice": "advice:advice",
    "lab": "lab:lab",
    "probes": "probes:probes",
    "probe-memory": "probe_memory:probe_memory",
    "monitor": "monitor:monitor",
    "instructions": "instructions:instructions",
}
"""Cases that are not about speed against rivals, which run only when they are named."""
ALONE = {"probes", "probe-memory", "monitor", "lab", "instructions"}
"""Those with rivals of their own, or none."""


def run(
    cases: Iterable[str] = (), announce: Callable[[str], None] = lambda case: None
) -> list[Result]:
    """The named cases, or all that are about speed, one after the other."""
    known = CASES | ON_REQUEST
    chosen = [check_choice("case", case, known) for case in cases] or list(CASES)
    if not set(chosen) <= ALONE:
        _check_rivals()
    results = []
    for case in chosen:
        announce(case)
        module, function = known[case].split(":")
        results.append(getattr(import_module(f"benchmarks.{module}"), function)())
    return results


def _check_rivals() -> None:
    try:
        import diffrax  # noqa: F401
        import jax  # noqa: F401
        import sklearn  # noqa: F401
        import statsmodels  # noqa: F401
    except ImportError as error:
        raise SettingError(
            f"benchmarks compare with {error.name}, which is not installed: "
            "pip install 'flatmin[bench]'"
        ) from None


HEADS = ("Case", "Ours", "Ratio: median (low to high)", "Bar", "Met")


def row(result: Result) -> tuple[str, ...]:
    """A case under `HEADS`."""
    ratios = "; ".join(
        f"{name} {spread.median:.3g} ({spread.low:.3g} to {spread.high:.3g})"
        for name, spread in result.ratios.items()
    )
    bar = ", ".join(f"{name} {value:g}" for name, value in result.bar.items())
    unit = "s" if result.unit.startswith("seconds") else result.unit
    return result.id, f"{result.ours.median:.3g} {unit}", ratios, bar, "yes" if result.met else "NO"


def markdown(measured: list[Result], earlier: str = "") -> str:
    """The table of `RESULTS.md`; cases that were not measured keep their rows of an earlier one.

    Those about PyTorch models need an environment of their own: no one run has all cases.
    """
    from benchmarks import rivals
    from flatmin import __version__
    from flatmin.core.threads import thread_count

    lines = [
        "# Benchmark results",
        "",
        f"Written by `flatmin bench` (flatmin {__version__}, {thread_count()} cores). A ratio is",
        "rival over ours in the same round; shown are the median and the range over rounds. D is",
        "the share of the machine's fused-multiply-add peak; `bare` is the time without recording",
        "over the time with it; for `scaling` the numbers are exponents. The first call,",
        "which compiles, is not counted. Of `probes` ratios are of products, and of `monitor` of",
        "predicted rates over bisected ones. A row is of the last run of its case.",
        "",
        *(rivals.__doc__ or "").strip().splitlines()[2:],
        "E: JAX, jvp of grad, in SciPy's eigsh.",
        "",
        "| case | what | ours | ratio | bar | met | first call |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = {line.split(" | ")[0][2:]: line for line in earlier.splitlines() if line[:2] == "| "}
    for result in measured:
        case, ours, ratios, bar, met = row(result)
        unit = result.unit.removeprefix("seconds") if result.unit.startswith("seconds") else ""
        rows[case] = (
            f"| {case} | {result.title} | {ours}{unit} | {ratios} | {bar} | {met} "
            f"| {result.compile_seconds:.2g} s |"
        )
    lines += [rows[case] for case in CASES | ON_REQUEST if case in rows]
    return "\n".join(lines) + "\n"
