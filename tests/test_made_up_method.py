"""The seam of methods: one made up here needs its class and its row, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import flatmin
from processes import run

MADE_UP = """
import io, sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy as np
from flatmin.core.checks import check_nonnegative
from flatmin.dynamics import methods
from flatmin.dynamics.method import GradientDescent, Own
from flatmin.dynamics.rule import Rule

@dataclass(frozen=True)
class Careful(GradientDescent):
    care: float
    name: ClassVar[str] = "careful"
    title: ClassVar[str] = "Careful descent"
    own: ClassVar[dict] = {"care": Own(check_nonnegative, help="How careful.")}
    flag: ClassVar[tuple] = ("careful", "Take care.")

    @property
    def rule(self):
        return Rule(reach=1.0 / (1.0 + self.care))

methods.METHODS[Careful.name] = Careful
methods.OWN.update(Careful.own)

from flatmin.cli import main
from flatmin.lab.settings import METHODS
from flatmin.ledger.directories import directory_evidence
from flatmin.study.spec import STARTER, parse_spec

def command(*words):
    sys.argv = ["flatmin", *words]
    with redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            assert not end.code, out.getvalue()
    return " ".join(out.getvalue().split())

folder, said = sys.argv[1], command("train", "--help")
assert "--care NUMBER How careful." in said and "--careful Take care." in said, said
options = ["--careful", "--care", "3", "--learning-rate", "0.01", "--steps", "50"]
command("train", "--depth", "3", *options, "--json", "--out", folder)
(runs,) = directory_evidence(Path(folder))
np.testing.assert_allclose(runs.edge, 25.0)
assert '"careful"' in STARTER and "careful" in METHODS
text = STARTER.replace('name = "descent"', 'name = "careful"\\ncare = 3')
assert parse_spec(text).method.with_rates(0.01) == Careful(0.01, 3.0)
"""


def test_a_method_needs_its_row_only(tmp_path):
    """It is in train's options, in studies, in the lab and at the ledger's edge."""
    assert run([sys.executable, "-c", MADE_UP, tmp_path / "run"]) == (0, "", "")


def test_few_files_know_of_momentum():
    """Its own two, and five others at the most; probes read the optimisers of others."""
    source = Path(flatmin.__file__).parent
    own = {"dynamics/momentum.py", "lanes/momentum_descent.py"}
    texts = {path: path.read_bytes() for path in source.rglob("*.*") if path.suffix != ".pyc"}
    words = b"HeavyBall|Nesterov(?! and)|momentum"  # Nesterov and Nemirovskii: of convex programs
    told = [path for path, text in texts.items() if re.search(words, text)]
    names = {path.relative_to(source).as_posix() for path in told} - own
    assert len([name for name in names if not name.startswith("probes/")]) <= 5
