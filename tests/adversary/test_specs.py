"""A short run of odd specs, and those that once broke something."""

from __future__ import annotations

import pytest

from adversary import specs
from adversary.specs import GOOD, case, lines

# Each gave a traceback, several lines, a warning of a library or exit code 1.
FOUND = {
    "an array too deep": lines(GOOD[0]).encode() + b"x = " + b"[" * 3000,
    "a number too long": lines(GOOD[1]).encode() + b"seed = " + b"9" * 5000,
}


@pytest.fixture(scope="module")
def watchdog():
    return specs.watchdog()


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_mended(watchdog, name):
    for command in ("run in an odd folder", "check"):
        assert watchdog.run(case(FOUND[name], command))[1] is None


def test_odd_specs_run_or_are_refused_in_one_line():
    score = specs.run(20, seed=5)
    assert score.failures == []
    assert score.count["cases"] == 20
