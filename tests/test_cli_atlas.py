"""`flatmin atlas`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands import call

QUICK = ("--rates", "0.95,1.1,1.28", "--starts", "1", "--steps", "3000", "--runs", "2")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    X = random.standard_normal((40, 3))
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=X @ [1.0, 2.0, -1.0])
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_figures_and_a_table_are_written(
    table: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    folder = tmp_path / "out"
    code, out, err = call(
        monkeypatch, capsys, "atlas", table, "--target", "y", "--depths", "2,3", *QUICK,
        "--out", folder,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "c_div" in out
    assert "At depth 3 gradient descent" in " ".join(out.split())
    assert sorted(path.name for path in folder.iterdir()) == [
        *("atlas.parquet", "depth-2.png", "depth-3.png")
    ]
    rows = pd.read_parquet(folder / "atlas.parquet")
    assert rows.groupby("depth")["kind"].apply(list).to_dict() == {
        2: ["settled", "period 2", "period 4"],
        3: ["settled", "period 2", "period 4"],
    }
    assert np.ptp(rows["outputs"].iloc[1]) == pytest.approx(rows["swing"].iloc[1], rel=1e-6)


def test_the_papers_data_as_json(monkeypatch: Any, capsys: Any) -> None:
    code, out, err = call(monkeypatch, capsys, "atlas", "--depth", "3", *QUICK, "--json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)["depths"]
    assert [list(one["kinds"]) for one in found["rates"]] == [
        *(["settled"], ["period 2"], ["period 4"])
    ]
    assert found["rates"][1]["learning_rate"] == pytest.approx(
        1.1 * found["critical_learning_rate"]
    )
    assert found["thresholds"]["c_2"]["c"] == pytest.approx(1.0, abs=1e-3)
    assert found["basins"]["runs"] == 2
    out = call(monkeypatch, capsys, "atlas", "--depth", "3", *QUICK, "--no-basins", "--json")[1]
    assert json.loads(out)["depths"] == [found | {"basins": None}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--depth", "1"), "at least 2"),
        (("--depth", "2", "--depths", "3"), "--depth and --depths exclude each other"),
        (("--rates", "3:1:5"), "from a smaller to a larger"),
        (("--rates", "1:2"), "FROM:TO:COUNT"),
        (("--rates", "0:2:3"), "--rates c must be positive numbers"),
        (("--rates", "1:inf:3"), "--rates must be a number, got 'inf'"),
        (("--rates", "x"), "each of --rates must be a number, got 'x'"),
        (("--rates", ","), "FROM:TO:COUNT or a list"),
        (("--rates", "1:2:1e9"), "at most 100000"),
        (("--starts", "0"), "--starts must be a whole number"),
        (("--init", "gausian"), "did you mean 'gaussian'?"),
        (("--target", "y"), "need a FILE"),
        (("nowhere.csv",), "--target is missing"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], words: str, monkeypatch: Any, capsys: Any
) -> None:
    code, out, err = call(monkeypatch, capsys, "atlas", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
