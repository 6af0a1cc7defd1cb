"""A short run of odd specs, and those that once broke something."""

from __future__ import annotations

import copy

import pytest

from adversary import specs
from adversary.specs import GOOD, case, lines


def changed(number: int, **sections: dict) -> bytes:
    """A good spec with some values set."""
    spec = copy.deepcopy(GOOD[number])
    for name, values in sections.items():
        spec[name] = spec.get(name, {}) | values if isinstance(values, dict) else values
    return lines(spec).encode()


# Each gave a traceback, several lines, a warning of a library or exit code 1.
FOUND = {
    "an array too deep": lines(GOOD[0]).encode() + b"x = " + b"[" * 3000,
    "a number too long": lines(GOOD[1]).encode() + b"seed = " + b"9" * 5000,
    "a minimiser below S_min": changed(3, initialisation={"scale": 0.1}),
    "an empty zip": changed(0, grid={"zip": [{}]}),
    "infinities in linspace": changed(0, grid={"scale": {"linspace": [0, float("inf"), 3]}}),
    "noise of 1e200": changed(0, problem={"noise": 1e200}),
    "a name with markup": changed(0, name="[/red]"),
    "a name of 300 characters": changed(0, name="x" * 300),
    "a width of 1e6": changed(0, architecture={"width": 10**6, "depth": 5}),
    "a width of 1e6 on rows": changed(2, architecture={"width": 10**6, "activation": "relu"}),
    "a million features": changed(0, problem={"d": 10**6}),
    "a tolerance of 1e308": changed(4, method={"tolerance": 1e308}),
    "infinities in logspace": changed(0, grid={"width": {"logspace": [9, float("-inf"), 99]}}),
    "a number of 400 digits": changed(0, problem={"n": 10**400}),
    "a scale of 1e308": changed(3, initialisation={"scale": 1e308}),
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


def test_why_a_spec_is_refused_is_said(watchdog):
    answer, _ = watchdog.run(case(FOUND["noise of 1e200"], "check"))
    assert b"noise must be at most 1e+100, got 1e+200" in answer.err
    answer, _ = watchdog.run(case(FOUND["an array too deep"], "check"))
    assert answer.err.startswith(b"flatmin: spec.toml is not valid TOML")
    answer, _ = watchdog.run(case(FOUND["a width of 1e6"], "run in an odd folder"))
    assert b"4 of 4 shards of this study cannot be run" in answer.err
