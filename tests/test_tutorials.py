"""The tutorials run, cell by cell, and are stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    return [one for one in json.loads(path.read_text())["cells"] if one["cell_type"] == "code"]


def test_there_are_tutorials():
    assert len(NOTEBOOKS) >= 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    matplotlib.use("agg")
    names: dict = {}
    for cell in cells(path):
        exec(compile("".join(cell["source"]), str(path), "exec"), names)
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    assert all(not one["outputs"] and one["execution_count"] is None for one in cells(path))
