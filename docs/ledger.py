"""Writes what the pages of docs/theory/ show: `python docs/ledger.py [FOLDER]`, docs/_generated.

The three presets of `flatmin check` are run once, with seed 0. Every statement gets a picture and a
table of how tight it is; every preset gets a picture of all slacks. Two statements need runs of
gradient descent instead: `edge`, and the comparison of descent with flow; one needs white data.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import flatmin
from flatmin.core.figures import BLUE, GREEN, ORANGE, RED, new_figure, save
from flatmin.core.files import make_directory
from flatmin.data.sets import paper_samples
from flatmin.dynamics.recording import Recording
from flatmin.ledger.above_ceiling import period_two_orbit
from flatmin.ledger.check import check
from flatmin.ledger.collect import LAST, evidence_of
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.figures import slack_by_network, slack_figure, statement_figure
from flatmin.ledger.invariants import lemma_2
from flatmin.ledger.lemma_3 import lemma_3
from flatmin.ledger.presets import PRESETS, run_preset
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.ledger.stability import edge
from flatmin.ledger.statements import STATEMENTS

Ledger = dict[str, list[Record]]

DESCENT, WHITE = "descent", "white"
# The ensemble of a statement's picture, where it is not the first preset.
SHOWN = {
    "lemma-3": "residual",
    "lemma-7": "residual",
    "lemma-8": "residual",
    "lemma-9": "residual",
    "theorem-2": "residual",
    "theorem-4": "residual",
    "theorem-5": "multivariate",
    "corollary-3": "residual",
    "gradient-sandwich": "residual",
    "edge": DESCENT,
    "period-two-orbit": WHITE,
}
# Gradient descent at the edge, as in Figure 1 of the paper.
EDGE_RATES, EDGE_SCALES, EDGE_RUNS = (0.02, 0.05, 0.07, 0.09), np.linspace(0.25, 0.6, 10), 5
# Gradient descent next to flow: one network in time 1500, at rates halved again and again.
RATES = 0.2 * 0.5 ** np.arange(10)
DEPTH, SCALE, RUNS, TIME, RECORDS = 3, 0.003, 8, 1500.0, 100


def write(folder: Path) -> None:
    """Everything, into a folder."""
    make_directory(folder)
    products = [curve.record() for curve in lemma_3()]
    ledger = {name: list(check(run_preset(name)).single) for name in PRESETS}
    for name, records in ledger.items():
        extra = products if name == "residual" else []
        save(slack_figure([*records, *extra]), folder / f"slack-{name}.png")
        ledger[name] = [r for r in records if r.statement != "lemma-3"] + extra
    ledger[DESCENT] = edge(edge_runs())
    ledger[WHITE] = period_two_orbit(white_runs())
    for statement in STATEMENTS:
        write_statement(statement.id, ledger, folder)
    write_descent(folder)


def write_statement(name: str, ledger: Ledger, folder: Path) -> None:
    """The picture of a statement and its table."""
    statement = next(one for one in STATEMENTS if one.id == name)
    records = ledger[SHOWN.get(name, "small-init")]
    figure = statement_figure(statement, [r for r in records if r.statement == name])
    save(figure, folder / f"{name}.png")
    (folder / f"{name}.md").write_text(tightness(name, ledger), encoding="utf-8")


def tightness(name: str, ledger: Ledger) -> str:
    """How tight a statement is, as a table in Markdown, and what the records add in words."""
    rows, notes = [], []
    for ensemble, records in ledger.items():
        found = [r for r in records if r.statement == name and _counts(r)]
        for record in merge(found):
            slacks = [slack_by_network(r) for r in found if r.part == record.part]
            rows.append(_row(ensemble, record, float(np.nanmedian(np.concatenate(slacks)))))
            if record.note:
                place = ", ".join(word for word in (f"`{ensemble}`", record.part) if word)
                notes.append(f"- {place}: {_plain(record.note)}")
    heads = (
        "ensemble",
        "part",
        "verdict",
        "slack",
        "median",
        "bound",
        "measured",
        "networks",
        "at",
    )
    lines = [f"| {' | '.join(heads)} |", "| " + " | ".join("---" for _ in heads) + " |", *rows]
    return "\n".join([":::{container} ledger", "", *lines, "", *notes, "", ":::", ""])


def _counts(record: Record) -> bool:
    return record.slack is not None and record.verdict is not Verdict.NOT_APPLICABLE


def _row(ensemble: str, record: Record, median: float) -> str:
    values = (record.slack, median, record.bound, record.measured)
    numbers = [_number(value) for value in values]
    cells = [f"`{ensemble}`", _plain(record.part), record.verdict.value, *numbers]
    return f"| {' | '.join([*cells, str(record.networks), _plain(record.at)])} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "infinite" if np.isinf(value) else f"{value:.3g}"


def _plain(text: str) -> str:
    """Text without Markdown's special signs."""
    return re.sub(r"([\\*|_`<>$^~])", r"\\\1", text)


def edge_runs() -> Evidence:
    """Gradient descent on the paper's data at several rates and scales: what settled."""
    samples = paper_samples("linear")
    grid = [(r, s, i) for r in EDGE_RATES for s in EDGE_SCALES.tolist() for i in range(EDGE_RUNS)]
    rates, scales = (np.array([row[i] for row in grid]) for i in (0, 1))
    network = flatmin.Architecture.mlp(samples.d, 10)
    start = flatmin.initialise(network, "gaussian", scales, 0, [("edge", *row) for row in grid])
    method = flatmin.GradientDescent(rates)
    outcome = method.run(samples.regression(), start, steps=np.round(1000.0 / rates))
    runs = evidence_of(samples, start, outcome, init="gaussian", scale=scales, method=method)
    return runs.some(runs.settled)


def white_runs() -> list[Evidence]:
    """Gradient flow on white data at several depths: what is above the ceiling is exact there."""
    samples, cases = flatmin.whitened_samples(seed=0), []
    for depth in (2, 3, 5, 10, 20):
        start = flatmin.initialise(
            flatmin.Architecture.mlp(5, depth), "gaussian", 0.3, 0, networks=1
        )
        outcome = flatmin.flow(samples.regression(), start)
        cases.append(evidence_of(samples, start, outcome, init="gaussian", scale=0.3))
    return cases


def descent_runs(rate: float) -> Evidence:
    """The networks of the comparison with flow at one rate, for the same time at every rate."""
    samples = paper_samples("linear")
    network = flatmin.Architecture.mlp(samples.d, DEPTH)
    addresses = [("descent", i) for i in range(RUNS)]
    start = flatmin.initialise(network, "zero-layer", SCALE, 0, addresses)
    steps = int(TIME / rate)
    recording = Recording(max(1, steps // RECORDS), ("excess_risk", "gradient", *LAST))
    method = flatmin.GradientDescent(rate)
    outcome = method.run(samples.regression(), start, steps=steps, recording=recording)
    return evidence_of(samples, start, outcome, init="zero-layer", scale=SCALE, method=method)


def write_descent(folder: Path) -> None:
    """Lemma 1's drift and Lemma 2's slack against the rate: a picture and a table."""
    drifts, ratios = [], []
    for rate in RATES.tolist():
        runs = descent_runs(rate)
        drifts.append(np.max(runs.last["drift"], axis=1))
        ratios.append({r.part: 1.0 + _slack(r) for r in lemma_2(runs)})
    save(descent_figure(np.array(drifts), ratios), folder / "descent.png")
    (folder / "descent.md").write_text(descent_table(np.array(drifts), ratios), encoding="utf-8")


def _slack(record: Record) -> float:
    return np.nan if record.slack is None else record.slack


def power(drifts: np.ndarray) -> float:
    """The exponent of eta in the mean drift."""
    return float(np.polyfit(np.log(RATES), np.log(drifts.mean(axis=1)), 1)[0])


def descent_figure(drifts: np.ndarray, ratios: Sequence[dict[str, float]]):
    figure, (left, right) = new_figure(2, width=9.0, height=3.8)
    left.plot(RATES, drifts, ".", color=BLUE, ms=4, alpha=0.4, mec="none")
    left.plot(RATES, drifts.mean(axis=1), "o-", color=BLUE, ms=4, label="mean of the networks")
    fit = np.polyfit(np.log(RATES), np.log(drifts.mean(axis=1)), 1)
    label = f"about eta^{fit[0]:.3g}"
    left.plot(RATES, np.exp(np.polyval(fit, np.log(RATES))), "--", color=RED, label=label)
    left.set(ylabel="max_k |D_k(end) - D_k(0)|", title="Lemma 1: 0 under gradient flow")
    for part, colour in zip(ratios[0], (BLUE, ORANGE, GREEN), strict=True):
        right.plot(RATES, [one[part] for one in ratios], "o-", color=colour, ms=4, label=part)
    right.axhline(1.0, color="0.5", lw=1.0)
    right.set(ylabel="bound / measured = 1 + slack", title="Lemma 2: missed below 1")
    for panel in (left, right):
        panel.set(xscale="log", yscale="log", xlabel="learning rate eta")
        panel.legend(frameon=False, fontsize=9)
    return figure


def descent_table(drifts: np.ndarray, ratios: Sequence[dict[str, float]]) -> str:
    heads = ["eta", "drift, mean", *(f"{part}: slack" for part in ratios[0])]
    rows = [
        [f"{rate:.3g}", f"{drift.mean():.3g}", *(f"{value - 1.0:.3g}" for value in one.values())]
        for rate, drift, one in zip(RATES, drifts, ratios, strict=True)
    ]
    lines = [heads, ["---"] * len(heads), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    words = f"The mean drift grows about as $\\eta^{{{power(drifts):.3g}}}$."
    return f":::{{container}} ledger\n\n{table}\n\n:::\n\n{words}\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "_generated")
