"""Whether the watchdog sees what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from adversary.grammar import numbered
from adversary.watchdog import Answer, Case, rule

CASE = Case(("predict", "t.csv"), right=lambda answer, folder: None if answer.out else "silent")
GOOD = Answer(0, b"fine\n", b"", 0.1)
REFUSED = Answer(2, b"", b"flatmin: t.csv: no such file\n", 0.1)


def test_answers_that_are_right():
    assert rule(CASE, GOOD, Path()) is None
    assert rule(CASE, REFUSED, Path()) is None
    assert rule(CASE, replace(GOOD, err=b"flatmin: a note\n"), Path()) is None
    full = b"flatmin: standard output cannot be written: No space left on device\n"
    assert rule(CASE, replace(REFUSED, out=b"half an ans", err=full), Path()) is None


@pytest.mark.parametrize(
    "answer",
    [
        replace(GOOD, out=b""),
        replace(GOOD, code=1),
        replace(GOOD, code=-11),
        replace(GOOD, hung=True),
        replace(GOOD, err=b"x.py:3: RuntimeWarning: overflow\n"),
        replace(GOOD, err=b"something\n"),
        replace(GOOD, left=("out/.trace.123.part.csv",)),
        replace(REFUSED, err=b""),
        replace(REFUSED, err=2 * REFUSED.err),
        replace(REFUSED, err=b"flatmin: a note\n" + REFUSED.err),
        replace(REFUSED, out=b"half an answer"),
        replace(REFUSED, code=1, err=b"Traceback (most recent call last):\nValueError: x\n"),
    ],
)
def test_answers_that_are_wrong(answer):
    assert rule(CASE, answer, Path()) is not None


def test_a_case_is_known_by_its_number():
    some = dict(numbered(st.integers(), 250, seed=3))
    assert sorted(some) == list(range(250))
    assert list(numbered(st.integers(), 2, seed=3, first=199)) == [
        (199, some[199]),
        (200, some[200]),
    ]
    assert dict(numbered(st.integers(), 250, seed=4)) != some
