"""`flatmin check` as it is called: table, records, figures, exit codes, presets."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from commands import call
from flatmin.data.sets import paper_samples
from flatmin.dynamics.methods import GradientFlow
from flatmin.dynamics.training import train
from flatmin.ledger.check import check
from flatmin.ledger.directories import directory_evidence
from flatmin.ledger.presets import run_preset
from flatmin.ledger.record import Verdict
from flatmin.ledger.statements import STATEMENTS
from flatmin.network.architecture import Architecture

NAMES = [statement.id for statement in STATEMENTS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    """A run of gradient flow, saved."""
    folder: Path = tmp_path_factory.mktemp("check") / "run"
    run = train(paper_samples(), Architecture.mlp(5, 3), scale=0.3, method=GradientFlow())
    run.save(folder)
    return folder


def lines(out: str) -> list[list[str]]:
    """The lines of the table, a list of cells each."""
    rows = [line.strip() for line in out.splitlines()]
    return [re.split(r"\s{2,}", row) for row in rows if row.split("  ")[0] in NAMES]


def test_the_table_has_one_line_a_statement(run: Path, monkeypatch: Any, capsys: Any) -> None:
    code, out, err = call(monkeypatch, capsys, "check", run)
    assert (code, err) == (0, "")
    table = lines(out)
    assert [row[0] for row in table] == NAMES
    assert {row[1] for row in table} <= {verdict.value for verdict in Verdict}
    rows = {row[0]: row for row in table}
    records = check(directory_evidence(run))
    for name in ("lemma-1", "lemma-2", "exact-minimal-sharpness"):
        tightest = min(r.slack for r in records if r.statement == name)
        assert rows[name][1:3] == ["holds", f"{tightest:.4g}"]
    assert rows["edge"][1:] == ["not applicable", "needs gradient descent; this is gradient flow"]
    held = [row for row in table if row[1] == "holds"]
    assert f"{len(held)} of {len(NAMES)} statements apply to this network; all of them hold." in out


@pytest.mark.parametrize("width", [80, 100, 250])
def test_a_narrow_terminal_keeps_the_numbers(
    run: Path, width: int, monkeypatch: Any, capsys: Any
) -> None:
    wide = {row[0]: row[:5] for row in lines(call(monkeypatch, capsys, "check", run)[1])}
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    out = re.sub(r"\x1b\[[\d;]*m", "", call(monkeypatch, capsys, "check", run)[1])
    assert max(len(line) for line in out.splitlines()) <= width
    table = {row[0]: row[:5] for row in lines(out)}
    assert list(table) == NAMES
    for name, row in table.items():
        if wide[name][1] == "holds":
            assert row == wide[name]


def test_the_records_as_json(run: Path, monkeypatch: Any, capsys: Any) -> None:
    code, out, err = call(monkeypatch, capsys, "check", run, "--json")
    assert (code, err) == (0, "")
    records = json.loads(out)
    assert isinstance(records, list)
    assert list(dict.fromkeys(record["statement"] for record in records)) == NAMES
    keys = {"statement", "hypothesis", "verdict", "bound", "measured", "slack", "at"}
    for record in records:
        assert keys <= set(record)
        assert record["verdict"] in {"holds", "violated", "not applicable"}
        assert record["hypothesis"]
        if record["verdict"] == "holds":
            assert isinstance(record["measured"], float)
            assert isinstance(record["bound"], float)
            assert record["networks"] == 1
    (lemma_1,) = [record for record in records if record["statement"] == "lemma-1"]
    slack = lemma_1["bound"] / lemma_1["measured"] - 1.0
    assert lemma_1["slack"] == pytest.approx(slack)
    assert 0.0 < lemma_1["error"] < 1e-5


def test_figures(run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = tmp_path / "new" / "figures"
    code, out, _ = call(monkeypatch, capsys, "check", run, "--figures", folder)
    assert code == 0
    measured = {r.statement for r in check(directory_evidence(run)).single if r.sides is not None}
    paths = {path.name: path for path in folder.iterdir()}
    assert set(paths) == {f"{name}.png" for name in measured | {"slack"}}
    for path in paths.values():
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(content) > 5000
        width, height = struct.unpack(">II", content[16:24])
        assert 300 < width < 5000
        assert 200 < height < 5000
        assert str(path) in out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a directory or a preset"),
        ((".", "--preset", "residual"), "give either a directory or a preset"),
        (("--preset", "large-init"), "preset must be"),
        (("--preset", "small-init", "--seed", "-1"), "--seed must be a whole number"),
        (("--preset", "small-init", "--seed", "x"), "--seed must be a number"),
        (("no/such/folder",), "there is no folder"),
        (("--verbose",), "No such option"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: Any, capsys: Any
) -> None:
    code, out, err = call(monkeypatch, capsys, "check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("flatmin: ")
    assert err.count("\n") == 1
    assert message in err


# Seeds that were not used while the checkers were written.


def test_small_init_holds_on_another_seed(monkeypatch: Any, capsys: Any) -> None:
    code, out, err = call(
        monkeypatch, capsys, "check", "--preset", "small-init", "--seed", "101", "--json"
    )
    assert (code, err) == (0, "")
    records = json.loads(out)
    held = {record["statement"] for record in records if record["verdict"] == "holds"}
    assert held == set(NAMES) - {
        *("lemma-3", "lemma-9", "theorem-4", "theorem-5", "corollary-3", "edge"),
        "period-two-orbit",
    }
    (corollary,) = [r for r in records if (r["statement"], r["part"]) == ("corollary-1", "lower")]
    # (A2) is met at the smallest of the three scales: 8 networks at 3 depths on 2 data sets.
    assert corollary["networks"] == 48


@pytest.mark.parametrize(
    ("preset", "seed", "about"),
    [
        ("residual", 202, {"lemma-1", "lemma-9", "theorem-4", "corollary-3", "gradient-sandwich"}),
        ("multivariate", 101, {"lemma-1", "lemma-9", "theorem-5", "exact-minimal-sharpness"}),
    ],
)
def test_other_presets_hold_on_another_seed(preset: str, seed: int, about: set[str]) -> None:
    records = check(run_preset(preset, seed))
    assert records.violated == []
    assert about <= {record.statement for record in records if record.verdict is Verdict.HOLDS}
    parts = {record.part for record in records if record.statement in ("theorem-4", "theorem-5")}
    assert {"converges", "bounded in L, with noise", "bounded in d, with noise"} <= parts
