"""All statements on all evidence: one record per statement and part, at its tightest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatmin.core.errors import DataError
from flatmin.ledger.descent import as_flow, rate_notes
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict, merge, not_applicable
from flatmin.ledger.statements import STATEMENTS, Check, Statement


def check(cases: Sequence[Evidence], lemma_3: Sequence[Record] = ()) -> list[Record]:
    """The ledger of an ensemble, in the order of `STATEMENTS`.

    Lemma 3 is about random matrices, not about runs: its records come from `lemma_3`, if asked for.

    >>> from flatmin.ledger.presets import run_preset
    >>> records = check(run_preset("small-init")[:1])
    >>> {record.statement for record in records if record.verdict == "violated"}
    set()
    """
    if not sum(len(runs) for runs in cases):
        raise DataError("there is no run to check: none has finished without diverging")
    # On gradient descent, how a statement about flow is missed as eta grows.
    notes = rate_notes(cases)
    return [
        replace(record, note=notes.get((record.statement, record.part), record.note))
        if record.flow_only
        else record
        for record in merge(all_records(cases, lemma_3))
    ]


def all_records(cases: Sequence[Evidence], lemma_3: Sequence[Record] = ()) -> list[Record]:
    """One record per statement, part and piece of evidence, in the order of `STATEMENTS`."""
    return [record for one in STATEMENTS for record in _records(one, cases, lemma_3)]


def _records(
    statement: Statement, cases: Sequence[Evidence], lemma_3: Sequence[Record]
) -> list[Record]:
    if statement.sweep is not None:
        found = statement.sweep(cases)
    elif statement.check is not None:
        found = [record for runs in cases for record in _checked(statement.check, runs)]
    else:
        why = "random matrices: see --preset residual"
        missing = not_applicable(statement.id, "random matrices", "not measured", why=why)
        found = list(lemma_3) or [missing]
    # What applies to some of the runs says more than that it does not apply to others.
    applied = [record for record in found if record.slack is not None]
    return applied or found


def _checked(one: Check, runs: Evidence) -> list[Record]:
    """The records of a statement; "flow only" means that all but being a flow is met."""
    records = one(runs)
    if not any(record.flow_only for record in records):
        return records
    verdicts = {record.part: record.verdict for record in one(as_flow(runs))}
    return [
        replace(record, flow_only=verdicts.get(record.part) is not Verdict.NOT_APPLICABLE)
        if record.flow_only
        else record
        for record in records
    ]


def one_line_each(records: Sequence[Record]) -> list[Record]:
    """One record per statement: of its parts, a violated one, else the one with the least slack."""
    return merge(
        replace(record, part="", at=": ".join(filter(None, (record.part, record.at))))
        for record in records
    )


def violated(records: Sequence[Record]) -> list[Record]:
    """The records of statements whose hypotheses hold and that do not."""
    return [record for record in records if record.verdict is Verdict.VIOLATED]
