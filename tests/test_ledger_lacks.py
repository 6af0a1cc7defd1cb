"""Why a statement does not apply: what is said to be missing is missing, and nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ledger_cases as cases
from commands import call
from flatmin.dynamics.recording import recordable
from flatmin.ledger.check import check
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict
from flatmin.study.execute import run_shard
from flatmin.study.plan import plan
from flatmin.study.spec import parse_spec

QUANTITY = re.compile(r'"(\w+)"')
TIME = ("time", "step", "distance")


def reasons(runs: Evidence) -> dict[str, str]:
    """Statement -> what it needs, of those that do not apply and are not flow only."""
    return {r.statement: r.why for r in check([runs]) if out_of_place(r)}


def out_of_place(record: Record) -> bool:
    return record.verdict is Verdict.NOT_APPLICABLE and not record.flow_only


@pytest.mark.parametrize(
    "make", [cases.small, cases.residual, cases.several, cases.descent, cases.large]
)
def test_every_reason_is_given_and_only_where_one_is_needed(make: Callable[[], Evidence]) -> None:
    for record in check([make()]):
        assert bool(record.why) == (record.verdict is Verdict.NOT_APPLICABLE), record


@pytest.mark.parametrize("make", [cases.small, cases.residual, cases.several])
def test_without_a_trace_the_trace_is_what_is_missing(make: Callable[[], Evidence]) -> None:
    whole = make()
    last = {name: whole.last[name] for name in ("spectral_norm", "rank_one_defect", "alignment")}
    bare = replace(whole, trace={}, last=last)  # as a study without [record]
    asked = {name: why for name, why in reasons(bare).items() if why.startswith("a trace: ")}
    assert {"lemma-1", "lemma-7", "lemma-8", "gradient-sandwich"} <= set(asked)
    applied = {r.statement for r in check([whole]) if r.verdict is not Verdict.NOT_APPLICABLE}
    for statement, why in asked.items():
        names = QUANTITY.findall(why)
        assert set(names) <= set(recordable(whole.initial.architecture))
        # With what was asked for, and no more, it applies where it applies to the whole trace.
        given = {name: v for name, v in whole.trace.items() if name in (*names, *TIME)}
        found = [r for r in check([replace(bare, trace=given)]) if r.statement == statement]
        holds = any(record.verdict is Verdict.HOLDS for record in found)
        assert holds == (statement in applied), (statement, found)
        assert not any(record.why.startswith("a trace") for record in found)


def test_other_activations_are_named() -> None:
    found = reasons(cases.other_activation(cases.small()))
    for statement in set(found) - {"lemma-3", "lemma-9", "edge"}:
        assert found[statement] == "a linear network (here tanh)", statement


def test_outputs_are_counted() -> None:
    found = reasons(cases.several())
    for statement in ("theorem-1", "theorem-4", "corollary-1", "rescaling", "linear-stability"):
        assert found[statement] == "one output (here 4)"
    assert reasons(cases.small())["theorem-5"] == "several outputs (here 1)"
    runs = replace(cases.several(), init="gaussian")
    assert reasons(runs)["theorem-5"] == "residual initialisation (here gaussian)"


def test_a_residual_network_has_another_p() -> None:
    found = reasons(cases.residual())
    for statement in ("lemma-2", "theorem-3", "corollary-1", "vanishing-scale-limit"):
        assert found[statement] == "d_L = 1 and p = 1 (here d_L = 5, |p| = 1)"
    assert reasons(cases.small())["theorem-4"] == "residual initialisation (here zero-layer)"
    far = cases.spoilt_trace(cases.residual(), slice(None), excess_risk=lambda r: 1e6 * r)
    assert reasons(far)["theorem-4"].startswith("R(W(0)) - R_min below every saddle's")


def test_norms_that_were_not_kept() -> None:
    kept = cases.small()
    found = reasons(replace(kept, last={}))
    assert "[record] layers = true" in found["corollary-1"]
    assert "corollary-1" not in reasons(kept)


def test_runs_that_did_not_arrive() -> None:
    found = reasons(cases.unfinished(cases.small()))
    for statement in ("rescaling", "linear-stability", "corollary-1"):
        assert found[statement] == f"a run that reached a minimiser: 0 of {cases.NETWORKS} did"
    assert "(A2)" in reasons(cases.large())["corollary-1"]
    assert "two initial scales" in reasons(cases.small())["vanishing-scale-limit"]


SPEC = """\
repetitions = 2
problem = { paper = "linear" }
architecture = { depth = 3 }
initialisation = { name = "zero-layer", scale = 0.0005 }
method = { name = "flow" }
"""


def test_a_study_without_traces_says_so(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path, out = tmp_path / "s.toml", tmp_path / "out"
    path.write_text(SPEC)
    assert call(monkeypatch, capsys, "study", "run", path, "--out", out)[0] == 0
    code, shown, _ = call(monkeypatch, capsys, "check", out)
    assert code == 0
    line = next(line for line in shown.splitlines() if "lemma-8" in line)
    asked = re.search(r"needs a trace: \[record\] every = N, (quantities = \[.*\]) in", line)
    assert asked is not None, line
    # What it asks for is what a study takes.
    study = parse_spec(f"{SPEC}[record]\nevery = 5\n{asked[1]}\n")
    assert run_shard(study, plan(study)[0]).traces.num_rows > 0
    records = json.loads(call(monkeypatch, capsys, "check", out, "--json")[1])
    assert all(bool(r["why"]) == (r["verdict"] == "not applicable") for r in records)


def test_a_negative_slack_that_holds_is_explained(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from flatmin.ledger import directories

    (tmp_path / "run").mkdir()
    runs = cases.small()
    # As flat as S_min but for half of what the minimiser's room allows.
    least = runs.minimal_sharpness - 0.5 * float(np.min(runs.minimiser_room))
    flat = replace(runs, sharpness=np.full(cases.NETWORKS, least), scale=runs.scale)
    monkeypatch.setattr(directories, "directory_evidence", lambda _: iter([flat]))
    code, shown, _ = call(monkeypatch, capsys, "check", tmp_path / "run")
    assert code == 0
    said = " ".join(shown.split())
    assert "exact-minimal-sharpness: a negative slack that holds" in said
    record = next(r for r in check([flat]) if r.statement == "exact-minimal-sharpness")
    assert f"explain {record.room:.2g} (its room)" in said
    # Where nothing is missed there is nothing to explain.
    monkeypatch.setattr(directories, "directory_evidence", lambda _: iter([runs]))
    shown = call(monkeypatch, capsys, "check", tmp_path / "run")[1]
    assert "exact-minimal-sharpness: a negative slack" not in " ".join(shown.split())
