"""Roots against SciPy's brentq and against the numbers next to them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from flatmin.theory.roots import root

FUNCTIONS = {
    "line": lambda x, r: x - r,
    "cubic, flat at its root": lambda x, r: (x - r) ** 3 / (1 + abs(x)),
    "exponential": lambda x, r: math.expm1(x - r),
    "steep": lambda x, r: math.tanh(1e6 * (x - r)),
    "pole at one end": lambda x, r: 1.0 / (r + 10.0 - x) - 0.1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(where=st.floats(-5, 5), left=st.floats(1e-3, 8), right=st.floats(1e-3, 8))
def test_known_roots(name, where, left, right):
    def function(x):
        return FUNCTIONS[name](x, where)

    found = root(function, where - left, where + right)
    if function(found) != 0.0:
        # Next to the root: the sign changes within three roundings of it.
        step = 3 * np.spacing(max(abs(found), 1e-300))
        assert function(found - step) * function(found + step) <= 0.0
    expected = brentq(function, where - left, where + right, xtol=1e-15, rtol=1e-15, disp=False)
    # At a triple root f underflows within 1e-5 of it; elsewhere both are within rounding.
    width = 1e-5 if "flat" in name else 1e-13
    assert found == pytest.approx(expected, abs=width)


def test_tiny_roots_keep_their_digits():
    assert root(lambda x: x - 1e-200, 0.0, 1.0) == pytest.approx(1e-200, rel=1e-15)


def test_it_is_quick_on_a_smooth_function():
    calls = []

    def function(x):
        calls.append(x)
        return math.cos(x) - x

    root(function, 0.0, 1.0)
    assert len(calls) < 15


def test_one_sign_is_refused():
    with pytest.raises(ValueError, match="one sign"):
        root(lambda x: 1.0 + x * x, -1.0, 1.0)
