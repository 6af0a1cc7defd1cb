"""Kernels write to memory that is theirs for as long as they write to it."""

from __future__ import annotations

import ast
import ctypes
import sys
from pathlib import Path

import pytest

import flatmin.lanes
from processes import run

# `flow` sees its buffer by lanes as well, to the end, and so holds it.
HELD_TO_THE_END = {("flow.py", "buffer")}

# A chain of layers of one weight, all 1: the scratch of its solver has more than 2 MB, which no
# heap has in one piece: it is mapped, and unmapped as soon as nothing holds it. What writes there
# afterwards ends in a segmentation fault, where memory of a heap would be spoiled silently.
DEEP = """
import ctypes
import numpy as np
from flatmin.curvature.compiled import _given, _of_blocks, blocks_sharpness
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

def of_depth(depth):
    one = Ensemble.from_flat(Architecture(1, (1,) * depth, (1.0,)), np.ones((1, depth)))
    data = Regression.from_arrays(np.ones((2, 1)), np.ones(2))
    start = np.ones((1, 2 * depth - 1, one.lanes.shape[2]))
    return _of_blocks(blocks_sharpness, *_given(data, one, start), 1e-6, 10, 2)[0, 0, 0]

of_depth(3)  # compiles
assert ctypes.CDLL(None).mallopt(-3, 1 << 16) == 1  # M_MMAP_THRESHOLD
np.testing.assert_allclose(of_depth(16000), 2 * 16000)
"""


def rooted_in(expression: ast.expr) -> str:
    """The name that an expression begins with: x of x.y[0].reshape(-1)."""
    while not isinstance(expression, ast.Name):
        assert isinstance(expression, ast.Attribute | ast.Subscript | ast.Call)
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.id


def test_places_are_of_arrays_that_somebody_holds() -> None:
    """An array that a function makes is freed after its last use, places in it or not."""
    folder = Path(flatmin.lanes.__path__[0])
    seen, loose = 0, []
    for path in folder.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            given = {argument.arg for argument in function.args.args}
            inner = {
                id(call)
                for one in ast.walk(function)
                if isinstance(one, ast.FunctionDef) and one is not function
                for call in ast.walk(one)
            }
            for call in ast.walk(function):
                called = isinstance(call, ast.Call) and id(call) not in inner and call.func
                if isinstance(called, ast.Name) and called.id == "vectors":
                    assert isinstance(call, ast.Call)
                    seen, name = seen + 1, rooted_in(call.args[1])
                    if name not in given and (path.name, name) not in HELD_TO_THE_END:
                        loose.append(f"{path.name}:{call.lineno} {name}")
    assert seen > 20
    assert not loose


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mallopt")
def test_scratch_lives_as_long_as_it_is_used() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("another allocator")
    code, _, errors = run([sys.executable, "-c", DEEP])
    assert code == 0, errors
