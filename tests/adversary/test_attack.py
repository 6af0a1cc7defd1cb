"""A short run of the attacks, as `make attack` runs them."""

from __future__ import annotations

import os
import sys

import pytest

from adversary.watchdog import ROOT
from processes import run


@pytest.mark.parametrize(
    ("grammar", "cases"),
    [("tables", 40), ("options", 20), ("texts", 40), ("disks", 8), ("surroundings", 2)],
)
def test_a_short_attack(grammar, cases):
    command = [sys.executable, "-m", "tests.adversary", "--only", grammar, "--cases", cases]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    code, out, err = run([*command, "--seed", "1", "--jobs", "1"], cwd=ROOT, env=environment)
    assert code == 0, f"{out}\n{err}"
    assert f"{cases} cases in" in out
