"""report.html and report.json: the figures in the paper's order, the verdicts, times, versions."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path
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


_STYLE = """
body { font: 16px/1.5 Georgia, serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { font-family: Helvetica, Arial, sans-serif; line-height: 1.2; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; }
figure { margin: 1.5rem 0 2.5rem; } figure img { max-width: 100%; }
figcaption { color: #444; }
table { border-collapse: collapse; font: 13px/1.4 Helvetica, Arial, sans-serif; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #eee;
         vertical-align: top; }
.holds { color: #00694d; } .fails { color: #fff; background: #b3261e; font-weight: bold; }
.undecided { color: #7a4b00; } a.fails { padding: 0 .2rem; }
nav ul { list-style: none; padding: 0; font: 14px/1.6 Helvetica, Arial, sans-serif; }
.note { color: #555; font-size: 14px; }
"""


_QUICK = (
    "<p class=note><b>Quick preset:</b> fewer repetitions than the paper; a claim may be "
    "undecided for want of runs, which the full size, <code>flatmin reproduce</code>, has.</p>"
)


def _page(report: Report) -> str:
    paper, beyond = (
        [_figure(section) for section in report.sections if section.item.beyond == past]
        for past in (False, True)
    )
    times = [
        f"<tr><td>{escape(name)}</td><td>{seconds:.1f}</td></tr>"
        for name, seconds in report.study_seconds.items()
    ]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        "<title>Deep linear networks and flat minima, reproduced</title>",
        f"<style>{_STYLE}</style>",
        "<h1>Deep linear networks and flat minima, reproduced</h1>",
        "<p>Figures of Marion and Chizat, <i>Deep linear networks for regression are implicitly "
        "regularized towards flat minima</i> (NeurIPS 2024), run again on the authors' data with "
        f"fresh initial weights, in {report.seconds:.0f} seconds. <b>{report.verdicts()}.</b></p>",
        _QUICK if report.preset == "quick" else "",
        f"<p class=note>Sharpness is the {escape(CONVENTION)}. Lines are geometric means over the "
        "runs that did not diverge; bands are 95 % confidence intervals, dots the runs themselves "
        "where a point has few.</p>",
        _contents(report),
        "<h2>The figures</h2>",
        *paper,
        *(["<h2>Beyond the paper</h2>", *beyond] if beyond else []),
        "<h2 id='claims'>The claims</h2>",
        _claims_table(report.claims),
        "<h2 id='times'>Times and versions</h2>",
        f"<table><tr><th>study<th>seconds</tr>{''.join(times)}</table>",
        "<p class=note>" + ", ".join(f"{k} {v}" for k, v in versions().items()) + "</p>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


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
