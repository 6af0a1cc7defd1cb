"""The ledger: the records of all statements on some runs, as a table, a picture and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.shown import Shown
from flatmin.ledger.record import Record, Verdict, merge
from flatmin.study.summary import missing_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Ledger(Shown):
    """One record per statement and part, at its tightest, in the order of `STATEMENTS`.

    `missing` is how many runs of a study are not there. `single` are the records before they were
    merged, one for each piece of evidence, for pictures.
    """

    records: tuple[Record, ...]
    networks: int
    missing: int = 0
    single: tuple[Record, ...] = field(default=(), repr=False)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Record:
        return self.records[i]

    def __repr__(self) -> str:
        counts = Counter(line.verdict for line in self.lines)
        words = ", ".join(f"{v.replace(' ', '_')}={counts[v]}" for v in Verdict)
        return f"Ledger(networks={self.networks}, {words})"

    @property
    def violated(self) -> list[Record]:
        """The records of statements whose hypotheses hold and that do not."""
        return [record for record in self.records if record.verdict is Verdict.VIOLATED]

    @property
    def lines(self) -> list[Record]:
        """One record per statement: of its parts, a violated one, else that of least slack."""
        return merge(
            replace(one, part="", at=": ".join(word for word in (one.part, one.at) if word))
            for one in self.records
        )

    def page(self) -> Page:
        """What `flatmin check` prints."""
        lines, broken = self.lines, self.violated
        rows = [
            (
                record.statement,
                "flow only" if record.flow_only else record.verdict.value,
                *map(_shown, (record.slack, record.bound, record.measured)),
                f"needs {record.why}" if record.why and not record.flow_only else record.at,
            )
            for record in lines
        ]
        heads = ("Statement", "Verdict", "Slack", "Bound", "Measured", "At its tightest")
        table = Listing(heads, rows, cut=True)
        applied = sum(1 for record in lines if record.networks)
        subject = "this network" if self.networks == 1 else f"these {self.networks} networks"
        sentence = f"{applied} of {len(lines)} statements apply to {subject}"
        notes = [note for note in (missing_note(self.missing),) if note]
        notes += _notes(self.records)
        if not broken:
            ending = "; all of them hold." if applied else "."
            return [table, Remarks(sentence + ending, notes)]
        names = ", ".join(dict.fromkeys(record.statement for record in broken))
        alarms = [Remarks(f"{sentence}. VIOLATED: {names}.", alarm=True), *map(_alarm, broken)]
        return [table, *alarms, Remarks("Notes", notes)]

    def plot(self) -> Figure:
        """The slack of every statement that applies."""
        from flatmin.ledger.figures import slack_figure

        return slack_figure(self.single)

    def write_figures(self, folder: str | Path) -> list[Path]:
        """A picture of every statement that was measured, and one of all slacks."""
        from flatmin.ledger.figures import write_figures

        return write_figures(self.single, Path(folder))


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _alarm(record: Record) -> Remarks:
    """All that is known about a statement that is violated."""
    error = "none" if record.error is None else f"{record.error:.6g}"
    notes = [
        f"hypothesis: {record.hypothesis}",
        f"bound {_shown(record.bound)}, measured {_shown(record.measured)} at {record.at}",
        f"room for errors {_shown(record.room)}; the integrator's own error {error}",
        f"by {record.violations} of {record.networks} networks or cases",
    ]
    return Remarks(f"VIOLATED {record.name}", notes, alarm=True)


def _notes(records: Sequence[Record]) -> list[str]:
    notes = ["slack is larger side / smaller side - 1: 0 is equality, 1 a factor of two to spare"]
    notes += [_within(record) for record in records if record.within_room]
    flow_only = [record for record in records if record.flow_only]
    if flow_only:
        notes.append("flow only: proved for gradient flow, measured here on gradient descent")
    return notes + [f"{record.name}: {record.note}" for record in flow_only if record.note]


def _within(record: Record) -> str:
    """Why a statement with a negative slack holds."""
    assert record.measured is not None
    assert record.bound is not None
    return (
        f"{record.name}: a negative slack that holds: it is beyond the bound by "
        f"{abs(record.measured - record.bound):.2g}, and rounding, the integrator or the sample "
        f"explain {record.room:.2g} (its room)"
    )
