"""report.html and report.json: the figures in the paper's order, the verdicts, times, versions."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from flatmin import __version__
from flatmin.core.files import writing
from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.plain import json_text
from flatmin.core.shown import Shown
from flatmin.paper.claims import FAILS, HOLDS, UNDECIDED, Claim
from flatmin.paper.tables import Item
from flatmin.theory.minimal_sharpness import CONVENTION


@dataclass(frozen=True)
class Section:
    """One figure as it enters the report."""

    item: Item
    picture: Path
    claims: Sequence[Claim]
    seconds: float


class Report(Shown):
    """Everything the two files say."""

    preset: str
    sections: Sequence[Section]
    study_seconds: dict[str, float]
    seconds: float

    @property
    def claims(self) -> list[Claim]:
        """All claims, in the order of the figures."""
        return [claim for section in self.sections for claim in section.claims]

    def count(self, verdict: str) -> int:
        """How many claims have this verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)

    def verdicts(self) -> str:
        """How many claims hold, fail and are undecided, in words."""
        words = f"{self.count(HOLDS)} of {len(self.claims)} claims hold"
        for verdict, verb in ((FAILS, "fail"), (UNDECIDED, "undecided")):
            if self.count(verdict):
                words += f", {self.count(verdict)} {verb}"
        return words

    def page(self) -> Page:
        """What `flatmin reproduce` prints."""
        rows = [
            (
                claim.id,
                claim.expected,
                "none" if claim.measured is None else f"{claim.measured:.4g}",
                claim.tolerance,
                claim.verdict.upper() if claim.verdict == FAILS else claim.verdict,
            )
            for claim in self.claims
        ]
        needs = [f"{claim.id} needs {claim.needs}" for claim in self.claims if claim.needs]
        if needs and self.preset == "quick":
            needs.append("the preset paper has more runs")
        heads = ("Claim", "Expected", "Measured", "Tolerance", "Verdict")
        return [Listing(heads, rows), Remarks(f"{self.verdicts()}; {self.seconds:.0f} s.", needs)]

    def contents(self) -> dict[str, Any]:
        """The content of report.json."""
        figures = {section.item.id: section.seconds for section in self.sections}
        return {
            "preset": self.preset,
            "seconds": {"total": self.seconds, "figures": figures, "studies": self.study_seconds},
            "claims": self.claims,
            "verdicts": {v: self.count(v) for v in (HOLDS, FAILS, UNDECIDED)},
            "convention": CONVENTION,
            "versions": versions(),
        }

    def write(self, directory: Path) -> None:
        """Both files."""
        with writing(directory / "report.json") as temporary:
            temporary.write_text(json_text(self) + "\n")
        with writing(directory / "report.html") as temporary:
            temporary.write_text(_page(self), encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of what took part."""
    names = ("numpy", "scipy", "numba", "pandas", "pyarrow", "matplotlib")
    python = ".".join(map(str, sys.version_info[:3]))
    return {"flatmin": __version__, "python": python} | {name: version(name) for name in names}


_QUICK = (
    "<p class=note><b>Quick preset:</b> fewer repetitions than the paper; a claim may be "
    "undecided for want of runs, which the full size, <code>flatmin reproduce</code>, has.</p>"
)


def _page(report: Report) -> str:
    """The template beside this module, filled in."""
    paper, beyond = (
        [_figure(section) for section in report.sections if section.item.beyond == past]
        for past in (False, True)
    )
    times = [
        f"<tr><td>{escape(name)}</td><td>{seconds:.1f}</td></tr>"
        for name, seconds in report.study_seconds.items()
    ]
    template = files("flatmin.paper").joinpath("report.html").read_text("utf-8")
    return Template(template).substitute(
        seconds=f"{report.seconds:.0f}",
        verdicts=report.verdicts(),
        quick=_QUICK if report.preset == "quick" else "",
        convention=escape(CONVENTION),
        contents=_contents(report),
        paper="\n".join(paper),
        beyond="\n".join(["<h2>Beyond the paper</h2>", *beyond] if beyond else []),
        claims=_claims_table(report.claims),
        times="".join(times),
        versions=", ".join(f"{name} {number}" for name, number in versions().items()),
    )


def _contents(report: Report) -> str:
    """Links to every figure and, after each, to its claims by their verdicts."""
    lines = []
    for section in report.sections:
        links = " ".join(
            f"<a class={claim.verdict} href='#claim-{escape(claim.id)}' "
            f"title='{escape(claim.id)}'>{claim.verdict}</a>"
            for claim in section.claims
        )
        item = section.item
        lines.append(f"<li><a href='#{item.id}'>{escape(item.heading)}</a> {links}</li>")
    lines += [
        "<li><a href='#claims'>All claims</a></li>",
        "<li><a href='#times'>Times and versions</a></li>",
    ]
    return f"<nav><h2>Contents</h2><ul>{''.join(lines)}</ul></nav>"


def _figure(section: Section) -> str:
    image = base64.b64encode(section.picture.read_bytes()).decode()
    title = escape(section.item.heading)
    body = f"<h3 id='{section.item.id}'>{title}</h3><figure>"
    body += f"<img alt='{title}' src='data:image/png;base64,{image}'>"
    body += f"<figcaption>{escape(section.item.sentence)}</figcaption></figure>"
    return body + (_claims_table(section.claims, anchors=True) if section.claims else "")


def _claims_table(claims: Sequence[Claim], anchors: bool = False) -> str:
    rows = []
    for claim in claims:
        measured = "none" if claim.measured is None else f"{claim.measured:.4g}"
        place = f" id='claim-{escape(claim.id)}'" if anchors else ""
        needs = f"<br><span class=note>needs {escape(claim.needs)}</span>" if claim.needs else ""
        rows.append(
            f"<tr{place}><td>{escape(claim.figure)}</td><td>{escape(claim.statement)}</td>"
            f"<td>{escape(claim.expected)}</td><td>{escape(claim.tolerance)}</td>"
            f"<td>{measured}</td><td><span class={claim.verdict}>{claim.verdict}</span>{needs}"
            "</td></tr>"
        )
    head = "<tr><th>figure<th>claim<th>expected<th>tolerance<th>measured<th>verdict</tr>"
    return f"<table>{head}{''.join(rows)}</table>"
