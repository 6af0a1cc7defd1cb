"""Claims about what explains sharpening hold on tables made so, and fail on tables made not so."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flatmin.paper import sharpening
from flatmin.paper.claims import FAILS, HOLDS
from flatmin.paper.tables import StudyTables


def tables(form=lambda s: 1.01 * s):
    """Runs whose sharpness rises, falls, and rises again; `form` makes the closed form of it."""
    along = np.exp(np.concatenate([np.linspace(0, 2, 8), np.linspace(1.8, 1, 8), [1.2, 1.4, 3.0]]))
    rows, traces, run = [], [], 0
    for depth in (2, 3):
        for scale in (0.1, 0.5):
            rows.append({"run": run, "state": "settled", "depth": depth, "scale": scale})
            for step, (s, b) in enumerate(zip(along, form(along), strict=True)):
                traces.append(
                    {"run": run, "step": step, "sharpness": s, "balanced_sharpness": [b, 0.0]}
                )
            run += 1
    study = StudyTables(pd.DataFrame(rows), pd.DataFrame(traces))
    return {sharpening.STUDY: study}


def verdicts(made):
    return {
        claim.id.removeprefix(f"{sharpening.FIGURE}-"): claim.verdict
        for claim in sharpening.explained(made)
    }


def test_they_hold_where_the_form_moves_with_sharpness() -> None:
    assert set(verdicts(tables()).values()) == {HOLDS}
    assert len(sharpening.explained_figure(tables()).axes) == 3


@pytest.mark.parametrize(
    ("form", "broken"),
    [
        (lambda s: 1.0 / s, {"direction", "falls", "everywhere", "small-scale"}),
        (lambda s: 2.0 * s, {"small-scale"}),
        # A form that only rises, to the value that sharpness ends at.
        (lambda s: s[-1] * np.linspace(0.5, 1.0, len(s)), {"falls", "direction", "everywhere"}),
    ],
)
def test_each_can_fail(form, broken) -> None:
    found = verdicts(tables(form))
    assert {name for name, verdict in found.items() if verdict == FAILS} == broken


def test_runs_that_did_not_settle_and_small_moves_do_not_count() -> None:
    made = tables()[sharpening.STUDY]
    rows = made.rows.assign(state=["settled", "learning", "settled", "settled"])
    found = sharpening.moves(StudyTables(rows, made.traces))
    assert set(found["run"]) == {0, 2, 3}
    still = made.traces.assign(sharpness=1.0 + 1e-5 * made.traces["sharpness"])
    assert len(sharpening.moves(StudyTables(made.rows, still))) == 0
