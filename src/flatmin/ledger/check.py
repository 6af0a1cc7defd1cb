"""All statements on all evidence: one record per statement and part, at its tightest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatmin.core.errors import DataError, SettingError
from flatmin.core.progress import Progress
from flatmin.dynamics.training import Training
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.descent import as_flow, rate_notes
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.ledger import Ledger
from flatmin.ledger.lemma_3 import lemma_3
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.ledger.statement import Statement
from flatmin.ledger.statements import STATEMENTS


def check(
    runs: Any = None, *, preset: str | None = None, seed: int = 0, progress: Progress = None
) -> Ledger:
    """The ledger of some runs, or of an ensemble made here.

    `runs` are a `Training`, what `run_study` returned, a directory of either, or pieces of
    evidence; `preset` is "small-init", "residual" or "multivariate" (see `presets`).

    >>> from flatmin.ledger.presets import run_preset
    >>> check(run_preset("small-init")[:1]).violated
    []
    """
    if (runs is None) == (preset is None):
        raise SettingError("give either a directory or a preset")
    products: list[Record] = []
    missing = 0
    if preset is None:
        from flatmin.ledger.directories import missing_runs

        cases = _evidence(runs)
        missing = missing_runs(getattr(runs, "directory", runs))
    else:
        from flatmin.ledger.presets import run_preset

        cases = run_preset(preset, seed, progress)
        if preset == "residual":  # about random matrices, as such networks are at initialisation
            products = [curve.record() for curve in lemma_3(seed, progress=progress)]
    networks = sum(len(one) for one in cases)
    if not networks:
        raise DataError("there is no run to check: none has finished without diverging")
    # On gradient descent, how a statement about flow is missed as eta grows.
    notes, single = rate_notes(cases), all_records(cases, products)
    records = [
        replace(one, note=notes.get((one.statement, one.part), one.note)) if one.flow_only else one
        for one in merge(single)
    ]
    return Ledger(
        records=tuple(records),
        networks=networks,
        single=tuple(one for one in single if one.slack is not None),
        missing=missing,
    )


def _evidence(runs: Any) -> Sequence[Evidence]:
    """What runs show, wherever they are."""
    if isinstance(runs, Training):
        found = evidence_of(
            runs.regression, runs.initial, runs.outcome, init=runs.init, scale=runs.scale,
            method=runs.method, names=["the run"], found=runs.final_sharpness,
        )  # fmt: skip
        return [found]
    if isinstance(runs, Evidence):
        return [runs]
    place = getattr(runs, "directory", runs)
    if not isinstance(place, str | Path):
        return list(runs)
    if not Path(place).is_dir():
        raise DataError(f"there is no folder {str(place)!r}")
    from flatmin.ledger.directories import read_directory

    return read_directory(Path(place))


def all_records(cases: Sequence[Evidence], lemma_3: Sequence[Record] = ()) -> list[Record]:
    """One record per statement, part and piece of evidence, in the order of `STATEMENTS`."""
    every = []
    for statement in STATEMENTS:
        given = lemma_3 if statement.id == "lemma-3" else ()
        found = list(given) or _records(statement, cases)
        # What applies to some of the runs says more than that it does not apply to others.
        every += [record for record in found if record.slack is not None] or found
    return every


def _records(statement: Statement, cases: Sequence[Evidence]) -> list[Record]:
    """The records of a statement; "flow only" means that all but being a flow is met."""
    if not statement.flow:
        return statement(cases)
    records = []
    for runs in cases:
        as_if = [] if runs.flow else statement(as_flow(runs))
        verdicts = {record.part: record.verdict for record in as_if}
        for record in statement(runs):
            met = verdicts.get(record.part) is not Verdict.NOT_APPLICABLE
            records.append(replace(record, flow_only=record.flow_only and met))
    return records
