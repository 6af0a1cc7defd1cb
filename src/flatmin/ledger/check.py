"""All statements on all evidence: one record per statement and part, at its tightest.

Evidence comes piece by piece. What is kept of a piece are its records, merged with those before,
their two sides for pictures as long as there is room, and its gist for statements about all pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flatmin.core.errors import DataError, SettingError
from flatmin.core.progress import Progress
from flatmin.dynamics.training import Training
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.descent import as_flow, better_sample, rate_notes
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.gist import Gists
from flatmin.ledger.ledger import Ledger
from flatmin.ledger.lemma_3 import lemma_3
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.ledger.statement import Statement, applying
from flatmin.ledger.statements import STATEMENTS

# Bytes of records that are kept with both sides for pictures, and of one besides its sides; the
# rest is merged as it comes.
_PICTURE_BYTES, _RECORD_BYTES = 1 << 26, 2000


# Squares of what a forged or diverging run holds may overflow: such a side is infinite, and judged.
@np.errstate(all="ignore")
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

        cases: Iterable[Evidence] = _evidence(runs)
        missing = missing_runs(getattr(runs, "directory", runs))
    else:
        from flatmin.ledger.presets import run_preset

        cases = run_preset(preset, seed, progress)
        if preset == "residual":  # about random matrices, as such networks are at initialisation
            products = [curve.record() for curve in lemma_3(seed, progress=progress)]
    book = _Book()
    for piece in cases:
        try:
            book.add(piece)
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            raise DataError(f"there are numbers in it that no run has ({error})") from None
        del piece  # before the next one is made
    if not book.networks:
        raise DataError("there is no run to check: none has finished without diverging")
    # On gradient descent, how a statement about flow is missed as eta grows.
    notes, single = rate_notes(book.sample), book.records(products)
    records = [
        replace(one, note=notes.get((one.statement, one.part), one.note)) if one.flow_only else one
        for one in merge(single)
    ]
    return Ledger(
        records=tuple(records),
        networks=book.networks,
        single=tuple(one for one in single if one.slack is not None),
        missing=missing,
    )


def _evidence(runs: Any) -> Iterable[Evidence]:
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
        pieces: Iterable[Evidence] = runs
        return pieces
    if not Path(place).is_dir():
        raise DataError(f"there is no folder {str(place)!r}")
    from flatmin.ledger.directories import directory_evidence

    return directory_evidence(Path(place))


class _Book:
    """The records of every piece of evidence so far."""

    def __init__(self) -> None:
        self.networks = 0
        self.sample: Evidence | None = None
        """Runs at several rates, for `rate_notes`."""
        self._found: dict[str, list[Record]] = {statement.id: [] for statement in STATEMENTS}
        self._merged: dict[str, list[Record]] = {statement.id: [] for statement in STATEMENTS}
        self._gists = {one.id: Gists(one.sweep) for one in STATEMENTS if one.sweep is not None}
        self._subjects: set[object] = set()
        self._bytes = 0

    def add(self, runs: Evidence) -> None:
        """One more piece."""
        self.networks += len(runs)
        new = runs.subject not in self._subjects
        self._subjects.add(runs.subject)
        for statement in STATEMENTS:
            if new or not statement.once:
                for record in _records(statement, runs):
                    self._keep(record)
        for gists in self._gists.values():
            gists.add(runs)
        self.sample = better_sample(self.sample, runs)

    def _keep(self, record: Record) -> None:
        """A record as it is while there is room, then merged with others of its statement."""
        if record.slack is not None:
            self._bytes += _RECORD_BYTES + (record.sides.nbytes if record.sides else 0)
            if self._bytes < _PICTURE_BYTES:
                # A side may be part of a table, which would stay with it.
                sides = record.sides.copy() if record.sides else None
                self._found[record.statement].append(replace(record, sides=sides))
                return
        before = self._merged[record.statement]
        before.append(replace(record, sides=None))
        # What does not apply must not add to the count of what does.
        both = [[r for r in before if (r.slack is None) == none] for none in (False, True)]
        self._merged[record.statement] = [one for part in both for one in merge(part)]

    def records(self, lemma_3: Sequence[Record] = ()) -> list[Record]:
        """Those of all pieces, and of statements about all of them."""
        every = []
        for statement in STATEMENTS:
            found = self._found[statement.id] + self._merged[statement.id]
            if statement.id in self._gists:
                found += statement.over(self._gists[statement.id])
            if statement.id == "lemma-3":
                found = list(lemma_3) or found
            every += applying(found)
        return every


def _records(statement: Statement, runs: Evidence) -> list[Record]:
    """The records of a statement; "flow only" means that all but being a flow is met."""
    if not statement.flow:
        return statement.of(runs)
    as_if = [] if runs.flow else statement.of(as_flow(runs))
    verdicts = {record.part: record.verdict for record in as_if}
    records = []
    for record in statement.of(runs):
        met = verdicts.get(record.part) is not Verdict.NOT_APPLICABLE
        records.append(replace(record, flow_only=record.flow_only and met))
    return records
