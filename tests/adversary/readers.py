"""Every reader of files under atheris (`coverage_guided`), a process a piece.

A case is a thousand inputs; a piece of a seed is always the same, a case alone is not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from adversary.watchdog import ROOT, Score

INPUTS = 1000
LIMITS = ("-max_len=6000", "-rss_limit_mb=4000", "-timeout=60")


def run(cases: int, seed: int = 0, first: int = 0) -> Score:
    """So many thousands of inputs, and what broke a reader."""
    score = Score()
    if find_spec("atheris") is None:
        score.count["not run: atheris is not installed (the extra attack)"] = cases
        return score
    score.count["cases"] = cases
    with tempfile.TemporaryDirectory(prefix="adversary-") as place:
        done = subprocess.run(
            [
                *(sys.executable, str(Path(__file__).with_name("coverage_guided.py")), "inputs"),
                *(f"-runs={INPUTS * cases}", f"-seed={(seed + first) % 2**32 or 1}", *LIMITS),
            ],
            cwd=place, env={"PYTHONPATH": str(ROOT / "src"), "TMPDIR": place, "HOME": place},
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode:
            broke = [path.read_bytes() for path in Path(place).glob("*-*")]
            last = "\n    ".join(done.stderr.splitlines()[-12:])
            score.failures.append(f"{first}: {broke!r:.2000}\n    {last}")
    return score
