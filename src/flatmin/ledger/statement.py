"""What a statement is, and words for what it needs that the runs do not have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.ledger.evidence import Evidence, largest_error
from flatmin.ledger.gist import Gists, Sweep
from flatmin.ledger.record import Record, Verdict


class NotApplicable(Exception):
    """Runs that do not meet a hypothesis: `why` is to be read after "needs"."""

    def __init__(self, why: str, at: str = "") -> None:
        super().__init__(why)
        self.why, self.at = why, at


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement; called with evidence it gives its records, one or more for each part.

    `judge` sees runs of one architecture, with `once` runs of each data set and shape once, as what
    they did does not matter; `sweep` sees what is left of all of them. A statement that is
    proved for gradient `flow` is measured on gradient descent too, and says so. The hypothesis
    stands where a record has none of its own.
    """

    id: str
    title: str
    quantity: str | dict[str, str]
    """What is compared, for the axis of a picture; if parts differ, by the part's first word."""
    hypothesis: str
    judge: Callable[[Any], Record | list[Record]]
    flow: bool = False
    once: bool = False
    sweep: Sweep | None = None

    def __post_init__(self) -> None:
        for name in ("__doc__", "__module__"):  # as the documentation finds them
            object.__setattr__(self, name, getattr(self.judge, name))

    def __call__(self, evidence: Evidence | Sequence[Evidence]) -> list[Record]:
        cases = [evidence] if isinstance(evidence, Evidence) else evidence
        if self.once:
            first: dict[object, Evidence] = {}
            for runs in cases:
                first.setdefault(runs.subject, runs)
            cases = list(first.values())
        found = [record for runs in cases for record in self.of(runs)]
        if self.sweep is not None:
            gists = Gists(self.sweep)
            for runs in cases:
                gists.add(runs)
            found += self.over(gists)
        return applying(found)

    def of(self, runs: Evidence) -> list[Record]:
        """What it says of one piece of evidence."""
        fields: dict[str, Any] = {}
        if self.flow:
            fields = {"flow_only": not runs.flow, "error": largest_error(runs)}
        try:
            found = self.judge(runs)
        except NotApplicable as lack:
            found, fields = Record(at=lack.at, why=lack.why), {}
        return self._named([found] if isinstance(found, Record) else found, fields)

    def over(self, gists: Gists) -> list[Record]:
        """What it says of all of them together."""
        return self._named(gists.records(), {})

    def _named(self, records: Sequence[Record], fields: dict[str, Any]) -> list[Record]:
        named = []
        for record in records:
            hypothesis = record.hypothesis or self.hypothesis
            outside = record.verdict is Verdict.NOT_APPLICABLE
            why = record.why or (hypothesis if outside else "")
            fields |= {"statement": self.id, "hypothesis": hypothesis, "why": why}
            named.append(replace(record, **fields))
        return named

    def quantity_of(self, part: str) -> str:
        """What a part compares."""
        if isinstance(self.quantity, str):
            return self.quantity
        return self.quantity.get(part) or self.quantity[part.partition(" ")[0]]


def statement(
    title: str,
    quantity: str | dict[str, str],
    hypothesis: str = "",
    *,
    sweep: Sweep | None = None,
    **kind: bool,
) -> Callable[[Callable[[Any], Record | list[Record]]], Statement]:
    """Make a statement of the function below, which judges it and names it."""

    def named(judge: Callable[[Any], Record | list[Record]]) -> Statement:
        id = judge.__name__.replace("_", "-")
        return Statement(
            id=id, title=title, quantity=quantity, hypothesis=hypothesis, judge=judge, sweep=sweep,
            **kind,
        )  # fmt: skip

    return named


def applying(records: list[Record]) -> list[Record]:
    """What applies to some of the runs says more than that it does not apply to others."""
    return [record for record in records if record.slack is not None] or records


def lacks(
    runs: Evidence,
    *,
    linear: bool = True,
    one_output: bool = False,
    plain: bool = False,
    layers: int = 1,
    inits: Collection[str] = (),
    measured: Sequence[str] = (),
    final: Sequence[str] = (),
    minimiser: bool = False,
) -> str:
    """What is missing, to be read after "needs"; empty if nothing is.

    `plain` is d_L = 1 and p = 1; `measured` are quantities of a trace or of the final weights,
    `final` of the final weights only; `minimiser` asks for a run that found one.
    """
    architecture = runs.initial.architecture
    if linear and not architecture.linear:
        return f"a linear network (here {architecture.beyond})"
    if (one_output or plain) and architecture.output is None:
        return f"one output (here {architecture.widths[-1]})"
    if plain and not runs.plain:
        norm = f"{np.float64(runs.output_norm):.4g}"
        return f"d_L = 1 and p = 1 (here d_L = {architecture.widths[-1]}, |p| = {norm})"
    if runs.depth < layers:
        return f"at least {layers} layers (here {runs.depth})"
    if inits and runs.init not in inits:
        return f"{' or '.join(inits)} initialisation (here {runs.init})"
    missing = [name for name in measured if name not in runs.trace and name not in runs.last]
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        return f"a trace: [record] every = N, quantities = [{names}] in the study"
    if any(name not in runs.last for name in final):
        return "the final norms of layers: [record] layers = true in the study"
    if minimiser and not runs.settled.any():
        return f"a run that reached a minimiser: 0 of {len(runs)} did"
    return ""


def need(runs: Evidence, at: str = "", **hypotheses: Any) -> None:
    """Refuse runs that lack something; the hypotheses are those of `lacks`."""
    why = lacks(runs, **hypotheses)
    if why:
        raise NotApplicable(why, at)


def span(values: Float) -> str:
    """From the least to the largest of the values that are finite."""
    known = values[np.isfinite(values)]
    return f"{known.min():.3g} to {known.max():.3g}" if len(known) else "nowhere"
